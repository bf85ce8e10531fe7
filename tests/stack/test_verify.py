"""`cudriver check --verify`: what keeps its size. The oracle is the hash that the test writes."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synth import Prefix
from test_cli import run

from cudriver.stack.collect import ask, collect, collect_machine
from cudriver.stack.integrity.verify import verify
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c

HOLE = 100 << 20  # bytes: as many as are read of a file that takes no disk
NAMES = ("cupy/__init__.py", "cupy/data.bin", "cupy/lib/libx.so.1")


def faults(prefix, told=None):
    """The files that a check with --verify finds, by the end of their paths."""
    asked = ask(str(prefix), environ={}, probe=False)
    machine = collect_machine(asked)

    def track(done, total):
        pieces = [*done]
        if told is not None:
            told.append((len(pieces), total))
        return pieces

    machine.verify = lambda facts, loader: verify(asked.root, facts, loader, track)
    found = collect(asked, machine).file_faults
    return {f.file.partition("site-packages/")[2]: f for f in found}


@pytest.fixture
def venv(tmp_path):
    made = Prefix(tmp_path / "venv").venv()
    files = dict.fromkeys(NAMES, b"as it was" * 9)
    files[NAMES[2]] = compile_c(tmp_path / "libx.so.1", "int x;").read_bytes() + b"as it was"
    made.dist("cupy-cuda12x", "13.0", files=files)
    return made


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_whole_files_are_no_faults(venv):
    told = []
    assert faults(venv.path, told) == {}
    assert told == [(3, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_a_bit_is_found_in_any_file(venv, name):
    flip(venv.site / name)
    found = faults(venv.path)
    assert [*found] == [name]
    assert found[name].distribution == "cupy-cuda12x"
    line = found[name].evidence.line
    assert (
        (venv.site / "cupy_cuda12x-13.0.dist-info/RECORD")
        .read_text()
        .split("\n")[line - 1]
        .startswith(name)
    )


@pytest.mark.parametrize("content", [None, b"", b"x = 1\n" * 99])
@pytest.mark.parametrize("name", NAMES[:2])
def test_a_file_that_is_gone_or_of_another_size(venv, name, content):
    file = venv.site / name
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert [*faults(venv.path)] == [name]
    data = json.loads(run("check", str(venv.path), "--json", "--verify", "--no-probe").stdout)
    (told,) = [each for each in data["findings"] if each["rule"] == "CU404"]
    assert os.path.basename(name) in told["title"]
    assert told["fix"][0]["heals"]


def test_what_images_leave_out_is_no_fault(venv):
    """Tests, and files that Python compiles."""
    left = {"big/tests/data.bin": b"x", "big/__pycache__/a.pyc": b"x"}
    venv.dist("big", "1.0", files={"big/__init__.py": b"", **left})
    for name in left:
        (venv.site / name).unlink()
    assert faults(venv.path) == {}


def test_data_of_two_packages_is_as_one_of_them_brought_it(venv):
    venv.dist("one", "1.0", files={"share/data.bin": b"one"})
    venv.dist("two", "1.0", files={"share/data.bin": b"of the other"})
    assert faults(venv.path) == {}


def test_what_another_package_wrote_is_its_own(venv):
    """Two that bring google/__init__.py, each with another content of one size."""
    venv.dist("one", "1.0", files={"google/__init__.py": b"# one"})
    venv.dist("two", "1.0", files={"google/__init__.py": b"# two"})
    assert faults(venv.path) == {}
    flip(venv.site / "google/__init__.py")
    assert [*faults(venv.path)] == ["google/__init__.py"]


def test_what_conda_patched_is_no_fault(tmp_path):
    venv = Prefix(tmp_path / "env").venv()
    venv.dist("cupy-cuda12x", "13.0", files={NAMES[0]: b"prefix"}, installer="conda")
    flip(venv.site / NAMES[0])
    assert faults(venv.path) == {}


def test_the_command_tells_it_with_a_fix_that_heals(venv):
    name = NAMES[2]
    flip(venv.site / name)
    data = json.loads(run("check", str(venv.path), "--json", "--verify", "--no-probe").stdout)
    (found,) = [f for f in data["findings"] if f["rule"] == "CU404"]
    assert "libx.so.1 is not as cupy-cuda12x 13.0 brought it" in found["title"]
    assert found["fix"][0]["heals"]
    assert found["fix"][0]["command"].endswith("--force-reinstall --no-deps cupy-cuda12x==13.0")
    data = json.loads(run("check", str(venv.path), "--json", "--no-probe").stdout)
    assert [f for f in data["findings"] if f["rule"] == "CU404"] == []


def test_what_a_variable_hides_is_there_without_it(venv, tmp_path):
    (tmp_path / "cupy.py").touch()
    words = ("check", str(venv.path), "--json", "--verify", "--no-probe")
    found = json.loads(run(*words, PYTHONPATH=str(tmp_path)).stdout)["findings"]
    fixes = [fix for each in found if each["rule"] == "CU404" for fix in each["fix"]]
    assert [(fix["command"], bool(fix["heals"])) for fix in fixes] == [("unset PYTHONPATH", True)]


def reads_one(process: int) -> bool:
    """Whether a process has one of those files open."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(descriptor).endswith(".bin"):
                return True
    return False


