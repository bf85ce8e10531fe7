"""`cudriver which --pid`. The oracle is a real process that maps real files."""

import json
import subprocess
import sys

import pytest
from synth import Prefix
from test_cli import run

from cudriver.cli.which_pid import compare
from cudriver.stack.model import Library
from elfkit import compile_c

PROGRAM = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('ready', flush=True); input()"


@pytest.fixture
def venv(tmp_path):
    made = Prefix(tmp_path / "venv").venv()
    made.torch(pins={})
    return made


def test_what_a_process_has_mapped(venv, tmp_path):
    library = tmp_path / "outside" / "libnccl.so.2"
    library.parent.mkdir()
    compile_c(library, "int ncclX;", "-Wl,-soname,libnccl.so.2")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        words = ("which", "--pid", str(process.pid), "--prefix", str(venv.path))
        told = json.loads((done := run(*words, "--json")).stdout)
        text = run(*words).stdout
        process.communicate(b"\n")
    rows = [row for row in told["libraries"] if row["mapped"] == str(library)]
    assert [row["is"] for row in rows] == ["not expected"]
    assert done.returncode == 0
    assert f"not expected  {library}" in text


def test_a_process_that_is_not_there(venv):
    done = run("which", "--pid", "999999999", "--prefix", str(venv.path))
    assert done.returncode == 2
    assert "999999999" in done.stderr


def test_another_file_than_the_one_found():
    nccl = Library("libnccl.so.2", "/env/libnccl.so.2", real_path="/env/libnccl.so.2.27")
    mapped = ["/env/libnccl.so.2.27", "/usr/lib/libnccl.so.2.18.1", "/usr/lib/libcufft.so.11"]
    rows = compare(mapped, [nccl])
    assert [what for _, what, _ in rows] == ["as found", "another", "not expected"]
    assert [library for *_, library in rows] == [nccl, nccl, None]
