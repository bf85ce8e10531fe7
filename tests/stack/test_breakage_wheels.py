"""Environments broken with real wheels. The oracle is a real import; the fix is carried out.

Each case: break a clone, see the real failure, see the rule and its prediction, run the fix that
the report names, see both silent.
"""

import shlex
import shutil
import zipfile

import pytest
import real
from facts import facts
from facts import torch as by_hand

from cudriver.stack.facts import Framework, every
from cudriver.stack.rules import registry

pytestmark = pytest.mark.network

CU12, CU13 = "torch-2.8.0-cu128", "torch-2.11.0-cu130"


@pytest.fixture
def cu12():
    with real.clone(CU12) as prefix:
        yield prefix


@pytest.fixture
def cu13():
    with real.clone(CU13) as prefix:
        yield prefix


def fixes(prefix, finding) -> None:
    """Runs the finding's commands, from the cache of wheels where they are there."""
    commands = [fix for fix in finding.fix if " install " in fix or " uninstall " in fix]
    assert commands, finding.fix
    for command in commands:
        words = shlex.split(command)
        assert words[0].startswith(str(prefix)), command
        done = real.run(*words, PIP_FIND_LINKS=str(real.CACHE / "wheels"), PIP_YES="1")
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def assert_sound(prefix) -> None:
    assert real.import_error(prefix) is None
    assert real.rules_of_environment(real.check(prefix)) == set()


def assert_predicted(report, rule, seen):
    """An error of this rule has the import's own words; returns it."""
    found = real.finding(report, rule)
    assert found.severity == "error"
    assert f"ImportError: {found.predicts}" == seen
    return found


@pytest.mark.parametrize(
    ("requirement", "symbol"),
    [
        ("nvidia-nvjitlink-cu12==12.1.105", "__nvJitLinkCreate_12_8"),
        ("nvidia-cuda-runtime-cu12==12.1.105", "cudaGetDriverEntryPointByVersion"),
        ("nvidia-nccl-cu12==2.18.1", "ncclMemFree"),
    ],
)
def test_an_old_wheel_lacks_a_symbol(cu12, requirement, symbol):
    real.install(cu12, requirement)
    seen = real.import_error(cu12)
    assert symbol in seen
    report = real.check(cu12)
    found = assert_predicted(report, "CU303", seen)
    assert "CU402" in real.rules(report)
    fixes(cu12, found)
    assert_sound(cu12)


def test_a_foreign_cublas_loads_but_is_not_what_the_build_pins(cu12):
    real.install(cu12, "nvidia-cublas-cu12==12.1.3.1")
    # Nothing fails at import: that is why only the pins tell.
    assert real.import_error(cu12) is None
    report = real.check(cu12)
    found = real.finding(report, "CU402")
    assert "nvidia-cublas-cu12" in found.title + "".join(e.value for e in found.evidence)
    check = real.run(cu12 / "bin" / "python", "-m", "pip", "check")  # pip's own opinion
    assert "nvidia-cublas-cu12" in check.stdout
    assert "CU303" not in real.rules(report)
    fixes(cu12, found)
    assert_sound(cu12)


def test_an_old_cudnn_is_refused_by_the_version_it_was_compiled_against(cu12):
    """torch 2.8.0 pins cuDNN 9.10.2 and was compiled against 9.8.0: its own words say which."""
    real.install(cu12, "nvidia-cudnn-cu12==9.1.0.70")
    code = "import torch; torch.backends.cudnn.version()"
    seen = real.run(cu12 / "bin" / "python", "-c", code).stderr.strip().splitlines()[-1]
    assert "against (9, 8, 0) but found runtime version (9, 1, 0)" in seen
    report = real.check(cu12)
    found = real.finding(report, "CU301")
    assert found.severity == "error"
    assert seen.startswith(f"RuntimeError: {found.predicts}")
    fixes(cu12, found)
    assert real.ask(cu12, "import torch; print(torch.backends.cudnn.version())") == 91002
    assert_sound(cu12)


def test_a_cudnn_between_the_compiled_and_the_pinned_version_is_no_error(cu12):
    real.install(cu12, "nvidia-cudnn-cu12==9.8.0.87")
    assert real.ask(cu12, "import torch; print(torch.backends.cudnn.version())") == 90800
    report = real.check(cu12)
    assert "CU301" not in real.rules(report)
    assert "CU402" in real.rules(report)


