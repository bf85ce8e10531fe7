"""Starts the children, logs the seeds, and shrinks one that fails."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: A child ends itself after `limit` seconds of one seed; one that cannot is killed so much later.
GRACE = 60.0
SHOWN = 80  # lines of a child's standard error
AGAIN = 25  # of those of the first that failed, at the very end
NAMES = {
    "pattern": "tests.storm.session",
    "same": "tests.storm.session",
    "over": "tests.storm.session",
    "mapped": "tests.storm.session",
    "unmap": "tests.storm.session",
    "make_world": "tests.storm.runs",
    "Simulator": "tests.storm.runs",
}

Keep = dict[int, list[int]]


class Child:
    """One process that runs some seeds, until one fails."""

    def __init__(self, options: argparse.Namespace, seeds: Sequence[int], **task: Any):
        same = {
            name: getattr(options, name)
            for name in ("threads", "steps", "crowd", "limit", "repeat")
        }
        task = {**same, "seconds": None, **task, "seeds": list(seeds)}
        environ = dict(os.environ)
        if options.driver == "sim":
            environ |= {"CUDRIVER_LIBRARY": "sim", "CUDRIVER_SIM_DEVICES": str(options.devices)}
        else:
            environ.pop("CUDRIVER_LIBRARY", None)
        self.seed = seeds[0]
        self.passed: list[int] = []
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __package__, "--child", json.dumps(task)],
                cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            self.watch(options.limit * options.repeat + GRACE)
            self.status = self.process.wait()
            errors.seek(0)
            self.errors = "".join(errors.readlines()[-SHOWN:]).rstrip()

    def watch(self, limit: float) -> None:
        """Reads what it tells; kills it where it tells nothing for too long."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(limit, self.process.kill)
        watchdog.start()
        for line in self.process.stdout:
            what, _, number = line.partition(" ")
            if what == "seed":
                self.seed = int(number)
                watchdog.cancel()
                watchdog = threading.Timer(limit, self.process.kill)
                watchdog.start()
            elif what == "done":
                self.passed.append(int(number))
        watchdog.cancel()

    def kind(self) -> str:
        """The failure without its numbers: what stays the same while steps are left out."""
        last = self.errors.splitlines()[-1:] if self.status > 0 else []
        return re.sub(r"[0-9]+", "", "".join([str(self.status), *last]))[:50]

    def how(self) -> str:
        """How it ended, where that was not well."""
        if self.status < 0:
            return f"died of {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


def batches(seeds: Sequence[int] | None, size: int) -> Iterator[list[int]]:
    """The seeds that were asked for, or all from one of the clock's on."""
    if seeds is None:
        seeds = range(int(time.time()), sys.maxsize)
    for at in itertools.count(0, size):
        batch = list(seeds[at : at + size])
        if not batch:
            return
        yield batch


def command(options: argparse.Namespace, *extra: str) -> str:
    words = ["python", "-m", __package__, "--threads", str(options.threads), "--steps",
             str(options.steps), "--driver", options.driver, *extra]  # fmt: skip
    if options.crowd:
        words.append("--crowd")
    if options.driver == "sim":
        words += ["--devices", str(options.devices)]
    return shlex.join(words)


def tell_failure(options: argparse.Namespace, child: Child, shown: int = SHOWN) -> str:
    lines = [f"seed {child.seed}: {child.how()}", *child.errors.splitlines()[-shown:]]
    lines.append(f"replay: {command(options, '--seeds', str(child.seed))}")
    if not options.crowd:
        lines.append(f"shrink: {command(options, '--shrink', str(child.seed))}")
    return "\n".join(lines)


