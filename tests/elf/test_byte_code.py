"""_elf.cut_short: where marshalled code ends too early. The oracle is marshal itself."""

import marshal
import random
import sysconfig
from pathlib import Path

import pytest

from cudriver import _elf

LIBRARY = Path(sysconfig.get_path("stdlib"))
#: CPython 3.11.2 says the second in some places where 3.11.7 says the first.
EITHER = {"EOF read where not expected", "EOF read where object expected"}
OWN = "a, b = 2**90, -(3**70)\nc = 1.5, 2j, ..., 'ä', b'x', frozenset((1, 2))\nd = [][1:2]\n"


def said(data: bytes) -> str | None:
    try:
        marshal.loads(data)
    except (EOFError, ValueError, TypeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["re/_parser.py", "typing.py", "decimal.py", ""])
def test_marshal_says_the_same(name: str) -> None:
    """Of what is whole, and of what is cut at any place."""
    text = (LIBRARY / name).read_text() if name else OWN
    data = marshal.dumps(compile(text, "x", "exec"))
    assert _elf.cut_short(data) is said(data) is None
    assert _elf.cut_short(data + b"more") is None
    chance = random.Random(name)
    ends = range(len(data)) if len(data) < 2000 else chance.sample(range(len(data)), 500)
    for end in ends:
        ours, theirs = _elf.cut_short(data[:end]), said(data[:end])
        assert ours == theirs or {ours, theirs} <= EITHER, end


def test_what_is_no_byte_code() -> None:
    """Any bytes end the walk, also what states a number of objects that nothing could hold."""
    data = marshal.dumps(compile(OWN, "x", "exec"))
    chance = random.Random(7)
    for _ in range(2000):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        _elf.cut_short(changed)
    assert _elf.cut_short(b"(\xff\xff\xff\x7f" * 5000) is None
    assert _elf.cut_short(b"?") is None
