"""docs/accuracy.md, and the lines that `make corpus` prints."""

from __future__ import annotations

from collections.abc import Iterable

from corpus.plan import Environment


class Totals:
    """Sums over environments and their faults."""

    def __init__(self, rows: Iterable[dict]) -> None:
        self.environments = self.faults = self.not_installed = 0
        self.right = self.false = self.found = self.missed = self.texts = 0
        self.libraries = self.libraries_right = self.mends = self.mends_work = self.untried = 0
        self.differences = self.failed = 0
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
                state = fault["mend"]["state"]
                self.mends += state in ("works", "failed")
                self.mends_work += state == "works"
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

    @property
    def precision(self) -> float:
        """Of the errors, the part that stood for a failure."""
        return self.right / (self.right + self.false) if self.right + self.false else 1.0

    @property
    def recall(self) -> float:
        """Of the failures, the part that an error stood for."""
        return self.found / (self.found + self.missed) if self.found + self.missed else 1.0

    def clean(self) -> bool:
        """Nothing wrong at all."""
        return not (
            self.false or self.missed or self.differences or self.failed
        ) and self.mends == self.mends_work

    def line(self) -> str:
        """All in one line."""
        return (
            f"{self.environments} environments, {self.faults} faults: precision "
            f"{self.precision:.2f} ({self.false} false), recall {self.recall:.2f} "
            f"({self.missed} missed), libraries {self.libraries_right}/{self.libraries}, "
            f"{self.differences} differences, mends {self.mends_work}/{self.mends}; "
            f"{self.not_installed} not installed, {self.failed} failed"
        )


def one_line(row: dict) -> str:
    """An environment as it is done."""
    if row["state"] != "done":
        return f"{row['name']}: {row['state']}: {row['reason']}"
    parts = [f"{row['name']}: {row['libraries_right']}/{row['libraries']} libraries"]
    for source in [row, *row["faults"]]:
        name = f"@{source['name']} " if source is not row else ""
        if source.get("state") == "failed":
            parts.append(f"{name}FAILED {source['reason']}")
            continue
        parts += [f"{name}false alarm: {text}" for text in source["false_alarms"]]
        parts += [f"{name}missed: {text}" for text in source["misses"]]
        parts += [f"{name}differs: {text}" for text in source["differences"]]
        mend = source.get("mend", {})
        if mend.get("state") in ("failed", "not tried"):
            parts.append(f"{name}mend {mend['state']}: {mend['commands']}: {mend['reason']}")
    return "\n    ".join(parts) + f"\n    {row['seconds']} s"


def write(every: list[Environment], done: dict[str, dict], check: str) -> str:
    """The whole document."""
    return ""
