"""The page of figures: a run's on a host, and docs/performance.md from all hosts.

python -m benchmarks --publish      # tests the host, measures, writes benchmarks/hosts/
python -m benchmarks.page           # writes its tables, and that of two GPUs, in both languages
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.row import Row

ROOT = Path(__file__).parents[1]
HOSTS = ROOT / "benchmarks" / "hosts"
DOCS = {"en": ROOT / "docs", "zh": ROOT / "docs" / "zh"}
#: A host whose figures are published does both in at most and at least so much.
NUMPY_MS, COPY_GBS = 120.0, 5.0

Figures = dict[str, Any]  # "unit", then a figure for each contestant


@dataclass(frozen=True)
class Line:
    """A row of the page: a figure of a row of the benchmark, in words of either language."""

    row: str
    en: str
    zh: str


SIZES = ("64 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB")
SWEPT = "any size, 4 KiB to 4 GiB, any path: {}, {}"
PEERS = ("driver", "PyTorch", "CuPy", "cuda-core")
LOCKED = "page-locked 48 GiB with `pieces=True`; the longest wait of another process and thread"
EXPERTS = "a mixture of experts, 16 GiB of bfloat16 in 14,004 tensors in 4 files in memory"
SMALL = "page-locked copies of 4 KiB, 64 KiB, 1 and 16 MiB beside 1 GiB in the same direction"
READ = "`copy_async` of ordinary memory until it returns, the source read"
SAVED = "`save_safetensors`, 16 GiB of 14,004 device arrays into a file"
BLOCKS = "blocks of 4 KiB to 1 MiB, as in vllm#48936: naive, batch, swap and Triton"
LINES = (
    Line("plain NumPy array to device, 1-2 GiB: 1 GiB",
         "ordinary array to the GPU, 1 GiB", "普通数组到 GPU，1 GiB"),
    Line("device to plain NumPy array, 1-2 GiB: 1 GiB",
         "GPU to an ordinary array, 1 GiB", "GPU 到普通数组，1 GiB"),
    Line("`a.T` of a plain 512 MiB array into a C-ordered device array",
         "`a.T` of an ordinary array to the GPU, 512 MiB", "普通数组的 `a.T` 到 GPU，512 MiB"),
    Line("pinned array to or from device, 1 GiB: up",
         "page-locked array to the GPU, 1 GiB", "页锁定数组到 GPU，1 GiB"),
    Line(f"{SMALL}: up, 64 KiB",
         "64 KiB to the GPU while 1 GiB is on its way there",
         "1 GiB 正传往 GPU 时，再传 64 KiB"),
    Line(f"{READ}: 256 MiB",
         "`copy_async` of an ordinary 256 MiB until it returns, the source read",
         "普通 256 MiB 的 `copy_async`，直到返回，来源已读完"),
    Line("`copy_rows`, 4,096 random rows of a page-locked GiB: 4 KiB up",
         "`copy_rows`, 4,096 random rows of 4 KiB", "`copy_rows`，随机 4,096 行，每行 4 KiB"),
    Line("page-locked 2 GiB, first time", "page-locking 2 GiB, first time", "首次页锁定 2 GiB"),
    Line(f"{LOCKED}: wait of another process",
         "longest wait of another process while 32 GiB are page-locked in pieces",
         "分块页锁定 32 GiB 时，另一进程的最长等待"),
    Line("page-locked array from the pool, 1 MiB and 1 GiB: 1 GiB",
         "page-locked 1 GiB from the pool", "从内存池取 1 GiB 页锁定内存"),
    Line(f"{EXPERTS}: as PyTorch's tensors",
         "14,004 tensors of four safetensors files in memory",
         "内存中四个 safetensors 文件的 14,004 个张量"),
    Line(f"{SAVED}: in memory",
         "14,004 device arrays into a safetensors file in memory",
         "14,004 个设备数组写入内存中的 safetensors 文件"),
)  # fmt: skip
DIRECTIONS = (("up", "to the GPU", "到 GPU"), ("down", "from the GPU", "从 GPU"))
#: What one part of a program does to the others: all rows, of the newest run.
NEIGHBOURS = (
    *(Line(f"{SMALL}: {way}, {size}",
           f"{size} {en}, beside 1 GiB on the same way", f"{zh} {size}，旁边有 1 GiB 同向传输")
      for way, en, zh in DIRECTIONS for size in ("4 KiB", "64 KiB", "1 MiB", "16 MiB")),
    *(Line(f"{row}: {size}", f"`copy_async` of an ordinary {size} until it returns, {en}",
           f"普通 {size} 的 `copy_async`，直到返回，{zh}")
      for row, en, zh in ((READ, "idle stream", "空闲的流"),
                          ("the same on a stream that is busy for 50 ms",
                           "stream busy for 50 ms", "忙 50 ms 的流"))
      for size in ("4 KiB", "1 MiB", "36.75 MiB", "256 MiB")),
    Line("256 MiB with `borrow=True` until it returns",
         "256 MiB with `borrow=True` until it returns", "256 MiB，`borrow=True`，直到返回"),
    Line("feeding 8 plain batches of 36.8 MiB while the GPU computes for 77.6 ms",
         "feeding 8 ordinary batches of 36.8 MiB while the GPU computes",
         "GPU 计算时送入 8 批普通数组，每批 36.8 MiB"),
    Line(LOCKED, "page-locking 32 GiB with `pieces=True`", "以 `pieces=True` 页锁定 32 GiB"),
    Line(f"{LOCKED}: wait of another process", "longest wait of another process meanwhile",
         "其间另一进程的最长等待"),
    Line(f"{LOCKED}: wait of another thread", "longest wait of another thread meanwhile",
         "其间另一线程的最长等待"),
    Line(f"{SAVED}: in memory", "`save_safetensors` of 14,004 device arrays, in memory",
         "`save_safetensors` 写 14,004 个设备数组，在内存中"),
    Line(f"{SAVED}: on the disk, `fsync=True`", "the same on the disk, `fsync=True`",
         "同上，写到磁盘，`fsync=True`"),
    *(Line(f"{BLOCKS}: {size} {way}", f"blocks of {size} {en}, as in vllm#48936",
           f"vllm#48936 的 {size} 块，{zh}")
      for size in ("4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB") for way, en, zh in DIRECTIONS),
)  # fmt: skip
NEWEST = {
    "en": "The newest run alone ({}), what one part of a program does to the others:",
    "zh": "仅最近一次运行（{}），程序的一部分对其他部分的影响：",
}
ACROSS = "from one GPU to another, 1 GiB (NVLink): {}"
BESIDE = "two GPUs: 64 KiB beside 1 GiB of the other GPU's, or between the two: {}"
RANKS = "two GPUs: two ranks load one set of weight files, a half of each matrix each: {}"
REGION = "two GPUs: shared memory of 16 GiB, page-locked by two processes at once"
#: Two GPUs: docs/howto/several-gpus.md.
TWO = (
    Line("plain arrays to two GPUs at once, 32 cores: 2 x 1 GiB",
         "an ordinary GiB to each of two GPUs at once", "同时向两块 GPU 各传 1 GiB 普通数组"),
    Line(ACROSS.format("one way"), "1 GiB from one GPU to another", "1 GiB 从一块 GPU 到另一块"),
    Line(ACROSS.format("both ways"), "1 GiB each way at once", "双向同时各传 1 GiB"),
    Line(BESIDE.format("to GPU 1 beside 1 GiB to GPU 0"),
         "64 KiB to a GPU beside 1 GiB to the other", "另一块 GPU 正接收 1 GiB 时，再传 64 KiB"),
    Line(BESIDE.format("to GPU 0 beside 1 GiB from GPU 0 to GPU 1"),
         "64 KiB to a GPU that sends 1 GiB to the other",
         "GPU 正向另一块 GPU 传 1 GiB 时，向它传 64 KiB"),
    Line(RANKS.format("14,004 tensors, in memory"),
         "two ranks, half of each tensor each, from files in memory",
         "两个 rank 各读每个张量的一半，文件在内存中"),
    Line(RANKS.format("40 tensors, not in the page cache"),
         "two ranks, half of each tensor each, from a disk",
         "两个 rank 各读每个张量的一半，从磁盘"),
    Line("two GPUs: `save_safetensors`, 16 GiB that lie on both",
         "arrays of two GPUs into one safetensors file in memory",
         "两块 GPU 上的数组写入内存中的同一个 safetensors 文件"),
    Line(REGION, "one shared region, page-locked in pieces by two processes, a GPU each",
         "两个进程各用一块 GPU，同时分块页锁定同一共享区域"),
    Line(f"{REGION}: wait for GPU 0", "longest wait of a third process meanwhile",
         "其间第三个进程的最长等待"),
)  # fmt: skip
HEADS = {
    "en": ("work", "cudriver", "range", "driver", "PyTorch", "CuPy", "cuda-core", "another"),
    "zh": ("工作", "cudriver", "范围", "驱动", "PyTorch", "CuPy", "cuda-core", "其他"),
}
WAYS = {
    "in one piece": "一次锁定", "arrays of one GPU": "同一块 GPU 的数组",
    "parallel write": "并行写入", "batch": "批量调用", "computation alone": "仅计算",
}  # fmt: skip
#: Our own other ways, and what is no library's.
UNLISTED = ("pinned_empty_async", "NumPy", "cuda-bindings")
UNTIL = {"en": " to ", "zh": " 至 "}
SIZE_HEADS = {
    "en": ("size", "to the GPU", "driver", "from the GPU", "driver"),
    "zh": ("大小", "到 GPU", "驱动", "从 GPU", "驱动"),
}


# ---- a run ---------------------------------------------------------------------------------------


def host_test() -> tuple[float, float]:
    """Milliseconds that importing NumPy takes a new interpreter, and the GB/s of one thread that
    copies memory: the best of five each."""
    timed = "import time; t = time.perf_counter(); import numpy; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", timed]
    with tempfile.TemporaryDirectory() as cache:  # the host is tested, not its missing byte code
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        runs = [
            subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            for _ in range(6)
        ]
    source = np.ones(256 << 20, np.uint8)
    target, best = np.zeros_like(source), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        target[...] = source
        best = min(best, time.perf_counter() - start)
    return min(float(run.stdout) for run in runs) * 1e3, source.nbytes / best / 1e9


def refusal(numpy_ms: float, copy_gbs: float) -> str:
    """Why this host's figures are not published; empty where they are."""
    if numpy_ms <= NUMPY_MS and copy_gbs >= COPY_GBS:
        return ""
    return (
        f"this host imports NumPy in {numpy_ms:.0f} ms (at most {NUMPY_MS:.0f}) and copies memory "
        f"at {copy_gbs:.1f} GB/s by one thread (at least {COPY_GBS:.0f}): nothing is written"
    )


