"""docs/accuracy-tables.md, and the lines that `make corpus` prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from corpus.compare import HAPPENS, RIGHT
from corpus.others import table
from corpus.plan import Environment

ROOT = Path(__file__).parents[2]

# Where the parts that `make chaos` writes begin: they end before the next heading.
RANDOM, WRONG = "## Random faults", "Of the random faults:"
PASTED = "## Errors that are pasted"  # written by hand

COLOUR = r"\x1b\[[0-9;]*m"  # of a terminal


def parts(page: str) -> dict[str, str]:
    """What `make corpus` has not written, by how it begins."""
    found = (re.search(rf"(?ms)^{start}.*?(?=\n\n## )", page) for start in (PASTED, RANDOM, WRONG))
    return {m[0].partition("\n")[0]: m[0] for m in found if m}


def with_parts(page: str, new: dict[str, str]) -> str:
    """A page with these in place of its own, the figures before what stays wrong. What is written
    by hand stays where no other is given.
    """
    old = parts(page)
    for part in old.values():
        page = page.replace(part + "\n\n", "")
    new = {name: old[name] for name in (PASTED,) if name in old} | new
    if PASTED in new:
        page = page.replace("## What stays wrong\n", f"{new[PASTED]}\n\n## What stays wrong\n")
    if RANDOM in new:
        page = page.replace("## What stays wrong\n", f"{new[RANDOM]}\n\n## What stays wrong\n")
    if WRONG in new:
        page = page.replace("## Environments\n", f"{new[WRONG]}\n\n## Environments\n")
    return page


class Totals:
    """Sums over environments and their faults."""

    def __init__(self, rows: Iterable[dict]) -> None:
        self.environments = self.faults = self.not_installed = 0
        self.right = self.false = self.found = self.missed = self.texts = 0
        self.libraries = self.libraries_right = self.fixes = self.fixes_work = self.untried = 0
        self.differences = self.failed = 0
        self.states: Counter[tuple[str | None, str]] = Counter()
        for row in rows:
            if row["state"] == "not installed":
                self.not_installed += 1
                continue
            if row["state"] == "failed":
                self.failed += 1
                continue
            self.environments += 1
            self._add(row)
            for fault in row["faults"]:
                if fault["state"] != "done":
                    self.failed += 1
                    continue
                self.faults += 1
                self._add(fault)
                state = fault["fix"]["state"]
                self.fixes += state in ("works", "failed")
                self.fixes_work += state == "works"
                self.untried += state == "not tried"

    def _add(self, row: dict) -> None:
        self.right += row["right_errors"]
        self.false += len(row["false_alarms"])
        self.found += row["found"]
        self.missed += len(row["misses"])
        self.texts += row["texts_right"]
        self.libraries += row["libraries"]
        self.libraries_right += row["libraries_right"]
        self.differences += len(row["differences"])
        self.states.update((state, happened) for _, state, happened in row.get("states", []))

    @property
    def precision(self) -> float:
        """Of the errors, the part that stood for a failure."""
        return self.right / (self.right + self.false) if self.right + self.false else 1.0

    @property
    def recall(self) -> float:
        """Of the failures, the part that an error stood for."""
        return self.found / (self.found + self.missed) if self.found + self.missed else 1.0

    def line(self) -> str:
        """All in one line."""
        return (
            f"{self.environments} environments, {self.faults} faults: precision "
            f"{self.precision:.2f} ({self.false} false), recall {self.recall:.2f} "
            f"({self.missed} missed), libraries {self.libraries_right}/{self.libraries}, "
            f"{self.differences} differences, fixes {self.fixes_work}/{self.fixes}; "
            f"{self.not_installed} not installed, {self.failed} failed"
        )


def one_line(row: dict) -> str:
    """An environment as it is done."""
    if row["state"] != "done":
        return f"{row['name']}: {row['state']}: {row['reason']}"
    parts = [f"{row['name']}: {row['libraries_right']}/{row['libraries']} libraries"]
    for source in [row, *row["faults"]]:
        name = "" if source is row else f"@{source['name']} "
        parts += [name + text for text in wrong(source)]
        if source.get("fix", {}).get("state") == "not tried":
            parts.append(f"{name}fix not tried: {source['fix']['reason']}")
    return "\n    ".join(parts) + f"\n    {row['seconds']} s"


def write(every: list[Environment], done: dict[str, dict], notes: dict) -> str:
    """The whole document. `notes`: notes.toml, why something stays wrong or cannot be had."""
    rows = [done[e.name] for e in every if e.name in done]
    totals = Totals(rows)
    dates = sorted({row["date"] for row in rows}) or ["never"]
    checks = sorted({row["check"] for row in rows})
    lines = [
        "# The accuracy of the check: tables",
        "",
        "Written by `make corpus`: each environment below is installed with uv, its modules are",
        "imported by its own Python, and what happens is set beside what `cudriver check` and",
        "`cudriver which` say of it from outside. Then faults are planted in copies of it, and the",
        "printed fix is run as it stands. In these copies public submodules are imported too (of",
        "packages with more than 200 a tenth): the top module's import may not reach the fault.",
        "No GPU and no driver: what only a running kernel shows",
        "is not measured here. What imports do does not depend on the check, so it may be kept",
        "from an earlier run of the same declaration. `tests/corpus/environments/` has those.",
        "",
        f"Run {' to '.join(sorted({dates[0], dates[-1]}))}; check {', '.join(checks)} "
        "(a hash of its files).",
        "",
        *_totals(totals),
        "",
        *_states(totals),
        *_beside(rows),
        "- **precision**: of the errors, the part that stands for an import, or a first use, that",
        "  fails; the rest are false alarms.",
        "- **recall**: of the failures, the part that an error stands for; a warning is enough",
        "  where only the GPU part fails and the package goes on without it.",
        "- **libraries**: of NVIDIA's libraries that the processes mapped, the part for which",
        "  `which` names that very file, in the version that it reports of itself.",
        "- **fixes**: of the commands printed for a planted fault, the part after which imports",
        "  and check are right again.",
        "",
        "## What stays wrong",
        "",
        *(_wrong(rows, notes.get("cause", {})) or ["Of the faults below: nothing."]),
        "",
        "## Environments",
        "",
        "| environment | Python | packages | failing | false | missed | libraries | faults |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *(_environment(e, done.get(e.name)) for e in every),
        "",
        "## Faults",
        "",
        "| environment | fault | what happens | the check says | fix |",
        "|---|---|---|---|---|",
        *(line for e in every if e.name in done for line in _faults(e, done[e.name])),
        "",
        "## What could not be had",
        "",
        *(f"- {name}: {why}" for name, why in notes.get("unavailable", {}).items()),
        *(
            f"- {row['name']}: not installed: {cell(row['reason'])}"
            for row in rows
            if row["state"] == "not installed"
        ),
    ]
    return "\n".join(lines) + "\n"


def _beside(rows: list[dict]) -> list[str]:
    """What other tools say of the planted faults that break something, where they were asked."""
    faults = [fault for row in rows for fault in row.get("faults", []) if "others" in fault]
    lines = table((fault["others"], not fault["misses"]) for fault in faults)
    about = (
        "Other tools, asked of the planted faults that break something: what they name, as below."
    )
    return [about, "", *lines, ""] if lines else []


def _totals(totals: Totals) -> list[str]:
    part = totals.libraries_right / totals.libraries if totals.libraries else 1.0
    return [
        "| | |",
        "|---|---:|",
        f"| environments | {totals.environments} |",
        f"| planted faults | {totals.faults} |",
        f"| precision | {totals.precision:.2f} ({totals.right} right, {totals.false} false) |",
        f"| recall | {totals.recall:.2f} ({totals.found} found, {totals.missed} missed) |",
        f"| failures whose text was predicted to the letter | {totals.texts} |",
        f"| libraries | {part:.3f} ({totals.libraries_right} of {totals.libraries} right) |",
        f"| fixes that work | {totals.fixes_work} of {totals.fixes} |",
        f"| fixes not tried: they need another package index | {totals.untried} |",
    ]


def _states(totals: Totals) -> list[str]:
    """The states of the frameworks against what happened; [] of rows that have none."""
    if not totals.states:
        return []
    lines = [
        "The state of each framework that was imported, faults included, and what happened:",
        "",
        f"| the check says | {' | '.join(HAPPENS)} | right |",
        "|---|---:|---:|---:|---:|",
    ]
    for state, right in RIGHT.items():
        counts = [totals.states[state, happened] for happened in HAPPENS]
        good = sum(totals.states[state, happened] for happened in right)
        share = f"{good} of {sum(counts)}" if state != "not known" else "open"
        cells = " | ".join(str(n or "") for n in counts)
        lines.append(f"| {state or 'here without CUDA'} | {cells} | {share} |")
    return [*lines, ""]


def _environment(wanted: Environment, row: dict | None) -> str:
    packages = ", ".join(wanted.packages + wanted.no_deps)
    start = f"| {wanted.name} | {wanted.python} | {packages} |"
    if row is None:
        return f"{start} not run | | | | |"
    if row["state"] != "done":
        return f"{start} {row['state']} | | | | |"
    return (
        f"{start} {len(row['failures']) or ''} | {len(row['false_alarms']) or ''} "
        f"| {len(row['misses']) or ''} | {row['libraries_right']}/{row['libraries']} "
        f"| {len(row['faults']) or ''} |"
    )


def _faults(wanted: Environment, row: dict) -> Iterable[str]:
    about = {fault.name: fault.about for fault in wanted.faults}
    for fault in row.get("faults", []):
        name = f"{fault['name']}" + (
            f": {about[fault['name']]}" if about.get(fault["name"]) else ""
        )
        if fault["state"] != "done":
            yield f"| {wanted.name} | {name} | {fault['state']}: {cell(fault['reason'])} | | |"
            continue
        happens = fault["failures"][0]["text"] if fault["failures"] else "nothing fails"
        loud = [f for f in fault["findings"] if f["severity"] in ("error", "warning")]
        says = ", ".join(dict.fromkeys(f"{f['severity']} {f['rule']}" for f in loud)) or "nothing"
        yield f"| {wanted.name} | {name} | {cell(happens)} | {says} | {fault['fix']['state']} |"


def cell(text: str, width: int = 160) -> str:
    """A text for a table or a list: one line, not too long, without the environment's folder."""
    text = re.sub(r"[^\s'\"=:]*/site-packages/", "", text)
    text = re.sub(r"[^\s'\"=:]*/corpus/environments/[^/\s]+/", "", text)
    text = text.replace(f"{ROOT}/", "")
    text = " ".join(text.split()).replace("|", "\\|")
    text = re.sub(r"\['[^']*/.*", "[...]", text)  # a list of this machine's folders
    return text if len(text) <= width else text[: width - 3] + "..."


