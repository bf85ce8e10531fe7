"""A page for each rule, as `cudriver explain` shows it; rules that it names become links."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from cudriver.cli.explain import folder, rule_names
from cudriver.stack import rulebook


def linked(page: str, own: str, pages: dict[str, str]) -> str:
    """The page, with links on the other rules' names outside of headings and code."""

    def link(match: re.Match[str]) -> str:
        name = match[0]
        return f"[{name}]({name}.md)" if name in pages and name != own else name

    lines, code = [], False
    for line in page.splitlines():
        fence = line.startswith("```")
        code ^= fence
        plain = not (code or fence or line.startswith("#"))
        lines.append(re.sub(r"(?a:\b)(?:CU|EX|FL)\d{3}(?a:\b)", link, line) if plain else line)
    return "\n".join(lines) + "\n"


def write_pages(app: Sphinx) -> None:
    """Writes the pages before Sphinx looks for them, and touches none that is as it was."""
    made = Path(app.srcdir) / "reference" / "rules"
    made.mkdir(parents=True, exist_ok=True)
    lang = app.config.language.partition("_")[0]
    pages = {name: rulebook.page(name, lang, folder(name)) for name in rule_names()}
    for name, page in pages.items():
        file, text = made / f"{name}.md", linked(page, name, pages)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in made.glob("[A-Z]*.md"):
        if file.stem not in pages:
            file.unlink()


def lead_to_the_site(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Links to the package's files of the rules, which work in a checkout, lead to their pages."""
    source[0] = re.sub(
        r"\]\([./]*/python/cudriver/stack/data/rules/(?:zh/)?(\w+\.md)\)",
        r"](/reference/rules/\1)",
        source[0],
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", lead_to_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
