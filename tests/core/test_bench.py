"""`cudriver bench`: every rung is there and verified, the figures are what was timed, and the rest
of the command. Rates themselves are never asserted."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudriver
from conftest import DRIVER
from cudriver import _core, cli
from cudriver.cli import sizes as cli_sizes
from cudriver.cli import terminal
from cudriver.ladder import bench as ladder
from cudriver.ladder import report as text_report
from cudriver.ladder.result import Measured, add_ratios
from cudriver.ladder.rungs import RUNGS
from native_build import CEXT
from program import Terminal

pytestmark = pytest.mark.apart

SOURCES = str(Path(cudriver.__file__).parent.parent)
COMMAND = [sys.executable, "-m", "cudriver", "bench"]
MIB = 1 << 20
SIMULATED = DRIVER == "sim"
only_simulated = pytest.mark.skipif(not SIMULATED, reason="turns the simulated driver's knobs")


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES, "NO_COLOR": "1", "COLUMNS": "80", **variables}


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], env=environment(**variables), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def measured(*words: str, **variables: str) -> dict[str, Any]:
    """What a run that must end well and quietly gives as JSON."""
    done = run(*words, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return measured("--size", "2M", "--rounds", "3")


@pytest.fixture(scope="module")
def sweep() -> dict[str, Any]:
    return measured("--sizes", "16K:1M", "--rounds", "2")


# --- the report ---


def test_every_rung_is_there_and_verified(report: dict[str, Any]) -> None:
    ways = {(row["rung"], row["direction"]) for row in report["rungs"]}
    assert ways == {(rung.name, way) for rung in RUNGS for way in rung.directions}
    assert [row for row in report["rungs"] if not row["verified"] and not row["skipped"]] == []
    assert report["verified"] is True
    assert all(len(row["teaches"]) > 40 for row in report["rungs"])
    assert report["rate_unit"].startswith("GB/s")


def test_rungs_stand_in_their_order(report: dict[str, Any]) -> None:
    names = list(dict.fromkeys(row["rung"] for row in report["rungs"]))
    assert names == [
        "pageable", "staged", "page_locked", "mapped", "peer", "device", "global", "shared",
    ]  # fmt: skip


def test_peers_are_each_pair_both_ways_or_a_word_on_why_not(report: dict[str, Any]) -> None:
    rows = [row for row in report["rungs"] if row["rung"] == "peer"]
    count = report["device_count"]
    if count == 1:
        assert [row["gb_per_s"] for row in rows] == [None]
        assert "one device" in rows[0]["skipped"]
    else:
        pairs = {(a, b) for a in range(count) for b in range(count) if a != b}
        assert {tuple(row["devices"]) for row in rows} == pairs
        assert len(rows) == len(pairs)


@only_simulated
def test_one_device_has_no_peer() -> None:
    done = run("--size", "1M", "--rounds", "1", CUDRIVER_SIM_DEVICES="1")
    assert done.returncode == 0
    assert re.search(r"^peer +there is one device", done.stdout, re.M)


def test_a_simulated_driver_is_said(report: dict[str, Any]) -> None:
    assert report["simulated"] is SIMULATED
    text = run("--size", "64K", "--rounds", "1").stdout
    if SIMULATED:
        assert "no rates" in report["meaningless"]
        figures = ("gb_per_s", "spread", "lowest", "highest", "ratio_to_above")
        assert {row[name] for row in report["rungs"] for name in figures} == {None}
        assert [row["seconds"] for row in report["rungs"] if row["seconds"]] == []
        assert text.startswith("SIMULATED DRIVER: ")
        assert "so no rates are shown" in text
    else:
        assert report["meaningless"] is None
        assert "SIMULATED" not in text


def test_the_staged_path_is_named(report: dict[str, Any], sweep: dict[str, Any]) -> None:
    """A size below the crossover is the driver's own, and says so."""
    for row in (*report["rungs"], *sweep["rungs"]):
        if row["rung"] == "staged":
            assert row["path"] in ("staged", "direct")
            assert any("leaves to the driver" in n for n in row["notes"]) == (
                row["path"] == "direct"
            )
        if row["rung"] == "page_locked":
            assert row["path"] == "direct"


def test_a_sweep_has_every_size(sweep: dict[str, Any]) -> None:
    sizes = [16 << 10, 64 << 10, 256 << 10, MIB]
    assert sweep["sizes"] == sizes
    for rung in RUNGS:
        seen = [row["size"] for row in sweep["rungs"] if row["rung"] == rung.name]
        assert sorted(set(seen)) == (sizes if rung.sized else sizes[-1:])
    assert sweep["verified"] is True


