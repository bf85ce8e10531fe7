"""A library that is damaged on the disk: one finding, its owner's fix, and what really happens."""

import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
import real
from test_breakage_built import MODULE, SUFFIX, Venv, library, pytestmark, rpath, runpath  # noqa: F401
from test_loader_preload import HEAD, SPLIT

PYTORCH = HEAD + SPLIT.replace("'cublas': 'libcublas", "'cuda_runtime': 'libcudart")
INIT = PYTORCH + "_load_global_deps()\nfrom torch import _C\n"
POINTER = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 2411472
"""


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "pointer": lambda path: path.write_bytes(POINTER),
    "page": lambda path: path.write_bytes(b"<!DOCTYPE html>" + b" " * 4096),
    "folder": make_folder,
    "tables": lambda path: path.write_bytes(path.read_bytes()[:8]),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Venv:
    """A venv with a PyTorch made by hand, whose libtorch_cuda.so needs NCCL through `..`."""
    venv = Venv(tmp_path_factory.mktemp("whole") / "env")
    runtime = venv.library("cuda_runtime", "libcudart.so.12", "int cudaFree(void) { return 0; }")
    source = "const char held[60000] = {1}; int ncclGetVersion(void) { return 0; }"
    nccl = venv.library("nccl", "libnccl.so.2", source)
    lib = venv.site / "torch" / "lib"
    near = rpath("$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib")
    keep = "-Wl,--no-as-needed"
    deps = library(lib, "libtorch_global_deps.so", "int deps;", keep, str(runtime), *near)
    cuda = library(
        lib,
        "libtorch_cuda.so",
        "extern int ncclGetVersion(void); int torch_cuda(void) { return ncclGetVersion(); }",
        keep,
        str(runtime),
        str(nccl),
        *near,
    )
    from elfkit import compile_c

    target = venv.site / "torch" / f"_C{SUFFIX}"
    include = f"-I{sysconfig.get_paths()['include']}"
    own = rpath("$ORIGIN/lib")
    compile_c(target, MODULE.format(needs="torch_cuda"), include, str(cuda), *own)
    target.with_name(target.name + ".c").unlink()
    files = [venv.site / "torch" / name for name in ("__init__.py", "version.py")]
    files[0].write_text(INIT)
    files[1].write_text("__version__ = '2.8.0+cu128'\ndebug = False\ncuda = '12.8'\nhip = None\n")
    requires = ("nvidia-nccl-cu12==2.27.3", "nvidia-cuda-runtime-cu12==12.8.90")
    venv.distribution("torch", "2.8.0+cu128", *requires, files=[target, deps, cuda, *files])
    venv.distribution("nvidia-nccl-cu12", "2.27.3", files=[nccl])
    venv.distribution("nvidia-cuda-runtime-cu12", "12.8.90", files=[runtime])
    return venv


@pytest.fixture
def venv(whole, tmp_path):
    """A copy of it to break."""
    shutil.copytree(whole.path, tmp_path / "env", symlinks=True)
    copy = object.__new__(Venv)
    copy.path = tmp_path / "env"
    copy.site = copy.path / whole.site.relative_to(whole.path)
    return copy


def outcome(venv) -> str:
    """What the user sees of `import torch`: the error's text, or the shell's word for a signal."""
    done = subprocess.run(
        [venv.path / "bin" / "python", "-c", "import torch"],
        capture_output=True,
        text=True,
        env=real.clean_environ(),
        check=False,
    )
    if done.returncode < 0:
        return {signal.SIGBUS: "Bus error", signal.SIGSEGV: "Segmentation fault"}[-done.returncode]
    return done.stderr.splitlines()[-1] if done.stderr else ""


def told(venv):
    report = real.check(venv.path, environ=real.clean_environ(), probe_driver=False)
    return [f for f in report.findings if f.severity != "note" and not f.rule.startswith("CU1")]


def test_it_works_as_it_was_made(venv):
    assert outcome(venv) == ""
    assert told(venv) == []


@pytest.mark.parametrize(
    ("damage", "stated"), [*((damage, True) for damage in DAMAGE), ("page", False)]
)
def test_a_damaged_library_of_a_wheel(venv, damage, stated):
    """Whether its RECORD states the size that it should have, or not."""
    file = venv.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    DAMAGE[damage](file)
    if not stated:
        (record,) = venv.site.glob("nvidia_nccl*/RECORD")
        record.write_text(f"{file.relative_to(venv.site)},,\n")
    seen = outcome(venv)
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU404", "error")
    assert "libnccl.so.2" in found.title
    again = "install --force-reinstall --no-deps nvidia-nccl-cu12==2.27.3"
    python = f"{venv.path}/bin/python"  # an environment without pip
    assert found.fix == [f"{python} -m ensurepip && {python} -m pip {again}"]
    assert any(e.file == str(file) for e in found.evidence)
    assert seen.removeprefix("ImportError: ").removeprefix("OSError: ") == found.predicts


def test_a_library_of_another_size_that_is_whole(venv):
    """Stripped, or listed wrongly by the wheel itself: its sections end where the file does."""
    file = venv.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    before = file.stat().st_size
    subprocess.run(["strip", str(file)], check=True)
    assert file.stat().st_size != before
    assert outcome(venv) == ""
    assert told(venv) == []


def test_what_pytorch_itself_says_of_a_library_that_is_gone(venv):
    """It looks for the library after the loader did, and raises an error of its own."""
    (venv.site / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12").unlink()
    seen = outcome(venv)
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU404", "error")
    assert found.predicts == "libcudart.so.*[0-9] not found in the system path"
    assert seen.startswith(f"ValueError: {found.predicts} [")
