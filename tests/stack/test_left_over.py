"""Environments that somebody took things out of, or left things in."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import real
from synth import Prefix
from test_breakage_built import Venv

from cudriver.stack.collect import ask, collect, collect_machine
from cudriver.stack.report import Report
from cudriver.stack.rules import judge

INIT = "from .version import __version__\ntensor = float\n"
VERSION = "__version__ = '2.8.0+cu128'\ndebug = False\ncuda = '12.8'\nhip = None\n"
MODULES = {
    "torch/__init__.py": INIT.encode(),
    "torch/version.py": VERSION.encode(),
    "torch/nn/__init__.py": b"",
    "torch/nn/functional.py": b"def relu(x): return x\n",
    "torch/gr\u00f6\u00dfe/__init__.py": b"size = 1\n",  # the only module of its folder
    "torch/nn/tests/test_all.py": b"assert True\n",
    "torch/test/run.py": b"assert True\n",
}


def found(venv, *severities):
    facts = collect(ask(str(venv.path), environ=real.clean_environ(), probe=False))
    about = [f for f in judge(facts) if f.severity in severities and not f.rule.startswith("CU1")]
    return sorted(about, key=lambda f: f.rule)


@pytest.fixture
def venv(tmp_path):
    """A real venv, with as much of PyTorch as can be imported."""
    made = Venv(tmp_path / "env")
    for path, data in MODULES.items():
        (made.site / path).parent.mkdir(parents=True, exist_ok=True)
        (made.site / path).write_bytes(data)
    made.distribution("torch", "2.8.0+cu128", files=[made.site / path for path in MODULES])
    return made


def test_folders_that_images_leave_out(venv):
    """With all that is in them; not any other."""
    names = ["doc", "docs", "example", "examples", "benchmarks", "include", "share", "cmake"]
    for name, severities in (*((name, []) for name in names), ("other", ["warning"])):
        with open(venv.site / "torch-2.8.0+cu128.dist-info/RECORD", "a") as record:
            record.write(f"torch/{name}/part.py,sha256={43 * 'a'},5\n")
        assert [f.severity for f in found(venv, "error", "warning")] == severities, name


def test_a_copy_over_an_older_release(venv):
    """As unzip and `COPY` of a Dockerfile do: both records stay, and files of the older one."""
    names = ("__init__.py", "old.py", "gone.py", "theirs.py", "_x.cpython-39-x86_64-linux-gnu.so")
    old = [venv.site / "torch" / name for name in names]  # the last no Python here imports
    for file in old[1:]:
        file.write_bytes(b"x = 1\n")
    venv.distribution("torch", "2.7.0", files=old)
    venv.distribution("nvidia-curand-cu12", "10.3.9.90", files=[old[3]])
    old[2].unlink()
    (told,) = found(venv, "error", "warning")
    assert told.title == "old.py is of torch 2.7.0, over which torch 2.8.0+cu128 was installed"
    assert (told.doubt != "", told.proven, len(told.fix)) == (True, True, 2)
    old[1].unlink()
    assert found(venv, "error", "warning") == []


class TestEditable:
    """pip install --editable: a .pth file names the folder, or runs code that finds it."""

    @pytest.fixture
    def source(self, venv, tmp_path):
        (tmp_path / "source").mkdir()
        shutil.move(venv.site / "torch", tmp_path / "source")
        info = venv.site / "torch-2.8.0+cu128.dist-info"
        (info / "RECORD").write_text("torch-2.8.0+cu128.dist-info/RECORD,,\n")
        url = {"url": f"file://{tmp_path}/source", "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(url))
        return tmp_path / "source"

    def verdict(self, venv):
        facts = collect(ask(str(venv.path), environ=real.clean_environ(), probe=False))
        found = [f for f in judge(facts) if not f.rule.startswith("CU1")]
        return Report(facts, found).verdict

    def test_by_a_folder(self, venv, source):
        (venv.site / "__editable__.torch.pth").write_text(f"{source}\n")
        assert real.import_error(venv.path, "torch; torch.tensor") is None
        assert found(venv, "error", "warning") == []
        assert self.verdict(venv) == "consistent"

    def test_by_code(self, venv, source):
        code = f"import sys; sys.path.append(str({str(source)!r}))\n"
        (venv.site / "__editable__.torch.pth").write_text(code)
        assert real.import_error(venv.path, "torch; torch.tensor") is None
        assert found(venv, "error", "warning") == []
        assert self.verdict(venv) == "unknown"


class TestPython:
    """A venv is a link to a Python: where that is gone, nothing in it runs."""

    @pytest.mark.parametrize("linked", [True, False])
    def test_the_base_is_gone(self, venv, linked):
        python = venv.path / "bin" / "python"
        (venv.path / "bin/activate").touch()
        for name in os.listdir(venv.path / "bin"):
            if name.startswith("python"):
                (venv.path / "bin" / name).unlink()
        if linked:
            python.symlink_to("/gone/bin/python3")
        with pytest.raises(FileNotFoundError):
            subprocess.run([python, "-c", ""], check=False)
        told = [f for f in found(venv, "error") if f.rule == "CU503"]
        assert len(told) == 1
        assert told[0].evidence[0].file == str(python)
        how = "links to /gone/bin/python3, which is not there" if linked else "is not there"
        assert told[0].evidence[0].value == how
        assert told[0].predicts == "No such file or directory"
        # The fix, as a shell takes it, where that Python is on PATH again.
        (command,) = told[0].fix
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        assert command.startswith(f"python{version} -V && rm -f {venv.path}/bin/python")
        assert f" && python{version} -m venv " in command
        path = f"{os.path.dirname(os.path.realpath(sys.executable))}:{os.environ['PATH']}"
        without_pip = command.replace(" -m venv ", " -m venv --without-pip ")
        subprocess.run(without_pip, shell=True, check=True, env={**os.environ, "PATH": path})
        assert real.import_error(venv.path, "torch; torch.tensor") is None
        assert found(venv, "error", "warning") == []

    def test_a_chain_of_links(self, venv, tmp_path):
        python = venv.path / "bin" / "python3"
        for name in os.listdir(venv.path / "bin"):
            if name.startswith("python"):
                (venv.path / "bin" / name).unlink()
        (venv.path / "bin" / "python").symlink_to("python3")
        python.symlink_to(tmp_path / "gone")
        (told,) = [f for f in found(venv, "error") if f.rule == "CU503"]
        assert told.evidence[0].file == str(venv.path / "bin" / "python")
        assert str(tmp_path / "gone") in told.evidence[0].value

    def test_a_folder_without_any_python_is_no_venv_that_broke(self, tmp_path):
        made = Prefix(tmp_path / "env").venv()
        (made.path / "bin/python").unlink()
        assert [f for f in found(made, "error") if f.rule == "CU503"] == []


class TestWorkingFolder:
    """What ld.so takes from the folder that a program is started in."""

    @pytest.fixture
    def outside(self, venv, tmp_path):
        """A framework whose libcudart comes by LD_LIBRARY_PATH, and another one of it."""
        runtime = venv.library("cuda_runtime", "libcudart.so.12", "int cudaFree(void){return 0;}")
        venv.fastnet("cudaFree", str(runtime), requires=())
        place = tmp_path / "elsewhere" / "lib"
        place.mkdir(parents=True)
        shutil.copy(runtime, place)
        return place

    @pytest.mark.parametrize("value", ["lib", "./lib", "../elsewhere/lib", "absent:lib:", "x;lib"])
    def test_relative_entries(self, venv, outside, monkeypatch, value):
        monkeypatch.chdir(outside.parent)
        self.same(venv, outside, LD_LIBRARY_PATH=value)

    @pytest.mark.parametrize("value", [":/absent", "/absent:", "/absent::/absent"])
    def test_empty_entries(self, venv, outside, monkeypatch, value):
        monkeypatch.chdir(outside)
        self.same(venv, outside, LD_LIBRARY_PATH=value)

    def test_relative_files_to_preload(self, venv, outside, monkeypatch):
        monkeypatch.chdir(outside.parent)
        value = "lib/libcudart.so.12 libdl.so.2:/absent.so"
        machine = collect_machine(ask(environ={"LD_PRELOAD": value}, probe=False))
        preload = machine.loader.environ["LD_PRELOAD"]
        assert preload == f"{outside}/libcudart.so.12:libdl.so.2:/absent.so"
        asked = ask("/", root=str(venv.path), environ={"LD_PRELOAD": value})
        image = collect_machine(asked)
        preload = image.loader.environ["LD_PRELOAD"]
        assert preload == "/lib/libcudart.so.12:libdl.so.2:/absent.so"

    def same(self, venv, place, **variables):
        file = str(place / "libcudart.so.12")
        done = subprocess.run(
            [venv.path / "bin/python", "-c", MAPS],
            env=real.clean_environ(**variables),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [file]
        environ = real.clean_environ(**variables)
        facts = collect(ask(str(venv.path), environ=environ, probe=False))
        (library,) = facts.libraries
        assert (library.path, library.real_path) == (file, file)
        assert library.origin == "system"

    def test_a_folder_that_is_gone(self, venv, outside, monkeypatch, tmp_path):
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        environ = real.clean_environ(LD_LIBRARY_PATH="lib")
        facts = collect(ask(str(venv.path), environ=environ, probe=False))
        assert facts.libraries == []
        monkeypatch.chdir(tmp_path)


MAPS = """
import fastnet._C
paths = {line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}
print(*paths)
"""
