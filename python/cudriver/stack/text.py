"""Text for a terminal: control characters made harmless, lines broken and shortened to a width."""

from __future__ import annotations

from collections.abc import Sequence

# What stays in one line: a word or a Chinese character, and the marks that belong to it.
HAN = "\u4e00-\u9fff"
OPENING, CLOSING = "（《“", "，。、：；！？）》”…"
PIECE = rf"[{OPENING}]*(?:[{HAN}]|[^\s{HAN}{OPENING}{CLOSING}]+)?[{CLOSING}]*"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def quote(word: str) -> str:
    """The word as a shell takes it: the ``~/`` of a redacted path stays outside the quotes. A check
    without findings does without importing shlex.
    """
    from shlex import quote as quoted

    return f"~/{quoted(word[2:])}" if word[2:] and word.startswith("~/") else quoted(word)


def clean(text: str) -> str:
    """Control characters as their codes: a file's content must not steer the terminal, nor turn
    the direction of its text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _harmless(c) else _code(c) for c in text)


def _harmless(character: str) -> bool:
    """Blanks of other scripts, and bytes of file names that are not text: `write` escapes them."""
    from unicodedata import category

    return ord(character) > 0xFF and category(character) in ("Zs", "Cs", "Co", "Cn")


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def html(text: str) -> str:
    """Escaped for a page; what it may not hold, or what would steer its text, as its code."""
    from html import escape

    lines = text.replace("\t", " ").split("\n")
    whole = "\n".join(map(clean, lines)).encode("utf-8", "backslashreplace").decode()
    return escape(whole, quote=True)


def columns(text: str) -> int:
    """How wide a terminal shows it: an East Asian character takes two columns, an accent none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    from unicodedata import category, east_asian_width

    kind = category(character)
    if kind == "Cs":
        return 6  # `write` escapes it: \\udcff
    return 0 if kind in ("Mn", "Me", "Cf") else 1 + (east_asian_width(character) in "WF")


def wrap(text: str, width: int, rest: int | None = None) -> list[str]:
    """Words in lines of at most `width`, all but the first of at most `rest` (default: the same);
    a longer word has a line of its own. Chinese is broken between its characters too, but not
    before a closing mark nor after an opening one.
    """
    lines: list[str] = []
    for word in map(clean, text.split()):
        for at, piece in enumerate(_pieces(word)):
            room = width if len(lines) < 2 or rest is None else rest
            gap = "" if at else " "
            if lines and columns(lines[-1]) + len(gap) + columns(piece) <= room:
                lines[-1] += gap + piece
            else:
                lines.append(piece)
    return lines or [""]


def _pieces(word: str) -> list[str]:
    """What a word may be broken into; a path stays whole."""
    if word.isascii() or word.startswith("/"):
        return [word]
    import re

    return [piece for piece in re.findall(PIECE, word) if piece]


def pad(text: str, width: int) -> str:
    """The text, filled with blanks to so many columns."""
    return text + " " * (width - columns(text))


def wrap_clauses(text: str, width: int) -> list[str]:
    """As `wrap`, but a clause that fits a line is kept in one."""
    lines: list[str] = []
    for clause in clean(text).replace("；", "；\n").replace("; ", ";\n").split("\n"):
        gap = "" if lines and lines[-1].endswith("；") else " "
        if lines and columns(lines[-1]) + len(gap) + columns(clause) <= width:
            lines[-1] += gap + clause
        else:
            lines += wrap(clause, width)
    return lines


def wrap_command(command: str, width: int) -> list[str]:
    """A shell command in lines that can be pasted as they stand."""
    command = clean(command)
    if columns(command) <= width - 2:
        return [command]
    import re

    # At blanks outside quotes, the quotes kept.
    words: list[str] = re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^ ])+", command) or [command]
    remark: list[str] = []
    if "#" in words:  # a remark must not be carried on with a backslash
        at = words.index("#")
        remark = ["# " + line for line in wrap(" ".join(words[at + 1 :]), width - 2)]
        words = words[:at]
    lines: list[str] = []
    for word in words:
        if lines and columns(lines[-1]) + 1 + columns(word) <= width - 2:
            lines[-1] += " " + word
        else:
            lines.append(word if not lines else "  " + word)
    return remark + [f"{line} \\" for line in lines[:-1]] + lines[-1:]