def interrupted(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """What it prints until Ctrl-C ends it. Pressed again where CPython did not see it: a signal
    that comes right before a thread waits for a lock, most often without the GIL.
    """
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=20)
    raise AssertionError("it goes on")


def test_ctrl_c_ends_it_at_once(venv):
    """A file of which hardly anything is there is read whole, and more wait for a thread."""
    paths = [venv.site / f"cupy/huge{number}.bin" for number in range(40)]
    record = venv.site / "cupy_cuda12x-13.0.dist-info/RECORD"
    with open(record, "a") as lines:
        for path in paths:
            with open(path, "wb") as file:
                file.truncate(HOLE)  # no disk is used
            lines.write(f"cupy/{path.name},sha256=x,{HOLE}\n")
    words = [sys.executable, "-m", "cudriver", "check", str(venv.path), "--verify", "--no-probe"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as check:
        try:
            deadline = time.monotonic() + 60
            while not reads_one(check.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            out, err = interrupted(check)
        finally:
            check.kill()
    assert (check.returncode, out, err) == (130, b"", b"")


def listing(venv, name, size, times=1):
    with open(venv.site / "cupy_cuda12x-13.0.dist-info/RECORD", "a") as lines:
        lines.write(f"{name},sha256=x,{size}\n" * times)


def test_a_file_of_holes_is_not_read(venv):
    """It would take hours, and no package brings one."""
    with open(venv.site / "cupy/huge.bin", "wb") as file:
        file.truncate(1 << 42)
    listing(venv, "cupy/huge.bin", 1 << 42)
    assert faults(venv.path) == {}


def test_a_file_is_read_once_however_often_it_is_listed(venv, monkeypatch):
    opened = []
    usual = Root.open
    monkeypatch.setattr(Root, "open", lambda self, path: opened.append(path) or usual(self, path))
    (venv.site / "cupy/often.bin").write_bytes(b"x" * 99)
    listing(venv, "cupy/often.bin", 99, 10_000)
    assert [*faults(venv.path)] == ["cupy/often.bin"]
    # For its hash, and to see what is wrong with it.
    assert sum(path.endswith("often.bin") for path in opened) == 2


class TestSystem:
    """What a system's package manager brought is its own: dpkg's list tells, not RECORD."""

    @pytest.fixture
    def root(self, tmp_path):
        made = Prefix(tmp_path / "usr", python="3.11", root=tmp_path)
        packages = tmp_path / "usr/lib/python3/dist-packages"
        made.dist("numpy", "1.24.2", files={"numpy/__init__.py": b"x = 1\n"}, site=packages)
        made.dist("torch", "1.13.1", ["numpy"], {"torch/__init__.py": b"y = 1\n"}, site=packages)
        for name in ("numpy", "torch"):
            (info,) = packages.glob(f"{name}*.dist-info")
            (info / "INSTALLER").write_text("debian\n")
            file = packages / name / "__init__.py"
            file.write_bytes(b"# patched by Debian\n")  # RECORD says otherwise
            folder = tmp_path / "var/lib/dpkg/info"
            folder.mkdir(parents=True, exist_ok=True)
            lines = [
                (hashlib.md5(path.read_bytes()).hexdigest(), path)
                for path in (info / "METADATA", file)
            ]
            text = "".join(f"{md5}  {path.relative_to(tmp_path)}\n" for md5, path in lines)
            (folder / f"python3-{name}.md5sums").write_text(text)
        (folder / "bash.md5sums").write_text(f"{'0' * 32}  usr/bin/bash\n")
        (tmp_path / "usr/bin").mkdir(exist_ok=True)
        (tmp_path / "usr/bin/python3.11").touch()
        (tmp_path / "usr/bin/bash").touch()
        return tmp_path

    def told(self, root):
        words = ("check", "/usr", "--root", root, "--json", "--verify", "--no-probe")
        data = json.loads(run(*words).stdout)
        return [each for each in data["findings"] if each["rule"] == "CU404"]

    def test_untouched(self, root):
        assert self.told(root) == []

    def test_touched(self, root):
        flip(root / "usr/lib/python3/dist-packages/numpy/__init__.py")
        (told,) = self.told(root)
        assert (
            told["title"] == "__init__.py is not as the system's package python3-numpy brought it"
        )
        assert [c["command"] for c in told["fix"]] == [
            "sudo apt-get install --reinstall python3-numpy"
        ]
        assert told["evidence"][0]["file"] == "/var/lib/dpkg/info/python3-numpy.md5sums"
