"""The commands about the memory half: demo, devices, --version and the help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver.cli import COMMANDS, demo, devices, main
from native_build import shared


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cudriver", *words],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def copies(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a demonstration that move bytes; timed, but on the simulated driver."""
    timed = [entry for entry in report["steps"] if entry["gb_per_s"] is not None]
    if not report["driver"]["simulated"]:
        return timed
    assert timed == []
    return [entry for entry in report["steps"] if entry["detail"] in ("direct", "staged")]


def test_the_demonstration_says_its_driver_and_that_every_byte_is_right() -> None:
    done = command("demo", "--size", "2M", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["correct"] is True
    assert all(entry["right"] for entry in report["steps"])
    assert report["bytes"] == 2 << 20
    assert report["driver"] == {
        "cuda": str(cu.driver_version()),
        "path": cu.driver_path(),
        "simulated": cu.driver_is_simulated(),
    }
    assert len(copies(report)) >= 6
    done = command("demo", "--size", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("SIMULATED DRIVER" in done.stdout) is cu.driver_is_simulated()
    assert done.stdout.endswith("every byte is right\n")
    assert "\x1b" not in done.stdout


def test_the_demonstration_is_in_the_readers_language_and_its_json_is_not() -> None:
    done = command("demo", "--size", "1", "--lang", "zh", PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, "")
    steps = [line for line in done.stdout.splitlines() if line.startswith("✓")]
    assert len(steps) == len(demo.demonstrate(1 << 20)["steps"])
    for line in [*steps, *done.stdout.strip().splitlines()[-1:]]:
        assert re.search("[\u4e00-\u9fff]", line), line
    assert "SIMULATED" not in done.stdout
    told = [command("demo", "--size", "1", "--json", "--lang", lang) for lang in ("zh", "en")]
    english, chinese = (json.loads(each.stdout)["steps"] for each in told)
    assert [each["step"] for each in english] == [each["step"] for each in chinese]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ImportError('needs the GIL')", "cudriver: ImportError: needs the GIL; -v shows where\n"),
        ("ValueError(7)", "cudriver: ValueError: 7: this is a bug of cudriver; -v shows where\n"),
    ],
)
def test_only_what_is_our_doing_is_called_a_bug(error: str, said: str) -> None:
    """What cannot be imported, such as NumPy, is the environment's doing."""
    code = f"""
import cudriver.cli, sys
def fails(words):
    raise {error}
cudriver.cli._run = fails
sys.exit(cudriver.cli.main(["demo"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", said)
    assert done.returncode not in (0, 1)


UNUSABLE = """
int cuInit(unsigned flags) { return flags == 0 ? 100 : 1; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
"""


def test_the_demonstration_sets_and_compares_every_part() -> None:
    array = np.arange(3 * (2 * demo.ROWS + 1)).reshape(-1, 3)
    other = np.empty_like(array)
    demo._fill(other, array)
    assert np.array_equal(other, array)
    assert demo._equal(other, array)
    other[-1, -1] += 1
    assert not demo._equal(other, array)
    assert not demo._equal(array, array[:-1])
    demo._fill(other)
    assert not other.any()


def test_the_demonstration_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    """Where the driver cannot be used, it starts itself again."""
    (tmp_path / "fake.c").write_text(UNUSABLE)
    (tmp_path / "lib").mkdir()
    shared(tmp_path / "lib" / "libcuda.so.1", [tmp_path / "fake.c"])
    (tmp_path / "start.py").write_text("from cudriver.cli import main; raise SystemExit(main())")
    work = tmp_path / "work"
    work.mkdir()
    for name in "cudriver", "numpy", "json", "argparse", "sitecustomize":
        (work / f"{name}.py").write_text("raise SystemExit('CODE OF THE WORKING FOLDER RUNS')")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    environ.pop("CUDRIVER_LIBRARY", None)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "start.py"), "demo", "--size", "1", "--json"],
        env=environ,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["driver"]["simulated"] is True
    assert str(tmp_path / "lib" / "libcuda.so.1") in report["why_simulated"]


def test_a_copy_that_does_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy but the first of each pair, too: what is compared must come from the timed one."""
    real, calls = cu.copy, 0

    def every_other(dst: Any, src: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            real(dst, src)

    monkeypatch.setattr(cu, "copy", every_other)
    report = demo.demonstrate(1 << 20)
    assert calls == 2 * len(copies(report))
    assert [entry["step"] for entry in copies(report) if entry["right"]] == []
    assert report["correct"] is False


def test_wrong_bytes_are_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cu, "copy", lambda dst, src: None)
    assert main(["demo", "--size", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("library", ["/no/such/libcuda.so", "libc.so.6"])
def test_a_driver_that_cannot_be_used_is_a_sentence(library: str) -> None:
    for name in "demo", "devices":
        done = command(name, CUDRIVER_LIBRARY=library)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("cudriver: ")
        assert library in done.stderr
        assert "Install the NVIDIA driver" not in done.stderr  # a wrong path is not fixed by that
        assert "Traceback" not in done.stderr
        done = command(name, "--json", CUDRIVER_LIBRARY=library)
        assert done.returncode == 1
        assert library in json.loads(done.stdout)["error"]


def test_a_driver_that_cannot_be_used_fits_the_terminal() -> None:
    library = "/no/such/" + "folder/" * 8 + "libcuda.so"
    for name in "demo", "devices", "bench":
        assert len(command(name, CUDRIVER_LIBRARY=library).stderr.splitlines()) == 1
        lines = command(name, CUDRIVER_LIBRARY=library, COLUMNS="60").stderr.splitlines()
        assert len(lines) > 3
        assert [line for line in lines if len(line) > 60] == [f"    {library}:"]


def test_a_number_of_copy_threads_that_is_none_is_a_sentence() -> None:
    done = command("devices", CUDRIVER_COPY_THREADS="abc")
    assert done.returncode == 0
    assert done.stderr.startswith("cudriver: CUDRIVER_COPY_THREADS='abc' is not a number")
    assert len(done.stderr.splitlines()) == 1
    done = command("devices", CUDRIVER_COPY_THREADS="abc", COLUMNS="80")
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_the_driver_has_a_line_of_its_own_where_it_is_long() -> None:
    path = cu.driver_path()
    for words, indent in (["devices"], 3), (["demo", "--size", "1"], 8):
        assert f"CUDA {cu.driver_version()}  {path}\n" in command(*words).stdout
        done = command(*words, COLUMNS="40")
        assert f"CUDA {cu.driver_version()}\n{' ' * indent}{path}\n" in done.stdout


@pytest.mark.parametrize("size", ["0", "-1", "99999999999999999999", "x", "1025G", "4.5K"])
def test_sizes_that_are_none(size: str) -> None:
    done = command("demo", "--size", size)
    assert (done.returncode, done.stdout) == (2, "")
    assert size in done.stderr
    assert "Traceback" not in done.stderr


def test_more_memory_than_there_is_is_a_sentence() -> None:
    done = command("demo", "--size", "1024G")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cudriver: ")
    assert "Traceback" not in done.stderr


def test_devices_are_those_of_the_package() -> None:
    done = command("devices", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert [row["uuid"] for row in shown["devices"]] == [d.uuid for d in cu.devices()]
    for row, device in zip(shown["devices"], cu.devices(), strict=True):
        assert row["name"] == device.name
        assert row["total_memory"] == device.total_memory
        assert row["attributes"].keys() == device.attributes.keys()
    text = command("devices", "--attributes").stdout
    cache = cu.Device(0).attributes["l2_cache_size"]
    assert f"{cache}  {cache / 2**20:.4g} MiB\n" in text
    for device in cu.devices():
        assert device.name in text
        assert device.uuid in text
    assert text.count("compute_capability_major") == cu.device_count()


def test_counts_have_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    row = devices.describe(cu.devices()[0])
    devices._print_text([{**row, "multiprocessor_count": 1}], False)
    devices._print_text([{**row, "multiprocessor_count": 132}], False)
    text = capsys.readouterr().out
    assert ", 1 multiprocessor, " in text
    assert ", 132 multiprocessors, " in text
    assert [demo._objects(n) for n in (-1, 0, 1, 2)] == ["", "", "1 object", "2 objects"]


def test_no_devices_are_exit_code_1(sim: Any) -> None:
    done = command("devices", CUDRIVER_SIM_DEVICES="0")
    assert done.returncode == 1
    assert "CUDA_ERROR_NO_DEVICE" in done.stderr


def test_version_and_help() -> None:
    assert command("--version").stdout == f"cudriver {cu.__version__}\n"
    for words in [], ["help"], ["--help"], ["-h"]:
        done = command(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: cudriver COMMAND")
        assert max(map(len, done.stdout.splitlines())) <= 80
        for name in "check", "explain", "which", "devices", "demo", "bench":
            assert f"\n  {name} " in done.stdout
            assert name in COMMANDS


def test_what_is_no_command_is_a_usage_error() -> None:
    done = command("dmeo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'demo'?" in done.stderr
    done = command("demo", "twice")
    assert (done.returncode, done.stdout) == (2, "")
