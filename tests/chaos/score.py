"""What the check said of a fault beside what happened. Pure functions of plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chaos.faults import Fault
from corpus.compare import predicts, shown, stands_for
from corpus.others import share

RIGHT = "right"
WEAK = "only a warning"
OTHER = "another cause"
SILENT = "silent"
HARMLESS = "harmless"


@dataclass
class Score:
    """outcome: of a fault that breaks something one of the first four, else HARMLESS."""

    outcome: str
    text: bool = False  # in what a user reads: the traceback, and what is written above it
    false_errors: list[str] = field(default_factory=list)
    false_warnings: list[str] = field(default_factory=list)


def score(words: tuple[str, ...], failures: list[dict], findings: list[dict]) -> Score:
    """failures, findings: those that the healthy environment has not.

    A warning is right where it is about the fault, whether or not that breaks an import; so is an
    error that says that the installation is damaged, of the file that was damaged.
    """
    errors = [f for f in findings if f["severity"] == "error"]
    warnings = [f for f in findings if f["severity"] == "warning"]
    result = Score(HARMLESS)
    for finding in errors + warnings:
        explains = any(stands_for(finding, failure) for failure in failures)
        strong = finding["severity"] == "error"
        damaged = " is damaged: " in finding["title"]
        if explains or (names(finding, words) and (failures or damaged or not strong)):
            continue
        wrong = result.false_errors if strong else result.false_warnings
        wrong.append(f"{finding['rule']} {finding['title']}")
    if not failures:
        return result
    # What stops an import is an error; what stops only a first use may be a warning.
    stops = any(failure["step"].startswith("import ") for failure in failures)
    able = errors if stops else errors + warnings
    if any(names(f, words) for f in able):
        result.outcome = RIGHT
    elif any(stands_for(f, failure) for f in able for failure in failures):
        result.outcome = OTHER
    else:
        about = any(names(f, words) for f in warnings)
        result.outcome = WEAK if about else SILENT
    texts = [shown(failure) for failure in failures]
    result.text = any(predicts(f, text) for f in errors + warnings for text in texts)
    return result


def named(row: dict) -> bool:
    """Whether the check finds a fault, or `check --verify` names it, if only by a warning."""
    return verified(row).outcome in (RIGHT, WEAK)


def verified(row: dict) -> Score:
    """The score of `check --verify`, which is asked where the check alone is not right."""
    if "verified" not in row:
        return Score(**row["score"])
    return score(Fault(**row["fault"]).words, row["failures"], row["verified"])


def names(finding: dict, words: tuple[str, ...]) -> bool:
    """Whether a finding names the file, or the distribution, that the fault befell."""
    evidence = [f"{each.get('file')} {each.get('value')}" for each in finding.get("evidence", [])]
    said = [
        finding["title"],
        finding.get("subject") or "",
        finding.get("predicts") or "",
        *evidence,
    ]
    text = " ".join(said).lower().replace("_", "-")
    return any(word.lower().replace("_", "-") in text for word in words)


def summary(rows: list[dict]) -> str:
    """The table of a run."""
    done = [row for row in rows if row["state"] == "done"]
    broken = [row for row in done if row["score"]["outcome"] != HARMLESS]
    count = Counter(row["score"]["outcome"] for row in broken)
    texts = sum(row["score"]["text"] for row in broken)
    tried = [row for row in broken if row.get("fix", {}).get("state") in ("works", "failed")]
    healed = sum(row["fix"]["state"] == "works" for row in tried)
    environments = {row["environment"] for row in done}
    lines = [
        f"{len(done)} faults in {len(environments)} environments, {len(broken)} of them break an "
        f"import or a first use; {len(rows) - len(done)} could not be planted or asked",
        _line("found, with the right severity and cause", count[RIGHT], len(broken)),
        _line("found, or named by check --verify", sum(map(named, broken)), len(broken)),
        _line("text to the letter or contained", texts, len(broken)),
        _line("fixes that heal", healed, len(tried)),
    ]
    lines += [f"{kind:42} {count[kind]:5}" for kind in (WEAK, OTHER, SILENT)]
    for what in ("false_errors", "false_warnings"):
        wrong = sum(bool(row["score"][what]) for row in done)
        lines.append(f"{'faults with ' + what.replace('_', ' '):42} {wrong:5}")
        wrong = sum(bool(getattr(verified(row), what)) for row in done)
        lines.append(f"{'the same with check --verify':42} {wrong:5}")
    lines += ["", f"{'kind':18} breaks  right  weak  other  silent"]
    for kind in sorted({row["fault"]["kind"] for row in done}):
        own = Counter(r["score"]["outcome"] for r in broken if r["fault"]["kind"] == kind)
        parts = [own.total(), own[RIGHT], own[WEAK], own[OTHER], own[SILENT]]
        lines.append(f"{kind:18} {parts[0]:6} {parts[1]:6} {parts[2]:5} {parts[3]:6} {parts[4]:7}")
    return "\n".join(lines)


def _line(what: str, right: int, of: int) -> str:
    return f"{what:42} {share(right, of)}"


def one_line(row: dict) -> str:
    """A fault's result as it is printed."""
    fault = row["fault"]
    head = f"{row['environment']} {row['seed']}: {fault['kind']} {fault['target']}"
    if row["state"] != "done":
        return f"{head}: {row['reason']}"
    told = row["score"]
    wrong = [*told["false_errors"], *told["false_warnings"]]
    parts = [told["outcome"], *(["text"] if told["text"] else [])]
    parts += [f"fix {row['fix']['state']}"] if "fix" in row else []
    parts += [f"FALSE: {text}" for text in wrong]
    return f"{head}: {', '.join(parts)}"
