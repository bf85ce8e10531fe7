"""What is compiled when a program starts: which of its tools are looked for, and where."""

import os
import shutil
from pathlib import Path

import pytest
from facts import but, wheel
from synth import Prefix, toolkit

from cudriver.stack import inspect
from cudriver.stack.facts import every
from cudriver.stack.machine.compiling import users
from cudriver.stack.machine_facts import NvccChoice


@pytest.fixture
def empty(tmp_path):
    """An environment of vLLM, and a PATH on which nothing is."""
    venv = Prefix(tmp_path / "venv").venv(home="/opt/python/bin")  # which brings Python.h
    venv.torch()
    (tmp_path / "bin").mkdir()
    return Here(venv, {"PATH": str(tmp_path / "bin")})


class Here:
    def __init__(self, venv, variables):
        self.venv, self.variables = venv, variables

    def program(self, name, folder=None):
        path = Path(folder or self.variables["PATH"]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def inspect(self, **more):
        return inspect(str(self.venv.path), environ=self.variables, probe_driver=False, **more)

    def lacking(self):
        return {each.tool: each.by for each in self.inspect().facts.lacking}

    def told(self, **more):
        found = every(self.inspect(**more).findings)
        return [f for f in found if f.rule in ("CU204", "CU208") and f.severity != "note"]


def test_pytorch_alone_needs_none(empty):
    """torch.compile is asked for by a program, and most ask for none."""
    empty.venv.dist("triton", "3.4.0")
    assert empty.lacking() == {}
    assert empty.told() == []


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_a_compiler_is_one_that_triton_would_find(empty, name):
    """The oracle is shutil.which, with which Triton looks for it."""
    empty.venv.dist("vllm", "0.11.0")
    assert shutil.which(name, path=empty.variables["PATH"]) is None
    assert empty.lacking() == {"cc": ["vllm"]}
    empty.program(name)
    assert shutil.which(name, path=empty.variables["PATH"])
    assert empty.lacking() == {}


def test_a_compiler_that_a_variable_names(empty):
    empty.venv.dist("vllm", "0.11.0")
    empty.variables["CC"] = "ccache gcc"
    assert empty.lacking() == {}


@pytest.mark.parametrize(("version", "by"), [("0.11.0", ["flashinfer-python"]), ("0.12.0", [])])
def test_vllm_leaves_flashinfer_alone_where_no_nvcc_is_on_path(version, by):
    """From 0.11.1 on: vllm-project/vllm#26443."""
    there = [wheel("flashinfer-python", "0.5.0"), wheel("vllm", version)]
    default = NvccChoice("/usr/local/cuda", "default", "/usr/local/cuda/bin/nvcc", True)
    for nvcc in (NvccChoice(), default):
        assert [dist.name for dist in users(there, nvcc, "nvcc")] == by
    on_path = but(default, chosen_by="PATH")
    assert [dist.name for dist in users(there, on_path, "nvcc")] == ["flashinfer-python"]


class TestWithNvcc:
    @pytest.fixture
    def here(self, empty, tmp_path):
        home = tmp_path / "cuda-12.8"
        toolkit(home, "12.8")
        (home / "include/cuda_runtime.h").write_text("")
        (home / "include/curand_kernel.h").write_text("")
        empty.home = home
        empty.variables["CUDA_HOME"] = str(home)
        for name in ("gcc", "c++", "ninja"):
            empty.program(name)
        empty.venv.dist("flashinfer-python", "0.6.14")
        empty.venv.dist("vllm", "0.26.0")
        return empty

    def test_all_is_there(self, here):
        assert here.lacking() == {}
        assert here.told() == []

    def test_ninja_of_the_environment(self, here):
        """The environment's own programs are found once it is active."""
        os.remove(f"{here.variables['PATH']}/ninja")
        assert here.lacking() == {"ninja": ["flashinfer-python"]}
        (found,) = here.told()
        assert (found.proven, found.fix[0].split()[-1]) == (True, "ninja")
        here.program("ninja", here.venv.path / "bin")
        assert here.lacking() == {}

    def test_a_header_that_the_wheels_have(self, here):
        """flashinfer-ai/flashinfer#4410: nvcc does not look there, and CPATH leads it there."""
        (here.home / "include/curand_kernel.h").unlink()
        assert here.lacking() == {"curand_kernel.h": ["flashinfer-python"]}
        (found,) = here.told()
        assert "libcurand-dev-12-8" in found.fix[0]
        wheels = here.venv.site / "nvidia/curand/include"
        wheels.mkdir(parents=True)
        (wheels / "curand_kernel.h").write_text("")
        (found,) = here.told()
        assert (found.fix, found.proven) == ([f"export CPATH={wheels}"], True)
        here.variables["CPATH"] = str(wheels)
        assert here.told() == []

    @pytest.mark.parametrize("script", [False, True])
    def test_headers_of_the_nvcc_that_a_link_or_a_script_starts(self, here, tmp_path, script):
        """nvcc looks beside itself, wherever it was started from."""
        del here.variables["CUDA_HOME"]
        nvcc = tmp_path / "local/bin/nvcc"
        nvcc.parent.mkdir(parents=True)
        if script:
            nvcc.write_text(f'#!/bin/sh\nexec {here.home}/bin/nvcc "$@"\n')
            nvcc.chmod(0o755)
        else:
            nvcc.symlink_to(here.home / "bin/nvcc")
        here.variables["PATH"] += f":{nvcc.parent}"
        assert here.lacking() == {}

    def test_folders_of_headers_that_nvcc_is_given(self, here, tmp_path):
        (here.home / "include/curand_kernel.h").rename(tmp_path / "curand_kernel.h")
        assert list(here.lacking()) == ["curand_kernel.h"]
        for name, value in (("CPLUS_INCLUDE_PATH", ""), ("NVCC_PREPEND_FLAGS", "-I")):
            here.variables[name] = f"{value}{tmp_path}"
            assert here.lacking() == {}
            del here.variables[name]

    def test_an_nvcc_that_is_older_than_the_gpu(self, here):
        assert here.told(assume_gpus=["9.0"]) == []
        (found,) = here.told(assume_gpus=["12.1"])
        assert found.subject == "flashinfer-python"


@pytest.mark.parametrize(
    ("variable", "value", "lacks"),
    [
        ("A", "", {"cache": ["vllm"], "kernel cache": ["cupy-cuda12x"]}),
        ("TRITON_CACHE_DIR", "/tmp", {"kernel cache": ["cupy-cuda12x"]}),
        ("CUPY_CACHE_DIR", "/tmp", {"cache": ["vllm"]}),
        ("HOME", "", {}),  # Python asks the system then
    ],
)
def test_a_home_that_cannot_be_written(empty, tmp_path, monkeypatch, variable, value, lacks):
    """root may write anywhere, so the test refuses it."""
    empty.venv.dist("vllm", "0.11.0")
    empty.venv.dist("cupy-cuda12x", "14.2.0")
    empty.program("gcc")
    empty.variables |= {"HOME": str(tmp_path), variable: value}
    assert empty.lacking() == {}
    monkeypatch.setattr(os, "access", lambda path, _: path == "/tmp")
    assert empty.lacking() == lacks


def test_a_cache_that_can_be_written_below_a_home_that_cannot(empty, tmp_path, monkeypatch):
    empty.venv.dist("vllm", "0.11.0")
    empty.program("gcc")
    empty.variables["HOME"] = str(tmp_path)
    (tmp_path / ".triton").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != str(tmp_path))
    assert empty.lacking() == {}


