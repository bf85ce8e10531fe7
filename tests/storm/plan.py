"""What a thread does, as a list of steps that a seed determines."""

from __future__ import annotations

from collections.abc import Callable

from .steps import SHARED, Config, Making


class Plan(Making):
    """The steps of one thread."""

    def __init__(self, seed: int, thread: int, config: Config) -> None:
        super().__init__(seed, thread, config)
        for name in ("host", "pinned", "device", "stream"):
            getattr(self, name)()
        # Each thread has habits: what is rare in all of them meets its like in some.
        weights = [weight * self.random.choice((0.25, 1, 1, 4)) for weight in WEIGHTS]
        while len(self.steps) < config.steps:
            self.random.choices(CHOICES, weights)[0](self)

    # ---- work ------------------------------------------------------------------------------------

    def write(self) -> None:
        array = self.array("host", "pinned", write=True)
        if array is not None:
            shape = self.some(array.shape)
            part = array.name + (self.part(array, shape) or "[...]")
            text = f"{part} = pattern({shape}, {array.dtype!r}, {self.number()})"
            self.add("write", text, f"m.{text}", uses=(array.name,), writes=(array.name,))

    def fill(self) -> None:
        array = self.array("device", write=True)
        if array is None or array.dtype == "V3":
            return
        part, value = array.name + self.part(array, self.some(array.shape)), self.number() % 127
        stream = self.one("stream") if self.chance(50) else None
        uses = (array.name,) if stream is None else (array.name, stream)
        text = f"{part}.fill({value}" + (f", stream={stream})" if stream else ")")
        target = part if part.endswith("]") else f"{part}[...]"
        self.add("work", text, f"m.{target} = {value}", uses=uses, writes=(array.name,),
                 stream=stream or "")  # fmt: skip

    def ends(self, *of: str) -> tuple[str, str, str, str] | None:
        """Two arrays that a copy may be between: names, and what is taken of each. of: what the
        source is; then the destination is on a device.
        """
        dst = self.array(*(("device",) if of else ()), write=True)
        if dst is None:
            return None
        same = [
            a
            for a in self.arrays.values()
            if a.dtype == dst.dtype
            and len(a.shape) == len(dst.shape)
            and (not of or (a.where in of and a.name not in SHARED))
            and (not a.closed or self.chance(4))
        ]
        if not same:
            return None
        src = self.random.choice(same)
        shape = self.some(tuple(map(min, dst.shape, src.shape)))
        return (
            dst.name,
            dst.name + self.part(dst, shape),
            src.name,
            src.name + self.part(src, shape),
        )

    def copy(self) -> None:
        ends = self.ends()
        if ends is None:
            return
        dst, into, src, source = ends
        stream, context = self.one("stream"), self.one("context")
        within = self.random.choices((None, stream, context), (70, 15, 15))[0]
        prefix = f"with {within}: " if within else ""
        target = into if into.endswith("]") else f"{into}[...]"
        self.add("work", prefix + f"cu.copy({into}, {source})", f"m.{target} = m.{source}.copy()",
                 uses=(dst, src, within) if within else (dst, src), within=within or "",
                 reads=(src,), writes=(dst,))  # fmt: skip

    def copy_async(self) -> None:
        self.copy_later("cu.copy_async({into}, {source}, {stream}{borrow})")

    def copy_many(self) -> None:
        forward, backward = "range(len({into}))", "range(-1, -len({into}) - 1, -1)"
        at = self.random.choice((forward, backward))
        ways = [
            "cu.copy_many_async([{into}], [{source}], {stream}{borrow})",
            "cu.copy_many_async(rows({into}), rows({source}), {stream}{borrow})",
            f"cu.copy_rows_async({{into}}, {{source}}, {at}, {at}, {{stream}}{{borrow}})",
        ]
        self.copy_later(self.random.choice(ways))

    def copy_many_now(self) -> None:
        ends = self.ends()
        if ends is None:
            return
        dst, into, src, source = ends
        count = f"range(len({into}))"
        ways = [f"cu.copy_many(rows({into}), rows({source}))",
                f"cu.copy_rows({into}, {source}, {count}, {count})"]  # fmt: skip
        way = ways[0] if self.arrays[dst].shape[0] > 3000 else self.random.choice(ways)
        target = into if into.endswith("]") else f"{into}[...]"
        self.add("work", way, f"m.{target} = m.{source}.copy()", uses=(dst, src), reads=(src,),
                 writes=(dst,))  # fmt: skip

    def feed(self) -> None:
        """The commonest loop there is: what was copied is filled anew, while the stream is busy."""
        stream = self.one("stream")
        if self.config.simulated:
            self.add("other", "delay(1000)")
        for _ in range(self.random.randint(3, 8)):
            self.copy_later("cu.copy_async({into}, {source}, {stream}{borrow})", "host", on=stream)
        self.delay()

    def copy_later(self, way: str, *of: str, on: str | None = None) -> None:
        ends, stream = self.ends(*of), on or self.one("stream")
        if ends is None or stream is None:
            return
        dst, into, src, source = ends
        if "range" in way and self.arrays[dst].shape[0] > 3000:
            return  # a million rows take too long
        name = self.name("t")
        target = into if into.endswith("]") else f"{into}[...]"
        borrow = ", borrow=True" if self.chance(30) else ""
        do = way.format(into=into, source=source, stream=stream, borrow=borrow)
        self.add("work", f"{name} = {do}", f"m.{target} = m.{source}.copy()", makes=name,
                 uses=(dst, src, stream), reads=(src,), writes=(dst,), stream=stream)  # fmt: skip
        self.named["transfer"].append(name)
        if self.arrays[src].where == "host" and src not in SHARED and self.chance(70):
            # It was read, unless it was lent or page-locked.
            text = f"pattern(m.{source}.shape, {self.arrays[src].dtype!r}, {self.number()})"
            text = f"{source if source.endswith(']') else f'{source}[...]'} = {text}"
            self.add("write", text, f"m.{text}", uses=(src,), writes=(src,))

    def burst(self) -> None:
        for _ in range(self.random.randint(3, 20)):
            self.copy_async()

    def check(self) -> None:
        array = self.array()
        if array is not None:
            part = array.name + self.part(array, self.some(array.shape))
            self.add("check", f"same({part}, m.{part})", uses=(array.name,), reads=(array.name,))

    # ---- waiting and order -----------------------------------------------------------------------

    def wait(self) -> None:
        name = self.one("transfer")
        if name is not None:
            text = self.random.choice(
                ("{}.wait()", "{}.wait()", "{}.done", "asyncio.run(over({}))")
            )
            kind = "look" if text == "{}.done" else "wait"
            self.add(kind, text.format(name), uses=(name,))

    def wait_pin(self) -> None:
        name = self.one("pin")
        if name is not None:
            text = self.random.choice(("{}.wait()", "{}.done", "asyncio.run(over({}))"))
            text = f"isinstance({{0}}, cu.pin) or {text.replace('{}', '{0}')}"
            self.add("look pin", text.format(name), uses=(name,))

    def order(self) -> None:
        stream, other, event = self.one("stream"), self.one("stream"), self.one("event")
        if stream is None or other is None:
            return
        calls = [("sync", f"{stream}.synchronize()", ()), ("look", f"{stream}.done", ()),
                 ("order", f"{stream}.wait({other})", (other,))]  # fmt: skip
        if event is not None:
            calls += [("record", f"{event}.record({stream})", (event,)),
                      ("order", f"{stream}.wait({event})", (event,)),
                      ("event sync", f"{event}.synchronize()", (event,)),
                      ("look event", f"{event}.done", (event,))]  # fmt: skip
        kind, do, uses = self.random.choice(calls)
        if "event" in kind:
            self.add(kind, do, uses=uses)
        else:
            self.add(kind, do, uses=(stream, *uses), stream=stream)

    def delay(self) -> None:
        """So that what follows is in flight for a while, or no more."""
        if self.config.simulated:
            self.add("other", f"delay({self.random.choice((0, 20, 200, 1000))})")

    # ---- contexts --------------------------------------------------------------------------------

    def push(self, name: str | None = None) -> None:
        name = name or self.one("context")
        if name is not None and len(self.stack) < 6:
            self.add("push", f"{name}.push()", uses=(name,))
            self.stack.append(name)

    def pop(self) -> None:
        wrong = not self.stack or self.chance(5)
        name = self.one("context") if wrong else self.stack.pop()
        if name:
            self.add("pop", f"{name}.pop()", uses=(name,))

    def finish_context(self) -> None:
        """Everything off the stack, the context's things closed, then the context: its end."""
        name = self.one("context")
        if name is None:
            return
        while self.stack:
            self.pop()
        self.add("end context", f"{name}.close()", uses=(name,))
        self.named["context"].remove(name)

    def reset(self) -> None:
        if self.own is not None:
            self.add("reset", f"cu.Device({self.own}).reset_primary_context()", device=self.own)

    # ---- ends ------------------------------------------------------------------------------------

    def close(self) -> None:
        kind = self.random.choice(("array", "stream", "event", "context", "pin", "pin"))
        if kind == "array":
            array = self.array("device", write=True)
            name = array.name if array else None
            if array:
                array.closed = not array.name.startswith("v")
        else:
            name = self.one(kind)
            if kind == "stream" and len(self.named["stream"]) < 2:
                return
        if name is not None:
            self.add("close", f"{name}.close()", uses=(name,))
            if kind != "array" and self.chance(80):
                self.named[kind].remove(name)

    def unmap(self) -> None:
        """The owner of an array's memory closes it; refused while something uses that."""
        lent = [array.name for array in self.arrays.values() if array.lent]
        if lent:
            name = self.random.choice(lent)
            self.add("unmap", f"unmap({name})", uses=(name,))

    def drop(self) -> None:
        kinds = ("array", "array", "transfer", "transfer", "pin", "stream", "event", "context")
        kind = self.random.choice(kinds)
        if kind == "array":
            array = self.array(write=True)
            name = array.name if array else None
            self.arrays.pop(name or "", None)
        else:
            name = self.one(kind)
            if kind == "stream" and len(self.named["stream"]) < 2:
                return
            if name is not None:
                self.named[kind].remove(name)
        if name is not None:
            self.add("drop", f"del {name}", uses=(name,))

    # ---- the rest --------------------------------------------------------------------------------

    def process(self) -> None:
        """What changes the whole process, or only looks."""
        do = self.random.choice(
            ("gc.collect()", "cu.trim_host_memory()", f"cu.trim_host_memory({self.number()})",
             "cu.live_allocations()", "cu.host_memory_stats()", "cu.memory_info()",
             f"cu.set_host_memory_policy(copy_threads={self.random.choice((1, 2, 8, None))})",
             "cu.trace_allocations(True)", "cu.trace_allocations(False)", "cu.context_stack()")
        )  # fmt: skip
        self.add("other", do)
        if self.chance(10):
            limit = self.random.choice((1 << 12, 1 << 20, 1 << 23, None))
            self.add("limit", f"cu.set_host_memory_limit({limit})")

    def ask(self) -> None:
        array = self.array("host", "pinned")
        if array is not None:
            self.add("is_pinned", f"cu.is_pinned({array.name})", uses=(array.name,))

    def explain(self) -> None:
        ends = self.ends()
        if ends is not None:
            self.add("explain", f"cu.explain_copy({ends[1]}, {ends[3]})", uses=(ends[0], ends[2]))

    def misuse(self) -> None:
        array, stream = self.array("device", write=True), self.one("stream")
        if array is None or array.closed:
            return
        name = array.name
        wrong = f"np.zeros({(*array.shape, 7)}, {array.dtype!r})"
        calls = [(f"cu.copy({name}, {wrong})", "ValueError", (name,)),
                 (f"cu.copy({name}, np.zeros({array.shape}, 'u8'))", "TypeError", (name,)),
                 (f"cu.copy_async({name}, {wrong}, {stream})", "ValueError",
                  (name, stream or name)),
                 (f"cu.copy({name}, [1, 2])", "TypeError", (name,)),
                 (f"{name}[{array.shape[0]}]", "IndexError", (name,)),
                 (f"{name}[::0]", "ValueError", (name,)),
                 (f"cu.copy(np.frombuffer(bytes({name}.nbytes), 'u1'), {name})", "", (name,)),
                 (f"cu.device_empty(1 << 50, 'u1', device={0})", "OutOfMemoryError", ()),
                 ("cu.pinned_empty((-1,))", "ValueError", ()),
                 ("cu.Stream(priority=9)", "ValueError", ()),
                 (f"len({name}[0:1].to_numpy(np.zeros(1, 'u8')))", "", (name,))]  # fmt: skip
        do, error, uses = self.random.choice(calls)
        self.add("misuse", do, uses=uses, error=error or "TypeError ValueError")


CHOICES: list[Callable[[Plan], None]] = [
    Plan.host, Plan.pinned, Plan.device, Plan.view, Plan.stream, Plan.event, Plan.context,
    Plan.brief, Plan.pin, Plan.write, Plan.fill, Plan.copy, Plan.copy_async, Plan.burst,
    Plan.check, Plan.wait, Plan.order, Plan.delay, Plan.push, Plan.pop, Plan.finish_context,
    Plan.reset, Plan.close, Plan.drop, Plan.process, Plan.ask, Plan.explain, Plan.misuse,
    Plan.wait_pin, Plan.copy_many, Plan.copy_many_now, Plan.feed, Plan.unmap,
]  # fmt: skip
WEIGHTS = [
    4, 6, 8, 5, 2, 3, 5,
    3, 5, 5, 5, 16, 16, 1,
    6, 8, 8, 1, 3, 4, 3,
    1, 4, 8, 3, 3, 2, 3,
    3, 8, 3, 4, 6,
]  # fmt: skip
