"""Finalizers are right in any order, after the others', twice, on objects that were never finished,
and while the interpreter ends: the garbage collector promises nothing of it."""

from __future__ import annotations

import ast
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver
from cudriver import _core
from cudriver.memory import pinning, stack
from cudriver.memory.host import page_lock
from cudriver.stack.roots.below import Below
from program import output
from storm import canaries

REGISTER = "cuMemHostRegister_v2"
pytestmark = pytest.mark.threads


class Kept:
    """A part of a cycle."""


@pytest.fixture(autouse=True)
def _canaries(cu: Any, sim: Any, no_leaks: None) -> Iterator[None]:
    before = canaries.look()
    yield
    gc.collect()
    cu.synchronize()
    cu.live_allocations()  # looks what is over
    assert canaries.changed(before) == []


# ---- what holds what: the outer first ----


def pin(cu: Any) -> list[Any]:
    held = cu.pin(np.zeros(100))
    return [held, held._lock]


def pin_async(cu: Any) -> list[Any]:
    held = cu.pin_async(np.zeros(100))
    held.wait()
    return [held, held._owner, held._owner.pin, held._owner.work]


def pinned_empty_async(cu: Any) -> list[Any]:
    held = cu.pinned_empty_async(100)
    held.wait()
    return [held, held._owner, held._owner.pin, held.array]


def shared_memory(cu: Any) -> list[Any]:
    held = cu.SharedMemory.anonymous(4096)
    array = held.array(10)
    return [held, held._mapping, held._mapping.pin, array]


def pinned_numpy(cu: Any) -> list[Any]:
    held = cu.pinned_numpy(min_bytes=1)
    with held:
        array = np.zeros(100)
    return [held, array]


def entered_pinned_numpy(cu: Any) -> list[Any]:
    import contextvars

    held = cu.pinned_numpy(min_bytes=1 << 40)
    contextvars.copy_context().run(held.__enter__)
    return [held]


def device_array(cu: Any) -> list[Any]:
    array = cu.to_device(np.zeros(100))
    return [array[1:], array, array.context]


def transfer(cu: Any) -> list[Any]:
    stream, array = cu.Stream(), cu.device_zeros(100)
    work = cu.copy_async(array, cu.pinned_zeros(100), stream)
    return [work, stream, stream.record(), array]


def lent(cu: Any) -> list[Any]:
    array = cu.device_zeros(100)
    return [array.__dlpack__(max_version=(1, 0)), cu.from_dlpack(array), array]


def context(cu: Any) -> list[Any]:
    made = cu.Context()
    with made:
        stream = cu.Stream()
    return [stream, made.limits, made]


def pinned(cu: Any) -> list[Any]:
    array = cu.pinned_zeros(100)
    return [array[1:], array, array.base]


def pushed(cu: Any) -> list[Any]:
    both = [stack.new(), stack.new()]
    for each in both:
        each.append(cu.Device(0).primary_context())
    return [*both, both[0][0]]


HOLDERS: list[Callable[[Any], list[Any]]] = [
    pin, pin_async, pinned_empty_async, shared_memory, pinned_numpy, entered_pinned_numpy,
    device_array, transfer, lent, context, pinned, pushed,
]  # fmt: skip
#: Every class with a finalizer of Python's, and an object of it that was never finished.
FINALIZED = {
    "memory/pinning.py:_Owner": lambda: object.__new__(pinning._Owner),
    "memory/pinned_numpy.py:pinned_numpy": lambda: object.__new__(cudriver.pinned_numpy),
    "memory/shared.py:SharedMemory": lambda: object.__new__(cudriver.SharedMemory),
    "stack/roots/below.py:Below": lambda: object.__new__(Below),
}


