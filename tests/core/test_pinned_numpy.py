"""pinned_numpy(): NumPy itself allocates page-locked memory (NEP 49)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import io
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import cudriver as cu
from parallel import together

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1.26
    from numpy.core.multiarray import get_handler_name  # type: ignore[no-redef, attr-defined]

KIND = "NumPy arrays of a pinned_numpy()"
LIMIT = 65536
OURS = "cudriver_page_locked"


def listed() -> int:
    """Bytes that live_allocations() lists of pinned_numpy() blocks."""
    return sum(entry.nbytes for entry in cu.live_allocations() if entry.kind == KIND)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    used = cu.host_memory_stats().used_bytes
    assert listed() == 0
    yield
    if cu.host_memory_stats().used_bytes != used:
        gc.collect()
    assert listed() == 0
    assert cu.host_memory_stats().used_bytes <= used
    assert get_handler_name() == "default_allocator"


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """No more page-locked memory is to be had, on either driver."""
    cu.trim_host_memory()
    cu.set_host_memory_limit(cu.host_memory_stats().registered_bytes)
    try:
        yield
    finally:
        cu.set_host_memory_limit(None)


def numbers(count: int) -> NDArray[Any]:
    return np.arange(count, dtype=np.int64)


def loaded(tmp_path: Path) -> NDArray[Any]:
    np.save(tmp_path / "array.npy", numbers(40000))
    return np.asarray(np.load(tmp_path / "array.npy"))


def unpacked(tmp_path: Path) -> NDArray[Any]:
    file = io.BytesIO()
    np.savez(file, a=numbers(40000))
    file.seek(0)
    return np.asarray(np.load(file)["a"])


MADE: dict[str, Callable[[Path], NDArray[Any]]] = {
    "zeros": lambda _: np.zeros((200, 300)),
    "ones": lambda _: np.ones(40000, np.float32),
    "full": lambda _: np.full((64, 64, 8), 3, "i4"),
    "arange": lambda _: numbers(40000),
    "array": lambda _: np.array([[1.5] * 100] * 100),
    "F order": lambda _: np.asfortranarray(numbers(40000).reshape(200, 200)),
    "structured": lambda _: np.zeros(10000, [("a", "i4"), ("b", "f8", (2,))]),
    "strings": lambda _: np.full(10000, "word", "U8"),
    "sum": lambda _: numbers(40000) + 1,
    "product": lambda _: np.outer(np.arange(200.0), np.arange(200.0)),
    "compared": lambda _: numbers(100000) > 5,
    "concatenated": lambda _: np.concatenate([numbers(5000)] * 8),
    "stacked": lambda _: np.stack([numbers(5000)] * 8),
    "sorted": lambda _: np.sort(-numbers(40000)),
    "argsorted": lambda _: np.argsort(-numbers(40000)),
    "copied": lambda _: numbers(40000).copy(),
    "cast": lambda _: numbers(40000).astype(np.float64),
    "taken": lambda _: numbers(40000)[numbers(20000) * 2],
    "masked": lambda _: numbers(40000)[numbers(40000) % 2 == 0],
    "repeated": lambda _: np.repeat(numbers(100), 200),
    "cumulated": lambda _: np.cumsum(numbers(40000)),
    "from an iterator": lambda _: np.fromiter((i for i in range(40000)), np.int64),
    "from text": lambda _: np.array(" ".join(map(str, range(40000))).split(), np.int64),
    "loaded": loaded,
    "unpacked": unpacked,
}


@pytest.mark.parametrize("name", MADE)
def test_what_numpy_makes_is_page_locked_and_right(name: str, tmp_path: Path) -> None:
    wanted = MADE[name](tmp_path)
    assert get_handler_name(wanted) != OURS
    assert not cu.is_pinned(wanted)
    with cu.pinned_numpy():
        assert get_handler_name() == OURS
        array = MADE[name](tmp_path)
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert get_handler_name(base) == OURS
    assert cu.is_pinned(array)
    assert array.dtype == wanted.dtype
    assert array.strides == wanted.strides
    assert np.array_equal(array, wanted)
    assert type(array) is np.ndarray


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_there_and_back(protocol: int) -> None:
    with cu.pinned_numpy():
        array = numbers(40000)
        text = pickle.dumps(array, protocol)
        inside = pickle.loads(text)
    outside = pickle.loads(text)
    assert np.array_equal(inside, array)
    assert np.array_equal(outside, array)
    assert not cu.is_pinned(outside)


def test_object_arrays_work_as_ever() -> None:
    with cu.pinned_numpy():
        array = np.array([("x", i) for i in range(10000)], dtype=object)
        array.resize((20000, 2), refcheck=False)
    assert array[9999, 1] == 9999
    assert array[19999, 1] == 0


def test_it_goes_to_the_device_and_back() -> None:
    with cu.pinned_numpy():
        array = numbers(40000)
        there = cu.to_device(array)
        back = there.to_numpy()
    assert cu.explain_copy(there, array)[:4:3] == ("direct", True)
    assert cu.is_pinned(back)
    assert np.array_equal(back, array)


def test_the_threshold_is_in_bytes() -> None:
    with cu.pinned_numpy():
        assert not cu.is_pinned(np.empty(LIMIT - 1, np.uint8))
        assert cu.is_pinned(np.empty(LIMIT, np.uint8))
        assert not cu.is_pinned(np.zeros(LIMIT - 1, np.uint8))
        assert cu.is_pinned(np.zeros(LIMIT, np.uint8))
    with cu.pinned_numpy(min_bytes=100):
        assert cu.is_pinned(np.empty(100, np.uint8))
        assert not cu.is_pinned(np.empty(99, np.uint8))
    with cu.pinned_numpy(min_bytes=0):
        for size in (0, 1, 7):
            assert np.array_equal(np.zeros(size, np.uint8), [0] * size)
        assert cu.is_pinned(np.empty(1, np.uint8))
        assert np.array_equal(np.array(3.5) + np.ones(()), 4.5)
    with cu.pinned_numpy(min_bytes=1 << 40):
        assert not cu.is_pinned(np.empty(1 << 20, np.uint8))


def test_zeros_are_zero_in_memory_that_was_used_before() -> None:
    for _ in range(3):
        with cu.pinned_numpy():
            dirty = np.full(300000, 0xA5, np.uint8)
            del dirty
            clean = np.zeros(300000, np.uint8)
            assert cu.is_pinned(clean)
            assert not clean.any()


def test_a_block_is_entered_once_at_a_time_and_may_be_used_again() -> None:
    block = cu.pinned_numpy()
    with block as entered:
        assert entered is block
        with pytest.raises(RuntimeError, match="entered already"):
            block.__enter__()
        assert get_handler_name() == OURS, "the refusal changed nothing"
    with pytest.raises(RuntimeError, match=r"this pinned_numpy\(\) is not entered"):
        block.__exit__(None, None, None)
    with block:
        assert cu.is_pinned(np.empty(LIMIT, np.uint8))
    with pytest.raises(KeyError), block:
        raise KeyError
    assert get_handler_name() == "default_allocator"


def test_nested_blocks_and_what_follows_them() -> None:
    with cu.pinned_numpy(min_bytes=1 << 20):
        outer = np.empty(100000, np.uint8)
        with cu.pinned_numpy(min_bytes=100):
            inner = np.empty(100000, np.uint8)
            assert cu.is_pinned(inner)
        again = np.empty(100000, np.uint8)
        large = np.empty(1 << 20, np.uint8)
        assert (cu.is_pinned(outer), cu.is_pinned(again), cu.is_pinned(large)) == (0, 0, 1)
    assert not cu.is_pinned(np.empty(1 << 20, np.uint8))
    assert listed() == 100000 + (1 << 20)
    assert len([e for e in cu.live_allocations() if e.kind == KIND]) == 2, "one entry a block"


def test_blocks_left_in_the_wrong_order_are_refused_and_nothing_stays_on() -> None:
    first, second = cu.pinned_numpy(), cu.pinned_numpy()
    first.__enter__()
    second.__enter__()
    with pytest.raises(RuntimeError, match="innermost"):
        first.__exit__(None, None, None)
    assert get_handler_name() == OURS
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
    assert get_handler_name() == "default_allocator"


def test_generators_that_hold_blocks_leave_nothing_on() -> None:
    def generator() -> Iterator[bool]:
        with cu.pinned_numpy():
            while True:
                yield cu.is_pinned(np.empty(LIMIT, np.uint8))

    def work() -> None:
        first, second, third = generator(), generator(), generator()
        assert next(first)
        assert next(second)
        assert next(third)
        for early in (second, first):
            with pytest.raises(RuntimeError, match="innermost"):
                early.close()
        del early, first, second
        gc.collect()
        assert next(third), "which is still in its block"
        third.close()
        assert not cu.is_pinned(np.empty(LIMIT, np.uint8))

    contextvars.copy_context().run(work)  # whose handler goes with it


def test_a_block_that_is_gone_is_over() -> None:
    kept: list[NDArray[Any]] = []

    def work() -> None:
        block = cu.pinned_numpy()
        block.__enter__()
        kept.append(np.full(LIMIT, 7, np.uint8))
        del block
        kept.append(np.full(LIMIT, 8, np.uint8))
        kept[0].resize(2 * LIMIT, refcheck=False)

    thread = threading.Thread(target=work)  # whose context takes the handler with it
    thread.start()
    thread.join()
    assert [cu.is_pinned(array) for array in kept] == [False, False]
    assert [int(array[0]) for array in kept] == [7, 8]
    assert listed() == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_block_cannot_be_copied(duplicate: Callable[[Any], Any]) -> None:
    """The end of the copy would end the block."""
    with cu.pinned_numpy() as block:
        with pytest.raises(TypeError, match=r"cannot pickle 'cudriver\.pinned_numpy' object"):
            duplicate(block)
        assert cu.is_pinned(np.empty(LIMIT))


def test_very_many_blocks_that_nobody_leaves() -> None:
    """Nothing is let go by recursion."""

    def work() -> None:
        for _ in range(100_000):
            cu.pinned_numpy().__enter__()
        blocks = [cu.pinned_numpy() for _ in range(100_000)]
        for block in blocks:
            block.__enter__()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert listed() == 0
    assert get_handler_name() == "default_allocator"


def test_a_block_is_left_where_it_was_entered() -> None:
    block = cu.pinned_numpy()
    block.__enter__()
    caught: list[BaseException] = []

    def leave() -> None:
        try:
            block.__exit__(None, None, None)
        except RuntimeError as error:
            caught.append(error)

    # Python 3.14's free-threaded builds let threads inherit the context: take an empty one.
    thread = threading.Thread(target=contextvars.Context().run, args=(leave,))
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert get_handler_name() == OURS
    block.__exit__(None, None, None)
    assert get_handler_name() == "default_allocator"


def test_arrays_outlive_the_block_and_are_listed_until_they_go() -> None:
    with cu.pinned_numpy():
        arrays = [np.full(LIMIT + i, i, np.uint8) for i in range(5)]
    assert listed() == 5 * LIMIT + 10
    view = arrays[3][10:20]
    del arrays[1]
    gc.collect()
    assert listed() == 4 * LIMIT + 9
    arrays.clear()
    gc.collect()
    assert listed() == LIMIT + 3, "the view keeps its array"
    churn = [cu.pinned_full(LIMIT, 77, np.uint8) for _ in range(6)]
    assert (view == 3).all()
    assert cu.is_pinned(view)
    del view, churn


def test_arrays_freed_in_other_threads() -> None:
    with cu.pinned_numpy():
        arrays = [np.full(LIMIT * (1 + i % 3), i, np.uint8) for i in range(40)]
    wrong: list[int] = []

    def work(lot: list[NDArray[Any]]) -> None:
        while lot:
            array = lot.pop()
            if (array != array[0]).any():
                wrong.append(int(array[0]))
            del array

    lots = [arrays[i::4] for i in range(4)]
    del arrays
    together(*[lambda lot=lot: work(lot) for lot in lots])
    assert not wrong
    assert listed() == 0


@pytest.mark.threads
def test_many_threads_each_with_a_block() -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            with cu.pinned_numpy(min_bytes=1000):
                size = int(rng.integers(1, 200000))
                array = np.full(size, seed, np.uint8)
                assert cu.is_pinned(array) == (size >= 1000)
                assert (array + 1 == seed + 1).all()

    together(*[lambda i=i: work(i) for i in range(6)])


def test_other_threads_are_not_affected() -> None:
    pinned: list[bool] = []

    def make() -> None:
        pinned.append(cu.is_pinned(np.empty(LIMIT, np.uint8)))

    before = threading.Thread(target=make)
    with cu.pinned_numpy():
        thread = threading.Thread(target=make)
        for each in (before, thread):
            each.start()
            each.join()
        make()
    # Python 3.14's free-threaded builds let threads inherit the context of their start().
    inherited = bool(getattr(sys.flags, "thread_inherit_context", False))
    assert pinned == [inherited, inherited, True]


def test_tasks_are_not_affected_but_those_made_inside() -> None:
    async def main() -> tuple[bool, bool, bool, bool]:
        inside, leave = asyncio.Event(), asyncio.Event()

        async def other() -> bool:
            await inside.wait()
            result = cu.is_pinned(np.empty(LIMIT, np.uint8))
            leave.set()
            return result

        async def child() -> bool:
            return cu.is_pinned(np.empty(LIMIT, np.uint8))

        task = asyncio.create_task(other())
        with cu.pinned_numpy():
            inside.set()
            made = asyncio.create_task(child())
            await leave.wait()
            mine = cu.is_pinned(np.empty(LIMIT, np.uint8))
        return await task, mine, await made, cu.is_pinned(np.empty(LIMIT, np.uint8))

    assert asyncio.run(main()) == (False, True, True, False)


@pytest.mark.parametrize("make", [np.empty, np.zeros], ids=["empty", "zeros"])
def test_where_memory_is_refused_there_is_one_warning_and_ordinary_memory(make: Any) -> None:
    with refused(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with cu.pinned_numpy():
            arrays = [make(9 << 20, np.uint8) for _ in range(3)]
        assert [w.category for w in caught] == [RuntimeWarning]
        assert f"{9 << 20} bytes could not be page-locked" in str(caught[0].message)
        assert caught[0].filename == __file__
        with cu.pinned_numpy():
            arrays.append(make(9 << 20, np.uint8))
        assert len(caught) == 2, "one a block"
    assert listed() == 0
    for array in arrays:
        assert not cu.is_pinned(array)
        array[:] = 3
        array.resize(100, refcheck=False)
        assert (array == 3).all()
    if make is np.zeros:
        assert not make(100).any()


@pytest.mark.parametrize("make", [np.empty, np.zeros], ids=["empty", "zeros"])
def test_with_warnings_as_errors_no_allocation_fails(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: unraisable.append(info.exc_type))
    with refused(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with cu.pinned_numpy():
            arrays = [make(9 << 20, np.uint8) for _ in range(3)]
            total = arrays[0] + arrays[1]
    assert unraisable == [RuntimeWarning], "told once, through the only way left"
    assert total.shape == (9 << 20,)


def test_memory_that_comes_back_is_used_again_in_the_same_block() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with cu.pinned_numpy():
            with refused():
                assert not cu.is_pinned(np.empty(9 << 20, np.uint8))
            assert cu.is_pinned(np.empty(9 << 20, np.uint8))


@pytest.mark.parametrize("code", [1, 2, 304, 801, 999])
def test_a_refusal_of_the_drivers_own(sim: Any, code: int) -> None:
    cu.trim_host_memory()
    sim.fail(f"cuMemHostRegister_v2:*:{code}")
    try:
        with cu.pinned_numpy(), pytest.warns(RuntimeWarning, match="ordinary memory"):
            array = np.arange(3 << 20, dtype=np.uint32)
        assert not cu.is_pinned(array)
        assert int(array[-1]) == (3 << 20) - 1
    finally:
        sim.clear_faults()


def test_an_error_that_is_under_way_survives_the_allocation() -> None:
    """NumPy frees and allocates while an exception propagates; it must arrive."""

    class Hostile:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            np.zeros(LIMIT, np.uint8)
            raise LookupError("mine")

    with refused(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with cu.pinned_numpy(), pytest.raises(LookupError, match="mine"):
            np.asarray(Hostile())


SIZES = st.sampled_from([1, 100, 4095, 4096, 65535, 65536, 65537, 200000, 1 << 20])


@settings(max_examples=60)
@given(sizes=st.lists(SIZES, min_size=2, max_size=6), inside=st.booleans(), deny=st.booleans())
@example(sizes=[1 << 20, 5 << 20], inside=True, deny=False)  # nothing is mapped behind the first
def test_resizing_across_the_threshold_keeps_the_contents(
    sizes: list[int], inside: bool, deny: bool
) -> None:
    before = listed()  # what an example that failed has left, for Hypothesis keeps its arrays
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        block = cu.pinned_numpy()
        with contextlib.ExitStack() as stack:
            stack.enter_context(block)
            model = np.random.default_rng(sizes[0]).integers(0, 256, sizes[0], np.uint8)
            array = model.copy()
            if not inside:
                stack.close()
            for i, size in enumerate(sizes[1:]):
                kept = min(size, array.size)
                expected = array[:kept].tobytes() + bytes(size - kept)
                with refused() if deny and i % 2 else contextlib.nullcontext():
                    array.resize(size, refcheck=False)
                assert array.size == size
                assert array.tobytes() == expected
                if not deny:
                    assert cu.is_pinned(array) == (size >= LIMIT)
                    ours = sum(a.nbytes for a in (model, array) if a.nbytes >= LIMIT)
                    assert listed() == before + ours
        del array, model
    assert listed() == before


def test_resizing_between_blocks_uses_the_arrays_own_way() -> None:
    ordinary = np.full(1000, 5, np.uint8)
    with cu.pinned_numpy():
        ordinary.resize(LIMIT * 2, refcheck=False)
        assert not cu.is_pinned(ordinary), "NEP 49: what made it resizes and frees it"
        assert (ordinary[:1000] == 5).all()
        assert not ordinary[1000:].any()
        ours = np.full(1000, 6, np.uint8)
    ours.resize(LIMIT * 2, refcheck=False)
    assert cu.is_pinned(ours)
    assert (ours[:1000] == 6).all()


def test_the_block_itself_leaks_nothing() -> None:
    before = sys.getallocatedblocks()
    for _ in range(300):
        with cu.pinned_numpy():
            np.empty(LIMIT, np.uint8)
    gc.collect()
    assert sys.getallocatedblocks() - before < 100
