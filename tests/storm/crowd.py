"""What threads do that share everything: arrays, streams, events, contexts, transfers, pins.

A slot holds an object that all threads use, close, replace and drop as they like. What a call on it
does depends on the others, so a step says which errors it may raise; anything else is a failure.
Data is checked all the same: of some arrays each thread has a row of its own, whose bytes its model
knows, and what is in a slot has one value in all of its items.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import cudriver as cu

from . import canaries
from .model import Failure
from .session import over, same

LENGTH = 600  # items of a row
BIG = 70_000  # more than one small copy
#: Closed by another thread, in a context that is ending, or refused because another thread uses it.
TAKEN = (ValueError, cu.InvalidContextError)
#: How many slots there are of each kind.
SLOTS = {"d": 3, "e": 2, "s": 3, "c": 2, "t": 4, "h": 2, "m": 2, "n": 2, "p": 2}


class Step(NamedTuple):
    """A line that sees the slots that `uses` names, by their kind."""

    do: str
    uses: str = ""
    makes: str = ""  # the kind of slot that the result goes to
    may: tuple[type[Exception], ...] = ()  # raise


def uniform(array: Any) -> None:
    """Fails unless all items are the same: nobody writes to what is shared."""
    found = array.to_numpy() if isinstance(array, cu.DeviceArray) else array
    assert found.size == 0 or (found == found.flat[0]).all(), f"{np.unique(found)[:5]} in {array!r}"


def column(array: Any) -> Any:
    """An array of one dimension as rows of one item."""
    return array.reshape(-1, 1) if isinstance(array, cu.DeviceArray) else array[:, None]


# Objects in slots: made, used, closed.
SLOT_STEPS = (
    Step("s = cu.Stream()", makes="s"),
    Step("s = cu.Stream(device=far)", makes="s", may=TAKEN),
    Step("s.synchronize()", "s", may=TAKEN),
    Step("s.done, s.closed, s.priority, s.context, s.device, repr(s)", "s", may=TAKEN),
    Step("s.close()", "s", may=TAKEN),
    Step("e = s.record()", "s", "e", TAKEN),
    Step("e = cu.Event(timing=True)", makes="e"),
    Step("s.record(e)", "s e", may=TAKEN),
    Step("s.wait(e)", "s e", may=TAKEN),
    Step("e.wait(s)", "s e", may=TAKEN),
    Step("e.done, e.closed, e.timing, repr(e)", "e", may=TAKEN),
    Step("e.synchronize()", "e", may=TAKEN),
    Step("e.elapsed_time(e)", "e", may=TAKEN),
    Step("e.close()", "e", may=TAKEN),
    Step("t.wait()", "t", may=TAKEN),
    Step("t.done, t.nbytes, repr(t)", "t", may=TAKEN),
    Step("asyncio.run(over(t))", "t", may=TAKEN),
    Step("d = cu.to_device(np.full(LENGTH, k, 'u1'))", makes="d"),
    Step("d = cu.to_device(np.full(BIG, k, 'u1'))", makes="d"),
    Step("d = cu.device_zeros((3, LENGTH), 'u1')", makes="d"),
    Step("d = cu.device_zeros(LENGTH, 'u1', device=far)", makes="d", may=TAKEN),
    Step("uniform(d)", "d", may=TAKEN),
    Step("d.shape, d.strides, d.pointer, d.closed, d.context, d.flags, d.T", "d", may=TAKEN),
    Step("repr(d)", "d", may=TAKEN),
    Step("uniform(d.copy())", "d", may=TAKEN),
    Step("d = d[1:]", "d", "d", (*TAKEN, IndexError)),
    Step("d = d.reshape(-1).view('i1')", "d", "d", TAKEN),
    Step("uniform(cu.from_dlpack(d))", "d", may=(*TAKEN, BufferError)),
    Step("d.close()", "d", may=TAKEN),
    Step("t = cu.copy_async(np.empty(d.shape, d.dtype), d, s)", "d s", "t", TAKEN),
    Step("uniform(cu.to_device(p, stream=s))", "p s", may=TAKEN),
    Step("p = cu.pinned_full(LENGTH, k, 'u1')", makes="p"),
    Step("p = cu.pinned_array(np.full((7, BIG // 7), k, 'u1'))", makes="p"),
    Step("uniform(p), cu.is_pinned(p)", "p"),
    Step("uniform(cu.to_device(p))", "p"),
    Step("p = p[1:]", "p", "p"),
    Step("with cu.pinned_numpy(min_bytes=64): h = np.full(LENGTH, k, 'u1')", makes="h"),
    Step("h = np.full(BIG, k, 'u1')", makes="h"),
    Step("uniform(cu.to_device(h))", "h"),
    Step("n = cu.pin(h)", "h", "n", (ValueError,)),
    Step("n = cu.pin_async(h)", "h", "n", (ValueError,)),
    Step("n = cu.pinned_empty_async(BIG, 'u1')", makes="n"),
    Step("n.closed, n.nbytes, n.array, repr(n)", "n"),
    Step("n.close()", "n", may=TAKEN),
    Step("with n: uniform(cu.to_device(n.array))", "n", may=(*TAKEN, TypeError)),
    Step("m = cu.SharedMemory.anonymous(BIG)", makes="m"),
    Step("m = cu.SharedMemory.anonymous(LENGTH, pin=False)", makes="m"),
    Step("m.pin()", "m", may=TAKEN),
    Step("h = m.array(LENGTH, 'u1')", "m", "h", TAKEN),
    Step("uniform(cu.to_device(m.array(LENGTH, 'u1')))", "m", may=TAKEN),
    Step("cu.is_pinned(m.buf), m.size, m.closed, repr(m)", "m", may=TAKEN),
    Step("m.close()", "m", may=(*TAKEN, BufferError)),
    Step("c = cu.Context()", makes="c"),
    Step("c = cu.Context(far)", makes="c"),
    Step("c = cu.Device(far).primary_context()", makes="c", may=TAKEN),
    Step("with c: uniform(cu.device_zeros(10))", "c", may=TAKEN),
    Step("with c: d = cu.to_device(np.full(LENGTH, k, 'u1'))", "c", "d", TAKEN),
    Step("with c: s = cu.Stream()", "c", "s", TAKEN),
    Step("with c: cu.current_context(), cu.context_stack()", "c", may=TAKEN),
    Step("c.synchronize()", "c", may=TAKEN),
    Step("c.closed, c.exists, c.device, c.memory_info(), repr(c)", "c", may=TAKEN),
    Step("c.close()", "c", may=TAKEN),
    Step("with s: uniform(cu.to_device(p))", "s p", may=TAKEN),
)  # fmt: skip
# What concerns the whole process.
WHOLE_STEPS = (
    Step("repr(cu.live_allocations())"),
    Step("cu.host_memory_stats(), cu.memory_info()"),
    Step("cu.trim_host_memory()"),
    Step("cu.set_host_memory_policy(copy_threads=k % 3 + 1)"),
    Step("cu.trace_allocations(k % 2 == 0)"),
    Step("gc.collect()"),
    Step("cu.synchronize()"),
    Step("cu.Device(0).name, cu.Device(far).primary_context().exists", may=TAKEN),
)


class Crowd:
    """What the threads of a run share."""

    def __init__(self, threads: int, devices: int) -> None:
        self.slots = SimpleNamespace()
        self.far = devices - 1  # another device than the rows are on, where there is one
        size = (threads, LENGTH)
        self.rows = {
            "H": np.zeros(size, "u1"),
            "P": cu.pinned_zeros(size, "u1"),
            "Q": cu.pinned_zeros((threads, BIG), "u1")[:, ::BIG // LENGTH][:, :LENGTH],
            "D": cu.device_zeros(size, "u1"),
            "F": cu.device_zeros((threads, 2 * LENGTH), "u1")[:, ::2],
        }  # fmt: skip


class Member:
    """One thread of a run."""

    def __init__(
        self, seed: int, thread: int, crowd: Crowd, steps: int, log: Callable[[str], None]
    ) -> None:
        self.random = random.Random(f"crowd {seed}/{thread}")
        self.crowd, self.thread, self.steps, self.log = crowd, thread, steps, log
        self.mine = {name: array[thread] for name, array in crowd.rows.items()}
        self.model = {name: np.zeros(LENGTH, "u1") for name in self.mine}
        # Rows, the transfer that uses them, and the context that it is in.
        self.flying: list[tuple[set[str], Any, Any]] = []
        self.done = 0

    def run_all(self) -> None:
        while self.done < self.steps:
            kind = self.random.choices((self.slot, self.copy, self.whole), (12, 6, 1))[0]
            static = canaries.look()
            kind()
            if over := canaries.changed(static):
                raise Failure(f"changed static objects of the interpreter: {over}")
            self.done += 1
        self.settle(set(self.mine))
        for name in self.mine:
            self.check(name)

    # ---- what all share --------------------------------------------------------------------------

    def slot(self) -> None:
        self.act(self.random.choice(SLOT_STEPS))

    def whole(self) -> None:
        self.act(self.random.choice(WHOLE_STEPS))

    def act(self, step: Step) -> None:
        choice = {name: f"{name}{self.random.randrange(SLOTS[name])}" for name in SLOTS}
        found = {name: getattr(self.crowd.slots, choice[name], None) for name in step.uses.split()}
        if any(value is None for value in found.values()):
            return
        env = {**found, "cu": cu, "np": np, "gc": gc, "asyncio": asyncio, "over": over,
               "uniform": uniform, "LENGTH": LENGTH, "BIG": BIG, "k": self.number(),
               "far": self.crowd.far}  # fmt: skip
        self.call(step.do, env, step.may)
        if step.makes in env:
            setattr(self.crowd.slots, choice[step.makes], env[step.makes])

    def call(self, text: str, env: dict[str, Any], may: tuple[type[Exception], ...]) -> bool:
        """Runs a line; False where it raised what it may."""
        self.log(text)
        try:
            exec(text, env)
        except may as error:
            self.log(f"# {error!r}")
            return False
        except Exception as error:
            raise Failure(f"{text}\n  raised {error!r}") from error
        return True

    def number(self) -> int:
        return self.random.randrange(1, 250)

    # ---- rows of one's own -----------------------------------------------------------------------

    def copy(self) -> None:
        """One of this thread's rows into another, or a value into one."""
        dst, src = self.random.sample(list(self.mine), 2)
        stream = getattr(self.crowd.slots, f"s{self.random.randrange(SLOTS['s'])}", None)
        env = {"cu": cu, "np": np, "dst": self.mine[dst], "src": self.mine[src], "s": stream,
               "k": self.number(), "column": column, "at": range(LENGTH)}  # fmt: skip
        on_device = isinstance(env["dst"], cu.DeviceArray)
        fill = "dst.fill(k)" if on_device else "dst[...] = k"
        ways = [fill, "cu.copy(dst, src)", "cu.copy(dst, src)"]
        if stream is not None:
            lent = self.random.choice(("", ", borrow=True"))
            ways += [f"t = cu.copy_async(dst, src, s{lent})"] * 4
            ways += [f"t = cu.copy_many_async([dst[:9], dst[9:]], [src[:9], src[9:]], s{lent})"]
            ways += [f"t = cu.copy_rows_async(column(dst), column(src), at, at, s{lent})"]
        text = self.random.choice(ways)
        self.settle({dst, src})
        if not self.call(text, env, TAKEN if text.startswith("t =") else ()):
            return
        self.model[dst] = np.full(LENGTH, env["k"], "u1") if text == fill else self.model[src]
        if "t" in env:
            was_read = src == "H" and "borrow" not in text
            self.flying.append(({dst} if was_read else {dst, src}, env["t"], stream.context))
            setattr(self.crowd.slots, f"t{self.random.randrange(SLOTS['t'])}", env["t"])
        elif self.random.random() < 0.3:
            self.check(dst)

    def settle(self, names: set[str]) -> None:
        """Waits for what is in flight on these rows. Another thread may have closed the stream and
        its context, which ends when the work in it is over.
        """
        for flight in [item for item in self.flying if item[0] & names]:
            _, transfer, context = flight
            env = {"t": transfer, "asyncio": asyncio, "over": over}
            text = self.random.choice(("t.wait()", "asyncio.run(over(t))"))
            if not self.call(text, env, (cu.InvalidContextError,)) and not context.closed:
                raise Failure(f"{text}\n  raised, in {context!r}")
            self.flying.remove(flight)

    def check(self, name: str) -> None:
        try:
            same(self.mine[name], self.model[name])
        except AssertionError as error:
            raise Failure(f"row {self.thread} of {name}: {error}") from error
