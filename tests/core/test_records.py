"""Records: arrays with fields, and views of some of these, which NumPy assigns one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudriver as cu

pytestmark = pytest.mark.usefixtures("no_leaks")

RECORD = np.dtype([("a", "i4"), ("b", "i4"), ("c", "f8"), ("s", [("x", "i2"), ("y", "i2", 3)])])


def shared(shape: Any, dtype: Any) -> Any:
    return cu.SharedMemory.anonymous(4096).array(shape, dtype)


def page_locked_later(shape: Any, dtype: Any) -> Any:
    pinning = cu.pinned_empty_async(shape, dtype)
    pinning.wait()
    return pinning.array


MAKERS = {
    "plain": np.zeros,
    "pinned": cu.pinned_zeros,
    "shared": shared,
    "page-locked later": page_locked_later,
    "of a buffer": lambda shape, dtype: np.frombuffer(bytearray(shape * dtype.itemsize), dtype),
}
PARTS: dict[str, Callable[[Any], Any]] = {
    "fields": lambda records: records[["a", "c"]],
    "the other order": lambda records: records[["b", "a", "s"]],
    "some rows": lambda records: records[::2][["c"]],
    "rows of fields": lambda records: records[["a", "c"]][1:],
    "fields in a field": lambda records: records["s"][["y"]],
}
CALLS: dict[str, Callable[[Any, Any], object]] = {
    "copy": cu.copy,
    "to_numpy": lambda to, there: there.to_numpy(out=to),
    "copy_async": lambda to, there: cu.copy_async(to, there, cu.Stream()).wait(),
    "copy_many": lambda to, there: cu.copy_many([to], [there]),
    "copy_rows": lambda to, there: cu.copy_rows(to, there, [0], [0]),
    "explain_copy": cu.explain_copy,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_lies_between_fields_is_not_overwritten(maker: str, part: str, call: str) -> None:
    records = MAKERS[maker](6, RECORD)
    records["b"], records["c"] = 7, 0.5
    before = records.tobytes()
    there = cu.to_device(PARTS[part](np.zeros(6, RECORD)))
    with pytest.raises(ValueError, match=r"only the fields \(.*nothing was copied"):
        CALLS[call](PARTS[part](records), there)
    assert records.tobytes() == before
    PARTS[part](records)[:] = there.to_numpy()  # as the message says
    wanted = np.zeros(6, RECORD)
    wanted["b"], wanted["c"] = 7, 0.5
    PARTS[part](wanted)[:] = PARTS[part](np.zeros(6, RECORD))
    assert (records == wanted).all()


@pytest.mark.parametrize("maker", MAKERS)
def test_nor_through_a_buffer(maker: str) -> None:
    dtype = np.dtype([("a", "i4"), ("b", "i4"), ("c", "i4")])
    records = MAKERS[maker](6, dtype)
    records[:] = 7
    there = cu.to_device(np.ones(6, dtype)[["a", "c"]])
    with pytest.raises(ValueError, match=r"only the fields \('a', 'c'\) .*nothing was copied"):
        cu.copy(memoryview(records[["a", "c"]]), there)
    assert (records["b"] == 7).all()
    cu.copy(memoryview(records), cu.to_device(np.ones(6, dtype)))
    assert (records == np.ones(6, dtype)).all()


@pytest.mark.parametrize("maker", MAKERS)
def test_records_that_are_whole_are_copied(maker: str) -> None:
    """So are those with gaps of their own, which are nobody's."""
    padded = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    spaced = np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [8], "itemsize": 64})
    nested = np.dtype([("s", padded), ("c", "i4")])
    for dtype, part in (
        (RECORD, lambda records: records[::2]),
        (RECORD, lambda records: records["s"]),
        (padded, lambda records: records[1:]),
        (spaced, lambda records: records[::-1]),
        (nested, lambda records: records["s"]),
        (padded, lambda records: records.view("u1").view(padded)),
    ):
        records, source = part(MAKERS[maker](6, dtype)), part(np.zeros(6, dtype))
        source["a" if "a" in source.dtype.names else "x"] = np.arange(1, source.size + 1)
        cu.copy(records, cu.to_device(source))
        assert (records == source).all()


PADDED = np.dtype([("a", "i1"), ("c", "i4")], align=True)
MESSAGE = np.dtype([("header", "u1", 16), ("body", "u1", 64)])


@pytest.mark.parametrize(
    "records",
    [
        np.zeros(6, MESSAGE)["body"].view(PADDED),
        np.zeros(6, PADDED).view(PADDED.newbyteorder("S")),
        np.zeros(6, PADDED)[["c", "a"]],
        np.zeros(6, [("x", "i8")]).view(PADDED),
    ],
    ids=["of a payload", "of another order", "of all fields", "of a number"],
)
def test_records_with_gaps_that_are_no_choice_of_fields(records: Any) -> None:
    source = np.zeros(records.shape, records.dtype)
    source["a"], source["c"] = 3, 5
    cu.copy(records, cu.to_device(source))
    assert (records == source).all()


def test_numpy_copies_some_fields_on_the_host() -> None:
    records, source = np.full(6, 7, RECORD), np.zeros(6, RECORD)
    cu.copy(records[["a", "c"]], source[["a", "c"]])
    assert not records["a"].any()
    assert (records["b"] == 7).all()


@pytest.mark.parametrize("dtype", [[], [("a", "V0")]])
def test_records_of_no_bytes(dtype: Any) -> None:
    for make in (shared, page_locked_later):
        array = make((2, 3), np.dtype(dtype))
        assert (array.shape, array.dtype) == ((2, 3), np.dtype(dtype))
