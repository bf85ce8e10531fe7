"""What people read, in their language. Code speaks English; data/zh.json has the Chinese of it.

JSON, what stands in files, the texts of errors and commands are the same in every language.
"""

from __future__ import annotations

import os
import re
import sys
from functools import partial

from cudriver.stack.record import Any
from cudriver.stack.tables import table
from cudriver.stack.text import CLOSING

LANGUAGES = ("en", "zh")
LONGEST = 2000  # characters of a sentence that is looked for among the templates
_VALUE = re.compile(r"\{\w*\}")
_wish: list[str] = []  # what --lang says


def choose(lang: str | None) -> None:
    """The language of this process, whatever its locale; None: the locale's."""
    _wish[:] = [lang] if lang in LANGUAGES else []


def language() -> str:
    """The language that was chosen, else the locale's, of those that there are and can be shown."""
    if _wish:
        return _wish[0]
    wishes = map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))
    chinese = next(filter(None, wishes), "").startswith("zh")
    return "zh" if chinese and can_encode(sys.stdout, CLOSING) else "en"


def can_encode(stream: object, text: str) -> bool:
    """Whether the stream's encoding has these characters (a C locale has no tick)."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def say(text: str, **values: Any) -> str:
    """A sentence with its values, in the reader's language."""
    if language() == "zh":
        text = table("zh")["lines"].get(text, text)
    return text.format(**values) if values else text


def translate(text: str, part: str) -> str:
    """A finished English sentence in the reader's language, by the templates of a part of the table
    ("usage", a rule's code), or by those of any. What none of them is stays English.
    """
    if len(text) <= LONGEST and language() == "zh":
        known = table("zh")
        for template, chinese in {**known.get(part, {}), **known["any"]}.items():
            found = re.fullmatch(_pattern(template), text, re.DOTALL)
            if found:
                values = {name: _value(name, value) for name, value in found.groupdict().items()}
                return str(chinese).format(**values)
    return text


def _value(name: str, text: str) -> str:
    """A value without the English around its names and numbers, by a part for such ("{what}")."""
    for template, chinese in table("zh").get(f"{{{name}}}", {}).items():
        text = re.sub(_pattern(template, r"\S+?"), partial(_filled, chinese), text)
    return text


def _filled(chinese: str, found: re.Match[str]) -> str:
    return chinese.format(**found.groupdict())


def _pattern(template: str, value: str = ".+?") -> str:
    """An expression for what a template says: a group a value."""
    values = [name[1:-1] for name in _VALUE.findall(template)]
    texts = map(re.escape, _VALUE.split(template))
    return next(texts) + "".join(
        f"(?P<{name}>{value}){text}" for name, text in zip(values, texts, strict=True)
    )
