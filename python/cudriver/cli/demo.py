"""`cudriver demo`: the memory round trip, verified byte for byte, with rates."""

from __future__ import annotations

import sys

from cudriver.cli import terminal
from cudriver.stack.say import can_encode, say, translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from cudriver import DeviceArray

WRONG = 1
USAGE_ERROR = 2
MIB = 1 << 20
ROW = 4096  # bytes of a row of the arrays
ROWS = 2048  # that NumPy sees at once: while it works, nobody answers Ctrl-C


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver demo",
        description="Contexts, page-locked and device arrays, and the copies between them: each "
        "copy is verified byte for byte, and timed. Runs on the real driver where there is one, "
        "else on the simulated one, says so, and shows no rates.",
        epilog="exit status: 0 every byte was right, 1 one was not or the driver failed, 2 usage",
    )
    add = result.add_argument
    add("--size", metavar="SIZE", help="of each array: 2G, 64K, 100 MiB (256M; simulated: 16M)")
    add("--json", action="store_true", help="as JSON")
    add(
        "--stack",
        action="store_true",
        help="the check instead: of an environment with a fault, made for this, and mended",
    )
    return result


def run(arguments: Namespace) -> int:
    """Runs the demonstration and returns the exit code."""
    if arguments.stack:
        if arguments.size is not None or arguments.json:
            terminal.complain("--stack has no --size and no --json")
            return USAGE_ERROR
        from cudriver.cli import demo_stack

        return demo_stack.run(arguments.lang)
    import cudriver as cu
    from cudriver.cli.sizes import parse_size

    size = None
    try:
        if arguments.size is not None:
            size = parse_size(arguments.size, ROW)
    except ValueError as error:
        terminal.complain(f"--size {arguments.size}: {error}")
        return USAGE_ERROR
    try:
        reason = choose_driver()
        if isinstance(reason, int):
            return reason
        if size is None:
            size = 16 * MIB if cu.driver_is_simulated() else 256 * MIB
        with terminal.busy("copying and comparing"):
            report = demonstrate(size)
    except (cu.CudaError, MemoryError) as error:
        if arguments.json:
            _print_json({"correct": False, "error": str(error)})
        terminal.complain(str(error))
        return WRONG
    report["why_simulated"] = reason
    if arguments.json:
        _print_json(report)
    else:
        _print_text(report)
    return 0 if report["correct"] else WRONG


def choose_driver() -> str | int | None:
    """Settles on a driver: None for the real one, or why it is the simulated one.

    A process has one driver. Where the real one loads but cannot be used, the demonstration runs
    again in a child process with the simulated one, whose exit code comes back.
    """
    import os

    import cudriver as cu

    if os.environ.get("CUDRIVER_LIBRARY"):
        if cu.driver_is_simulated():
            return os.environ.get("CUDRIVER_DEMO_REASON", "CUDRIVER_LIBRARY asks for it")
        return None
    try:
        if cu.device_count() > 0:
            simulated = cu.driver_is_simulated()
            return "libcuda.so.1 is the simulated driver" if simulated else None
        reason = f"{cu.driver_path()} shows no device"
    except cu.DriverNotFoundError:
        cu.use_driver("sim")
        return "no CUDA driver library was found on this machine"
    except cu.CudaError as error:
        reason = str(error)
    import signal
    import subprocess

    from cudriver.stack.machine.child import ourselves

    environ = dict(os.environ, CUDRIVER_LIBRARY="sim", CUDRIVER_DEMO_REASON=reason)
    with subprocess.Popen(ourselves(*sys.argv[1:]), env=environ) as child:
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the child to answer
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGINT, usual)


