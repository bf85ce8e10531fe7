"""What docs/accuracy-tables.md says of a run: figures with intervals, and all that stays wrong."""

from __future__ import annotations

import re
from collections import Counter

from chaos.score import HARMLESS, OTHER, RIGHT, SILENT, WEAK, named, verified
from corpus.document import RANDOM, WRONG, cell
from corpus.others import share, table

BESIDE = "### Beside other tools"
ABOUT = """\
Written by `make chaos`: a fault that chance draws from a seed is planted in a copy of a healthy
environment: a file is deleted, emptied, cut, zeroed in part, made another machine's, or a link to
nothing; a distribution is uninstalled, left half uninstalled, without its records, of an older
release, or hidden by half of itself on `PYTHONPATH`. Most files are of those that imports and first
uses open; some are not, so that a false error about them is seen. The real imports and first uses
tell what breaks; what an error says of another import is tried as well.
The printed commands are run as they stand."""
MEANS = {
    RIGHT: "right",
    WEAK: "only a warning",
    OTHER: "an error, of another cause",
    SILENT: "nothing",
    HARMLESS: "nothing breaks",
}


def figures(rows: list[dict], version: str, before: str = "") -> str:
    """The section of a run's figures. version: the commit and its date; before: the section as it
    was, of which the other tools' part stays where they were not asked.
    """
    done = [row for row in rows if row["state"] == "done"]
    broken = [row for row in done if row["score"]["outcome"] != HARMLESS]
    seeds = sorted({row["seed"] for row in done})
    checks = list(dict.fromkeys(row["check"] for row in done))
    tried = sum("fix" in row for row in broken)
    lines = [RANDOM, "", ABOUT, ""]
    lines += [
        f"Run of {version}, check {', '.join(checks)} (a hash of its files),",
        f"seeds {', '.join(_runs(seeds))}; the commands run for {tried} of those that break",
        "something; `--verify` asked where the check alone is not right, and of a fourth of what",
        "breaks nothing. In brackets: Wilson intervals (95 %).",
        "",
        "| environment | faults | break something | found | found or named with `--verify` | text "
        "| fixes that heal | false errors | false warnings |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = sorted({row["environment"] for row in done})
    lines += [_line(name, [row for row in done if row["environment"] == name]) for name in names]
    for check in checks if len(checks) > 1 else ():
        lines.append(_line(f"of check {check}", [row for row in done if row["check"] == check]))
    lines += [_line("**all**", done), ""]
    count = Counter(row["score"]["outcome"] for row in broken)
    missed = ", ".join(f"{MEANS[kind]}: {count[kind]}" for kind in (WEAK, OTHER, SILENT))
    lines += [
        f"Of the {len(broken)} faults that break something, not found are: {missed}. "
        f"{len(rows) - len(done)} faults could not be planted, or the check not asked.",
        "",
        "- **found**: an error names the file or the distribution that the fault befell; a warning",
        "  is enough where no import, but only a first use fails.",
        "- **named with `--verify`**: `cudriver check --verify`, which reads every file and",
        "  compares its hash, names the file. Whether what differs is ever used it cannot tell:",
        "  where nothing proves that, a file of other bytes stays a warning. The check alone sees",
        "  that a file changed by its size, or, of packages that have to do with CUDA and of what",
        "  they require, by when it was written.",
        "- **text**: the finding's text stands in what the user reads, to the letter.",
        "- **false**: faults with an error, or a warning, that is about something else or about a",
        "  failure that does not come.",
    ]
    beside = _beside(broken) or ["", *before[before.find(BESIDE) :].splitlines()]
    return "\n".join([*lines, *beside] if BESIDE in beside else lines)


def _runs(seeds: list[int]) -> list[str]:
    """Sorted numbers, those that follow each other together."""
    begins = [one for one in seeds if one - 1 not in seeds]
    ends = [one for one in seeds if one + 1 not in seeds]
    return [f"{first} to {last}" for first, last in zip(begins, ends, strict=True)]


def _beside(broken: list[dict]) -> list[str]:
    """What other tools say of the faults of which they were asked."""
    asked = [row for row in broken if row.get("others")]
    lines = table((row["others"], row["score"]["outcome"] == RIGHT) for row in asked)
    if not lines:
        return []
    seeds = sorted({row["seed"] for row in asked})
    return [
        "",
        BESIDE,
        "",
        f"Faults of the same kinds (seeds {seeds[0]} to {seeds[-1]} of "
        f"{', '.join(sorted({row['environment'] for row in asked}))}), asked of tools that a user",
        "may take instead, run in the broken environment as their pages say. They are made for",
        "other questions: versions, the driver, what is installed. **named**: of the faults that",
        "break something those where a line that the healthy environment does not get names the",
        "file or the distribution, be it in a traceback of the tool itself.",
        "",
        *lines,
    ]


def _line(name: str, done: list[dict]) -> str:
    broken = [row for row in done if row["score"]["outcome"] != HARMLESS]
    tried = [row for row in broken if row.get("fix", {}).get("state") in ("works", "failed")]
    parts = [
        share(sum(row["score"]["outcome"] == RIGHT for row in broken), len(broken)),
        share(sum(map(named, broken)), len(broken)),
        share(sum(row["score"]["text"] for row in broken), len(broken)),
        share(sum(row["fix"]["state"] == "works" for row in tried), len(tried)),
    ]
    wrong = [sum(bool(row["score"][f"false_{x}"]) for row in done) for x in ("errors", "warnings")]
    return "| " + " | ".join(map(str, [name, len(done), len(broken), *parts, *wrong])) + " |"


def wrong(rows: list[dict]) -> str:
    """Everything that a run got wrong, fault by fault."""
    lines = [WRONG, ""]
    for row in sorted(rows, key=lambda each: (each["environment"], each["seed"])):
        fault, texts = row["fault"], []
        if row["state"] != "done":
            texts = [f"not done: {row['reason']}"]
        else:
            told = row["score"]
            happens = "; ".join(each["text"] for each in row["failures"][:1])
            if told["outcome"] not in (RIGHT, HARMLESS):
                texts.append(f"the check says {MEANS[told['outcome']]}; what happens: {happens}")
                if "verified" in row and not named(row):
                    texts.append("`--verify` does not name it either")
            elif told["outcome"] == RIGHT and not told["text"]:
                texts.append(f"only its text is not what the user reads: {happens}")
            texts += [f"false error: {text}" for text in told["false_errors"]]
            texts += [f"false warning: {text}" for text in told["false_warnings"]]
            more = verified(row)
            more = {*more.false_errors, *more.false_warnings}
            more -= {*told["false_errors"], *told["false_warnings"]}
            texts += [f"false, with `--verify`: {text}" for text in sorted(more)]
            if row.get("fix", {}).get("state") == "failed":
                texts.append(f"the fix does not heal: {row['fix']['reason']}")
        if texts:
            target = re.sub(r"lib/python[0-9.]+/site-packages/", "", fault["target"])
            head = f"- **{row['environment']} {row['seed']}**, {fault['kind']} `{target}`"
            texts = [re.sub(r"\0|/\S*/environments/", "", text) for text in texts]
            lines += [head, *(f"  - {cell(text, 240)}" for text in texts)]
    return "\n".join(lines if len(lines) > 2 else [*lines, "Nothing."])
