"""What the pages show: Python runs, commands print what is shown, and pictures are up to date.

A command in a ```console block that has output below it is run, in bash, on the machine that
model_machine.py makes: `...` stands for any lines. One of ours without output must be one that its
parser takes. ```python blocks of a page run one after another in a process of their own, and what
they print on the simulated driver is in the page. ```bash blocks are scripts. Comments of a page,
which no reader sees, steer this:

    <!-- run                  Python that runs before what follows
    -->
    <!-- needs: torch gpu -->     the next block needs PyTorch and the real driver
    <!-- not run: the reason -->  the next block is only compiled
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cudriver as cu
import cudriver.typing as cut
from cudriver.cli import COMMANDS, _load
from cudriver.stack import rulebook
from cudriver.stack.report import formats
from cudriver.stack.say import choose
from model_machine import make, picture
from native_build import ROOT

pytestmark = pytest.mark.static  # what a sanitizer could see, the other tests show it

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$"
    r"|<!-- (?P<word>run|needs|not run)\b:?(?P<about>.*?)-->",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    kind: str
    text: str
    needs: tuple[str, ...] = ()
    run: bool = True


ELSEWHERE = {"fleets.md"}  # run by tests/fleet, with the engines


def pages() -> Iterator[Path]:
    """READMEs and the site's pages, but for notebooks (which run when it is built) and rules."""
    yield from sorted(ROOT.glob("README*.md"))
    for path in sorted(DOCS.rglob("*.md")):
        rule = path.parent.name == "rules" and path.stem != "index"
        notebook = path.read_text(encoding="utf-8").startswith("---\njupytext")
        if not (rule or notebook or path.name in ELSEWHERE):
            yield path


def blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    needs: tuple[str, ...] = ()
    run = True
    for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if match["word"] == "run":
            found.append(Block("python", match["about"], needs))
            needs = ()
        elif match["word"] == "needs":
            needs = tuple(match["about"].split())
        elif match["word"] == "not run":
            run = False
        else:
            text = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
            found.append(Block(match["kind"], text, needs, run))
            needs, run = (), True
    return found


ALL = {str(path.relative_to(ROOT)): blocks(path) for path in pages()}


def having(*kinds: str) -> list[str]:
    return [name for name, found in ALL.items() if any(block.kind in kinds for block in found)]


def is_here(need: str) -> bool:
    if need == "gpu":
        return os.environ.get("CUDRIVER_TEST_DRIVER") == "real"
    return importlib.util.find_spec(need) is not None


@functools.cache  # without its comments, a translated page has the same code
def run(code: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=300,
            check=False,
        )