@pytest.mark.parametrize(
    ("sibling", "soname"),
    [
        ("nvidia-nvshmem-cu12==3.4.5", "libnvshmem_host.so.3"),
        ("nvidia-nccl-cu12==2.18.1", "libnccl.so.2"),
    ],
)
def test_a_sibling_of_another_major_takes_the_files_with_it(cu13, sibling, soname):
    real.install(cu13, sibling)
    owned_twice = real.check(cu13)
    assert "CU404" in {finding.rule for finding in every(owned_twice.findings)}
    real.uninstall(cu13, sibling.partition("==")[0])
    seen = real.import_error(cu13)
    assert seen == (
        f"ImportError: {soname}: cannot open shared object file: No such file or directory"
    )
    fixes(cu13, assert_predicted(real.check(cu13), "CU404", seen))
    assert_sound(cu13)


def test_nvrtc_without_its_builtins(cu12):
    folder = real.site_packages(cu12) / "nvidia" / "cuda_nvrtc" / "lib"
    (builtins,) = folder.glob("libnvrtc-builtins.so.12.8")
    builtins.unlink()
    seen = real.ask(cu12, COMPILE)
    assert "failed to open libnvrtc-builtins.so.12.8" in seen
    report = real.check(cu12)
    found = real.finding(report, "CU306")
    assert found.predicts.rstrip(".") in seen
    fixes(cu12, found)
    assert real.ask(cu12, COMPILE) == ""
    assert_sound(cu12)


COMPILE = r"""
import ctypes, json, torch
nvrtc = ctypes.CDLL("libnvrtc.so.12")
program = ctypes.c_void_p()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void f() {}", None, 0, None, None)
nvrtc.nvrtcCompileProgram(program, 0, None)
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
print(json.dumps(log.value.decode().strip()))
"""


def test_cudnn_of_two_minors_by_a_folder_on_the_library_path(cu12, tmp_path):
    """cuDNN opens its parts by SONAME, and a RUNPATH comes after LD_LIBRARY_PATH."""
    with real.clone(CU13) as other:
        folder = tmp_path / "cudnn"
        shutil.copytree(real.site_packages(other) / "nvidia" / "cudnn" / "lib", folder)
    # The main library is found by RPATH, its parts by the variable.
    environ = real.clean_environ(LD_LIBRARY_PATH=str(folder))
    seen = real.ask(cu12, PARTS, LD_LIBRARY_PATH=str(folder))
    assert seen["main"].startswith(str(cu12))
    assert seen["parts"] != []
    assert all(path.startswith(str(folder)) for path in seen["parts"])
    report = real.check(cu12, environ=environ)
    found = real.finding(report, "CU304")
    shown = found.title + " ".join(f"{e.file} {e.value}" for e in found.evidence)
    assert "9.10.2" in shown
    assert "9.19.0" in shown
    libraries = {lib.soname: lib.real_path for lib in report.libraries}
    assert libraries["libcudnn.so.9"] == seen["main"]
    predicted = {path.rpartition("/")[2]: path for path in libraries.values()}
    assert [predicted[path.rpartition("/")[2]] for path in seen["parts"]] == seen["parts"]
    # The fix is to unset the variable.
    assert_sound(cu12)


PARTS = r"""
import ctypes, json, torch
cudnn = ctypes.CDLL("libcudnn.so.9")
cudnn.cudnnOpsVersionCheck()
with open("/proc/self/maps") as maps:
    files = {row[5] for row in (l.rstrip("\n").split(None, 5) for l in maps) if len(row) == 6}
files = sorted(path for path in files if "/libcudnn" in path)
print(json.dumps({
    "main": [path for path in files if path.endswith("libcudnn.so.9")][0],
    "parts": [path for path in files if not path.endswith("libcudnn.so.9")],
}))
"""


