"""`cudriver bench`: the memory ladder, measured on this machine."""

from __future__ import annotations

import sys

from cudriver.cli import terminal
from cudriver.cli.sizes import parse_size, parse_sweep
from cudriver.stack.say import can_encode, language, say, translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

WRONG = 1
USAGE_ERROR = 2
INTERRUPTED = 130
MIB = 1 << 20

# By whether the driver is simulated: size, sweep, rounds.
SIZE = {False: 512 * MIB, True: 8 * MIB}
SWEEP = {False: "64K:1G", True: "64K:16M"}
ROUNDS = {False: 10, True: 3}
NEIGHBOURS = {False: 4 << 30, True: 8 * MIB}  # the size

DESCRIPTION = """\
How fast bytes move on each rung of the memory ladder: an ordinary (pageable)
array copied by the driver alone, and by cudriver's threads; a page-locked
array; mapped memory that a kernel reads over the bus; another GPU's memory;
this GPU's own, copied, then read and written by a kernel (global memory); and
the memory on the chip (shared). Every way is verified against NumPy, then
timed: copies that wait by the host's clock, work on the device by its events.
The table has the median of the rounds and its spread, the step from the rung
above, and the ratio to page-locked memory.
"""
EPILOG = """\
GB/s are 1e9 bytes a second. Sizes are 512M, 2G, 64K (binary: 1K is 1024
bytes); without a suffix, MiB. If memory does not suffice, half the size is tried
and the output says so. Without a driver the simulated one runs: the output has
what was copied and verified, and the rates of a recorded run in place of its own;
it has none to plot.

  cudriver bench                            the ladder with arrays of 512 MiB
  cudriver bench --sizes                    the same for 64 KiB to 1 GiB
  cudriver bench --sizes --plot ladder.svg  and a drawing of it
  cudriver bench --numa                     page-locked memory of each NUMA node
  cudriver bench --neighbours               how long others wait meanwhile

Ctrl-C prints what has been measured.

exit status: 0 every byte was right, 1 one was not or the driver failed, 2 usage
"""


def parser() -> ArgumentParser:
    """The command's options."""
    result = terminal.parser(
        "cudriver bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        raw=True,
    )
    add = result.add_argument
    add("--device", metavar="DEVICE", default="0", help="ordinal, UUID or PCI bus id (default: 0)")
    sizes = result.add_mutually_exclusive_group()
    sizes.add_argument("--size", metavar="SIZE", help="of each array (512M; simulated: 8M)")
    sizes.add_argument(
        "--sizes",
        metavar="LIST",
        nargs="?",
        const="",
        help="a sweep: 1M,64M,1G or 64K:1G, by steps of 4 (the default of it; simulated: 64K:16M)",
    )
    instead = result.add_mutually_exclusive_group()
    numa = "instead of the ladder, copies of each NUMA node"
    instead.add_argument("--numa", action="store_true", help=numa)
    instead.add_argument(
        "--neighbours",
        action="store_true",
        help="instead of the ladder, how long another process, another thread and a small copy "
        "wait while memory is page-locked and copied, at once and in pieces (default size: 4G)",
    )
    add("--rounds", metavar="N", type=int, help="timings of each way (default: 10; simulated: 3)")
    add("--plot", metavar="FILE", help="draw it too, into FILE.png or FILE.svg (needs matplotlib)")
    add("--json", action="store_true", help="as JSON, every timing included")
    return result


