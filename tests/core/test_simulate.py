"""`cudriver simulate`: a command with the simulated driver as its libcuda, and else as always."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudriver.cli import simulate
from cudriver.errors import simulated_driver_path

NOTICE = "cudriver: no GPU is used: libcuda is the simulated driver, which runs no kernels\n"
PYTHON = sys.executable
# What another library does: opens the driver by its name, and asks for its version.
OPEN = """
import ctypes
for name in "libcuda.so.1", "libcuda.so":
    library = ctypes.CDLL(name)
    version = ctypes.c_int()
    print(library.cuDriverGetVersion(ctypes.byref(version)), version.value,
          library.cudriver_sim_version())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "cudriver", "simulate", *command],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_finds_the_simulated_driver_by_its_name(cache: Path) -> None:
    done = run("--", PYTHON, "-c", OPEN, CUDRIVER_SIM_DRIVER_VERSION="12080")
    assert (done.returncode, done.stderr) == (0, NOTICE)
    assert done.stdout.splitlines() == ["0 12080 1"] * 2
    assert [p.resolve() for p in cache.rglob("libcuda.so.1")] == [
        Path(simulated_driver_path()).resolve()
    ]


def test_cudriver_itself_takes_it(cache: Path) -> None:
    script = "import cudriver as cu; print(cu.driver_is_simulated(), cu.device_count())"
    environ = {"CUDRIVER_LIBRARY": "", "CUDRIVER_SIM_DEVICES": "2"}
    done = run(PYTHON, "-c", script, **environ)
    assert (done.stdout, done.stderr) == ("True 2\n", NOTICE)
    done = run("--", PYTHON, "-m", "cudriver", "demo", "--size", "1", **environ)
    assert "SIMULATED DRIVER: libcuda.so.1 is the simulated driver." in done.stdout
    done = run("--", PYTHON, "-m", "cudriver", "check", **environ)
    assert "simulated library" in done.stdout  # and what else is wrong in this environment
    assert done.stderr == NOTICE


def test_nothing_else_changes(cache: Path) -> None:
    script = "import os, sys; print(sorted(os.environ.items()), sys.argv[1:], os.getcwd())"
    words = [PYTHON, "-c", script, "--", "-x", "a b", ""]
    plain = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert run("--", *words).stdout != plain
    for path in "", "/nowhere", "/nowhere:/else":
        environ = {"LD_LIBRARY_PATH": path}
        plain = subprocess.run(
            words, env=os.environ | environ, capture_output=True, text=True, check=True
        ).stdout
        [place] = cache.glob("cudriver/simulate/*")
        first = f"{place}:{path}" if path else str(place)
        before, after = f"('LD_LIBRARY_PATH', '{path}')", f"('LD_LIBRARY_PATH', '{first}')"
        assert run(*words, **environ).stdout == plain.replace(before, after)