def test_the_ptxas_that_triton_brings(empty, tmp_path):
    """nvcc's and ptxas's texts of their release are the same."""
    empty.program("gcc")
    folder = empty.venv.site / "triton/backends/nvidia/bin"
    folder.mkdir(parents=True)
    for name, release in (("ptxas", "12.8"), ("ptxas-blackwell", "13.0")):
        toolkit(tmp_path / name, release)
        shutil.copy(tmp_path / name / "bin/nvcc", folder / name)
    empty.venv.dist("triton", "3.6.0")
    assert empty.inspect().facts.ptxas == []
    empty.venv.dist("vllm", "0.11.0")
    known = empty.inspect().facts.ptxas
    assert [(Path(each.file).name, each.value[:4]) for each in known] == [
        ("ptxas", "12.8"),
        ("ptxas-blackwell", "13.0"),
    ]
    assert empty.told(assume_gpus=["12.1", "9.0"]) == []
    (folder / "ptxas-blackwell").unlink()
    (found,) = empty.told(assume_gpus=["12.1", "9.0"])
    assert found.predicts == "Value 'sm_121a' is not defined for option"
    empty.variables["TRITON_PTXAS_PATH"] = "/usr/local/cuda/bin/ptxas"
    assert empty.told(assume_gpus=["12.1"]) == []