def run(arguments: Namespace) -> int:
    """Measures, prints, draws; returns the exit code."""
    import cudriver as cu
    from cudriver.cli.demo import choose_driver

    instead = "numa" if arguments.numa else "neighbours" if arguments.neighbours else None
    try:
        if instead is not None and (arguments.plot, arguments.sizes) != (None, None):
            raise ValueError(
                f"--plot and --sizes are for the ladder, which --{instead} does not measure"
            )
        parse_sizes(arguments, True)  # before a driver is looked for
        check_plot(arguments.plot)
    except ValueError as error:
        terminal.complain(str(error))
        return USAGE_ERROR
    try:
        reason = choose_driver()
    except cu.CudaError as error:
        terminal.complain(str(error))
        return WRONG
    if isinstance(reason, int):
        return reason
    simulated = cu.driver_is_simulated()
    if simulated and arguments.plot is not None:
        terminal.complain(f"--plot draws rates, and the simulated driver has none: {reason}")
        return USAGE_ERROR
    try:
        device = cu.Device(
            int(arguments.device) if arguments.device.isdigit() else arguments.device
        )
    except (cu.CudaError, ValueError) as error:
        terminal.complain(f"--device {arguments.device}: {error}")
        return USAGE_ERROR
    sizes = parse_sizes(arguments, simulated)
    rounds = ROUNDS[simulated] if arguments.rounds is None else arguments.rounds
    if instead == "neighbours" and arguments.size is None:
        sizes = [NEIGHBOURS[simulated]]
    if instead is not None:
        return run_table(instead, device, sizes[0], rounds, arguments.json)
    try:
        report = measure(device, sizes, rounds)
    except (cu.CudaError, MemoryError) as error:
        terminal.complain(str(error) or "out of memory")
        return WRONG
    if arguments.plot is not None and not report["interrupted"]:
        from cudriver.ladder import plot

        try:
            plot.draw(report, arguments.plot)
        except OSError as error:
            terminal.complain(f"--plot {arguments.plot}: {error.strerror or error}")
            return USAGE_ERROR
    if arguments.json:
        import json

        print(json.dumps({**report, "why_simulated": reason}, indent=1))
    else:
        print_text(report, reason)
    if not report["verified"]:
        return WRONG
    return INTERRUPTED if report["interrupted"] else 0


def run_table(name: str, device: Any, size: int, rounds: int, as_json: bool) -> int:
    """Measures and prints what --numa or --neighbours asks for; returns the exit code."""
    import json

    import cudriver as cu
    from cudriver.ladder import neighbours, nodes

    table: Any = {"numa": nodes, "neighbours": neighbours}[name]
    try:
        report = table.measure(device, size, rounds)
    except (cu.CudaError, OSError, MemoryError) as error:
        terminal.complain(str(error) or "out of memory")
        return WRONG
    text = json.dumps(report, indent=1) if as_json else "\n".join(table.lines(report))
    terminal.write(text + "\n")
    return 0 if all(row.get("verified", True) for row in report[table.ROWS]) else WRONG


def measure(device: Any, sizes: list[int], rounds: int) -> dict[str, Any]:
    """The measurements, with progress on a terminal's standard error. Ctrl-C ends them early."""
    from cudriver import ladder

    return ladder.measure(
        device,
        sizes,
        rounds,
        lambda steps: terminal.progress(steps, len(steps), "measuring", lambda step: step.name),
        keep_interrupted=True,
    )


def check_plot(path: str | None) -> None:
    """ValueError where no such picture can be drawn: before anything is measured."""
    if path is None:
        return
    import os

    from cudriver.ladder import plot

    if not path.lower().endswith(plot.FORMATS):
        raise ValueError(f"--plot {path}: the name ends in {' or '.join(plot.FORMATS)}")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise ValueError(f"--plot {path}: there is no folder {os.path.dirname(path)}")
    if not plot.is_possible():
        raise ValueError(plot.MISSING)


def parse_sizes(arguments: Namespace, simulated: bool) -> list[int]:
    """The sizes asked for, in bytes; ValueError says what is wrong with them or the rounds."""
    if arguments.rounds is not None and arguments.rounds < 1:
        raise ValueError(f"--rounds is a number from 1 on, not {arguments.rounds}")
    option, text = "--size", arguments.size
    if arguments.sizes is not None:
        option, text = "--sizes", arguments.sizes or SWEEP[simulated]
    if text is None:
        return [SIZE[simulated]]
    try:
        return parse_sweep(text) if option == "--sizes" else [parse_size(text)]
    except ValueError as error:
        raise ValueError(f"{option} {text}: {error}") from None


def print_text(report: dict[str, Any], why_simulated: str | None) -> None:
    from cudriver.ladder.report import Style, lines
    from cudriver.stack.text import columns, wrap

    chinese = language() != "en"
    style = Style(
        width=min(terminal.width(sys.stdout), 80),
        colour=terminal.wants_colour(sys.stdout),
        plain=not can_encode(sys.stdout, "±─⇄✓"),
        say=say,
        columns=columns,
        break_up=wrap if chinese else None,
    )
    why = translate(why_simulated, "demo") if why_simulated else None
    for line in lines(report, why, style):
        terminal.write(line + "\n")