def demonstrate(size: int) -> dict[str, Any]:
    """The round trip with arrays of `size` bytes: steps, each right or wrong, and rates in GB/s."""
    import numpy as np

    import cudriver as cu

    device = cu.Device(0)
    steps: list[dict[str, Any]] = []

    def step(name: str, right: bool, seconds: float | None = None, detail: str = "") -> None:
        rate = size / seconds / 1e9 if seconds and not cu.driver_is_simulated() else None
        steps.append({"step": name, "right": bool(right), "gb_per_s": rate, "detail": detail})

    before = len(cu.live_allocations())
    with cu.Context(device) as manual:
        step("manual context, pushed", cu.current_context() is manual, detail=repr(manual))
    step("popped again", manual not in cu.context_stack())
    manual.close()

    with device.primary_context():
        rng = np.random.default_rng(20)
        shape = (size // ROW, ROW // 4)
        there = cu.device_empty(shape, np.uint32)  # first: too large a size ends here
        plain = np.empty(shape, np.uint32)
        for part in _parts(plain):
            plain[part] = rng.integers(0, 2**32, plain[part].shape, dtype=np.uint32)
        pinned = cu.pinned_empty(shape, np.uint32)
        _fill(pinned, plain)
        step("page-locked NumPy array", cu.is_pinned(pinned) and not cu.is_pinned(plain))
        back = np.empty_like(plain)

        _measure(step, "plain array to device", there, plain, plain)
        _measure(step, "page-locked array to device", there, pinned, plain)
        _measure(step, "device to page-locked array", pinned, there, plain)
        _measure(step, "device to plain array", back, there, plain)
        _measure(step, "every other column, reversed", there[::-1, ::2], plain[::-1, ::2], plain)
        twin = cu.device_empty(shape, np.uint32)
        _measure(step, "device to device", twin, there, plain)

        stream = cu.Stream()
        _fill(pinned)
        transfer = cu.copy_async(pinned, twin, stream)
        transfer.wait()
        step("asynchronous copy on a stream", _equal(pinned, plain))
        with cu.pin(back):
            step("plain array page-locked in place", cu.is_pinned(back))
        step("and unlocked again", not cu.is_pinned(back))
        del there, twin, stream, transfer, pinned
    left = len(cu.live_allocations()) - before
    step("nothing left alive", left <= 0, detail=_objects(left))
    return {
        "driver": {
            "cuda": str(cu.driver_version()),
            "path": cu.driver_path(),
            "simulated": cu.driver_is_simulated(),
        },
        "device": device.name,
        "bytes": size,
        "correct": all(entry["right"] for entry in steps),
        "steps": steps,
    }


def _objects(count: int) -> str:
    return "" if count <= 0 else "1 object" if count == 1 else f"{count} objects"


def _measure(
    step: Callable[..., None],
    name: str,
    dst: NDArray[Any] | DeviceArray,
    src: NDArray[Any] | DeviceArray,
    expected: NDArray[Any],
) -> None:
    """Copies twice (the first time warms up), times the second, and compares.

    Before the second the destination is cleared, so that what is compared was copied by it.
    """
    from time import perf_counter

    import numpy as np

    import cudriver as cu

    cu.copy(dst, src)
    _fill(dst)
    begin = perf_counter()
    cu.copy(dst, src)
    seconds = perf_counter() - begin
    result = dst if isinstance(dst, np.ndarray) else dst.to_numpy()
    wanted = expected if result.shape == expected.shape else expected[::-1, ::2]
    seconds *= expected.nbytes / wanted.nbytes
    step(name, _equal(result, wanted), seconds, cu.explain_copy(dst, src).path)


def _parts(array: NDArray[Any] | DeviceArray) -> list[slice]:
    return [slice(at, at + ROWS) for at in range(0, len(array), ROWS)]


def _fill(array: Any, source: NDArray[Any] | None = None) -> None:
    for part in _parts(array):
        array[part] = 0 if source is None else source[part]


def _equal(array: NDArray[Any], other: NDArray[Any]) -> bool:
    return array.shape == other.shape and all(
        (array[part] == other[part]).all() for part in _parts(array)
    )


def _print_json(report: dict[str, Any]) -> None:
    import json

    print(json.dumps({"schema": 1, **report}, indent=1))


def _print_text(report: dict[str, Any]) -> None:
    from cudriver.ladder.result import show_size
    from cudriver.stack.text import columns, pad

    driver = report["driver"]
    if driver["simulated"]:
        why = translate(report["why_simulated"], "demo")
        why = terminal.fit(say("SIMULATED DRIVER: {why}.", why=why), sys.stdout)
        terminal.write(f"{why}\n{say('No GPU takes part, so no rates are shown.')}\n\n")
    labels = [say("driver"), say("device"), say("arrays")]
    room = max(map(columns, labels)) + 2
    values = f"CUDA {driver['cuda']}", report["device"], show_size(report["bytes"])
    head, *lines = (pad(label, room) + value for label, value in zip(labels, values, strict=True))
    lines.insert(0, terminal.beside(head, driver["path"], sys.stdout, room))
    terminal.write("\n".join(lines) + "\n\n")
    wrong = say("WRONG")
    good, bad = ("✓", f"✗ {wrong}") if can_encode(sys.stdout, "✓✗") else ("ok", wrong)
    colour = terminal.wants_colour(sys.stdout)
    for entry in report["steps"]:
        mark = good if entry["right"] else bad
        rate = f"{entry['gb_per_s']:8.1f} GB/s" if entry["gb_per_s"] else " " * 13
        rate = "" if driver["simulated"] else rate
        line = f"{mark} {pad(say(entry['step']), 36)}{rate}"
        line = terminal.beside(line, translate(entry["detail"], "demo"), sys.stdout, 2)
        line = "\n".join(part.rstrip() for part in line.split("\n"))
        if colour:
            line = f"\x1b[{32 if entry['right'] else 31}m{mark}\x1b[0m{line[len(mark) :]}"
        terminal.write(line + "\n")
    told = say("every byte is right") if report["correct"] else say("WRONG BYTES: see above")
    terminal.write(f"\n{told}\n")