def figures(rows: list[Row]) -> dict[str, Figures]:
    """Of each part the median of each contestant."""
    found: dict[str, Figures] = {}
    for row in rows:
        for part in row.parts:
            name = re.sub(r":? as [\d.]+ [KMG]iB$", "", f"{row.name}: {part.label}".rstrip(": "))
            known = {who: part.figure(who) for who in part.samples}
            rounded = {who: float(f"{value:.3g}") for who, value in known.items() if value}
            found[name] = {"unit": part.unit, **rounded}
    return found


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.stdout.strip()


def write(rows: list[Row], machine: str, versions: dict[str, str], numpy_ms: float) -> Path:
    """The file of this run, named by its day and its GPUs."""
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    gpu = machine.partition(" (")[0].replace("NVIDIA ", "").replace(" ", "")
    path = HOSTS / f"{now[:10]}-{gpu}-{commit() or 'unknown'}.json"
    about = {"date": now, "commit": commit(), "machine": machine,
             "numpy_import_ms": round(numpy_ms, 1), "versions": versions}  # fmt: skip
    text = json.dumps({**about, "figures": figures(rows)}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


# ---- the page ------------------------------------------------------------------------------------


def hosts() -> list[dict[str, Any]]:
    """What the runs wrote, oldest first."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in HOSTS.glob("*.json")]
    return sorted(runs, key=lambda run: (run["date"], run["commit"]))


def values(row: str, who: str, runs: list[dict[str, Any]]) -> list[float]:
    """The figures of a contestant, a host each."""
    return [run["figures"][row][who] for run in runs if who in run["figures"].get(row, {})]


def middle(row: str, who: str, runs: list[dict[str, Any]]) -> str:
    found = values(row, who, runs)
    return report.number(statistics.median(found)) if found else ""


def line(shown: Line, language: str, runs: list[dict[str, Any]], most: int) -> list[str] | None:
    """The cells of a row; None where no host has it."""
    units = [run["figures"][shown.row]["unit"] for run in runs if shown.row in run["figures"]]
    ours = values(shown.row, "cudriver", runs)
    if not ours:
        return None
    low, high, until = report.number(min(ours)), report.number(max(ours)), UNTIL[language]
    work, brackets = (shown.zh, "（{}）") if language == "zh" else (shown.en, " ({})")
    return [
        work + brackets.format(units[-1]),
        middle(shown.row, "cudriver", runs),
        f"{low}{until}{high}" if len(ours) > 1 else "",
        *(middle(shown.row, who, runs) for who in PEERS),
        others(shown.row, language, runs, most, faster=units[-1] not in ("us", "ms")),
    ]


def others(row: str, language: str, runs: list[dict[str, Any]], most: int, *, faster: bool) -> str:
    """The best contestants of a row that have no column, with their figures."""
    seen = {who for run in runs for who in run["figures"].get(row, {})}
    left = sorted(seen - {"unit", "cudriver", "pinned", *UNLISTED, *PEERS})
    left.sort(key=lambda who: statistics.median(values(row, who, runs)), reverse=faster)
    shown, comma = ("{}（{}）", "，") if language == "zh" else ("{} ({})", ", ")
    cells = []
    for who in left[:most]:
        name = who.removeprefix("pinned_empty, ")
        name = WAYS.get(name, name) if language == "zh" else name
        cells.append(shown.format(middle(row, who, runs), name))
    return comma.join(cells)


def table(lines: tuple[Line, ...], language: str, runs: list[dict[str, Any]], most: int = 1) -> str:
    """The rows; without the columns that none of them fills. `most` contestants share the last."""
    rows = [cells for shown in lines if (cells := line(shown, language, runs, most))]
    filled = [at for at in range(len(HEADS[language])) if any(row[at] for row in rows)]
    return report.table(
        [HEADS[language][at] for at in filled], [[row[at] for at in filled] for row in rows]
    )


def tables(language: str, runs: list[dict[str, Any]]) -> str:
    """The hosts in a line each, the rows, and the sizes."""
    out = []
    for run in reversed(runs):
        gpu, driver, processors, *_ = run["machine"].split("; ")
        short = (gpu.partition(" (")[0], processors.partition(" (")[0], driver.partition(",")[0])
        versions = ", ".join(f"{who} {run['versions'][who]}" for who in PEERS[1:])
        out.append(f"- {run['date']} (`{run['commit']}`): {'; '.join(short)}; {versions}")
    sizes = [
        [size, *(middle(SWEPT.format(path, size), who, runs)
                 for path in ("plain up", "plain down") for who in ("cudriver", "driver"))]
        for size in SIZES
    ]  # fmt: skip
    out += ["", table(LINES, language, runs), "", report.table(list(SIZE_HEADS[language]), sizes)]
    newest = f"{runs[-1]['date']}, `{runs[-1]['commit']}`"
    out += ["", NEWEST[language].format(newest), "", table(NEIGHBOURS, language, runs[-1:], most=4)]
    return "\n".join(out) + "\n"


def main() -> None:
    """Writes the tables into the pages."""
    for language, docs in DOCS.items():
        report.insert(docs / "performance.md", tables(language, hosts()))
        report.insert(docs / "howto" / "several-gpus.md", table(TWO, language, hosts()) + "\n")


if __name__ == "__main__":
    main()
