"""`cudriver explain`: what a rule means, or which rule an error belongs to."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, terminal
from cudriver.stack.say import language
from cudriver.stack.text import wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from cudriver.stack.explaining import Explanation
    from cudriver.stack.report.text import Style

COULD_NOT_TELL = 3
TEXT_LIMIT = 4 << 20  # bytes of pasted text that are looked at, the last ones


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver explain",
        description="What a rule means, how it is detected and how it is fixed. Without RULE, the "
        "error's text is read from standard input and its rule found.",
        epilog="exit status: 0 explained, 2 usage, 3 no rule matches this text",
    )
    result.add_argument(
        "rule", metavar="RULE", nargs="*", help="CU303, or the error's text in quotes"
    )
    result.add_argument("--list", action="store_true", help="every rule, a line each")
    result.add_argument("--json", action="store_true", help="as JSON")
    return result


def run(arguments: Namespace) -> int:
    """Prints the pages asked for and returns the exit code."""
    from cudriver.stack import rulebook
    from cudriver.stack.explaining import explain
    from cudriver.stack.record import but

    arguments.lang = arguments.lang or ("en" if arguments.json else language())
    if arguments.list or (not arguments.rule and sys.stdin.isatty()):
        return _list(arguments.json, arguments.lang)
    if arguments.rule == ["-"]:
        arguments.rule = []
    known = rule_names()
    numbers = {name[2:]: name for name in reversed(known)}  # CU's before those of others
    names = [numbers.get(word, word.upper()) for word in arguments.rule]
    found: list[Explanation] = []
    if not names or not all(_looks_like_rule(name) for name in names):
        before, text = (0, " ".join(arguments.rule)) if names else _standard_input()
        if not text.strip():
            return _nothing(
                "no text on standard input; cudriver explain < traceback.txt", arguments
            )
        found = explain(text, lang=arguments.lang)
        names = [each.rule for each in found]
        found = [but(each, line=before + each.line) for each in found if each.line is not None]
        if not names:
            told = "no rule matches this text; try cudriver check, or cudriver explain --list"
            return _nothing(told, arguments)
    for name in names:
        if name not in known:
            terminal.complain(f"no rule {name}; cudriver explain --list has them all")
            return USAGE_ERROR
    if arguments.json:
        _print_json(names, found, arguments.lang)
        return 0
    style = terminal.style(sys.stdout)
    lines: list[str] = []
    for each in found:
        lines.append(f"{style.paint(each.rule, 'bold')}  {each.title}")
        for text in (f"line {each.line}: {each.text}", *each.answer):
            lines += ["  " + line for line in wrap(text, style.width - 2)]
    # A traceback may touch several rules; the likeliest is the one to read about.
    for name in names[:1] if found else names:
        page = rulebook.page(name, arguments.lang, folder(name))
        lines += [""] * bool(lines) + render_page(page, style)
    terminal.write("\n".join(lines) + "\n")
    return 0


def folder(rule: str) -> str:
    """Where the page of a rule is: those of `check` are CU, those of `fleet` FL."""
    from cudriver.fleet.rules import PAGES
    from cudriver.stack.rulebook import FOLDER

    return PAGES if rule.startswith("FL") else FOLDER


def rule_names() -> list[str]:
    """Every page, in order: `check`'s rules, texts without a rule, `fleet`'s rules."""
    from cudriver.stack import rulebook

    return rulebook.rule_names() + rulebook.rule_names(folder("FL"))


def render_page(markdown: str, style: Style) -> list[str]:
    """A page's Markdown for a terminal: headings, paragraphs, lists, and code left as it is."""
    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            text = " ".join(paragraph).replace("`", "").replace("**", "")
            indent = "  " * text.startswith(("- ", "* "))
            first, *rest = wrap(text, style.width, style.width - len(indent))
            lines.extend([first, *(indent + line for line in rest)])
            paragraph.clear()

    code = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            flush()
            code = not code
        elif code:
            lines.append(("    " + line).rstrip())
        elif line.startswith("#"):
            flush()
            lines.append(style.paint(line.lstrip("# "), "bold"))
        elif not line.strip():
            flush()
            lines.append("")
        elif line.startswith(("- ", "* ", "|")):
            flush()
            paragraph.append(line)
        else:
            paragraph.append(line.strip())
    flush()
    return lines


def _standard_input() -> tuple[int, str]:
    """The end of what is pasted, and how many lines came before it. A log may be in any encoding;
    what errors are known by is ASCII.
    """
    tail, lines, whole = b"", 0, True
    while piece := sys.stdin.buffer.read(1 << 20):
        tail += piece
        whole = whole and len(tail) <= TEXT_LIMIT
        lines += tail[:-TEXT_LIMIT].count(b"\n")
        tail = tail[-TEXT_LIMIT:]
    if not whole:
        terminal.complain(f"only the last {TEXT_LIMIT >> 20} MiB of the text were looked at")
    return lines, tail.decode("utf-8", "replace")


def _looks_like_rule(word: str) -> bool:
    number = word[2:] if word.startswith(("CU", "EX", "FL")) else word
    return number.isdecimal() and (number != word or len(word) == 3)


def _nothing(why: str, arguments: Namespace) -> int:
    """No rule to explain: as JSON an empty result, and the reason on standard error."""
    if arguments.json:
        _print_json([], [], "en")
    terminal.complain(why)
    return COULD_NOT_TELL


def _list(as_json: bool, lang: str) -> int:
    from cudriver.stack import rulebook

    titles = {name: rulebook.title(name, lang, folder(name)) for name in rule_names()}
    if as_json:
        import json

        print(json.dumps(titles, indent=2))
    else:
        terminal.write("".join(f"{name}  {text}\n" for name, text in titles.items()))
    return 0


def _print_json(names: list[str], found: list[Explanation], lang: str) -> None:
    import json

    from cudriver.stack import rulebook

    print(
        json.dumps(
            {
                "schema": 1,
                "matches": [
                    {key: getattr(each, key) for key in ("rule", "line", "text", "answer")}
                    for each in found
                ],
                "rules": [
                    {
                        "rule": name,
                        "title": rulebook.title(name, lang, folder(name)),
                        "page": rulebook.page(name, lang, folder(name)),
                    }
                    for name in names
                ],
            },
            indent=2,
        )
    )
