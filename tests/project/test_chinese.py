"""The Chinese pages: they mirror the English ones, and keep to the glossary and its punctuation."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_docs import Block, blocks, commands

from native_build import ROOT

pytestmark = pytest.mark.static

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.zh-CN.md"] + [
    path
    for path in sorted((DOCS / "zh").rglob("*.md"))
    if path.parent.name != "rules" or path.stem == "index"  # rules are made from the package's
]
# As 页锁定内存, 上下文, 工具包 ... are called elsewhere: docs/zh/glossary.md.
OTHER_TERMS = (
    "固定内存",
    "锁页内存",
    "钉住",
    "上下文环境",
    "工具箱",
    "工具集",
    "GPU 内核",
    "笔记本",
    "拷贝",
    "分页锁定",
    "发行版本",
    "手工创建",
    "搜索路径",
    "暂存",
    "您",
)
CODE = re.compile(r"^ *```.*?^ *```$|^<!--.*?-->$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def english(path: Path) -> Path:
    if path.parent == ROOT:
        return ROOT / "README.md"
    if path.parent.name == "zh" and DOCS not in path.parents:
        return path.parent.parent / path.name
    page = DOCS / path.relative_to(DOCS / "zh")
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    included = re.fullmatch(r"```{include} (\S+)\n```\n", text)
    return (page.parent / included[1]).resolve() if included else page


MIRRORED = [  # test_course compares the chapters; the changelog is the English one
    path
    for path in PAGES
    if english(path).exists() and not path.name.startswith("0") and path.stem != "changelog"
]

CHAPTERS = [path for path in PAGES if path.name.startswith("0")]
RULES = sorted((ROOT / "python" / "cudriver").rglob("data/**/zh/*.md"))


def meaning(block: Block) -> object:
    """What a block says without its comments; a drawing has words, so only that it is there."""
    if block.kind == "python":
        return block.needs, block.run, ast.dump(ast.parse(block.text))
    if block.kind == "console":
        return block.run, [
            (re.sub(r" +# .*", "", command.words), command.output)
            for command in commands(block.text)
        ]
    text = "" if block.kind == "text" else re.sub(r"# .*", "", block.text)
    return block.kind, block.run, text


def headings(path: Path) -> list[int]:
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


def prose(path: Path) -> str:
    """The text without code, links' targets, and what stands between backticks."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    return re.sub(r"`[^`]+`|\]\([^)]+\)|<[^>]+>", "", text)


def test_pages_mirror_the_english_ones() -> None:
    for page in MIRRORED:
        other = english(page)
        assert headings(page) == headings(other), name(page)
        shown, expected = (
            [meaning(block) for block in blocks(path) if not block.kind.startswith("{")]
            for path in (page, other)
        )
        assert shown == expected, name(page)


def figures(path: Path) -> set[str]:
    """The numbers of a page's prose, without dates and the numbers of lists."""
    month = "January|February|March|April|May|June|July|August|September|October|November|December"
    dates = rf"\d+ 年( \d+ 月( \d+ 日)?)?|(\d+[\s>]+)?({month}) \d{{4}}|^ *\d+\. "
    text = re.sub(dates, "", prose(path), flags=re.MULTILINE)
    return set(re.findall(r"(?<![\w.])\d(?:[\d,.]*\d)?", text))


def test_pages_have_the_figures_of_the_english_ones() -> None:
    for page in [*MIRRORED, *CHAPTERS, *RULES]:
        here, there = figures(page), figures(english(page))
        if "{include}" in page.read_text(encoding="utf-8"):  # tables of the English page
            there &= here
        assert here == there, name(page)


WHOLE = [  # the glossary has entries of its own; others show parts of the English page
    page
    for page in [*MIRRORED, *RULES]
    if page.stem != "glossary" and "{include}" not in page.read_text(encoding="utf-8")
]


