"""Plants random faults in real environments: imports, checks, runs the printed commands, scores."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from chaos import document, faults
from chaos.score import HARMLESS, RIGHT, one_line, score, summary
from corpus import ask
from corpus.__main__ import CACHE, ROOT, fingerprint, simulated_driver
from corpus.compare import Said
from corpus.document import RANDOM, WRONG, parts, with_parts
from corpus.one import fixes, heal
from corpus.others import Others
from corpus.plan import DeclarationError, Environment, Fault, read_all, select, truth_key
from corpus.workshop import InstallError, Workshop, call

RESULTS = ROOT / "build" / "chaos" / "results.jsonl"
CLAIM = re.compile(
    r"import (?P<module>[\w.]+) fails(?:, too)?|(?P<by>[\w.]+) needs it to (?P<use>.+)"
)
BARE = re.compile(r"module '(\w+)' has no attribute")
USES = {
    # PyTorch loads it when a GPU asks for it.
    "compute linear algebra on the GPU": (
        "__import__('ctypes').CDLL("
        "__import__('torch').__path__[0] + '/lib/libtorch_cuda_linalg.so')"
    ),
    "compile with NVRTC": "cuda_nvrtc()",  # cuda.core asks the driver first
}
SMALL = ("cuda-core-13", "cpu-onnxruntime", "numba-cuda12")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    add = parser.add_argument
    add("name", nargs="*", default=SMALL, help="environments of the corpus (three small ones)")
    add("--seeds", default="0-9", help="of each environment: 0-9")
    add("-j", type=int, default=1, dest="jobs", help="faults side by side (1)")
    add("--run-commands", action="store_true", help="also run what the check prints as fixes")
    add("--others", action="store_true", help="also ask pip check and other tools")
    add("--again", action="store_true", help="also what is done already")
    add("--keep-truth", action="store_true", help="take the imports' outcome of an earlier run")
    add("--least", type=float, help="fail where fewer (a share) of those that break are found")
    add("--check", default=str(Path(sys.executable).with_name("cudriver")), help="cudriver itself")
    add("--results", type=Path, default=RESULTS, help="the JSON lines to read and to add to")
    add("--only-summary", action="store_true", help="of the results there are")
    add(
        "--document",
        metavar="COMMIT",
        help="write docs/accuracy-tables.md: of which commit, and when",
    )
    return parser.parse_args()


class Healthy:
    """An environment as it should be: made once, kept, and never changed."""

    def __init__(
        self,
        wanted: Environment,
        shop: Workshop,
        check: str,
        driver: Path | None,
        with_others: bool = False,
    ):
        self.wanted, self.shop, self.check = wanted, shop, check
        self.driver = driver if wanted.driver == "simulated" else None
        self.prefix = shop.prefix(wanted)
        stamp = self.prefix / f"made-{wanted.key()}"
        if not stamp.exists():
            shop.make(wanted)
            stamp.touch()
        truth, said = self.look(self.prefix, {}, self.kept())
        verified = self.ask(self.prefix, {}, "--verify")
        errors = [f["title"] for f in said.findings if f["severity"] == "error"]
        wrong = [each["text"] for each in truth] + errors
        if wrong:
            raise InstallError(f"{wanted.name} is not healthy: {wrong[0]}")
        self.said = {(f["rule"], f["title"]) for f in said.findings + verified.findings}
        self.known = faults.survey(self.prefix, self._opened())
        environ = ask.variables(wanted.environ, self.driver)
        self.others = Others(shop, self.prefix, environ) if with_others else None

    def kept(self, *what: object) -> Path | None:
        """The file for what imports do after a fault, which does not depend on the check."""
        text = json.dumps([truth_key(self.wanted, None), *what], sort_keys=True)
        return self.shop.kept_truth(hashlib.sha256(text.encode()).hexdigest()[:16])

    def _opened(self) -> list[str]:
        """What imports and first uses open."""
        kept = self.kept("opened")
        if kept is not None and kept.exists():
            known: list[str] = json.loads(kept.read_text())
            return known
        environ, found = ask.variables(self.wanted.environ, self.driver), set()
        for group in self.wanted.modules:
            out = self.prefix / "opened.json"
            answer = self.prefix / "answer.json"
            learn = Path(__file__).with_name("learn.py")
            words = [self.prefix / "bin" / "python", learn, out, answer, *group.split("+")]
            call(words, environ, self.prefix, ask.IMPORT_LIMIT)
            found |= set(json.loads(out.read_text()))
            out.unlink()
            answer.unlink()
        if kept is not None:
            kept.write_text(json.dumps(sorted(found)))
        return sorted(found)

    def look(
        self, prefix: Path, extra: Mapping[str, str], kept: Path | None
    ) -> tuple[list[dict], Said]:
        """The failures of a copy, and what the check says of it."""
        environ = ask.variables({**self.wanted.environ, **extra}, self.driver)
        happened = ask.truth(prefix, self.wanted.modules, environ, prefix, kept=kept)
        ignored = self.wanted.unrelated
        failures = [f for f in happened.failures if not any(t in f["text"] for t in ignored)]
        return failures, self.ask(prefix, extra)

    def ask(self, prefix: Path, extra: Mapping[str, str], *words: str) -> Said:
        """What the check says of a copy."""
        environ = ask.variables({**self.wanted.environ, **extra}, self.driver)
        return ask.said(self.check, prefix, environ, prefix, words, libraries=False)

    def fresh(self, said: Said) -> list[dict]:
        """The findings that the healthy environment has not."""
        return [f for f in said.findings if (f["rule"], f["title"]) not in self.said]

    def claimed(
        self, prefix: Path, environ: Mapping[str, str], fault: faults.Fault, findings: list[dict]
    ) -> list[dict]:
        """Failures that an error foretells of what the environment's own modules do not try: each
        is tried, in the healthy environment first.
        """
        own = {name for group in self.wanted.modules for name in group.split("+")}
        tried: list[tuple[str, tuple[str, ...]]] = []
        errors = [finding for finding in findings if finding["severity"] == "error"]
        for finding in errors if self.wanted.modules else ():
            bare = BARE.match(finding.get("predicts") or "")
            if bare:
                tried.append((bare[1], (f"__import__('{bare[1]}').__version__",)))
            for value in (each["value"] for each in finding["evidence"]):
                match = CLAIM.fullmatch(value or "")
                if match and match["use"] in USES:
                    tried.append((match["by"], (USES[match["use"]],)))
                elif match and (match["module"] or match["by"]) not in own:
                    tried.append((match["module"] or match["by"], ()))
        failures = []
        for module, code in dict.fromkeys(tried):
            group, what = (module,), (module, code)
            healthy = ask.variables(self.wanted.environ, self.driver)
            kept = self.kept("claimed", *what)
            if not ask.truth(self.prefix, group, healthy, self.prefix, code, kept).failures:
                kept = self.kept(asdict(fault), "claimed", *what)
                failures += ask.truth(prefix, group, environ, prefix, code, kept).failures
        return failures

    def examine(self, seed: int, run_commands: bool) -> dict:
        """One fault from its seed to its result. Nothing of it is raised."""
        fault = faults.draw(self.wanted.name, seed, self.known)
        row: dict = {"environment": self.wanted.name, "seed": seed, "fault": asdict(fault)}
        prefix = self.prefix.with_name(f"{self.prefix.name}@{seed}")
        try:
            planted = faults.plant(self.shop, self.prefix, self.known, fault)
            kept = self.kept(asdict(fault))
            failures, said = self.look(planted.prefix, planted.environ, kept)
            fresh = self.fresh(said)
            environ = ask.variables({**self.wanted.environ, **planted.environ}, self.driver)
            failures += self.claimed(prefix, environ, fault, fresh)
            scored = score(fault.words, failures, fresh)
            row.update(state="done", failures=failures, findings=fresh, score=asdict(scored))
            # It reads everything: of what breaks nothing, a part is enough to see false findings.
            part = scored.outcome != HARMLESS or seed % 4 == 0
            if scored.outcome != RIGHT and part:
                row["verified"] = self.fresh(self.ask(prefix, planted.environ, "--verify"))
            if self.others is not None and scored.outcome != HARMLESS:
                row["others"] = self.others.ask(prefix, environ, fault.words)
            commands = fixes(said, self.said)
            if run_commands and commands and scored.outcome != HARMLESS:
                kept = self.kept(asdict(fault), commands)
                row["fix"] = heal(
                    self.wanted, Fault(name=str(seed)), prefix, environ, prefix, self.check,
                    self.shop, commands, kept,
                )  # fmt: skip
                row["fix"]["commands"] = commands
        except (ask.CheckError, InstallError, OSError, ValueError) as error:
            row.update(state="failed", reason=f"{type(error).__name__}: {error}")
        finally:
            self.shop.remove(prefix)
        return row


def main() -> int:
    given = arguments()
    try:
        chosen = select(read_all(), list(given.name))
    except DeclarationError as error:
        print(error, file=sys.stderr)
        return 2
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    done = read_results(given.results)
    if not given.only_summary:
        try:
            shop = Workshop(CACHE / "chaos", 0, CACHE / "corpus" / "uv")
            shop.keeps_truth = given.keep_truth
        except InstallError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 77
        for row in run(given, chosen, seeds, shop, set() if given.again else set(done)):
            done[row["environment"], row["seed"]] = row
    names = {wanted.name for wanted in chosen}
    rows = [row for (name, seed), row in done.items() if name in names and seed in seeds]
    if not rows:
        print("skipped: none of the environments can be had")
        return 77
    print(summary(rows))
    if given.document:
        page = ROOT / "docs" / "accuracy-tables.md"
        old = page.read_text()
        new = document.figures(rows, given.document, parts(old).get(RANDOM, ""))
        page.write_text(with_parts(old, {RANDOM: new, WRONG: document.wrong(rows)}))
    broken = [row for row in rows if row["state"] == "done"]
    broken = [row for row in broken if row["score"]["outcome"] != HARMLESS]
    found = sum(row["score"]["outcome"] == "right" for row in broken)
    return 1 if given.least is not None and found < given.least * len(broken) else 0


def run(
    given: argparse.Namespace,
    chosen: list[Environment],
    seeds: range,
    shop: Workshop,
    done: set[tuple[str, int]],
) -> Iterator[dict]:
    """Every fault that is not done, written down as soon as it is: a seed of each environment, then
    the next seed, so that a run that is stopped has something of all.
    """
    driver, version = simulated_driver(given.check, shop.folder), fingerprint(given.check)
    lock, made = threading.Lock(), {}
    for wanted in chosen:
        if all((wanted.name, seed) in done for seed in seeds):
            continue
        try:
            made[wanted.name] = Healthy(wanted, shop, given.check, driver, given.others)
        except (InstallError, ask.CheckError, OSError, ValueError) as error:
            print(f"{wanted.name}: {error}", flush=True)

    def one(fault: tuple[str, int]) -> dict:
        name, seed = fault
        row = {**made[name].examine(seed, given.run_commands), "check": version}
        with lock, open(given.results, "a") as file:
            file.write(json.dumps(row) + "\n")
            print(one_line(row), flush=True)
        return row

    left = [(name, seed) for seed in seeds for name in made if (name, seed) not in done]
    with ThreadPoolExecutor(given.jobs) as pool:
        yield from pool.map(one, left)


def read_results(path: Path) -> dict[tuple[str, int], dict]:
    """The last line of each fault."""
    lines = path.read_text().splitlines() if path.exists() else []
    done = {}
    for row in map(json.loads, lines):
        if row["state"] == "done":  # scored as it is scored today
            words = faults.Fault(**row["fault"]).words
            row["score"] = asdict(score(words, row["failures"], row["findings"]))
        done[row["environment"], row["seed"]] = row
    return done


if __name__ == "__main__":
    sys.exit(main())
