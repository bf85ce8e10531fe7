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
    r"(?P<made>(?:\b(?:site|dist)-packages/"
    r"|(?<![\w.-])/(?:usr/(?!local/)|lib\w*/|etc/|s?bin/|proc/|sys/))"
    r"(?:(?!/home/|/Users/|/?\.\./)[^\s:;,|=()'\"])*)"
)
# The rest of a folder's name, which may have spaces where the path goes on or another follows; at
# the very end of a text one word may be of it as well, or several where all are capitalised.
REST = (
    r"[^/\\\s:'\"]*(?: [^/\\:'\"\n]*[^/\\\s:'\"](?=[/\\'\"]|:/)"
    r"|(?:(?: [A-Z][^/\\\s:'\"]*)+| [^/\\\s:'\"]+)\Z)?"
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
    name = re.compile(
        rf"(?<![A-Za-z0-9])({one})(?![A-Za-z0-9])((?:\.[A-Za-z][\w-]*){{2,}}(?![\w-]))?"
    )
    pattern = re.compile(
        rf"(?P<home>(?<![\w.-]){re.escape(home or '~')}(?![\w-]|\.\w))|{MADE}"
        rf"|(?P<others>[/\\](?:home|Users)[/\\](?:\.?/)*)(?=[^\s/]){REST}"
        r"|(?P<scheme>://)[^/\s@]+(?=@)"
        # A folder, which may have spaces, or the last one of a path.
        rf"|/(?!(?:site|dist)-packages/)(?:[^/:'\"\n]*(?=/)|[^\s/:'\"]*)"
        rf"|(?:(?<=[@~])|(?<=NAME=|USER=)|(?=(?:{one})@)){name.pattern}"
    )

    def named(found: re.Match[str]) -> str:
        to = names[found[1]]
        return to + ((found[2] or "") if to == "user" else "")

    def replace(found: re.Match[str]) -> str:
        if found["made"]:
            return found[0]
        if found["home"]:
            return "~"
        if start := found["others"] or found["scheme"]:
            return f"{start}user"
        return name.sub(named, found[0])

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
