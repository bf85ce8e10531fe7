"""Whether an installer would do what plans name: their packages resolved by uv, nothing installed.

`python -m corpus.dry 30` asks for every answer of tests/stack/test_plan_answers.py that comes from
the package index itself, and for 30 more of the tables' rows, drawn by their number. A PyTorch of
an index of its own is not asked about.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from cudriver.stack.planning import plan
from cudriver.stack.planning.candidates import sets
from cudriver.stack.versions import cut, major
from stack.test_plan_answers import ROWS

PLATFORM = "x86_64-manylinux_2_40"
CUDA = r"nvidia-cuda-runtime(?:-cu\d+)?|nvidia-cublas(?:-cu\d+)?|cuda-toolkit"


def resolved(packages: list[str], python: str) -> dict[str, str] | str:
    """Every package that uv would install, with its version; else what it says."""
    options = ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
    command = ["uv", "pip", "compile", "-", *options, "--no-header", "--no-annotate", "--quiet"]
    text = "\n".join(packages)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return " ".join(done.stderr.split())[:200]
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))


def wrong(candidate: Any, python: str) -> str:
    """What uv has otherwise than a plan says; "" where it agrees."""
    found = resolved(candidate.packages, python)
    if isinstance(found, str):
        return found
    for name, told in candidate.frameworks.items():
        version = told["version"].partition("+")[0]
        there = [v for n, v in found.items() if n.startswith(name)]
        if not candidate.source and version not in there:
            return f"{name} {version}: {', '.join(there) or 'not there'}"
    majors = {major(v) for n, v in found.items() if re.fullmatch(CUDA, n)}
    if candidate.brings and majors != {major(candidate.cuda)} and (major(candidate.cuda) or 0) > 11:
        return f"CUDA {majors} instead of {cut(candidate.cuda, 2)}"
    return ""


def answers() -> Iterator[tuple[str, Any, str]]:
    """The questions, what a plan would install, and the Python."""
    seen = set()
    for packages, driver, gpu, python, _ in ROWS:
        wanted = None if python == "any" else python
        made = plan(*packages.split(), driver=driver, gpus=[gpu], python=wanted)
        for part in made.parts:
            if part.candidate is not None and part.candidate.index is None:
                chosen = wanted if wanted in part.candidate.pythons else part.candidate.newest
                key = (tuple(part.candidate.packages), chosen)
                if key not in seen and not chosen.endswith("t"):
                    seen.add(key)
                    yield f"{packages}, {driver}, {gpu}", part.candidate, chosen


def more(count: int) -> Iterator[tuple[str, Any, str]]:
    """So many other rows of the tables, each for one of its Pythons."""
    chance = random.Random(count)
    known = [each for each in sets("derived") if each.index is None and not each.source]
    for candidate in chance.sample(known, count):
        usual = [python for python in candidate.pythons if not python.endswith("t")]
        yield "drawn", candidate, chance.choice(usual)


def main() -> int:
    """Prints what uv says of each; fails where one is otherwise."""
    bad = asked = 0
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for question, candidate, python in (*answers(), *more(count)):
        told = wrong(candidate, python)
        asked, bad = asked + 1, bad + bool(told)
        names = " ".join([*candidate.packages, *candidate.source])
        print(f"{question}, Python {python}: {names}: {told or 'the same'}", flush=True)
    print(f"{asked} plans asked, {bad} otherwise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