def test_an_old_nvjitlink_on_the_library_path(cu12, tmp_path):
    """Whether it leaks in hangs on who asks first; the loader itself is the oracle."""
    with real.clone(CU12) as other:
        real.install(other, "nvidia-nvjitlink-cu12==12.1.105")
        folder = tmp_path / "old"
        shutil.copytree(real.site_packages(other) / "nvidia" / "nvjitlink" / "lib", folder)
    environ = real.clean_environ(LD_LIBRARY_PATH=str(folder))
    assert real.import_error(cu12, LD_LIBRARY_PATH=str(folder)) is None
    (mapped,) = real.ask(cu12, MAPPED_NVJITLINK, LD_LIBRARY_PATH=str(folder))
    report = real.check(cu12, environ=environ)
    assert [lib.real_path for lib in report.libraries if lib.family == "nvjitlink"] == [mapped]
    assert [f for f in report.findings if f.severity == "error"] == []
    assert ("CU302" in real.rules(report)) == mapped.startswith(str(folder))


MAPPED_NVJITLINK = r"""
import json, torch
with open("/proc/self/maps") as maps:
    files = {row[5] for row in (l.rstrip("\n").split(None, 5) for l in maps) if len(row) == 6}
print(json.dumps([path for path in files if "libnvJitLink" in path]))
"""


def test_torchvision_of_another_torch(cu13):
    real.install(cu13, "torchvision==0.23.0")
    got = real.pip(cu13, "install", "pillow")
    assert got.returncode == 0, got.stderr
    seen = real.import_error(cu13, "torchvision")
    assert seen == "RuntimeError: operator torchvision::nms does not exist"
    report = real.check(cu13)
    told = [f for f in report.findings if f.severity == "error" and f.predicts]
    assert [f"RuntimeError: {f.predicts}" for f in told] == [seen]
    assert told[0].subject == "torchvision"


def test_torchaudio_for_another_cuda_major(cu12, cu13):
    """Its libraries do not load, so that it has no version to compare: for want of libcudart.so.13,
    or where the machine has that of one of PyTorch's functions.
    """
    real.install(cu12, "torchaudio==2.11.0")
    seen = real.import_error(cu12, "torchaudio")
    assert "compiled with different CUDA versions" not in seen
    (told,) = [f for f in real.check(cu12).findings if f.severity == "error"]
    assert seen == f"OSError: {told.predicts}"
    real.install(cu13, "torchaudio==2.11.0")
    assert real.import_error(cu13, "torchaudio") is None
    assert real.rules_of_environment(real.check(cu13)) == set()


@pytest.mark.parametrize(
    ("release", "cuda"),
    [("0.15.2", "11.8"), ("0.15.2", "12.1"), ("0.16.2", "11.8"), ("0.16.2", "12.8")],
)
def test_what_torchvision_says_of_another_cuda(tmp_path, release, cuda):
    """Its own code, taken from the wheel, beside a PyTorch that only tells its CUDA."""
    prefix = real.environment("torch-cpu")
    built = {"0.15.2": "11.7", "0.16.2": "12.1"}[release]
    package, torch = tmp_path / "torchvision", tmp_path / "torch"
    torch.mkdir()
    with zipfile.ZipFile(real.wheel(f"torchvision=={release}", prefix)) as wheel:
        wheel.extract("torchvision/extension.py", tmp_path)
    (package / "__init__.py").touch()
    (package / "_internally_replaced_utils.py").write_text("_get_extension_path = str\n")
    (torch / "version.py").write_text(f"cuda = {cuda!r}\n")
    (torch / "__init__.py").write_text(STAND_IN.replace("CODE", built.replace(".", "0") + "0"))
    seen = real.import_error(prefix, "torchvision.extension", PYTHONPATH=str(tmp_path))
    kin = Framework("torchvision", f"{release}+cu{built.replace('.', '')}", built, variant="cuda")
    (found,) = registry()["CU405"](facts(frameworks=[by_hand("2.9.9", cuda), kin]))
    assert (found.severity == "error") == (seen is not None)
    assert seen is None or seen.startswith(f"RuntimeError: {found.predicts}")


STAND_IN = """
class ops:
    load_library = staticmethod(lambda path: None)

    class torchvision:
        _cuda_version = staticmethod(lambda: CODE)
"""


def test_a_file_changed_after_installation(cu12):
    """RECORD's hash is the oracle: pip wrote it."""
    library = real.site_packages(cu12) / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"
    data = bytearray(library.read_bytes())
    library.unlink()  # the clone shares it with the cache
    data[-1] ^= 0xFF
    library.write_bytes(data + b"\0")
    report = real.check(cu12)
    found = real.finding(report, "CU404")
    assert "libcudart.so.12" in found.title + "".join(e.file + e.value for e in found.evidence)
