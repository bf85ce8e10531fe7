"""What the tools that a user would pick instead say of a fault, run as their pages say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from chaos.score import HARMLESS, RIGHT, share
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


def table(rows: list[dict]) -> str:
    """The section of the document, of the faults for which the tools were asked too."""
    asked = [row for row in rows if row.get("others")]
    if not asked:
        return ""
    broken = [row for row in asked if row["score"]["outcome"] != HARMLESS]
    seeds = sorted({row["seed"] for row in asked})
    lines = [
        "### Beside other tools",
        "",
        f"The same faults (seeds {seeds[0]} to {seeds[-1]} of "
        f"{', '.join(sorted({row['environment'] for row in asked}))}), asked of tools that a user",
        "may take instead, run in the broken environment as their pages say. They are made for",
        "other questions: versions, the driver, what is installed. **named**: of the faults that",
        "break something those where a line that the healthy environment does not get names the",
        "file or the distribution, be it in a traceback of the tool itself.",
        "",
        "| tool | asked | named | median, s (of a busy machine) |",
        "|---|---:|---:|---:|",
    ]
    for name in sorted({name for row in asked for name in row["others"]}):
        own = [row for row in broken if name in row["others"]]
        count = sum(row["others"][name]["named"] for row in own)
        seconds = median(row["others"][name]["seconds"] for row in own)
        lines.append(f"| {name} | {len(own)} | {share(count, len(own))} | {seconds:.1f} |")
    right = sum(row["score"]["outcome"] == RIGHT for row in broken)
    lines.append(f"| cudriver check | {len(broken)} | {share(right, len(broken))} | |")
    return "\n".join(lines)
