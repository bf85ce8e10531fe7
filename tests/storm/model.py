"""What exists, where it lives, what is in flight; and what a step must therefore do."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import cudriver as cu

from .steps import Step

#: Kinds of steps that a closed object may refuse, or not.
LOOKS = ("look", "look event", "wait", "drop", "view", "explain", "is_pinned", "write")


class Failure(AssertionError):
    """The package did not do what the model says."""


@dataclass
class Root:
    """Memory: an array and its views."""

    where: str  # "host" or "device"
    home: str = ""  # the context that device memory lives in
    names: set[str] = field(default_factory=set)
    owner: str = ""  # the array that is not a view
    closed: bool = False


@dataclass
class Thing:
    """A stream, an event or a context."""

    home: str
    closed: bool = False


@dataclass(eq=False)
class Flight:
    """Work that was issued and perhaps runs. `homes`: where its stream and its memory live.
    `after`: the streams whose later work comes after."""

    transfer: str
    stream: str
    home: str
    reads: set[str]
    writes: set[str]
    after: set[str]
    homes: set[str]


class World:
    """What the threads of a run share."""

    def __init__(self, names: dict[str, Any], model: dict[str, Any], threads: int) -> None:
        self.names, self.model, self.threads = names, model, threads
        self.limited = False  # page-locked memory was limited at some time


def home_of(device: int) -> str:
    return f"the primary context of device {device}"


class Model:
    def __init__(self, world: World) -> None:
        self.world = world
        self.m = SimpleNamespace(**world.model)
        self.env: dict[str, Any] = {}  # what a step sees
        self.roots: dict[str, Root] = {}  # by the name of each array and view
        self.things: dict[str, Thing] = {}  # streams, events
        self.contexts: dict[str, Thing] = {}
        self.records: dict[str, list[Flight]] = {}  # by event: what its record comes after
        self.flights: list[Flight] = []
        self.stack: list[str] = []
        self.pins: dict[str, Root] = {}
        self.dead: set[str] = set()  # homes that were reset
        self.ended: dict[int, int] = {}  # primary contexts, by device
        self.done = 0
        for name in world.names:
            where = "device" if name.endswith("_d") else "host"
            self.roots[name] = Root(where, self.primary(0), {name}, "shared")

    # ---- what a step must do ---------------------------------------------------------------------

    def home(self, device: int | None = None) -> str:
        """Where something that is made now lives."""
        if self.stack and (device is None or self.device_of(self.stack[-1]) == device):
            return self.stack[-1]
        return self.primary(0 if device is None else device)

    def primary(self, device: int) -> str:
        return f"{home_of(device)}, after {self.ended.get(device, 0)}"

    def count_primary(self, home: str) -> None:
        """The primary context that comes after this one is another."""
        device = self.device_of(home)
        if home == self.primary(device):
            self.ended[device] = self.ended.get(device, 0) + 1

    def device_of(self, home: str) -> int:
        return int(home.split(" device ")[1].split(",")[0])

    def expected(self, step: Step) -> tuple[str, ...]:
        """Names of errors, one of which it raises; `ok` where it may succeed."""
        closed: set[str] = set()
        for name in step.uses:
            root, thing = self.roots.get(name), self.things.get(name)
            context = self.contexts.get(name)
            if (root and root.closed) or (thing and thing.closed):
                closed |= {"ValueError", "InvalidContextError"}
            home = root.home if root else thing.home if thing else ""
            if home in self.dead or (context and (context.closed or context.home in self.dead)):
                closed |= {"InvalidContextError", "ValueError"}
            if closed and name == step.within:
                closed.add("ok")  # a stream of another device is not used
        return self.rule(step, closed)

    def rule(self, step: Step, closed: set[str]) -> tuple[str, ...]:
        name = step.uses[0] if step.uses else ""
        if step.error:
            return (*step.error.split(), *closed)
        if step.kind in ("close", "end context"):
            return self.rule_close(name)
        if step.kind == "unmap":  # what is over may still hold the memory, until somebody looks
            pinned = any(self.roots[name] is root for root in self.pins.values())
            return ("BufferError",) if pinned else ("ok", "BufferError")
        if step.kind == "pop":
            top = self.stack[-1] if self.stack else None
            return ("ok",) if top and self.contexts[name].home == top else ("InvalidContextError",)
        if step.kind in LOOKS:
            return ("ok", *closed)
        if step.kind == "reset":  # refused while page-locked memory in use is registered there
            return ("ok", "InvalidContextError")
        if step.kind == "look pin":  # closed, refused, beyond the limit, or its context was reset
            return ("ok", "ValueError", "CudaError")
        none = ("ok",) if "many(rows(" in step.do else ()  # no rows: nothing is asked
        if closed:
            return (*none, *closed)
        if step.kind == "record" and name in self.things and step.makes == "":
            event = next(n for n in step.uses if n != step.stream)
            if self.things[event].home != self.things[step.stream].home:
                return ("ValueError",)
        if step.kind in ("pinned", "pin"):
            short = ("OutOfMemoryError",) if self.world.limited else ()
            met = ("ValueError",) if step.kind == "pin" and self.may_meet_a_pin(name) else ()
            return ("ok", *short, *met)
        if step.kind in ("work", "device") and step.stream:
            on = self.device_of(self.things[step.stream].home)
            ends = {
                self.device_of(self.roots[n].home)
                for n in (*step.reads, *step.writes)
                if n in self.roots and self.roots[n].where == "device"
            }
            if ends and on not in ends and step.kind == "work":
                return (*none, "ValueError")
        if "cu.copy_many" in step.do or "cu.copy_rows" in step.do:
            met = {self.owner(n) for n in step.reads} & {self.owner(n) for n in step.writes}
            return ("ok", "ValueError") if met else ("ok",)  # the parts may overlap
        return ("ok",)

    def may_meet_a_pin(self, name: str) -> bool:
        """Whether another pin may share a part with one of this array, and not hold all of it."""
        root = self.roots[name]
        return root.owner == "shared" or any(root is other for other in self.pins.values())

    def rule_close(self, name: str) -> tuple[str, ...]:
        root, context = self.roots.get(name), self.contexts.get(name)
        if root is not None:
            if root.home in self.dead:
                return ("ok", "ValueError", "InvalidContextError")
            if root.closed:
                return ("ok",) if name == root.owner else ("ok", "ValueError")
            if name != root.owner or len(root.names) > 1:
                return ("ValueError",)
            busy = any(root.owner in f.reads | f.writes for f in self.flights)
            return ("ok", "ValueError") if busy else ("ok",)
        if context is not None and not context.closed:
            if context.home in self.dead:
                return ("ok", "InvalidContextError")
            lives = any(t.home == context.home and not t.closed for t in self.things.values())
            lives |= any(
                r.home == context.home and r.where == "device" and not r.closed
                for r in self.roots.values()
            )
            if lives or context.home in self.stack:
                return ("InvalidContextError",)
            if any(context.home in f.homes for f in self.flights):
                return ("ok", "InvalidContextError")
        return ("ok",)

    # ---- waiting where a program must ------------------------------------------------------------

    def conflicts(self, step: Step) -> list[Flight]:
        """What is in flight and must be over, or before this on its stream, first."""
        reads = {self.owner(n) for n in step.reads if n in self.roots}
        writes = {self.owner(n) for n in step.writes if n in self.roots}
        found = []
        for flight in self.flights:
            touched = ((reads | writes) & flight.writes) | (writes & flight.reads)
            # A blocking call waits for work on device memory, a stream keeps its order.
            ordered = not step.stream or step.stream in flight.after
            if any(not (ordered and self.is_device(owner)) for owner in touched):
                found.append(flight)
        return found

    def owner(self, name: str) -> str:
        return self.roots[name].owner

    def is_device(self, owner: str) -> bool:
        return owner.startswith("d")

    # ---- what has changed ------------------------------------------------------------------------

    def note(self, step: Step) -> None:
        kind, name = step.kind, step.uses[0] if step.uses else ""
        if kind in ("host", "pinned"):
            self.roots[step.makes] = Root("host", "", {step.makes}, step.makes)
        elif kind == "device":
            home = self.things[step.stream].home if step.stream else self.home(step.device)
            self.roots[step.makes] = Root("device", home, {step.makes}, step.makes)
        elif kind == "view":
            self.roots[step.makes] = self.roots[name]
            self.roots[name].names.add(step.makes)
        elif kind in ("stream", "event"):
            self.things[step.makes] = Thing(self.home(step.device))
        elif kind == "context":
            self.contexts[step.makes] = Thing(f"context {step.makes} of device {step.device}")
        elif kind == "primary":
            home = self.primary(step.device or 0)
            known = (c for c in self.contexts.values() if c.home == home)
            self.contexts[step.makes] = next(known, None) or Thing(home)  # it is one object
        elif kind == "push":
            self.stack.append(self.contexts[name].home)
        elif kind in ("pop", "pop top"):
            self.stack.pop()
        elif kind in ("pin", "pin later"):
            self.pins[step.makes] = self.roots[name]
        elif kind == "reset":
            self.dead.add(self.primary(step.device or 0))
            self.count_primary(self.primary(step.device or 0))
        elif kind in ("close", "end context"):
            self.note_close(name)
        elif kind == "drop":
            self.note_drop(name)
        elif kind == "unmap":
            for each in list(self.roots[name].names):
                del self.env[each]
                self.note_drop(each)
        if step.stream or kind in ("wait", "event sync", "sync context"):
            self.note_stream(step)
        if kind in ("device", "stream", "event"):
            self.check_home(step.makes)
        if kind in ("push", "pop"):
            self.check_current()
        if kind == "pin" and not self.is_locked(self.env[step.makes].array):
            raise Failure(f"{step.do}\n  is_pinned() says no")

    def was_read(self, name: str, step: Step) -> bool:
        """Whether a source was read when the call had returned: what is pageable and not lent."""
        root = self.roots[name]
        lent = "borrow=True" in step.do or root.owner not in self.env
        locked = lent or any(root is other for other in self.pins.values())
        return root.where == "host" and not locked and not cu.is_pinned(self.env[root.owner])

    def is_locked(self, array: Any) -> bool:
        return array.size == 0 or cu.is_pinned(array)

    def check_home(self, name: str) -> None:
        home = self.roots[name].home if name in self.roots else self.things[name].home
        context = self.env[name].context
        if context.device.ordinal != self.device_of(home):
            raise Failure(f"{name} is in {context!r}, not in {home}")
        known = next((self.env[n] for n, c in self.contexts.items() if c.home == home), context)
        if known is not context:
            raise Failure(f"{name} is in {context!r}, not in {known!r}")

    def check_current(self) -> None:
        for name, context in self.contexts.items():
            if self.stack and context.home == self.stack[-1]:
                current = cu.current_context()
                if current is not self.env[name]:
                    raise Failure(f"{current!r} is current, not {name}: {self.env[name]!r}")

    def note_close(self, name: str) -> None:
        if name in self.roots:
            self.roots[name].closed = True
        elif name in self.things:
            self.things[name].closed = True
        elif name in self.contexts:
            context = self.contexts[name]
            if not context.closed and not context.home.startswith("context"):
                self.count_primary(context.home)
            context.closed = True
        self.pins.pop(name, None)

    def note_drop(self, name: str) -> None:
        root = self.roots.pop(name, None)
        if root is not None:
            root.names.discard(name)
        for known in (self.things, self.contexts, self.pins, self.records, vars(self.m)):
            known.pop(name, None)  # type: ignore[attr-defined]

    def note_stream(self, step: Step) -> None:
        """What is in flight now, or no more."""
        stream = step.stream
        before = [f for f in self.flights if stream and stream in f.after]
        if step.kind in ("work", "device") and stream:
            home = self.things[stream].home
            self.flights.append(
                Flight(step.makes if step.kind == "work" else "", stream, home,
                       {self.owner(n) for n in step.reads if not self.was_read(n, step)},
                       {self.owner(n) for n in step.writes}, {stream},
                       {home, *(self.roots[n].home for n in (*step.reads, *step.writes))})
            )  # fmt: skip
        elif step.kind == "record":
            event = step.makes or next(n for n in step.uses if n != stream)
            if step.makes:
                self.things[event] = Thing(self.things[stream].home)
            self.records[event] = before
        elif step.kind == "order":
            other = step.uses[-1]
            behind = self.records.get(other, []) if other not in step.uses[:1] else before
            if other in self.things and other not in self.records:
                behind = [f for f in self.flights if other in f.after]
            for flight in behind:
                flight.after.add(stream)
        elif step.kind == "sync":
            self.land(before)
        elif step.kind == "event sync":
            self.land(self.records.get(step.uses[-1], []))
        elif step.kind == "wait":
            flown = [f for f in self.flights if f.transfer == step.uses[0]]
            for flight in flown:
                first = self.flights[: self.flights.index(flight) + 1]
                self.land(
                    [f for f in first if flight.stream in f.after and f.stream == flight.stream]
                )
        elif step.kind == "sync context":
            home = self.contexts[step.uses[0]].home if step.uses else self.primary(step.device or 0)
            self.land([f for f in self.flights if f.home == home])

    def land(self, flights: list[Flight]) -> None:
        self.flights = [f for f in self.flights if f not in flights]
