"""The sets that `cudriver plan` names: what was installed and imported cleanly, and nothing else.

`make corpus` writes them from its results, then runs the plan of each set as it is printed and
finds the set again: `python -m corpus.proven`. When that was stands in the data too.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import shlex
import struct
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from corpus import ask, derived
from corpus.plan import Environment, tomllib
from corpus.workshop import (
    INSTALL_LIMIT,
    InstallError,
    Workshop,
    call,
    distributions,
    interpreter,
    site_packages,
)
from cudriver.stack.fixes.fix import branch_for
from cudriver.stack.machine.driver import assumed
from cudriver.stack.planning.candidates import sets
from cudriver.stack.planning.commands import new_environment
from cudriver.stack.planning.question import Question
from cudriver.stack.tables import table

ROOT = Path(__file__).parents[2]
DATA = ROOT / "python" / "cudriver" / "stack" / "data" / "proven.json"
SETS = Path(__file__).with_name("sets.toml")

# What a plan can be asked for, and the files that hold its own machine code.
CODE = {
    "torch": (),  # the check reads its list
    "jax": ("jax_plugins/*/*.so", "jax_cuda*_plugin/*.so"),
    "tensorflow": ("tensorflow/libtensorflow_cc.so.2",),
    "cupy": ("cupy/**/*.so",),
    "onnxruntime": ("onnxruntime/capi/libonnxruntime_providers_cuda.so",),
    "vllm": ("vllm/*.so",),
}
FATBIN = struct.pack("<IH", 0xBA55ED50, 1)
PTX, ELF = 1, 2
SKIPPED = ("pip", "setuptools", "wheel")  # that came with the environment
FAMILIES = 90  # from this architecture on code may be for one only: "sm_90a"


def declared() -> list[Environment]:
    """The sets of sets.toml, one for each of their Pythons."""
    found = []
    for row in tomllib.loads(SETS.read_text(encoding="utf-8"))["set"]:
        told = {n: tuple(v) if isinstance(v, list) else v for n, v in row.items()}
        for python in told.pop("pythons"):
            named = {**told, "name": f"set-{row['name']}-py{python}", "python": python}
            found.append(Environment(**named))
    return found


def architectures(prefix: Path) -> dict[str, list[str]]:
    """The architectures that each framework's own files have code for, from their fat binaries."""
    site = site_packages(prefix)
    found = {}
    for name, patterns in CODE.items():
        archs = {a for p in patterns for path in site.glob(p) for a in _fat_binaries(path)}
        if archs:
            found[name] = sorted(archs, key=lambda a: (a[0] == "c", int(re.sub(r"\D", "", a))))
    return found


def _fat_binaries(path: Path) -> set[str]:
    """The heads of fat binaries in a file: their payload may be compressed, they are not."""
    found = set()
    if not path.is_file() or path.is_symlink():
        return found
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(FATBIN)
        while start >= 0:
            head, size = struct.unpack_from("<HQ", data, start + 6)
            at, end = start + head, min(start + head + size, len(data))
            while at + 32 <= end:
                kind, _, inner, length = struct.unpack_from("<HHIQ", data, at)
                (arch,) = struct.unpack_from("<I", data, at + 28)
                if kind not in (PTX, ELF) or not 20 <= arch < 200 or inner + length == 0:
                    break
                # That sm_100 may be sm_100a cannot be seen here: it is held to be.
                letter = "a" if kind == ELF and arch >= FAMILIES else ""
                found.add(f"{'sm' if kind == ELF else 'compute'}_{arch}{letter}")
                at += inner + length
            start = data.find(FATBIN, start + 8)
    return found


def is_clean(row: dict, wanted: Environment) -> bool:
    """Whether an environment is a set: nothing failed, and the check found the same."""
    if row["state"] != "done" or wanted.override or wanted.no_deps or wanted.environ:
        return False
    failures = [
        f for f in row["failures"] if not any(text in f["text"] for text in wanted.unrelated)
    ]
    wrong = [*failures, *row["false_alarms"], *row["misses"], *row["differences"]]
    asked = [f for f in row.get("frameworks", ()) if f["name"] in CODE and f["cuda"]]
    wrong += _loud(row)
    loads = row["libraries"] > 0 and row["libraries"] == row["libraries_right"]
    return bool(asked) and loads and not wrong and row["verdict"] == "consistent"


