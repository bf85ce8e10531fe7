"""A report for other people's eyes: home, user and host replaced in every text that it holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from cudriver.stack.record import Any, Record, but

# Users and hosts of images, and the file system's own: they tell nobody's name.
NOBODY = (
    "root|user|host|localhost|nvidia|cuda|conda|python|x86|venv|usr|local|lib|lib64|tmp|opt|dev|data"
    "|mnt|media|home|Users|export|nfs|scratch|srv|var|etc|bin|sbin|run|proc|sys|"
)
# What `import` finds, and what a distribution brings, is named by its makers, not by the user.
MADE = (
    r"(?P<made>\b(?:site|dist)-packages/[^\s:'\"]*"
    r"|(?<![\w.-])/(?:usr/(?!local/)|lib\w*/|etc/|s?bin/|proc/|sys/)[^\s:'\"]*)"
)


def redacted(value: Any) -> Any:
    """A copy of records, lists, dictionaries and texts without the names of people and hosts.

    The home folder becomes ``~``, that of others ``/home/user``; the names of this user and of this
    host become ``user`` and ``host`` in paths, beside an ``@`` and as the value of a variable. A
    word by itself stays: it may be a package's or a rule's.
    """
    return _walk(value, _replacer())


def _replacer() -> Callable[[str], str]:
    home, host = os.path.expanduser("~").rstrip("/"), os.uname().nodename
    users = [os.environ.get(name) for name in ("LOGNAME", "USER", "SUDO_USER")]
    names = dict.fromkeys((host, host.partition(".")[0]), "host")
    names.update(dict.fromkeys(filter(None, [*users, os.path.basename(home)]), "user"))
    names = {name: to for name, to in names.items() if not re.fullmatch(NOBODY, name)} or {"\0": ""}
    one = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    alone = r"(?<![A-Za-z0-9])"
    pattern = re.compile(
        rf"{MADE}|(?P<home>(?<![\w.-]){re.escape(home or '~')}(?![\w-]|\.\w))"
        r"|(?P<others>/(?:home|Users)/)[^/\s:'\"]+(?: [^/\s:'\"]+(?=/))?"
        r"|(?P<scheme>://)[^/\s@]+(?=@)"
        rf"|(?P<before>/(?:[\w.-]*?{alone})?|(?<=@)|(?<=NAME=|USER=))(?P<name>{one})"
        rf"(?![A-Za-z0-9])(?P<domain>(?:\.[A-Za-z][\w-]*){{2,}})?"
        rf"|{alone}(?P<account>{one})(?=@)"
    )

    def replace(found: re.Match[str]) -> str:
        if found["made"]:
            return found[0]
        if found["home"]:
            return "~"
        if start := found["others"] or found["scheme"]:
            return f"{start}user"
        to = names[found["name"] or found["account"]]
        rest = found["domain"] if to == "user" else ""
        return (found["before"] or "") + to + (rest or "")

    return lambda text: pattern.sub(replace, text)


def _walk(value: Any, replace: Callable[[str], str]) -> Any:
    if isinstance(value, str):  # or a command, which says more of itself
        made = replace(value)
        if type(value) is not str:
            made = type(value)(made.replace("'~/", "~/'").replace("'~'", "~"))
            made.__dict__.update(value.__dict__)
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(_walk(item, replace) for item in value)
    if isinstance(value, dict):
        return {key: _walk(item, replace) for key, item in value.items()}
    if isinstance(value, Record):
        return but(value, **{n: _walk(getattr(value, n), replace) for n in value._fields})
    return value
