"""`cudriver explain`: what a rule means, or which rule an error belongs to."""

from __future__ import annotations

import sys

from cudriver.cli import USAGE_ERROR, terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from cudriver.stack.explain import Match
    from cudriver.stack.report_text import Style

COULD_NOT_TELL = 3
TEXT_LIMIT = 4 << 20  # bytes of pasted text


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver explain",
        description="What a rule means, how it is seen and how it is mended. Without RULE, the "
        "error's text is read from standard input and its rule found.",
        epilog="exit status: 0 explained, 2 usage, 3 no rule knows this text",
    )
    result.add_argument(
        "rule", metavar="RULE", nargs="*", help="CU303, or the error's text in quotes"
    )
    result.add_argument("--list", action="store_true", help="every rule, a line each")
    result.add_argument("--json", action="store_true", help="as JSON")
    return result


def run(arguments: Namespace) -> int:
    """Prints the pages asked for and returns the exit code."""
    from cudriver.stack import explain

    if arguments.list or (not arguments.rule and sys.stdin.isatty()):
        return _list(arguments.json)
    known = explain.rule_names()
    names = [word.upper() for word in arguments.rule]
    matches: list[Match] = []
    if not names or not all(_looks_like_rule(name) for name in names):
        before, text = (0, " ".join(arguments.rule)) if names else _standard_input()
        if not text.strip():
            return _nothing(
                "no text on standard input; cudriver explain < traceback.txt", arguments
            )
        matches = explain.match(text)
        for found in matches:
            found.line += before
        names = [found.rule for found in matches]
        if not names:
            told = "no rule knows this text; cudriver check, cudriver explain --list"
            return _nothing(told, arguments)
    for name in names:
        if name not in known:
            terminal.complain(f"no rule {name}; cudriver explain --list has them all")
            return USAGE_ERROR
    if arguments.json:
        _print_json(names, matches)
        return 0
    from cudriver.stack.text import wrap

    style = terminal.style(sys.stdout)
    lines: list[str] = []
    for found in matches:
        lines.append(f"{style.paint(found.rule, 'bold')}  {explain.title(found.rule)}")
        lines += ["  " + line for line in wrap(f"line {found.line}: {found.text}", style.width - 2)]
    # A traceback may touch several rules; its last line is the one to read about.
    for name in names[:1] if matches else names:
        lines += [""] * bool(lines) + render_page(explain.page(name), style)
    terminal.write("\n".join(lines) + "\n")
    return 0


def render_page(markdown: str, style: Style) -> list[str]:
    """A page's Markdown for a terminal: headings, paragraphs, lists, and code left as it is."""
    from cudriver.stack.text import wrap

    lines: list[str] = []
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            text = " ".join(paragraph).replace("`", "").replace("**", "")
            indent = "  " if text.startswith(("- ", "* ")) else ""
            first, *rest = wrap(text, style.width)
            lines.append(first)
            lines.extend(wrap(indent + " ".join(rest), style.width) if not indent and rest else [])
            if indent and rest:
                lines.extend(indent + line for line in wrap(" ".join(rest), style.width - 2))
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
    tail, dropped = b"", 0
    while piece := sys.stdin.buffer.read(1 << 20):
        tail += piece
        dropped += tail[:-TEXT_LIMIT].count(b"\n")
        tail = tail[-TEXT_LIMIT:]
    return dropped, tail.decode("utf-8", "replace")


def _looks_like_rule(word: str) -> bool:
    return word.startswith("CU") and word[2:].isdigit()


def _nothing(why: str, arguments: Namespace) -> int:
    """No rule to explain: as JSON an empty result, and the reason on standard error."""
    if arguments.json:
        _print_json([], [])
    terminal.complain(why)
    return COULD_NOT_TELL


def _list(as_json: bool) -> int:
    from cudriver.stack import explain

    titles = {name: explain.title(name) for name in explain.rule_names()}
    if as_json:
        import json

        print(json.dumps(titles, indent=2))
    else:
        terminal.write("".join(f"{name}  {text}\n" for name, text in titles.items()))
    return 0


def _print_json(names: list[str], matches: list[Match]) -> None:
    import json

    from cudriver.stack import explain

    print(
        json.dumps(
            {
                "matches": [found.to_dict() for found in matches],
                "rules": [
                    {"rule": name, "title": explain.title(name), "page": explain.page(name)}
                    for name in names
                ],
            },
            indent=2,
        )
    )