@pytest.mark.parametrize("name", having("python"))
def test_python_runs(name: str) -> None:
    lines = []
    for block in ALL[name]:
        if block.kind != "python":
            continue
        compile(block.text, name, "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        if block.run and all(map(is_here, block.needs)):
            lines.append(block.text)
    if not lines:
        pytest.skip("each block needs what is not here, or is not to be run")
    done = run(ast.unparse(ast.parse("\n".join(lines))))
    assert (done.returncode, done.stderr) == (0, "")
    if not is_here("gpu"):
        page = (ROOT / name).read_text(encoding="utf-8")
        assert [line for line in done.stdout.splitlines() if line not in page] == []


LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
LINKING = sorted({*pages(), *ROOT.glob("*.md"), *DOCS.rglob("0*.md")})


@pytest.mark.skipif(not (ROOT / "cext").exists(), reason="needs a checkout")
@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_in_a_checkout(path: Path) -> None:
    """`make docs` follows the site's links; readers of the sources follow these."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    made = DOCS / "reference" / "rules", DOCS / "zh" / "reference" / "rules"
    copied = DOCS / "zh" / "course" / "lab.py"  # when the site is built
    for link in LINK.findall(text):
        file = Path(os.path.normpath(path.parent / link))
        assert file.exists() or file == copied, link
        assert file.parent not in made or file.stem == "index", f"{link}: made for the site only"


class Command(NamedTuple):
    words: str
    output: str


def commands(text: str) -> Iterator[Command]:
    """The commands of a ```console block; one may go on after a backslash."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        end = 1 + next(at for at, line in enumerate(lines) if not line.endswith("\\"))
        yield Command("\n".join(lines[:end]), "\n".join(lines[end:]).strip("\n"))


CONSOLE = [
    pytest.param(name, list(commands(block.text)), id=f"{name}-{at}")
    for name, found in ALL.items()
    for at, block in enumerate(found)
    if block.kind == "console" and block.run
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or platform.machine() != "x86_64":
        pytest.skip("needs gcc, and makes libraries of x86-64")
    root = tmp_path_factory.mktemp("machine")
    make(root)
    return root


@pytest.fixture
def machine(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of its own for each test, since commands fix it."""
    root = tmp_path_factory.mktemp("root") / "machine"
    return Path(shutil.copytree(made, root, symlinks=True))


def bash(script: str, machine: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script on the machine: `cudriver` and an environment's Python are those of it."""
    here = f"{shlex.quote(sys.executable)} -m model_machine in {shlex.quote(str(machine))}"
    names = ("cudriver", "/srv/envs/train/bin/python")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    prelude = "".join(f'{name}() {{ {here} "$@"; }}\n' for name in names)
    return subprocess.run(
        ["bash", "-c", prelude + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "PATH": path},
        timeout=120,
        check=False,
    )


def agrees(shown: str, printed: str) -> bool:
    """Whether that was printed; a line `...` stands for any lines."""
    lines = shown.splitlines()
    form = "".join(r"(?:.*\n)*" if x.strip() == "..." else re.escape(x) + "\n" for x in lines)
    return re.fullmatch(form, printed.strip("\n") + "\n") is not None


@pytest.fixture(scope="module")
def printed_by(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What a script prints on a machine of its own. Most are in the pages of both languages: these
    run once."""

    @functools.cache
    def printed(script: str) -> str:
        root = tmp_path_factory.mktemp("root") / "machine"
        shutil.copytree(made, root, symlinks=True)
        return bash(script, root, tmp_path_factory.mktemp("folder")).stdout

    return printed


@pytest.mark.parametrize(("name", "block"), CONSOLE)
def test_commands_print_what_is_shown(
    name: str, block: list[Command], printed_by: Callable[[str], str]
) -> None:
    for command in block:
        words = shlex.split(command.words, comments=True)
        if words[0] == "cudriver" and words[1:] and not command.output:
            module = _load(words[1])
            assert module is not None, command.words
            until = next((n for n, word in enumerate(words) if word[0] in "<>|&"), len(words))
            assert module.parser().parse_args(words[2:until])
    shown = [command for command in block if command.output]
    end = "status=$?; printf '\\036'; (exit $status)\n"  # for the next command's $?
    all_printed = printed_by("".join(f"{command.words}\n{end}" for command in shown))
    for command, printed in zip(shown, all_printed.split("\036"), strict=False):
        if not agrees(command.output, printed):
            assert printed.strip("\n") == command.output, command.words
    assert all_printed.count("\036") == len(shown)


SCRIPTS = [
    pytest.param(block, id=f"{name}-{at}")
    for name, found in ALL.items()
    for at, block in enumerate(found)
    if block.kind == "bash"
]


@pytest.mark.parametrize("block", SCRIPTS)
def test_a_script_runs(block: Block, machine: Path, tmp_path: Path) -> None:
    done = bash(block.text if block.run else f"set -n\n{block.text}", machine, tmp_path)
    assert done.returncode == 0, done.stdout


#: A block's kind: what parses it, if that is there.
PARSERS = {"json": ("json", "loads"), "toml": ("tomllib", "loads"), "yaml": ("yaml", "safe_load")}


@pytest.mark.parametrize("kind", PARSERS)
def test_files_that_are_shown_can_be_parsed(kind: str) -> None:
    module, function = PARSERS[kind]
    parse = getattr(pytest.importorskip(module), function)
    shown = [block.text for found in ALL.values() for block in found if block.kind == kind]
    assert shown
    assert all(map(parse, shown))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_is_short(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").count("\n") <= 150


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/reference/commands.md"])
def test_every_command_is_named(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"cudriver {name}" not in text] == []


def test_the_reference_has_every_public_name() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference" / "api").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)(?:\(\))?$", text, re.MULTILINE))
    wanted = {name for name in cu.__all__ if not inspect.ismodule(getattr(cu, name))}
    wanted |= {*cu.stack.__all__, *cu.fleet.__all__, *cut.__all__}
    assert wanted - named == {"__version__"}


def words(svg: str) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", svg)


@pytest.mark.parametrize(("name", "language"), [("check", "en"), ("check-zh", "zh")])
def test_the_picture_of_the_check_is_what_it_prints(
    machine: Path, name: str, language: str
) -> None:
    drawn = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    try:
        assert words(drawn) == words(picture(machine, language)), "make pictures"
    finally:
        choose(None)


@pytest.mark.parametrize(("name", "language"), [("rates", "en"), ("rates-zh", "zh")])
def test_the_picture_of_the_rates_is_what_was_measured(
    tmp_path: Path, name: str, language: str
) -> None:
    chart = pytest.importorskip("benchmarks.chart", reason="needs benchmarks/ beside tests/")
    chart.main(str(tmp_path / "rates.svg"), language)
    drawn = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "rates.svg").read_text(encoding="utf-8"), "make pictures"


OURS = {
    "array": cu.DeviceArray,
    "cu": cu,
    "event": cu.Event,
    "start": cu.Event,
    "stream": cu.Stream,
}


@pytest.mark.parametrize("page", ["docs/howto/coming-from.md", "docs/zh/howto/coming-from.md"])
def test_our_names_beside_those_of_other_libraries_exist(page: str) -> None:
    rows = re.findall(r"^\| .+ \| (.+) \|$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    code = " ".join(re.findall("`([^`]+)`", " ".join(rows)))
    named = set(re.findall(rf"\b({'|'.join(OURS)})\.(\w+)", code))
    assert len(named) > 30
    assert [(owner, name) for owner, name in named if not hasattr(OURS[owner], name)] == []
    attributes = set(re.findall(r"cu\.Device\(\d\)\.(\w+)", code))
    assert attributes
    assert [name for name in attributes if not hasattr(cu.Device, name)] == []
    for function, given in re.findall(r"cu\.(\w+)\([^()]*?(\w+)=", code):
        assert given in inspect.signature(getattr(cu, function)).parameters, function


@pytest.mark.parametrize("page", ["docs/faq.md", "docs/zh/faq.md"])
def test_each_line_of_a_pasted_error_belongs_to_the_rule_that_answers_it(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    answers = re.findall(r"^```text\n(.*?)^```\n(.*?)(?=^```|^#)", text, re.MULTILINE | re.DOTALL)
    assert len(answers) > 10
    for error, answer in answers:
        rules = re.findall(r"\[(\w+)\]\(\S*/data/rules/", answer)
        for line in error.splitlines():
            assert [match.rule for match in rulebook.match(line)][:1] == rules, line


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_first_screen_names_the_two_commands(name: str) -> None:
    """What a newcomer sees before scrolling: thirty lines."""
    first = (ROOT / name).read_text(encoding="utf-8").splitlines()[:30]
    for command in ("make run", "make test"):
        assert any(line.startswith(f"$ {command} ") for line in first)


@pytest.mark.parametrize("page", ["docs/check.md", "docs/zh/check.md"])
def test_the_page_names_every_format(page: str) -> None:
    text = (ROOT / page).read_text()
    for row in formats.FORMATS:
        assert not row.help or f"`--{row.name}" in text, row.name