def _loud(row: dict) -> list[dict]:
    """What a strict check does not let pass."""
    return [f for f in row.get("findings", ()) if f["severity"] in ("error", "warning")]


def write(every: list[Environment], done: dict[str, dict], path: Path = DATA) -> None:
    """The data of the plan. Runs of one set with several Pythons become one; what was declared as
    a set and failed with every Python is written down too. What was not run now stays as it is.
    """
    own = declared()
    names = {_short(e) for e in own}
    known = [*own, *(e for e in every if e.name not in names)]
    sets: dict[str, dict] = {}
    kept = json.loads(path.read_text()) if path.exists() else {"sets": [], "failed": []}
    failed = {row["name"]: row for row in kept["failed"] if row["name"] in names}
    before = {
        (made["name"], run["python"]): (made, run) for made in kept["sets"] for run in made["runs"]
    }
    for wanted in known:
        row = done.get(wanted.name)
        told = before.get((_short(wanted), wanted.python))
        if row is None and told is not None and told[0]["packages"] == [*wanted.packages]:
            made, run = told
            whole = {**made["installed"], **run["installed"]}
            runs = sets.setdefault(_short(wanted), {**made, "runs": []})["runs"]
            runs.append({**run, "installed": whole})
        bare = Environment(**{**wanted.__dict__, "faults": ()})  # as --no-faults has it
        if row is None or row["key"] not in (wanted.key(), bare.key()):
            continue
        if not is_clean(row, wanted):
            if wanted in own:
                failed[_short(wanted)] = _failure(row, wanted)
            continue
        made = sets.setdefault(
            _short(wanted), {"name": _short(wanted), "packages": [*wanted.packages]}
        )
        made["frameworks"] = _frameworks(row)
        run = {"python": wanted.python, "date": row["date"], "installed": row["installed"]}
        made.setdefault("runs", []).append(run)
    for made in sets.values():
        made["runs"].sort(key=lambda run: int(run["python"].partition(".")[2]))
        _share(made)
        made.update(derived.of_set(made))
    derived.save(
        path,
        [sets[name] for name in sorted(sets)],
        [failed[n] for n in sorted({*failed} - {*sets})],
    )


def _short(wanted: Environment) -> str:
    """A set's name, whatever Python it is for."""
    return wanted.name.removeprefix("set-").removesuffix(f"-py{wanted.python}")


def _frameworks(row: dict) -> dict[str, dict]:
    codes = row.get("archs", {})
    return {
        f["name"]: {
            "version": f["version"],
            "cuda": f["cuda"],
            "archs": f["archs"] or codes.get(f["name"], []),
        }
        for f in row["frameworks"]
        if f["name"] in CODE and f["cuda"]
    }


def _failure(row: dict, wanted: Environment) -> dict:
    """What was tried, and the first that went wrong."""
    told = [row.get("reason"), *(f["text"] for f in row.get("failures", ()))]
    told += [f"{f['severity']} {f['rule']}, {f['title']}" for f in _loud(row)]
    reason = next(filter(None, told), row.get("verdict", ""))
    words = {re.split(r"[\[=<>~]", package)[0] for package in wanted.packages}
    names = sorted({name for name in CODE for word in words if word.startswith(name)})
    reason = " ".join(reason.split())
    why = re.search("Because (.+?), we can conclude", reason)  # uv's words
    reason = re.sub(r"\{.*?\}", "", why[1] if why else reason)[:300]
    told = {"name": _short(wanted), "packages": [*wanted.packages], "frameworks": names}
    return {**told, "date": row["date"], "reason": reason}


def _share(made: dict) -> None:
    """Versions that are the same with every Python stand once."""
    runs = [run["installed"] for run in made["runs"]]
    same = {n: v for n, v in runs[0].items() if all(run.get(n) == v for run in runs)}
    made["installed"] = {n: same[n] for n in sorted(same) if n not in SKIPPED}
    for run in made["runs"]:
        own = run["installed"]
        run["installed"] = {n: own[n] for n in sorted(own) if n not in same and n not in SKIPPED}