def storm(options: argparse.Namespace) -> int:
    """Runs the seeds; the status to exit with."""
    seconds = options.seconds + 60 * options.minutes + 3600 * options.hours
    if not seconds and options.seeds is None:
        print("what to run? --seeds 0-299, or --seconds, --minutes, --hours", file=sys.stderr)
        return 2
    start = time.monotonic()
    until = start + seconds if seconds else None
    log = open(options.log, "a", buffering=1) if options.log else None  # noqa: SIM115
    waiting: queue.Queue[list[int] | None] = queue.Queue(maxsize=1)
    lock = threading.Lock()
    failed: list[Child] = []
    passed: list[int] = []

    def work() -> None:
        while (batch := waiting.get()) is not None:
            rest = batch
            while rest and (until is None or time.monotonic() < until):
                left = None if until is None else max(until - time.monotonic(), 0.0)
                began = time.monotonic()
                child = Child(options, rest, seconds=left)
                with lock:
                    passed.extend(child.passed)
                    text = f"{child.passed[0]}-{child.passed[-1]} ok" if child.passed else "none"
                    line = f"seeds {text} ({time.monotonic() - began:.1f} s)"
                    if child.status:
                        failed.append(child)
                        line += "\n" + tell_failure(options, child)
                    for out in (sys.stdout, log):
                        if out is not None:
                            print(line, file=out, flush=True)
                rest = rest[rest.index(child.seed) + 1 :] if child.status else []

    workers = [threading.Thread(target=work) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for batch in batches(options.seeds, options.batch):
        if until is not None and time.monotonic() > until:
            break
        waiting.put(batch)
    for _ in workers:
        waiting.put(None)
    for worker in workers:
        worker.join()
    steps = (len(passed) + len(failed)) * options.threads * options.steps
    seeds = [child.seed for child in failed]
    print(f"{len(passed)} seeds passed, {len(failed)} failed:", *(seeds or ["none"]))
    print(f"{steps:,} steps, {options.threads} threads, {time.monotonic() - start:.0f} s")
    if failed:
        print(tell_failure(options, failed[0], AGAIN))
    return 1 if failed else 0


# ---- shrinking -----------------------------------------------------------------------------------


def fewer(steps: list[tuple[int, int]], fails: Any) -> list[tuple[int, int]]:
    """The steps without each stretch that is not needed for the failure, long stretches first."""
    threads = sorted({thread for thread, _ in steps})
    for thread in threads:
        without = [step for step in steps if step[0] != thread]
        if without and fails(without):
            steps = without
    size = max(len(steps) // 2, 1)
    while True:
        at, before = 0, len(steps)
        while at < len(steps):
            without = steps[:at] + steps[at + size :]
            if fails(without):
                steps = without
            else:
                at += size
        if size == 1 and len(steps) == before:
            return steps
        size = max(size // 2, 1)


def shrink(options: argparse.Namespace) -> int:
    """Prints the shortest script of a seed that fails, as far as leaving steps out goes."""
    seed = options.shrink
    whole = [(t, i) for t in range(options.threads) for i in range(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script"
        last: list[Child] = []

        def fails(steps: list[tuple[int, int]]) -> bool:
            keep: Keep = {}
            for thread, number in steps:
                keep.setdefault(thread, []).append(number)
            child = Child(options, [seed], keep=keep, script=str(script))
            if not child.status or (last and child.kind() != last[0].kind()):
                return False
            last[:] = [child]
            print(f"fails with {len(steps)} steps", file=sys.stderr)
            script.rename(Path(folder) / "shortest")
            return True

        if not fails(whole):
            print(f"seed {seed} does not fail; with several threads: --repeat 20", file=sys.stderr)
            return 0
        steps = fewer(whole, fails)
        text = (Path(folder) / "shortest").read_text()
    print(as_script(text, f"Seed {seed}, {len(steps)} steps: {last[0].how()}."))
    print(last[0].errors, file=sys.stderr)
    return 1


def as_script(log: str, title: str) -> str:
    """A log of lines as a program, to be run from the repository's root."""
    bodies: dict[str, list[str]] = {}
    for entry in log.splitlines():
        thread, _, line = entry.partition("\t")
        body = bodies.setdefault(thread, [])
        if line.startswith("#"):  # the line before has raised this
            before = body.pop()
            body += ["try:", f"    {before}", f"except Exception: pass  {line}"]
        else:
            body.append(line)
    lines = [f'"""{title}"""', "import asyncio, gc, threading, types", "", "import numpy as np", "",
             "import cudriver as cu"]  # fmt: skip
    lines += [f"from {module} import {name}" for name, module in NAMES.items()]
    lines += ["", "delay, world = Simulator().delay, make_world()", "globals().update(world.names)"]
    for thread, body in sorted(bodies.items()):
        lines += ["", "", f"def thread_{thread}():", "    m = types.SimpleNamespace(**world.model)"]
        lines += [f"    {line}" for line in body]
    names = ", ".join(f"thread_{thread}" for thread in sorted(bodies))
    lines += ["", "", f"threads = [threading.Thread(target=body) for body in ({names},)]",
              "for thread in threads:", "    thread.start()",
              "for thread in threads:", "    thread.join()"]  # fmt: skip
    return "\n".join(lines)