def wrong(row: dict) -> list[str]:
    """What is wrong in one row, a line each."""
    if row["state"] == "failed":
        return [f"failed: {row['reason']}"]
    if row["state"] != "done":
        return []
    texts = [f"false alarm: {text}" for text in row["false_alarms"]]
    texts += [f"missed: {re.sub(COLOUR, '', text)}" for text in row["misses"]]
    texts += [f"differs: {text}" for text in row["differences"]]
    fixes = row.get("fix", {})
    if fixes.get("state") == "failed":
        texts.append(f"fix `{'; '.join(fixes['commands'])}`: {fixes['reason']}")
    return texts


def unexplained(rows: list[dict], causes: dict[str, str]) -> list[str]:
    """The environments and faults where something is wrong for no cause that is written down."""
    return [name for name, _, cause in _each_wrong(rows, causes) if cause is None]


def _each_wrong(
    rows: list[dict], causes: dict[str, str]
) -> Iterable[tuple[str, list[str], str | None]]:
    for row in rows:
        for source in [row, *row.get("faults", [])]:
            name = row["name"] if source is row else f"{row['name']}@{source['name']}"
            if texts := wrong(source):
                yield name, texts, causes.get(name) or causes.get(row["name"])


def _wrong(rows: list[dict], causes: dict[str, str]) -> list[str]:
    lines = []
    for name, texts, cause in _each_wrong(rows, causes):
        lines.append(f"- **{name}**: {cause or 'The cause is not known yet.'}")
        lines += [f"  - {cell(text, 240)}" for text in texts]
    return lines
