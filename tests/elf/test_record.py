"""_elf.absent: which Python files of a wheel's RECORD are not there. The oracle is os.stat."""

import os
from pathlib import Path

import pytest

from cudriver import _elf

HASH = ",sha256=aBc_-d,"


def listed(*names: str, size: str = "9") -> bytes:
    return "".join(f"{name}{HASH}{size}\n" for name in names).encode("utf-8", "surrogateescape")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("a/__init__.py", "a/b/x.py", "top.py"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "a/empty.py").touch()
    (tmp_path / "a/link.py").symlink_to("nowhere.py")
    return tmp_path


def test_what_is_not_there_in_the_records_order(site: Path) -> None:
    names = ["a/z.py", "a/b/x.py", "a/empty.py", "a/link.py", "a/__init__.py", "b/x.py", "top.py"]
    gone = [
        name for name in names if not (site / name).exists() or not os.stat(site / name).st_size
    ]
    assert gone == ["a/z.py", "a/empty.py", "a/link.py", "b/x.py"]
    assert _elf.absent(listed(*names), str(site)) == gone
    assert _elf.absent(listed(*names), None) == names
    assert _elf.absent(listed(*names), f"{site}/none") == names


def test_tests_are_left_out() -> None:
    names = ["a/tests/x.py", "a/test/b/x.py", "tests/x.py", "a/test.py", "a/testing/x.py"]
    assert _elf.absent(listed(*names), None) == names[2:]


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_one_that_is_listed_as_empty(site: Path, end: str) -> None:
    record = f"a/empty.py{HASH}0{end}".encode()
    assert _elf.absent(record, str(site)) == []
    assert _elf.absent(record.replace(b",0", b",10"), str(site)) == ["a/empty.py"]


@pytest.mark.parametrize(
    "line",
    [
        b"", b",", b".py", b"a/z.py", b"a/z.py,", b"a/z.py,,", b"a/z.py,sha256",
        b"a/z.pyc,sha256=x,1", b"a/z.py,md5=x,1", b'"a/z,y.py",sha256=x,1',
        b".py,sha256=x,1", b"py,sha256=x,1",
    ],
)  # fmt: skip
def test_other_lines_are_passed_over(site: Path, line: bytes) -> None:
    for record in (line, line + b"\n", line + b"\n" + listed("a/q.py")):
        assert _elf.absent(record, None) == ["a/q.py"] * (b"a/q.py" in record)


def test_names_of_any_bytes_and_length(site: Path) -> None:
    odd = os.fsdecode(b"a/\xff\xc3\xa4.py")
    Path(site, odd).write_text("x")
    long = "a/" * 3000 + "x.py"
    assert _elf.absent(listed(odd, long, "a/n\0.py"), str(site)) == [long, "a/n\0.py"]


def test_many_are_not_looked_at_without_end() -> None:
    assert len(_elf.absent(listed("z.py") * 50_001, None)) == 50_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        (("text", None), TypeError),
        ((b"", 1), TypeError),
        ((b"", "a\0b"), ValueError),
    ],
)
def test_wrong_arguments(arguments: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        _elf.absent(*arguments)  # type: ignore[arg-type]
