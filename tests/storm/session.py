"""Runs the steps of one thread, beside the model of what they must do.

It waits where a program would have to: before it touches what an asynchronous copy still uses.
Every line that it runs is logged, which is the script of the run.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import random
import re
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import cudriver as cu
from cudriver.errors import CudaError

from . import canaries
from .model import Failure, Flight, Model, World
from .steps import Step


def pattern(shape: tuple[int, ...], dtype: str, k: int, order: str = "C") -> Any:
    """An array whose bytes `k` determines."""
    result = np.empty(shape, dtype, order=order)  # type: ignore[call-overload]
    words = np.arange(result.nbytes, dtype="u4") * np.uint32(2 * k + 1)
    result[...] = (words >> np.uint32(9)).astype("u1").view(dtype).reshape(shape)
    return result


def mapped(array: Any) -> Any:
    """The same in memory that its owner may unmap: a view as Python's own pages make it."""
    memory = mmap.mmap(-1, max(array.nbytes, 1))
    result = np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
    result[...] = array
    return result


def unmap(array: Any) -> None:
    """Nobody may look at the array afterwards; it may go."""
    array.base.close()


def same(actual: Any, model: Any) -> None:
    """AssertionError unless the items are the same, byte for byte."""
    array = actual.to_numpy() if isinstance(actual, cu.DeviceArray) else actual
    assert array.shape == model.shape, f"shape {array.shape}, not {model.shape}"
    assert array.dtype == model.dtype, f"dtype {array.dtype}, not {model.dtype}"
    found, wanted = array.tobytes(), model.tobytes()
    if found != wanted:
        different = np.frombuffer(found, "u1") != np.frombuffer(wanted, "u1")
        at = int(different.argmax())
        raise AssertionError(
            f"{different.sum()} of {len(found)} bytes differ, the first is byte {at}: "
            f"{found[at]}, not {wanted[at]}"
        )


