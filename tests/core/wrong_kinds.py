"""Calls every function of _core and _elf with every wrong kind of object, by position and by name,
each in a child process.

Prints a line for each function that crashed, raised what is no error of its caller, or wrote over a
static object of the interpreter. test_wrong_kinds.py runs it.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import GetSetDescriptorType
from typing import Any

import numpy as np

import cudriver as cu
from cudriver import _core, _elf
from cudriver.weights.reading import RUN
from storm import canaries

#: What a wrong value may raise. A SystemError is an exception that was forgotten or never set.
ALLOWED = (TypeError, ValueError, OverflowError, AttributeError, BufferError, KeyError, IndexError,
           cu.CudaError, OSError, RuntimeError, _elf.ElfError, DeprecationWarning)  # fmt: skip
MOST = 7  # arguments, at least one too many for all


class Things:
    """Objects of each kind, made in the child that uses them."""

    def __init__(self) -> None:
        self.host = np.arange(4.0)
        self.there = cu.to_device(self.host)
        self.sums = cu.device_zeros(1 << 16, np.uint32)
        self.pinned = cu.pinned_zeros(4)
        self.index = np.arange(4)
        self.file = os.open(_elf.__file__, os.O_RDONLY)
        self.runs = np.zeros(1, RUN)
        for name, value in {"bytes": 32, "device": self.there.pointer, "file": self.file}.items():
            self.runs[name] = value
        self.counts = np.zeros(2, np.int64)
        self.stream, self.event, self.context = cu.Stream(), cu.Event(), cu.Context()
        self.transfer = cu.copy_async(self.there, self.pinned, self.stream)
        self.memory = self.pinned.base
        low = self.host.__array_interface__["data"][0]
        self.lock = _core.PageLock(self.host, self.host, low, self.host.nbytes, True)
        self.handler = _core._numpy_new(1 << 40)
        self.before = _core._numpy_set(self.handler)
        _core._numpy_set(self.before)
        self.capsule = self.there.__dlpack__(max_version=(1, 0))
        self.elf = _elf.ElfFile(_elf.__file__)
        self.low = low

    def wrong(self) -> list[Any]:
        """One of each kind."""
        return [
            None, 7, -1, 1 << 70, 1.5, "text", b"bytes", bytearray(3), (), (1, 2), [], [None], {},
            object(), int, sys, self.index, self.host, np.array([None, {}]), np.array("text"),
            self.pinned, self.there, self.stream, self.event, self.context, self.transfer,
            self.memory, self.lock, self.handler, self.before, self.capsule, self.elf,
            SimpleArray(),
        ]  # fmt: skip


class SimpleArray:
    """Speaks each protocol, and gives nonsense."""

    __cuda_array_interface__ = None
    __array_interface__ = 5

    def __dlpack__(self, **kwargs: object) -> object:
        return self

    def __dlpack_device__(self) -> object:
        return "nowhere"

    def __index__(self) -> int:
        raise ValueError("no index")


#: Right arguments of each function of the module that needs some.
RIGHT: dict[str, Callable[[Things], tuple[Any, ...]]] = {
    "PageLock": lambda t: (t.host, None, t.low, t.host.nbytes, True),
    "_borrow": lambda t: (t.there, True),
    "_call": lambda t: (t.context, "cuCtxSynchronize", "", ()),
    "_context_for_use": lambda t: (None,),
    "_copy_many": lambda t: ((t.there,), (t.host,), None, True, 0),
    "_copy_rows": lambda t: (t.there, t.host, t.index, t.index, None, 0),
    "_copy_threads": lambda t: (),
    "_device_empty": lambda t: ((3, 2), "f8", None, None, False, False, (1, 0)),
    "_driver": lambda t: (),
    "_drop_driver": lambda t: (),
    "_explain_copy": lambda t: (t.there, t.host),
    "_export": lambda t: (t.there, 0, False, False, 2, 64),
    "_fill": lambda t: (t.there, np.zeros(()), None),
    "_host_memory_stats": lambda t: (),
    "_is_page_locked": lambda t: (t.low, 8),
    "_ladder_copy": lambda t: (t.there, t.host),
    "_ladder_kernel": lambda t: ("read", t.there, t.sums, 0, 1, 1),
    "_lend": lambda t: (t.there, False, None),
    "_live": lambda t: (),
    "_mark": lambda t: (t.capsule, 0, 2, 2, 64),
    "_node": lambda t: (),
    "_numpy_forget": lambda t: (t.handler,),
    "_numpy_new": lambda t: (1 << 40,),
    "_numpy_set": lambda t: (t.handler,),
    "_pinned": lambda t: ((3,), "f8", False, -1, False),
    "_place": lambda t: (t.low, 8, -1),
    "_primary_context": lambda t: (0,),
    "_ranges": lambda t: (),
    "_read_files": lambda t: (t.runs, 32, 8, np.zeros(2, np.int64), None),
    "_reset_primary_context": lambda t: (0,),
    "_set_copy_threads": lambda t: (0,),
    "_set_limit": lambda t: ((1 << 64) - 1,),
    "_set_nodes": lambda t: (b"",),
    "_shutdown": lambda t: (),
    "_trace": lambda t: (False,),
    "_trim": lambda t: (0,),
    "_views": lambda t: (t.there, lambda *_: [], ()),
    "absent": lambda t: ([(b"", None)],),
    "copy": lambda t: (t.there, t.host),
    "copy_async": lambda t: (t.there, t.pinned, t.stream),
    "missing": lambda t: ([(t.elf, [t.elf])],),
}
#: Where nothing but the type in the stub is right: a TypeError for every other kind.
EXACT = {
    "_export": {0: "there"}, "_fill": {0: "there"}, "_views": {0: "there"},
    "_numpy_forget": {0: "handler"}, "_mark": {0: "capsule"},
}  # fmt: skip


def functions() -> dict[str, Any]:
    """All that Python can call: functions, types, setters of properties, and methods, which get
    any `self`. What takes an argument by name is there for each: its last one has that name.
    """
    found: dict[str, Any] = {}
    for module in (_core, _elf):
        for name, value in vars(module).items():
            if isinstance(value, type) and not issubclass(value, (Exception, tuple)):
                found[name] = value
                for method, descriptor in vars(value).items():
                    if callable(descriptor) or isinstance(descriptor, classmethod):
                        found[f"{name}.{method}"] = getattr(value, method)
                    elif isinstance(descriptor, GetSetDescriptorType):
                        found[f"{name}.{method} ="] = descriptor.__set__
            elif callable(value) and not isinstance(value, type):
                found[name] = value
    named = {
        f"{name} {keyword}=": by_name(function, keyword)
        for name, function in found.items()
        for keyword in keywords(function)
    }
    return found | named


def keywords(function: Any) -> list[str]:
    try:
        taken = inspect.signature(function).parameters.values()
    except ValueError:
        return []
    return [
        each.name
        for each in taken
        if each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]


def by_name(function: Any, keyword: str) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments[:-1], **dict.fromkeys([keyword], *arguments[-1:]))


def calls(name: str, things: Things) -> Iterator[tuple[Any, ...]]:
    """Arguments: each number of them of one kind; then one wrong among right ones."""
    wrong, name = things.wrong(), name.split()[0]
    for count in range(MOST + 1):
        for value in wrong if count else [None]:
            yield (value,) * count
    if "." in name:
        owners = {
            "Context": things.context, "Stream": things.stream, "Event": things.event,
            "DeviceArray": things.there, "Transfer": things.transfer, "PageLock": things.lock,
            "HostMemory": things.memory, "ElfFile": things.elf,
        }  # fmt: skip
        owner = owners[name.split(".")[0]]
        for value in wrong:
            yield owner, value
        for one, other in itertools.product(wrong, wrong[:12]):
            yield owner, one, other
    elif name in RIGHT:
        right = RIGHT[name](things)
        for place in range(len(right)):
            for value in wrong:
                yield (*right[:place], value, *right[place + 1 :])
        for count in range(len(right)):
            yield right[:count]
        yield (*right, None)


def attempt(name: str, function: Any, progress: int) -> int:
    """In a child: makes the calls. 0, or 1 with a line about the call that was answered wrongly."""
    things = Things()
    exact = EXACT.get(name, {})
    right = RIGHT[name](things) if name in RIGHT else ()
    before = canaries.look()
    for arguments in calls(name, things):
        os.pwrite(progress, repr(tuple(map(kind, arguments))).encode().ljust(400), 0)
        must = [place for place in exact if len(arguments) == len(right)
                and type(arguments[place]) is not type(right[place])]  # fmt: skip
        try:
            function(*arguments)
        except ALLOWED as error:
            if must and not isinstance(error, (TypeError, ValueError)):
                print(f"{name}{arguments}: {error!r}, not TypeError")
                return 1
        except Exception as error:
            print(f"{name}{tuple(map(kind, arguments))}: {error!r}")
            return 1
        else:
            if must:
                print(f"{name}{tuple(map(kind, arguments))}: taken")
                return 1
        try:
            over = canaries.changed(before)
        except Exception as error:  # a call that returned forgot it
            print(f"{name}{tuple(map(kind, arguments))}: {error!r} after it")
            return 1
        if over:
            print(f"{name}{tuple(map(kind, arguments))}: wrote over {over}")
            return 1
    gc.collect()
    return 0


def kind(value: Any) -> str:
    return repr(value)[:30] if isinstance(value, (int, str, bytes, float)) else type(value).__name__


def main() -> int:
    gc.freeze()  # a child collects what it made
    failed = 0
    wanted = sys.argv[1:]
    for name, function in sorted(functions().items()):
        if wanted and name not in wanted:
            continue
        if "." not in name and name.startswith("_") and name not in RIGHT and callable(function):
            if not isinstance(function, type):
                print(f"{name}: a new function, which RIGHT does not know")
                failed += 1
            continue
        progress = os.memfd_create("progress")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 2
            try:
                signal.alarm(60)
                status = attempt(name, function, progress)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) > 1:
            last = os.pread(progress, 400, 0).decode().strip()
            print(f"{name}{last}: status {status}")
        failed += status != 0
        os.close(progress)
    print(f"{failed} failed of {len(functions())}")
    return failed != 0


if __name__ == "__main__":
    ctypes.pythonapi.PyGC_Collect()
    sys.exit(main())
