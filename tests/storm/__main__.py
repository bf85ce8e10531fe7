"""`python -m tests.storm`: see README.md in this folder."""

from __future__ import annotations

import argparse
import json
import os
import sys

from .steps import Config


def seeds_of(text: str) -> list[int]:
    """0-299 or 7 or 1,5,9-12."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storm", description="Random sequences of calls against a model."
    )
    parser.add_argument("--seeds", type=seeds_of, help="as in 0-299; default: from 0 on")
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--crowd", action="store_true", help="the threads share everything")
    parser.add_argument("--steps", type=int, default=100, help="of each thread")
    parser.add_argument("--driver", choices=("sim", "real"), default="sim")
    parser.add_argument("--devices", type=int, default=4, help="of the simulated driver")
    parser.add_argument("--seconds", type=float, default=0, help="begin no batch after so long")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--batch", type=int, default=20, help="seeds of one child process")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a seed may take")
    parser.add_argument("--log", help="file that the seeds are logged to; default: none")
    parser.add_argument(
        "--shrink", type=int, metavar="SEED", help="find the fewest steps that fail"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each sequence")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.crowd and options.shrink is not None:
        parser.error("a --crowd depends on its schedule too much to be shrunk")
    if options.child is not None:
        from .runs import run_seeds

        task = json.loads(options.child)
        keep = task.pop("keep", None)
        return run_seeds(
            task.pop("seeds"),
            configure(task.pop("threads"), task.pop("steps"), task.pop("crowd")),
            keep=None if keep is None else {int(thread): at for thread, at in keep.items()},
            **task,
        )
    from .parent import shrink, storm

    return storm(options) if options.shrink is None else shrink(options)


def configure(threads: int, steps: int, crowd: bool) -> Config:
    import cudriver as cu

    return Config(threads, steps, cu.device_count(), cu.driver_is_simulated(), crowd)


if __name__ == "__main__":
    sys.exit(main())