def rows(array: Any) -> list[Any]:
    step = max(1, len(array) // 40)
    return [array[i : i + step] for i in range(0, max(len(array), 1), step)]


async def over(transfer: Any) -> None:
    await transfer


class Kept:
    """An error and its frames, in a cycle, as a notebook or a test keeps them."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.frame, self.me = error, sys._getframe(), self


class Session(Model):
    def __init__(
        self,
        world: World,
        steps: list[Step],
        delay: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:
        super().__init__(world)
        self.steps, self.log = steps, log
        self.kept: list[Kept] = []
        self.cycles = False  # some may be in garbage
        self.env |= {
            "cu": cu, "np": np, "gc": gc, "asyncio": asyncio, "m": self.m, "delay": delay,
            "pattern": pattern, "same": same, "over": over, "rows": rows,
            "mapped": mapped, "unmap": unmap, **world.names,
        }  # fmt: skip

    # ---- waiting where a program must ------------------------------------------------------------

    def settle(self, step: Step) -> None:
        choice = random.Random(step.salt)
        for flight in self.conflicts(step):
            if flight not in self.flights:
                continue  # over with another
            host = any(not self.is_device(o) for o in flight.reads | flight.writes)
            on = self.things.get(step.stream)
            alive = self.things.get(flight.stream)
            if (
                step.stream
                and not host
                and on
                and alive
                and not alive.closed
                and choice.random() < 0.5
            ):
                self.act(Step("order", f"{step.stream}.wait({flight.stream})", stream=step.stream,
                              uses=(step.stream, flight.stream)))  # fmt: skip
            else:
                self.wait_for(flight, choice)

    def wait_for(self, flight: Flight, choice: random.Random) -> None:
        ways = []
        if flight.transfer in self.env:
            uses = (flight.transfer,)
            ways = [Step("wait", f"{flight.transfer}.wait()", uses=uses),
                    Step("wait", f"asyncio.run(over({flight.transfer}))", uses=uses)]  # fmt: skip
        stream = self.things.get(flight.stream)
        if stream is not None and not stream.closed:
            ways.append(Step("sync", f"{flight.stream}.synchronize()", uses=(flight.stream,),
                             stream=flight.stream))  # fmt: skip
            ways.append(Step("sync", f"{flight.stream}.record().synchronize()",
                             uses=(flight.stream,), stream=flight.stream))  # fmt: skip
        if not ways:
            ways.append(self.context_wait(flight.home))
        self.act(choice.choice(ways))
        self.land([flight])

    def context_wait(self, home: str) -> Step:
        for name, context in self.contexts.items():
            if context.home == home and not context.closed:
                return Step("sync context", f"{name}.synchronize()", uses=(name,))
        device = self.device_of(home)
        return Step("sync context", f"cu.Device({device}).primary_context().synchronize()",
                    device=device)  # fmt: skip

    # ---- running ---------------------------------------------------------------------------------

    def run_all(self) -> None:
        for step in self.steps:
            self.run(step)
        self.finish()

    def run(self, step: Step) -> None:
        """Runs a step of the plan; leaves it out where what it uses does not exist."""
        if any(name not in self.env for name in step.uses):
            return
        if step.kind == "reset" and self.primary(step.device or 0) in self.stack:
            return
        static = canaries.look()
        self.before(step)
        self.act(step)
        self.done += 1
        self.forget(random.Random(step.salt))
        if over := canaries.changed(static):
            raise Failure(f"{step.do}\n  changed static objects of the interpreter: {over}")

    def forget(self, choice: random.Random) -> None:
        """Drops the kept errors, each a cycle with all that its frames hold, or collects such."""
        if choice.random() < 0.1:
            self.kept.clear()
        if choice.random() < 0.05:
            gc.collect()

    def collect(self) -> None:
        """Collects the kept errors. While another thread collects, `gc.collect()` does nothing."""
        self.kept.clear()
        newest = Kept(Failure())
        gone = weakref.ref(newest)
        del newest
        while gone() is not None:
            gc.collect()
            time.sleep(0)
        self.cycles = False

    def before(self, step: Step) -> None:
        ends = step.kind == "drop" and step.uses[0] in self.contexts
        if self.cycles and (ends or step.kind in ("reset", "end context", "close")):
            self.collect()  # the arrays of their frames would be in the way
        if step.kind == "reset":
            self.settle_all()
            self.clear(self.primary(step.device or 0))
        elif step.kind == "drop" and step.uses[0] in self.contexts:
            self.settle_home(self.contexts[step.uses[0]].home)
        elif step.kind == "end context":
            home = self.contexts[step.uses[0]].home
            if home.startswith("context"):
                self.clear(home)
        elif step.kind == "limit":
            self.world.limited = True
        elif "ok" in self.expected(step) or step.kind == "misuse":
            self.settle(step)

    def settle_all(self) -> None:
        while self.flights:
            self.wait_for(self.flights[0], random.Random(self.done))

    def settle_home(self, home: str) -> None:
        """Waits for what is in flight in a context, or between it and another."""
        for flight in list(self.flights):
            if flight in self.flights and home in flight.homes:
                self.wait_for(flight, random.Random(0))

    def clear(self, home: str) -> None:
        """Ends all that lives in a context, so that it can be closed."""
        self.settle_home(home)
        while home in self.stack:
            self.pop()
        for name, root in list(self.roots.items()):
            if root.home == home and root.where == "device":
                self.act(Step("drop", f"del {name}", uses=(name,)))
        for name, thing in list(self.things.items()):
            if thing.home == home and not thing.closed:
                self.act(Step("close", f"{name}.close()", uses=(name,)))

    def pop(self) -> None:
        top = self.stack[-1]
        name = next((n for n, c in self.contexts.items() if c.home == top), None)
        if name is None:
            self.act(Step("pop top", "cu.current_context().pop()"))
        else:
            self.act(Step("pop", f"{name}.pop()", uses=(name,)))

    def act(self, step: Step) -> None:
        """Runs a step, and the model's part where it succeeds; Failure where it does what it must
        not."""
        expected = self.expected(step)
        self.log(step.do)
        try:
            self.call(step.do)
        except (CudaError, ValueError, TypeError, IndexError, BufferError) as error:
            names = [cls.__name__ for cls in type(error).__mro__]
            expected += self.expected(step)  # another thread may have set a limit meanwhile
            if not any(name in names for name in expected):
                raise Failure(f"{step.do}\n  raised {error!r}, expected {expected}") from error
            message = str(error).partition("\n")[0]
            self.log(f"# {type(error).__name__}: {message}")
            self.kept.append(Kept(error))
            self.cycles = True
            return
        if "ok" not in expected:
            raise Failure(f"{step.do}\n  succeeded, expected {expected}")
        if step.model:
            self.log(step.model)
            exec(step.model, self.env)
        self.note(step)

    def call(self, text: str) -> None:
        """Runs a line; again, where another thread is just looking what is over in a context."""
        until = time.monotonic() + 10
        while True:
            try:
                return exec(text, self.env)
            except cu.InvalidContextError as error:
                looks = re.search("a call is running|a running call uses it", str(error))
                if looks is None or time.monotonic() > until:
                    raise
            time.sleep(0.001)

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Waits, compares everything, and lets go of it, contexts last."""
        self.settle_all()
        self.collect()
        for name, root in self.roots.items():
            if not root.closed and root.home not in self.dead:
                self.act(Step("check", f"same({name}, m.{name})", uses=(name,), reads=(name,)))
        while self.stack:
            self.pop()
        keep = set(self.contexts) | set(self.world.names)
        made = [n for n in (*self.roots, *self.things, *self.pins) if n not in keep]
        transfers = [n for n, value in self.env.items() if isinstance(value, cu.Transfer)]
        random.Random(self.done).shuffle(made)
        for name in (*transfers, *made):
            self.act(Step("drop", f"del {name}", uses=(name,)))
        for name in list(self.contexts):
            self.act(Step("close", f"{name}.close()", uses=(name,)))
            self.act(Step("drop", f"del {name}", uses=(name,)))
