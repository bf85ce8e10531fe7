"""_elf.absent: which files of a wheel's RECORD are not as it says. The oracle is os.stat."""

import csv
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudriver import _elf
from program import output

HASH = ",sha256=aBc_-d,"


def listed(*names: str, size: str = "6") -> bytes:
    return "".join(f"{name}{HASH}{size}\n" for name in names).encode("utf-8", "surrogateescape")


def absent(record: bytes, folder: str | None) -> list[str]:
    """The paths of what _elf.absent gives; its lines are those of the record."""
    (found,) = _elf.absent([(record, folder)])
    lines = os.fsdecode(record).split("\n")
    assert [line for _, line in found] == [lines[number - 1] for number, _ in found]
    return [line.partition(",")[0] for _, line in found]


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
    assert absent(listed(*names), str(site)) == gone
    assert absent(listed(*names), None) == names
    assert absent(listed(*names), f"{site}/none") == names


def test_tests_are_left_out() -> None:
    tests = ["a/tests/x.py", "a/test/b/x.py", "tests/x.py", "tests/__init__.py", "test/a/x.py"]
    others = ["a/test.py", "a/testing/x.py", "tests.py", "testsuite/x.py", "latest/x.py"]
    assert absent(listed(*tests, *others), None) == others


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_one_that_is_listed_as_empty(site: Path, end: str) -> None:
    record = f"a/empty.py{HASH}0{end}".encode()
    assert absent(record, str(site)) == []
    assert absent(record.replace(b",0", b","), str(site)) == [], "no size is stated"
    assert absent(record.replace(b",0", b",10"), str(site)) == ["a/empty.py"]
    assert absent(record.replace(b"empty", b"none"), str(site)) == ["a/none.py"]


@pytest.mark.parametrize(
    "line",
    [
        b"", b",", b".py", b"a/z.py", b"a/z.py,", b"a/z.py,,", b"a/z.py,sha256",
        b"a/z.py,md5=x,1", b'"a/z,y.py",sha256=x,1', b",sha256=x,1", b"/a/z.py,sha256=x,1",
        b"../bin/z,sha256=x,1", b"a/z.py,sha999x,1",
    ],
)  # fmt: skip
def test_other_lines_are_passed_over(site: Path, line: bytes) -> None:
    for record in (line, line + b"\n", line + b"\n" + listed("a/q.py")):
        assert absent(record, None) == ["a/q.py"] * (b"a/q.py" in record)


def test_names_of_any_bytes_and_length(site: Path) -> None:
    odd = os.fsdecode(b"a/\xff\xc3\xa4.py")
    Path(site, odd).write_text("x = 1\n")
    long = "a/" * 3000 + "x.py"
    assert absent(listed(odd, long, "a/n\0.py"), str(site)) == [long, "a/n\0.py"]


def test_many_are_not_looked_at_without_end() -> None:
    assert len(absent(listed("z.py") * 50_001, None)) == 50_000


def test_several_at_once(site: Path) -> None:
    first, second = listed("top.py", "a/z.py"), listed("x.py", "b/x.py")
    wheels = [(first, str(site)), (second, f"{site}/a/b"), (b"", None), (first, None)]
    assert _elf.absent(wheels) == [_elf.absent([wheel])[0] for wheel in wheels]
    assert [len(found) for found in _elf.absent(wheels)] == [1, 1, 0, 2]
    assert _elf.absent(iter(wheels)) == _elf.absent(tuple(wheels))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "size", "told"),
    [
        (b"x = 1\n", "6", False),
        (b"x = 1\n", "06", False),
        (b"x = 1\n", "5", True),
        (b"x = 1\n", "60", True),
        (b"x = 1\n", "9" * 4000, True),
        (b"x = 1\n", "-6", False),
        (b"x = 1\n", "x", False),
    ],
)
def test_one_of_another_size(site: Path, data: bytes, size: str, told: bool) -> None:
    """What is not a number states no size."""
    (site / "a/y.py").write_bytes(data)
    assert absent(listed("a/y.py", size=size), str(site)) == ["a/y.py"] * told


def test_no_regular_file_is_none(site: Path) -> None:
    """And nothing waits for whoever writes to a pipe."""
    os.mkfifo(site / "a/pipe.py")
    (site / "a/folder.py").mkdir()
    names = ["a/pipe.py", "a/folder.py"]
    assert absent(listed(*names), str(site)) == names


@pytest.mark.parametrize("kind", ["sha256", "sha384", "sha512"])
def test_any_hash(kind: str) -> None:
    assert absent(f"a/z.py,{kind}=aBc_-d,6\n".encode(), None) == ["a/z.py"]


