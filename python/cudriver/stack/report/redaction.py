"""A report for other people's eyes: home, user and host replaced in every text that it holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from cudriver.stack.record import Any, Record, but

# Users and hosts of images: they tell nobody's name, and paths of packages hold them.
NOBODY = ("", "root", "user", "host", "localhost", "nvidia", "cuda", "conda", "python", "lib")
# What `import` finds is named by its makers, not by the user.
MODULES = r"(?P<modules>\b(?:site|dist)-packages/[^\s:'\"]*)"


def redacted(value: Any) -> Any:
    """Records, lists, dictionaries and texts as they are, but for what tells whose they are.

    The home folder becomes ``~``, that of others ``/home/user``; the names of this user and of this
    host become ``user`` and ``host`` in paths, beside an ``@`` and where they stand alone.
    """
    return _walk(value, _replacer())


def _replacer() -> Callable[[str], str]:
    home, host = os.path.expanduser("~").rstrip("/"), os.uname().nodename
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or os.path.basename(home)
    names = dict.fromkeys((host, host.partition(".")[0]), "host") | {user: "user"}
    names = {name: to for name, to in names.items() if name not in NOBODY} or {"\0": ""}
    one = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    alone = r"(?<![A-Za-z0-9])"
    pattern = re.compile(
        rf"{MODULES}|(?P<home>(?<![\w.-]){re.escape(home or '~')}(?![\w-]|\.\w))"
        r"|(?P<others>(?<![\w.-])/home/)[^/\s:'\"]+"
        rf"|(?P<before>[/@](?:[\w.-]*?{alone})?)(?P<name>{one})(?![A-Za-z0-9])"
        rf"|{alone}(?P<account>{one})(?=@)|^(?P<whole>{one})$"
    )

    def replace(found: re.Match[str]) -> str:
        if found["modules"]:
            return found[0]
        if found["home"]:
            return "~"
        if found["others"]:
            return "/home/user"
        name = found["name"] or found["account"] or found["whole"]
        return (found["before"] or "") + names[name]

    return lambda text: pattern.sub(replace, text)


def _walk(value: Any, replace: Callable[[str], str]) -> Any:
    if isinstance(value, str):  # or a command, which says more of itself
        made = type(value)(replace(value))
        if type(value) is not str:
            made.__dict__.update(value.__dict__)
        return made
    if isinstance(value, (list, tuple)):
        return type(value)(_walk(item, replace) for item in value)
    if isinstance(value, dict):
        return {key: _walk(item, replace) for key, item in value.items()}
    if isinstance(value, Record):
        return but(value, **{n: _walk(getattr(value, n), replace) for n in value._fields})
    return value