def note(name: str, python: str, tool: str, path: Path = DATA) -> None:
    """Writes down that the plan of a set was run today."""
    kept = json.loads(path.read_text())
    (made,) = (row for row in kept["sets"] if row["name"] == name)
    (run,) = (row for row in made["runs"] if row["python"] == python)
    run.setdefault("plans", {})[tool] = time.strftime("%Y-%m-%d")
    derived.save(path, kept["sets"], kept["failed"])


def again(candidate: Any, python: str, shop: Workshop, check: str, tool: str = "uv") -> str:
    """Runs the plan of a set as it is printed. "" where the same packages are there, import, and
    are consistent for the check; else what is not as it was.
    """
    folder = shop.folder / "plans"
    shop.remove(folder)
    folder.mkdir(parents=True)
    # As with uv, modules are compiled at their first import. Of this variable pip wants a "no".
    environ = shop.environ({"PIP_NO_INPUT": "1", "PIP_NO_COMPILE": "no"})
    base = Path(interpreter(python)).parent
    environ["PATH"] = f"{Path(check).parent}:{base}:{environ['PATH']}"
    *steps, last = new_environment(
        candidate, Question([*candidate.frameworks], python=python, installer=tool)
    )
    script = "\n".join(["set -e", *(c for step in steps for c in [*step.commands, *step.see])])
    try:
        done = call(["bash", "-c", script], environ, folder, INSTALL_LIMIT)
        if done.returncode != 0:
            return f"status {done.returncode}: {done.stderr.strip()[-300:]}"
        found = distributions(folder / "env")
        wanted = candidate.versions(python)
        changed = {n for n in {*found, *wanted} if found.get(n) != wanted.get(n)}
        # Packaging may have come with wheel, which older Pythons' environments begin with.
        changed -= {*SKIPPED, *({"packaging"} - found.keys())}
        if changed:
            return f"other versions: {', '.join(sorted(changed))}"
        modules = tuple(name for name in candidate.frameworks if name != "vllm")
        failed = ask.truth(folder / "env", modules, ask.variables({}, None), folder).failures
        failed = [f["text"] for f in failed if f["step"].startswith("import ")]
        return "; ".join(failed) or _checked(candidate, last.commands, environ, folder)
    finally:
        shop.remove(folder)


def _checked(candidate: Any, commands: list[str], environ: dict, folder: Path) -> str:
    """What the check says on the oldest driver that the set takes, for each GPU that it serves."""
    for row in table("driver")["architectures"]:
        gpu = row["capability"]
        floor = candidate.floor_for([gpu])
        if gpu in candidate.gpus and branch_for(assumed(None, [gpu]), floor):
            machine = ["--no-probe", "--assume-driver", floor, "--assume-gpu", gpu]
            for command in commands:
                done = call([*shlex.split(command), *machine], environ, folder, ask.CHECK_LIMIT)
                if done.returncode != 0:
                    return f"the check on {gpu} with {floor}: {done.stdout.strip()[-300:]}"
    return ""


def main() -> int:
    """Runs the plans of these sets, as `make corpus` names them or by their own names; without
    names, those that were not run since they were made.
    """
    parser = argparse.ArgumentParser(prog="corpus.proven", description=main.__doc__)
    parser.add_argument("set", nargs="*")
    parser.add_argument("--installer", choices=table("plan")["make"], default="uv")
    parser.add_argument("--python", action="append", help="with this one only (repeatable)")
    given, _ = parser.parse_known_args()  # the others are those of the corpus
    check = str(Path(sys.executable).with_name("cudriver"))
    cache = Path(os.environ.get("CUDRIVER_TEST_CACHE", "~/.cache/cudriver-tests")).expanduser()
    shop = Workshop(cache / "corpus", int(24e9))
    wrong = 0
    for candidate in sets("proven"):
        for python in given.python or candidate.pythons:
            ran = given.installer in candidate.run(python).get("plans", {})
            names = (candidate.name, f"set-{candidate.name}-py{python}")
            chosen = any(fnmatch(name, pattern) for name in names for pattern in given.set)
            if not chosen if given.set else ran:
                continue
            try:
                told = again(candidate, python, shop, check, given.installer)
            except InstallError as error:  # this Python is not here
                print(f"{candidate.name}: not run: {error}")
                continue
            shop.prune()
            wrong += bool(told)
            if not told:
                note(candidate.name, python, given.installer)
            print(f"{candidate.name}, Python {python}: {told or 'found again'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