IDLE = (
    *("a/x.h", "a/x.hpp", "a/x.cuh", "a/libx.a", "a/x.pyi", "a/py.typed", "a/x.pxd", "a/x.pyx"),
    *("a/README.md", "a/x.rst", "a/x.txt", "a/x.html", "a/x.cmake", "a/x.ipynb"),
    *("a-1.0.dist-info/RECORD", "a-1.0.dist-info/licenses/LICENSE", "a-1.0.dist-info/WHEEL"),
)
COUNTS = (
    *("a/x.py", "a/x.so", "a/x.so.5", "a/x.pyc", "a/x.json", "a/x", "a/bin/ptxas", "a/h", ".py"),
    *("a/x.typed", "a/x.ha", "a-1.0.dist-info/METADATA", "a-1.0.dist-info/entry_points.txt"),
    "a/x.dist-info.py",
)


def test_what_no_import_opens_is_left_out() -> None:
    assert absent(listed(*IDLE, *COUNTS), None) == [*COUNTS]


def test_what_was_changed_later(site: Path) -> None:
    """By a time in nanoseconds; before any, all of them were."""
    os.utime(site / "top.py", ns=(0, 5))
    os.utime(site / "a/b/x.py", ns=(0, 4))
    record = listed("top.py", "a/b/x.py")
    for since, told in ((5, []), (4, ["top.py"]), (-1, ["top.py", "a/b/x.py"])):
        (found,) = _elf.absent([(record, str(site), since)])
        assert [line.partition(",")[0] for _, line in found] == told


FOLDERS = st.sampled_from(["", "a/", "a/b/", "tests/", "a/test/", "testing/"])
STEMS = st.sampled_from(["x", "y", "tests", "\u00e4", "x,y", 'x"y'])
PATHS = st.builds("{}{}{}".format, FOLDERS, STEMS, st.sampled_from([".py", ".h", ".so"]))
HASHES = st.sampled_from(["sha256=x", "md5=x", ""])
ROWS = st.tuples(PATHS, HASHES, st.sampled_from(["", "0", "6", "10"]))


@given(
    rows=st.lists(ROWS),
    there=st.dictionaries(PATHS, st.sampled_from([b"", b"x = 1\n"])),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_as_a_csv_reader_has_it(
    rows: list[tuple[str, str, str]], there: dict[str, bytes], end: str
) -> None:
    """Names with a comma or a quotation mark are quoted in a RECORD, and passed over."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name)
        for path, data in there.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(data)
        with open(site / "RECORD", "w", newline="") as file:
            csv.writer(file, lineterminator=end).writerows(rows)

        def lost(path: str, digest: str, size: str) -> bool:
            if path.endswith(".h") or not digest.startswith("sha256=") or set(path) & {*',"'}:
                return False
            if re.match("(.*/)?tests?/", path):
                return False
            try:
                on_disk = os.stat(site / path).st_size
            except OSError:
                return True
            return size not in ("", str(on_disk))

        with open(site / "RECORD", newline="") as file:
            wanted = [row[0] for row in csv.reader(file) if lost(*row)]
        assert absent((site / "RECORD").read_bytes(), name) == wanted


@pytest.mark.parametrize(
    ("wheels", "error"),
    [
        (None, TypeError),
        ([b""], TypeError),
        ([[b"", None]], TypeError),
        ([(b"",)], TypeError),
        ([("text", None)], TypeError),
        ([(b"", None), (b"", 1)], TypeError),
        ([(b"", "a"), (b"", "a\0b")], ValueError),
    ],
)
def test_wrong_arguments(wheels: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        _elf.absent(wheels)  # type: ignore[arg-type]


def test_every_allocation_may_fail() -> None:
    """MemoryError, and nothing is left behind; a program of its own, as any allocation can fail."""
    pytest.importorskip("_testcapi")
    program = """
        import _testcapi, os, sys
        from cudriver import _elf
        record = b"".join(b"%d.py,sha256=x,9\\n" % i for i in range(20))
        wheels = [(record, "/etc")] * 2
        whole, failed = _elf.absent(wheels), 0

        def left():
            return len(os.listdir("/proc/self/fd")), sys.getrefcount(record)

        before = left()
        for number in range(200):
            found = None
            _testcapi.set_nomemory(number, number + 1)
            try:
                found = _elf.absent(wheels)
            except MemoryError:
                failed += 1
            _testcapi.remove_mem_hooks()
            assert found is None or found == whole
        assert left() == before
        print(failed >= 20, found == whole)
    """
    assert output(program) == "True True\n"