def test_the_status_and_the_signal_are_the_commands(cache: Path) -> None:
    assert run(PYTHON, "-c", "raise SystemExit(7)").returncode == 7
    done = run("--", PYTHON, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert done.returncode == -signal.SIGTERM
    # Python ignores this one; what it starts must not.
    done = run("--", "sh", "-c", "kill -PIPE $$; echo alive")
    assert (done.returncode, done.stdout) == (-signal.SIGPIPE, "")


def test_what_cannot_be_run(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("--", "no-such-command", "--help")
    assert (done.returncode, done.stderr) == (127, "cudriver: command not found: no-such-command\n")
    (tmp_path / "data").touch()
    done = run("--", str(tmp_path / "data"))
    assert done.returncode == 126
    assert done.stderr.endswith(f"cannot run {tmp_path / 'data'}: Permission denied\n")
    # A file of this folder is no command: its name has no slash.
    monkeypatch.chdir(tmp_path)
    assert subprocess.run(["env", "data"], capture_output=True).returncode == 127
    done = run("--", "data")
    assert (done.returncode, done.stderr) == (127, "cudriver: command not found: data\n")
    for words in [], ["--"]:
        done = run(*words)
        assert done.returncode == 2
        assert done.stderr == (
            "cudriver: say which command to run: cudriver simulate -- pytest tests/\n"
        )


def test_help_is_ours_before_the_command_and_its_own_after(cache: Path) -> None:
    done = run("--help")
    assert "cudriver simulate [-h] [-v] [--] COMMAND" in done.stdout
    assert "CUDRIVER_SIM_DEVICES" in done.stdout
    assert run(PYTHON, "--help").stdout.startswith(f"usage: {PYTHON}")


def temporary(folder: Path) -> Path:
    """The user's among the temporary ones, which the next call takes again."""
    place = Path(simulate.folder())
    assert place.parent == folder / f"cudriver-{os.geteuid()}" / "cudriver" / "simulate"
    assert place == Path(simulate.folder())
    assert {link.name for link in place.iterdir()} == {*simulate.NAMES}
    return place


def test_without_a_cache_the_folder_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    tokens = [str(tmp_path / f"a{sign}b") for sign in (":", ";", "$", "$LIB")]
    for cache in str(tmp_path / "file"), *tokens, "relative":
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        temporary(tmp_path)


def test_where_another_has_taken_its_name_the_folder_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    temporary(tmp_path).parents[2].chmod(0o777)
    first, second = Path(simulate.folder()), Path(simulate.folder())
    assert first.parent == second.parent == tmp_path
    assert first != second
    assert {link.name for link in first.iterdir()} == {*simulate.NAMES}


def test_a_link_that_leads_elsewhere_is_put_right(cache: Path) -> None:
    place = Path(simulate.folder())
    assert Path(simulate.folder()) == place
    link = place / "libcuda.so.1"
    link.unlink()
    link.symlink_to("/nowhere")
    assert Path(simulate.folder()) == place
    assert link.resolve() == Path(simulated_driver_path()).resolve()
    assert {entry.name for entry in place.iterdir()} == {*simulate.NAMES}


def test_the_loaders_own_words_in_the_path(tmp_path: Path) -> None:
    for word in "$ORIGIN", "${ORIGIN}", "$LIB", "$PLATFORM":
        done = run("--", PYTHON, "-c", OPEN, XDG_CACHE_HOME=str(tmp_path / word))
        assert (done.returncode, done.stderr) == (0, NOTICE)
        assert len(done.stdout.splitlines()) == 2
    done = run("--", "true", XDG_CACHE_HOME="relative", TMPDIR=str(tmp_path))
    assert done.returncode == 0
    (tmp_path / "$LIB").mkdir()
    done = run("--", "true", XDG_CACHE_HOME="relative", TMPDIR=str(tmp_path / "$LIB"))
    assert done.returncode == 125
    assert "cannot stand on LD_LIBRARY_PATH" in done.stderr
    assert [*(tmp_path / "$LIB").iterdir()] == []


def others_write(place: Path) -> None:
    place.chmod(0o777)


def group_writes(place: Path) -> None:
    place.chmod(0o770)


def others_write_to_all_caches(place: Path) -> None:
    place.parent.parent.chmod(0o777)


def others_write_above(place: Path) -> None:
    place.parents[2].chmod(0o777)


def library_is_there(place: Path) -> None:
    (place / "libm.so.6").write_bytes(b"another library")


def link_is_there(place: Path) -> None:
    (place / "libm.so.6").symlink_to("/tmp/another")


def folder_is_a_link(place: Path) -> None:
    place.rename(place.with_name("other"))
    place.symlink_to("other")


@pytest.mark.parametrize(
    "change",
    [
        others_write,
        group_writes,
        others_write_to_all_caches,
        others_write_above,
        library_is_there,
        link_is_there,
        folder_is_a_link,
    ],
)
def test_a_folder_into_which_others_can_put_libraries_is_not_used(
    cache: Path, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(simulate.folder())
    change(first)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    temporary(tmp_path)


@pytest.mark.parametrize("made", ["cudriver", "cudriver/simulate", "cudriver/simulate/*", ""])
def test_nor_is_another_users(
    cache: Path, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(simulate.folder())
    [foreign] = cache.glob(made) if made else [cache]
    lstat = os.lstat

    def owned(path: str) -> os.stat_result:
        found = lstat(path)
        another = found.st_uid + 1 if Path(path) == foreign else found.st_uid
        return os.stat_result((*found[:4], another, *found[5:]))

    assert Path(simulate.folder()) == first
    monkeypatch.setattr(os, "lstat", owned)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    temporary(tmp_path)


def test_a_folder_that_all_write_to_but_none_takes_away_may_be_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = Path(simulate.folder())
    assert place.parents[2] == tmp_path / "cache"
    assert [p.stat().st_mode & 0o777 for p in (place, *place.parents[:2])] == [0o700] * 3


def test_what_packages_left_that_are_gone_is_cleared(cache: Path) -> None:
    place = Path(simulate.folder())
    gone, empty, other = (place.with_name(name) for name in ("0" * 16, "1" * 16, "2" * 16))
    for folder, target in ((gone, "/nowhere/libcudriver_sim.so"), (empty, ""), (other, PYTHON)):
        folder.mkdir()
        if target:
            for name in simulate.NAMES:
                (folder / name).symlink_to(target)
    (other / "file").touch()
    (other / "libcuda.so").unlink()
    (other / "libcuda.so").symlink_to("/nowhere")
    left = {place, gone, empty, other}
    assert Path(simulate.folder()) == place
    assert {*place.parent.iterdir()} == left  # looked at when a package is new only
    for link in place.iterdir():
        link.unlink()
    place.rmdir()
    assert Path(simulate.folder()) == place
    assert {*place.parent.iterdir()} == left - {gone}
    assert (other / "file").exists()