def shown_as_code(path: Path) -> set[str]:
    """What a page's prose shows as code, without the names of pages."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    words = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
    return {code for code in words if not re.fullmatch(r"(docs|course)/\S+", code)}


def test_pages_name_what_the_english_ones_do() -> None:
    lacking = {name(page): shown_as_code(english(page)) - shown_as_code(page) for page in WHOLE}
    assert {page: words for page, words in lacking.items() if words} == {}


def test_pages_have_chinese_punctuation_and_the_terms_of_the_glossary() -> None:
    wrong = r'[\u4e00-\u9fff][,;:?!()]|[,;?!()][\u4e00-\u9fff]|"|「'
    for page in [*PAGES, *RULES]:
        assert re.findall(wrong, prose(page)) == [], name(page)
        text = re.sub("零拷贝|笔记本电脑", "", page.read_text(encoding="utf-8"))
        assert [term for term in OTHER_TERMS if term in text] == [], name(page)


def test_there_are_pages() -> None:
    assert len(MIRRORED) > 40
    assert len(WHOLE) > 100
    assert len(RULES) > 50


def test_the_site_shows_no_space_where_a_line_of_chinese_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sphinx.application", reason="needs the docs extra")
    from docutils import nodes

    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import chinese

    # As MyST has them: each line's end a node, and an empty one behind strong text.
    texts = ["库带有", "\n", "RPATH。换掉一半", "\n", "「规则」", "", "\n", "部分"]
    paragraph = nodes.paragraph("", "", *map(nodes.Text, texts))
    paragraph.insert(5, nodes.strong("", "粗体"))
    document = nodes.section("", paragraph)
    chinese.join_lines(SimpleNamespace(config=SimpleNamespace(language="zh_CN")), document)
    assert paragraph.astext() == "库带有\nRPATH。换掉一半「规则」粗体部分"


def test_the_site_says_in_chinese_what_its_theme_says() -> None:
    furo = pytest.importorskip("furo", reason="needs the docs extra")
    import sphinx
    from babel.messages.pofile import read_po
    from jinja2 import Environment

    theme = Path(furo.__file__).parent / "theme" / "furo"
    page, icons, search, box = (
        (theme / f"{name}.html").read_text(encoding="utf-8")
        for name in ("page", "partials/icons", "search", "sidebar/search")
    )
    jinja = Environment(extensions=["jinja2.ext.i18n"])
    said = {
        words
        for template in (page, search, box)
        for _, _, words in jinja.extract_translations(template)
        if re.sub("<[^>]*>", "", words).strip() != "Furo"
    }
    # What the theme does not look up, our template does: labels, and the titles of icons.
    labels = set(re.findall('aria-label="([^"{]+)"', page)) - {"On GitHub", "On Read the Docs"}
    labels |= set(re.findall("<title>([^<]+)</title>", icons))
    ours = (DOCS / "_templates" / "page.html").read_text(encoding="utf-8")
    assert set(re.findall('^    "(.+)",$', ours, re.MULTILINE)) == labels

    def catalogue(folder: Path) -> set[str]:
        with (folder / "zh_CN" / "LC_MESSAGES" / "sphinx.po").open("rb") as file:
            return {str(message.id) for message in read_po(file) if message.id and message.string}

    known = catalogue(Path(sphinx.__file__).parent / "locale") | catalogue(DOCS / "zh" / "locales")
    assert {"Next", "Search"} <= said
    assert (said | labels) - known == set()


def test_the_site_finds_the_words_of_a_chinese_query(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jieba", reason="needs the docs extra")
    node = shutil.which("node") or pytest.skip("needs node, for what a browser runs")
    from sphinx.search import IndexBuilder

    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import chinese_search

    lang = chinese_search.Search({})
    text = "页锁定内存与可分页内存：锁页的代价，CUDA"
    index = {"terms": {lang.stem(word): 0 for word in lang.split(text)}, "titleterms": {}}
    program = f"""
    const window = {{}}, Search = {{ _index: {json.dumps(index)} }};
    {IndexBuilder.get_js_stemmer_code(SimpleNamespace(lang=lang))}
    {lang.js_splitter_code}
    const words = splitQuery("页锁定内存的代价 CUDA内存甲乙 丙丁");
    const stem = (word) => new window.Stemmer().stemWord(word.toLowerCase());
    console.log(JSON.stringify(words.map(stem)));
    """
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=False)
    assert (done.stderr, json.loads(done.stdout or "[]")) == (
        "",
        ["页锁定内存", "代价", "cuda", "内存", "丙丁"],
    )