def test_every_finalizer_is_known_here() -> None:
    found, folder = set(), Path(cudriver.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "__del__" in {
                each.name for each in node.body if isinstance(each, ast.FunctionDef)
            }:
                found.add(f"{path.relative_to(folder)}:{node.name}")
    assert found == set(FINALIZED)


def test_every_type_of_the_core_is_in_a_cycle_here(cu: Any) -> None:
    types = {each for each in vars(_core).values() if isinstance(each, type)}
    types = {each for each in types if not issubclass(each, (Exception, tuple))}
    assert types <= {type(each) for holder in HOLDERS for each in holder(cu)}


def test_every_function_at_the_exit_and_every_callback_is_known_here() -> None:
    folder, called = Path(cudriver.__file__).parent, re.compile(r"atexit\.register|weakref\.\w+\(")
    assert {
        f"{path.relative_to(folder)}: {found}"
        for path in folder.rglob("*.py")
        for found in called.findall(path.read_text(encoding="utf-8"))
    } == {
        "memory/loading.py: atexit.register",
        "memory/pinning.py: atexit.register",
        "memory/shared.py: weakref.ref(",  # without a callback
        "memory/stack.py: weakref.ref(",
    }


@pytest.mark.parametrize("name", FINALIZED)
def test_what_was_never_finished_ends_quietly(name: str) -> None:
    made = FINALIZED[name]()
    type(made).__del__(made)
    del made


@pytest.mark.parametrize("first", ["outer", "inner"])
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda each: each.__name__)
def test_a_cycle_with_an_exception_and_its_frame(cu: Any, holder: Any, first: str) -> None:
    """The collector takes objects in the order in which they were made: each way round."""

    def fail(held: list[Any]) -> None:
        raise ValueError("kept")

    def make() -> None:
        kept: list[Kept] = [Kept() for _ in range(20)]
        held = holder(cu)
        if first == "inner":
            held.reverse()
        after = [Kept() for _ in range(20)]
        for number, (one, other) in enumerate(zip(held, itertools.cycle(reversed(kept)))):
            other.held = one
            after[number].held = one
        try:
            fail(held)
        except ValueError as error:
            kept[0].error = error
        kept[0].me, kept[0].frame, kept[0].after = kept, sys._getframe(), after

    with cu.Context():  # this thread has a list of its own from its first push on
        refs = stack._all.copy()
    for _ in range(3):
        make()
        gc.collect()
    assert stack._all == refs


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda each: each.__name__)
def test_finalizers_in_each_order_and_twice(cu: Any, holder: Any) -> None:
    count = sum(hasattr(type(each), "__del__") for each in holder(cu))
    for order in itertools.permutations(range(count)):
        held = holder(cu)
        ends = [each for each in held if hasattr(type(each), "__del__")]
        for number in (*order, *order):
            ends[number].__del__()
        del ends, held
        gc.collect()


def test_a_refused_pin_async_that_is_kept_in_a_cycle(cu: Any, sim: Any) -> None:
    """Its owner ended after its lock, and stopped None: a byte was written behind it."""
    for _ in range(5):
        kept = Kept()
        sim.fail(f"{REGISTER}:*:2")
        pinning_ = cu.pin_async(np.zeros(1 << 16, np.uint8))
        with pytest.raises(cu.OutOfMemoryError) as caught:
            pinning_.wait()
        sim.fail("")
        pinning_.close()
        kept.me, kept.error, kept.frame = kept, caught.value, sys._getframe()
        del kept, caught, pinning_
        gc.collect()


def test_a_lock_in_a_cycle_ends_before_its_memory_goes(cu: Any, sim: Any) -> None:
    """The lock owns what keeps the memory mapped: whichever the collector takes first."""

    class Buffer(np.ndarray):
        pass

    array = np.zeros(1 << 16, np.uint8).view(Buffer)
    lock = page_lock(array)
    lock.lock(0, False)
    array.lock = lock
    del array, lock
    before = sim.call_count("cuMemHostUnregister")
    gc.collect()
    assert sim.call_count("cuMemHostUnregister") == before + 1


def test_a_folder_is_closed_once(tmp_path: Path) -> None:
    """Its number may be another's file by then."""
    below = Below(str(tmp_path))
    below.__del__()
    other = os.open(tmp_path, os.O_RDONLY)
    below.__del__()
    del below
    os.close(other)


@pytest.mark.parametrize("ends", ["", "[::-1]"])
def test_at_the_interpreters_end(cu: Any, ends: str) -> None:
    """Objects of all kinds in cycles, which nothing collects before the modules go; and what is to
    run at the exit runs three times, in either order."""
    said = output(
        f"""
        import gc, sys

        sys.path.insert(0, sys.argv[1])
        import cudriver as cu
        import core.test_finalizers as cases

        gc.disable()
        for holder in cases.HOLDERS:
            kept = cases.Kept()
            kept.me, kept.held, kept.frame = kept, holder(cu), sys._getframe()
        made = [make() for make in cases.FINALIZED.values()]
        for end in [cases._core._shutdown, cases.pinning._stop_all]{ends} * 2:
            end()
        print("the end")
        """,
        str(Path(__file__).parents[1]),
    )
    assert said == "the end\n"