@only_simulated
def test_a_second_device() -> None:
    report = measured("--device", "1", "--size", "64K", "--rounds", "1", CUDRIVER_SIM_DEVICES="3")
    assert report["device"]["ordinal"] == 1
    assert len([row for row in report["rungs"] if row["rung"] == "peer"]) == 6


@only_simulated
def test_too_little_memory_is_measured_smaller_and_said() -> None:
    words = ("--size", "64M", "--rounds", "1")
    report = measured(*words, CUDRIVER_SIM_MEMORY="48M", CUDRIVER_SIM_DEVICES="1")
    assert report["verified"] is True
    assert report["sizes"] == [64 * MIB]
    sizes = {row["bytes"] for row in report["rungs"] if row["rung"] == "page_locked"}
    assert sizes <= {16 * MIB, 8 * MIB}
    assert "No memory for 64 MiB" in report["notes"][0]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in report["notes"][0]
    text = run(*words, CUDRIVER_SIM_MEMORY="48M", CUDRIVER_SIM_DEVICES="1").stdout
    assert "No memory for 64 MiB" in text


def test_too_little_memory_on_the_host_is_seen_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux grants more than there is, and kills who uses it."""
    monkeypatch.setattr(ladder, "host_room", lambda: MIB)
    report = ladder.measure(cudriver.Device(0), [MIB], 1)
    assert {row["bytes"] for row in report["rungs"] if row["rung"] == "staged"} == {MIB // 4}
    assert "the host has 1 MiB left" in report["notes"][0]
    assert report["verified"] is True


@only_simulated
def test_a_driver_that_fails_is_an_error_and_no_traceback() -> None:
    done = run("--size", "64K", CUDRIVER_SIM_FAIL="cuModuleLoadDataEx:1:218")
    assert done.returncode == 1
    assert "cuModuleLoadDataEx" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_bytes_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_core, "_ladder_copy", lambda dst, src: None)
    assert cli.main(["bench", "--size", "64K", "--rounds", "1"]) == 1
    assert "WRONG BYTES" in capsys.readouterr().out
    assert cli.main(["bench", "--sizes", "64K,128K", "--rounds", "1"]) == 1
    assert "WRONG BYTES" in capsys.readouterr().out
    assert cli.main(["bench", "--size", "64K", "--rounds", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] is False
    assert {row["rung"] for row in report["rungs"] if row["verified"] is False} == {"pageable"}


# --- Ctrl-C ---


@pytest.mark.parametrize("words", [["--size", "64K"], ["--sizes", "64K,128K"]])
def test_ctrl_c_prints_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def interrupted(steps: list[ladder.Step], *_: object) -> Iterator[ladder.Step]:
        yield from steps[:3]
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "progress", interrupted)
    whole = ["bench", *words, "--rounds", "1"]
    assert cli.main([*whole, "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert report["interrupted"] is True
    assert {row["rung"] for row in report["rungs"]} == {rung.name for rung in RUNGS[:3]}
    assert cli.main(whole) == 130
    text = capsys.readouterr().out
    assert "Interrupted: what is missing was not measured." in text
    assert "every byte is right" in text


def test_ctrl_c_before_any_figure_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> list[ladder.Step]:
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "progress", interrupted)
    assert cli.main(["bench", "--size", "64K"]) == 130
    assert capsys.readouterr().out == ""


def test_a_caller_of_measure_has_its_interrupt() -> None:
    def interrupted(steps: list[ladder.Step]) -> Iterator[ladder.Step]:
        yield steps[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ladder.measure(cudriver.Device(0), [1 << 16], 1, interrupted)


# --- the text ---


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("words", [("--size", "1M"), ("--sizes", "64K,1M")])
def test_text_fits_the_terminal_and_no_progress_shows(words: tuple[str, str], width: int) -> None:
    done = run(*words, "--rounds", "1", COLUMNS="" if width == 80 else str(width))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    paths = ("driver  ", "        /", "SIMULATED")  # a path may be as long as it likes
    assert [
        line
        for line in done.stdout.splitlines()
        if len(line) > width and not line.startswith(paths)
    ] == []
    for rung in RUNGS:
        assert rung.title in done.stdout or rung.short in done.stdout
    assert "every byte is right" in done.stdout
    assert "GB/s" in done.stdout


@pytest.mark.parametrize("width", [60, 80])
def test_the_widest_rates_fit(width: int) -> None:
    """Figures no machine has today, on the device with the longest row."""
    rows = [
        Measured(rung, way, MIB, (10, 11) if way == "copy" and rung.name == "peer" else None,
                 [8e-9] * 2, True, asked=MIB).to_dict()
        for rung in RUNGS for way in rung.directions
    ]  # fmt: skip
    add_ratios(rows)
    report = {
        "simulated": False, "device": {"ordinal": 0, "name": "x"}, "rounds": 2,
        "driver": {"cuda": "13.0", "path": "/x"}, "sizes": [MIB], "notes": [], "verified": True,
        "rungs": rows,
    }  # fmt: skip
    for sizes in ([MIB], [MIB, 2 * MIB]):
        report["sizes"] = sizes
        lines = list(text_report.lines(report, None, text_report.Style(width)))
        assert [line for line in lines if len(line) > width] == []
        assert any("131,072" in line for line in lines)


def test_a_long_path_is_not_broken() -> None:
    path = "/srv/some-environment" * 5 + "/site-packages/libcuda.so.1"
    report = {
        "simulated": False, "device": {"ordinal": 0, "name": "x"}, "rounds": 2, "sizes": [MIB],
        "driver": {"cuda": "13.0", "path": path}, "notes": [], "verified": True, "rungs": [],
    }  # fmt: skip
    lines = list(text_report.lines(report, None, text_report.Style()))
    assert any(path in line for line in lines)


def test_a_plain_locale_gets_plain_signs() -> None:
    done = run(
        "--size", "64K", "--rounds", "1",
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert ("64 KiB ok" if SIMULATED else "+-") in done.stdout


@only_simulated
def test_progress_shows_on_a_terminal() -> None:
    with Terminal() as screen:
        done = subprocess.run(
            [*COMMAND, "--size", "1M", "--rounds", "2", "--json"],
            env=environment(TERM="xterm", CUDRIVER_SIM_BANDWIDTH="20M"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=screen.slave,
            text=True, check=True,
        )  # fmt: skip
    assert json.loads(done.stdout)["verified"] is True
    assert any(rung.title in screen.shown() for rung in RUNGS)


# --- the options ---


@pytest.mark.parametrize(
    "words",
    [
        ("--size", "0"), ("--size", "lots"), ("--size", "10000K0"), ("--size", "5000.01K"),
        ("--size", "2000G"), ("--size", "nan"), ("--size", "inf"), ("--sizes", "1M:64K"),
        ("--sizes", "1M,,2M"), ("--size", "1M", "--sizes", "1M"), ("--rounds", "0"),
        ("--rounds", "x"), ("--device", "99"), ("--device", "no-such-gpu"), ("--plot", "x.pdf"),
        ("--plot", "/no/such/folder/x.png"),
    ],
)  # fmt: skip
def test_bad_usage_is_2_and_says_why(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert words[-1] in done.stderr or words[-2] in done.stderr


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64K", [65536]), ("1.5M", [1572864]), ("2g", [2 << 30]), ("3", [3 * MIB]),
        ("1MiB,64KB", [65536, MIB]), ("64K:1M", [65536, 262144, MIB]),
        ("64K:512K", [65536, 262144, 524288]), ("4K:4K", [4096]), ("1M,1M", [MIB]),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, sizes: list[int]) -> None:
    assert cli_sizes.parse_sweep(text) == sizes


def test_help_is_for_people() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("page-locked", "--sizes", "--plot", "exit status", "GB/s"):
        assert word in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


# --- the plot ---


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    target = tmp_path / "ladder.png"
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from cudriver import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "bench", "--plot", str(target)],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install matplotlib" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize("words", [("--size", "64K"), ("--sizes", "64K,256K")])
def test_plots_are_pictures_with_units(
    tmp_path: Path, words: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    drawing, picture = tmp_path / "ladder.svg", tmp_path / "LADDER.PNG"
    for target in (drawing, picture):
        with monkeypatch.context() as patch:
            patch.setattr(cudriver, "driver_is_simulated", lambda: False)
            assert cli.main(["bench", *words, "--rounds", "2", "--plot", str(target)]) == 0
    tree = ElementTree.parse(drawing)
    text = " ".join("".join(node.itertext()) for node in tree.iter() if node.tag.endswith("text"))
    assert "GB/s" in text
    assert "page-locked, mapped" in text
    if words[0] == "--sizes":
        assert "bytes, logarithmic" in text
        assert "64 KiB" in text
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 800 <= width <= 4000
    assert 500 <= height <= 4000
    assert data[-8:-4] == b"IEND"


@only_simulated
def test_the_simulated_driver_has_no_rates_to_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    target = tmp_path / "ladder.svg"
    done = run("--size", "64K", "--plot", str(target))
    assert (done.returncode, done.stdout) == (2, "")
    said = " ".join(done.stderr.split())
    assert "--plot draws rates, and the simulated driver has none: " in said
    assert not target.exists()


def test_a_plot_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    folder = tmp_path / "ladder.svg"
    folder.mkdir()
    monkeypatch.setattr(cudriver, "driver_is_simulated", lambda: False)
    assert cli.main(["bench", "--size", "64K", "--rounds", "1", "--plot", str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err


# --- the kernels, each against NumPy ---


def sums_of(blocks: int) -> Any:
    return cudriver.device_zeros(blocks * 256, np.uint32)


def words_of(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


@settings(max_examples=25)
@given(vectors=st.integers(1, 9000), blocks=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_reading_kernel_reads_each_word_once(vectors: int, blocks: int, seed: int) -> None:
    words, sums = words_of(4 * vectors, seed), sums_of(blocks)
    seconds = _core._ladder_kernel("read", cudriver.to_device(words), sums, 0, 2, 2)
    assert len(seconds) == 2
    assert min(seconds) >= 0
    threads = blocks * 256
    padded = np.zeros((-(-vectors // threads) * threads, 4), np.uint32)
    padded[:vectors] = words.reshape(-1, 4)
    expected = padded.sum(axis=1, dtype=np.uint32).reshape(-1, threads).sum(axis=0, dtype=np.uint32)
    assert np.array_equal(sums.to_numpy(), expected)


@settings(max_examples=25)
@given(vectors=st.integers(1, 9000), blocks=st.integers(1, 9), start=st.integers(0, 2**32 - 1))
def test_the_writing_kernel_writes_each_word(vectors: int, blocks: int, start: int) -> None:
    room = cudriver.device_zeros(4 * vectors + 8, np.uint32)
    sums = sums_of(blocks)
    _core._ladder_kernel("write", room[4:-4], sums, start, 1, 1)
    expected = np.zeros(4 * vectors + 8, np.uint32)
    expected[4:-4] = np.arange(4 * vectors, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(
        start
    )
    assert np.array_equal(room.to_numpy(), expected), "or wrote beyond"
    assert int(sums.to_numpy().sum()) == vectors


@settings(max_examples=15)
@given(turns=st.integers(1, 1500), blocks=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_kernels_over_shared_memory(turns: int, blocks: int, seed: int) -> None:
    words, sums = words_of(4096, seed), sums_of(blocks)
    there = cudriver.to_device(words)
    _core._ladder_kernel("shared_read", there, sums, turns, 1, 1)
    columns = words.reshape(4, 256, 4).sum(axis=(0, 2), dtype=np.uint32)
    turned = [np.roll(columns, -turn) for turn in range(turns)]
    expected = np.sum(turned, axis=0, dtype=np.uint32)
    assert np.array_equal(sums.to_numpy().reshape(blocks, 256), np.tile(expected, (blocks, 1)))

    _core._ladder_kernel("shared_write", there, sums, turns, 1, 1)
    opposite = 255 - np.arange(256)
    expected = (16 * opposite + 4 * (1024 * (turns - 1) + 6)).astype(np.uint32)
    assert np.array_equal(sums.to_numpy().reshape(blocks, 256), np.tile(expected, (blocks, 1)))


# --- the PTX ---


@pytest.mark.static
@pytest.mark.parametrize("kernel", ["read", "write", "shared_read", "shared_write"])
def test_nvidias_assembler_takes_the_kernels(tmp_path: Path, kernel: str) -> None:
    source = CEXT / "ladder" / "kernels.c"
    if not source.exists():
        pytest.skip("no C sources beside the tests")
    ptxas = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if ptxas is None:
        pytest.skip("no ptxas on PATH or in /usr/local/cuda")
    code, literal = source.read_text(), r'"(?:[^"\\]|\\.)*"'

    def text(name: str) -> str:
        found = re.search(rf"ptx_{name}\[\] =\s*((?:{literal}\s*)+);", code)
        assert found, name
        return "".join(map(ast.literal_eval, re.findall(literal, found[1])))

    ptx = text("head") + f"cudriver_ladder_{kernel}" + text("begin") + text(kernel) + text("end")
    (tmp_path / "kernel.ptx").write_text(ptx)
    listed = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"'sm_(\d+)'", listed))
    wanted = {"75", "80", "86", "89", "90", "100", "120"} & known
    assert wanted, "this ptxas knows none of the architectures"
    for architecture in sorted(wanted):
        done = subprocess.run(
            [ptxas, f"-arch=sm_{architecture}", "-o", os.devnull, str(tmp_path / "kernel.ptx")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
