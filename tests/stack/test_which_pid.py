"""`cudriver which --pid`. The oracle is a real process that maps real files."""

import contextlib
import json
import shutil
import subprocess
import sys

import pytest
from synth import Prefix
from test_cli import run

from cudriver.cli.which_pid import Running, compare
from cudriver.stack.facts import Library
from elfkit import compile_c

PROGRAM = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); input()"


@pytest.fixture
def venv(tmp_path):
    made = Prefix(tmp_path / "venv").venv()
    made.torch(pins={})
    return made


@contextlib.contextmanager
def running(*words, cwd=None):
    """The id of a process that has mapped what it was told to."""
    with subprocess.Popen(
        [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.communicate(b"\n")


def nccl(path):
    """A file that calls itself libnccl.so.2."""
    path.parent.mkdir()
    compile_c(path, "int ncclX;", "-Wl,-soname,libnccl.so.2")
    return path


@pytest.mark.parametrize("file", ["libnccl.so.2", "plugin.so"])
def test_what_a_process_has_mapped(venv, tmp_path, file):
    """By the name by which others ask for it, whatever the file is called."""
    library = nccl(tmp_path / "outside" / file)
    with running(sys.executable, "-c", PROGRAM, library) as pid:
        words = ("which", "--pid", str(pid), "--prefix", str(venv.path))
        told = json.loads((done := run(*words, "--json")).stdout)
        text = run(*words, "nccl").stdout
        lacking = run(*words, "nccl", "cudnn").stdout
        alone = run(*words, "cudnn")
    rows = [row for row in told["libraries"] if row["mapped"] == str(library)]
    assert [row["is"] for row in rows] == ["not expected"]
    assert done.returncode == 0
    assert f"not expected  {library}" in text
    # It has mapped a CUDA library, but none of that name.
    unknown = "cudnn: no CUDA library of that name is in use here\n"
    assert lacking == text + unknown
    assert (alone.returncode, alone.stdout) == (3, f"{venv.path}\n{unknown}")


@pytest.mark.parametrize(
    ("folder", "program"),
    [(".", "env/bin/python"), ("env", "bin/python"), ("env/bin", "./python")],
)
def test_a_process_that_was_started_by_a_relative_path(tmp_path, monkeypatch, folder, program):
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    library = nccl(tmp_path / "outside" / "libnccl.so.2")
    with running(program, "-c", PROGRAM, library, cwd=tmp_path / folder) as pid:
        assert Running(pid).prefix == str(python)


def test_what_variables_mean_in_the_folder_of_a_process(tmp_path, monkeypatch):
    """Not in that of whoever asks."""
    library = nccl(tmp_path / "outside" / "libnccl.so.2")
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "lib:")
    with running(sys.executable, "-c", PROGRAM, library, cwd=tmp_path) as pid:
        variables = Running(pid).variables
    assert {variables[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH")} == {
        f"{tmp_path}/lib:{tmp_path}"
    }


def test_a_process_in_another_mount_namespace(venv, tmp_path):
    """As in a container: its paths are not ours. /mnt there is the environment."""
    alone = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    library = nccl(venv.path / "outside" / "plugin.so")
    script = 'mount --bind "$1" /mnt && exec "$2" -c "$3" /mnt/outside/plugin.so'
    shell = ("sh", "-c", script, "sh", venv.path, sys.executable, PROGRAM)
    with running(*alone, *shell) as pid:
        done = run("which", "--pid", str(pid), "--prefix", "/mnt")
        found = run("which", "--pid", str(pid), "--prefix", "/mnt", "--json")
    assert f"not expected  /mnt/outside/{library.name}" in done.stdout, done.stderr
    assert json.loads(found.stdout)["prefix"] == "/mnt"


def test_a_process_that_is_not_there(venv):
    done = run("which", "--pid", "999999999", "--prefix", str(venv.path))
    assert done.returncode == 2
    assert done.stderr == "cudriver: --pid 999999999: there is no such process\n"


def test_another_file_than_the_one_found():
    nccl = Library("libnccl.so.2", "/env/libnccl.so.2", real_path="/env/libnccl.so.2.27")
    paths = ["/env/libnccl.so.2.27", "/usr/lib/libnccl.so.2.18.1", "/usr/lib/libcufft.so.11"]
    mapped = {path: path.rpartition("/")[2] for path in paths}
    rows = compare(mapped, [nccl])
    assert [what for _, what, _ in rows] == ["as found", "another", "not expected"]
    assert [library for *_, library in rows] == [nccl, nccl, None]
