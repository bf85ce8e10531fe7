"""Steps, and those that make something.

A step is two lines of Python: `do` on the package, `model` on plain NumPy arrays (`m.NAME` beside
`NAME`). A plan knows what it has made, so that most steps make sense; what a step must then do
(succeed, or fail with which error) is the model's to say, so that any steps may be left out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

DTYPES = ("u1", "i2", "f4", "f8", "c16", "V3")
LARGE = 3 << 20  # bytes; more than is copied without the copy engine's threads
SHARED = ("shared_h", "shared_p", "shared_d")
SHARED_SHAPE, SHARED_DTYPE = (40, 50), "u1"


@dataclass(frozen=True)
class Step:
    """`kind` says which rules of session.py it follows; the rest names what it touches."""

    kind: str
    do: str
    model: str = ""
    makes: str = ""
    uses: tuple[str, ...] = ()  # names that must exist
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    within: str = ""  # what a `with` enters first
    stream: str = ""  # the stream that an asynchronous step runs on
    device: int | None = None  # where it says `device=`
    error: str = ""  # what it raises, whatever came before
    salt: int = 0  # for the session's own choices


@dataclass(frozen=True)
class Config:
    """What a plan depends on beside its seed."""

    threads: int = 3
    steps: int = 100
    devices: int = 1
    simulated: bool = True
    crowd: bool = False  # the threads share what crowd.py has, instead of plans of their own


@dataclass
class Array:
    name: str
    where: str  # "host", "pinned" or "device"
    shape: tuple[int, ...]
    dtype: str
    closed: bool = False
    lent: bool = False  # over a mapping that its owner may close


class Making:
    """The steps of one thread: what it has made, and the steps that make it."""

    def __init__(self, seed: int, thread: int, config: Config) -> None:
        self.random = random.Random(f"{seed}/{thread}")
        self.config = config
        #: The device whose primary context this thread alone uses, and may reset.
        self.own = thread + 1 if thread + 1 < config.devices else None
        self.steps: list[Step] = []
        self.count = 0
        self.arrays: dict[str, Array] = {
            name: Array(name, where, SHARED_SHAPE, SHARED_DTYPE)
            for name, where in zip(SHARED, ("host", "pinned", "device"), strict=True)
        }
        self.named: dict[str, list[str]] = {
            kind: [] for kind in ("stream", "event", "transfer", "context", "pin")
        }
        self.stack: list[str] = []
        self.dtypes = [SHARED_DTYPE, *self.random.sample(DTYPES, 2)]

    # ---- helpers ---------------------------------------------------------------------------------

    def add(self, kind: str, do: str, model: str = "", **fields: object) -> None:
        salt = self.random.randrange(1 << 16)
        self.steps.append(Step(kind, do, model, salt=salt, **fields))  # type: ignore[arg-type]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def chance(self, percent: float) -> bool:
        return self.random.random() * 100 < percent

    def array(self, *where: str, write: bool = False) -> Array | None:
        """One of those that there are, a closed one rarely."""
        found = [
            a
            for a in self.arrays.values()
            if (not where or a.where in where)
            and not (write and a.name in SHARED)
            and (not a.closed or self.chance(4))
        ]
        return self.random.choice(found) if found else None

    def one(self, kind: str) -> str | None:
        return self.random.choice(self.named[kind]) if self.named[kind] else None

    def form(self) -> tuple[tuple[int, ...], str]:
        """A shape and a dtype."""
        dtype = self.random.choice(self.dtypes)
        if self.chance(2):
            return (self.random.randrange(1, LARGE) // np.dtype(dtype).itemsize,), dtype
        dims = self.random.choices((1, 2, 3), (3, 5, 2))[0]
        longest = (3000, 60, 16)[dims - 1]
        shape = tuple(self.random.randrange(1, longest) for _ in range(dims))
        return (0, *shape[1:]) if self.chance(2) else shape, dtype

    def number(self) -> int:
        return self.random.randrange(1, 1 << 16)

    def cut(self, length: int, count: int) -> str:
        """A slice that takes `count` of `length` items."""
        if count == length and self.chance(70):
            return ":"
        if count == 0:
            return "0:0"
        stride = self.random.randint(1, max(1, min(3, (length - 1) // max(count - 1, 1))))
        first = self.random.randint(0, length - 1 - (count - 1) * stride)
        last = first + (count - 1) * stride
        if self.chance(25):
            return f"{last}:{first - 1 if first else ''}:{-stride}"
        return f"{first}:{last + 1}" + (f":{stride}" if stride > 1 else "")

    def part(self, array: Array, shape: tuple[int, ...]) -> str:
        """Text for items of `array` that have this shape."""
        cuts = [self.cut(n, count) for n, count in zip(array.shape, shape, strict=True)]
        return "" if all(cut == ":" for cut in cuts) else f"[{', '.join(cuts)}]"

    def some(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that fits into this one; most often all of it."""
        if self.chance(50):
            return shape
        return tuple(self.random.randint(min(1, n), n) if self.chance(60) else n for n in shape)

    # ---- making ----------------------------------------------------------------------------------

    def host(self) -> None:
        shape, dtype = self.form()
        name, order = self.name("h"), self.random.choice("CCF")
        text = f"pattern({shape}, {dtype!r}, {self.number()}, {order!r})"
        lent = self.chance(30)
        text = f"mapped({text})" if lent else text
        self.add("host", f"{name} = {text}", f"m.{name} = {name}.copy()", makes=name)
        self.arrays[name] = Array(name, "host", shape, dtype, lent=lent)

    def pinned(self) -> None:
        shape, dtype = self.form()
        name, k = self.name("p"), self.number()
        source = self.array("host", "pinned")
        fields = {"makes": name}
        make = self.random.randrange(7)
        if make == 0:
            do = f"{name} = cu.pinned_zeros({shape}, {dtype!r})"
            model = f"m.{name} = np.zeros({shape}, {dtype!r})"
        elif make == 1 and source is not None:
            shape, dtype = self.some(source.shape), source.dtype
            part = source.name + self.part(source, shape)
            do = f"{name} = cu.pinned_array({part})"
            model = f"m.{name} = m.{part}.copy()"
            fields |= {"uses": (source.name,), "reads": (source.name,)}
        elif make == 2 and dtype != "V3":
            do = f"{name} = cu.pinned_full({shape}, {k % 100}, {dtype!r})"
            model = f"m.{name} = np.full({shape}, {k % 100}, {dtype!r})"
        elif make == 3:
            text = f"np.empty({shape}, {dtype!r}); {name}[...] = pattern({shape}, {dtype!r}, {k})"
            do = f"with cu.pinned_numpy(min_bytes=64): {name} = {text}"
            model = f"m.{name} = {name}.copy()"
        elif make == 4:
            do = f"{name} = cu.pinned_empty_async({shape}, {dtype!r}).array"
            do += f"; {name}[...] = pattern({shape}, {dtype!r}, {k})"
            model = f"m.{name} = {name}.copy()"
        elif make == 5:
            size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
            do = f"{name} = cu.SharedMemory.anonymous({size}).array({shape}, {dtype!r})"
            do += f"; {name}[...] = pattern({shape}, {dtype!r}, {k})"
            model = f"m.{name} = {name}.copy()"
        else:
            order = self.random.choice("CF")
            pieces = ", pieces=True" if math.prod(shape) and shape and self.chance(30) else ""
            do = f"{name} = cu.pinned_empty({shape}, {dtype!r}, {order!r}{pieces})"
            do += f"; {name}[...] = pattern({shape}, {dtype!r}, {k})"
            model = f"m.{name} = {name}.copy()"
        self.add("pinned", do, model, **fields)
        self.arrays[name] = Array(name, "pinned", shape, dtype)

    def device(self) -> None:
        shape, dtype = self.form()
        name = self.name("d")
        stream = self.one("stream") if self.chance(30) else None
        source = self.array() if self.chance(50) else None
        fields: dict[str, object] = {"makes": name, "writes": (name,)}
        if source is not None:
            shape, dtype = self.some(source.shape), source.dtype
            part = source.name + self.part(source, shape)
            arguments, model = part, f"m.{name} = m.{part}.copy()"
            fields |= {"uses": (source.name,), "reads": (source.name,)}
            call = "to_device"
        else:
            arguments, model = f"{shape}, {dtype!r}", f"m.{name} = np.zeros({shape}, {dtype!r})"
            call = "device_zeros"
            if stream is None and self.config.devices > 1 and self.chance(20):
                which = self.random.choice([0, 0 if self.own is None else self.own])
                arguments += f", device={which}"
                fields["device"] = which
        if stream is not None:
            arguments += f", stream={stream}"
            fields |= {"uses": (*fields.get("uses", ()), stream), "stream": stream}  # type: ignore[misc]
        self.add("device", f"{name} = cu.{call}({arguments})", model, **fields)
        self.arrays[name] = Array(name, "device", shape, dtype)

    def view(self) -> None:
        array = self.array(write=True)
        if array is None or array.closed:
            return
        name, shape = self.name("v"), self.some(array.shape)
        cuts = self.part(array, shape) or "[...]"
        self.add("view", f"{name} = {array.name}{cuts}", f"m.{name} = m.{array.name}{cuts}",
                 makes=name, uses=(array.name,))  # fmt: skip
        self.arrays[name] = Array(name, array.where, shape, array.dtype)

    def stream(self) -> None:
        if len(self.named["stream"]) > 4:
            return
        name = self.name("s")
        device = self.own if self.own is not None and self.chance(20) else None
        text = (
            f"device={device}" if device is not None else f"priority={self.random.choice((0, -1))}"
        )
        self.add("stream", f"{name} = cu.Stream({text})", makes=name, device=device)
        self.named["stream"].append(name)

    def event(self) -> None:
        name, stream = self.name("e"), self.one("stream")
        if stream is not None and self.chance(50):
            self.add("record", f"{name} = {stream}.record()", makes=name, uses=(stream,),
                     stream=stream)  # fmt: skip
        else:
            self.add("event", f"{name} = cu.Event(timing={self.chance(30)})", makes=name)
        self.named["event"].append(name)

    def context(self) -> None:
        if len(self.named["context"]) > 3 or (not self.config.simulated and self.chance(90)):
            return
        if self.own is not None and self.chance(30):
            name = self.name("q")
            self.add("primary", f"{name} = cu.Device({self.own}).primary_context()", makes=name,
                     device=self.own)  # fmt: skip
        else:
            name = self.name("c")
            device = self.random.choice([0, 0, 0 if self.own is None else self.own])
            self.add("context", f"{name} = cu.Context({device})", makes=name, device=device)
        self.named["context"].append(name)
        if self.chance(70):
            self.push(name)

    def brief(self) -> None:
        """A context that lives for one copy there and back."""
        array = self.array("host", "pinned")
        if array is None or (not self.config.simulated and self.chance(90)):
            return
        part = array.name + self.part(array, self.some(array.shape))
        self.add("check", f"with cu.Context(): same(cu.to_device({part}), m.{part})",
                 uses=(array.name,), reads=(array.name,))  # fmt: skip

    def pin(self) -> None:
        array = self.array("host", "pinned")
        if array is None:
            return
        name = self.name("n")
        part = array.name + self.part(array, self.some(array.shape))
        kind = "pin later" if self.chance(40) else "pin"
        call = "pin_async" if kind == "pin later" else "pin"
        self.add(kind, f"{name} = cu.{call}({part})", makes=name, uses=(array.name,))
        self.named["pin"].append(name)
