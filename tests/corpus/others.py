"""What the tools that a user would pick instead say of a fault, run as their pages say."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from corpus.workshop import Workshop, call, site_packages

LIMIT = 120  # seconds
# Each runs in the Python that it is asked about, from a folder of its own.
INSTALLED = {"cuda-doctor": ("0.2.0", "diagnose"), "env-doctor": ("0.3.5", "check")}


class Others:
    """The tools, for one environment."""

    def __init__(self, shop: Workshop, prefix: Path, environ: Mapping[str, str]) -> None:
        version = site_packages(prefix).parent.name
        self.tools: dict[str, list[str]] = {"pip check": ["-m", "pip", "check"]}
        if (site_packages(prefix) / "torch").is_dir():
            self.tools["torch.utils.collect_env"] = ["-m", "torch.utils.collect_env"]
        self.folders: dict[str, Path] = {}
        for name, (release, verb) in INSTALLED.items():
            folder = shop.folder / "others" / f"{name}-{release}-{version}"
            if not folder.exists():
                words = (shop.uv, "pip", "install", "--quiet", "--python", prefix / "bin/python")
                shop.run(*words, "--target", folder, f"{name}=={release}")
            title = f"{name} {release} {verb}"
            self.tools[title] = [str(folder / "bin" / name), verb]
            self.folders[title] = folder
        self.healthy = {name: text for name, (text, _) in self._run(prefix, environ).items()}

    def _run(self, prefix: Path, environ: Mapping[str, str]) -> dict[str, tuple[str, float]]:
        """What each writes, and how long it takes."""
        found = {}
        for name, words in self.tools.items():
            given = dict(environ)
            if name in self.folders:
                paths = [environ.get("PYTHONPATH", ""), str(self.folders[name])]
                given["PYTHONPATH"] = ":".join(filter(None, paths))
            started = time.monotonic()
            done = call([prefix / "bin" / "python", *words], given, prefix, LIMIT)
            found[name] = done.stdout + done.stderr, time.monotonic() - started
        return found

    def ask(self, prefix: Path, environ: Mapping[str, str], words: tuple[str, ...]) -> dict:
        """By tool: whether what it writes only now names the file or the distribution."""
        found = {}
        for name, (text, seconds) in self._run(prefix, environ).items():
            found[name] = {"named": named(self.healthy[name], text, words), "seconds": seconds}
        return found


def named(before: str, after: str, words: tuple[str, ...]) -> bool:
    """Whether a line of `after` that `before` does not have has one of the words."""
    known = {_plain(line) for line in before.splitlines()}
    fresh = " ".join({_plain(line) for line in after.splitlines()} - known)
    return any(_plain(word) in fresh for word in words)


def _plain(text: str) -> str:
    return text.lower().replace("_", "-").strip()


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if of == 0:
        return 0.0, 1.0
    part, square = right / of, z * z / of
    middle = (part + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(part * (1 - part) / of + square / of / 4)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def share(right: int, of: int) -> str:
    """A share with its interval."""
    low, high = wilson(right, of)
    return f"{right} of {of}: {right / of:.2f} ({low:.2f} to {high:.2f})" if of else "none"


def table(asked: Iterable[tuple[dict, bool]]) -> list[str]:
    """The lines of a table; none where no tool was asked. asked: of each fault that breaks
    something what the tools say, and whether the check has found it.
    """
    rows = [(told, right) for told, right in asked if told]
    if not rows:
        return []
    lines = ["| tool | asked | named | median, s (of a busy machine) |", "|---|---:|---:|---:|"]
    for name in sorted({name for told, _ in rows for name in told}):
        own = [told[name] for told, _ in rows if name in told]
        count = sum(each["named"] for each in own)
        seconds = median(each["seconds"] for each in own)
        lines.append(f"| {name} | {len(own)} | {share(count, len(own))} | {seconds:.1f} |")
    found = sum(right for _, right in rows)
    return [*lines, f"| cudriver check | {len(rows)} | {share(found, len(rows))} | |"]
