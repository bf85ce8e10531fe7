"""Real CUDA builds of PyTorch: what the check predicts from files against what PyTorch says."""

import json

import pytest
import real

from cudriver.stack.machine.visible import select
from cudriver.stack.machine_facts import Device

pytestmark = pytest.mark.network

CUDA_BUILDS = ["torch-2.8.0-cu128", "torch-2.11.0-cu130"]

# What PyTorch says without a GPU, and what is mapped once all that can be loaded is: nvrtc and
# cuDNN's sub-libraries come only by a call, as PyTorch or cuDNN makes it on a machine with a GPU.
ASK = r"""
import ctypes, json, os
import torch
def mapped():
    with open("/proc/self/maps") as maps:
        rows = (line.rstrip("\n").split(None, 5) for line in maps)
        return sorted({row[5] for row in rows if len(row) == 6})
answer = {"imported": mapped()}
answer["cuda"] = torch.version.cuda
answer["cudnn"] = torch.backends.cudnn.version()
answer["nccl"] = list(torch.cuda.nccl.version())
answer["archs"] = torch._C._cuda_getArchFlags().split()
folder = os.path.join(os.path.dirname(torch.__file__), "lib")
for name in sorted(os.listdir(folder)):
    if ".so" in name:
        try:
            ctypes.CDLL(os.path.join(folder, name))
        except OSError:
            pass
cudnn = ctypes.CDLL("libcudnn.so.9")
for part in ("Ops", "Cnn", "Adv", "Graph"):
    answer["cudnn" + part] = getattr(cudnn, "cudnn%sVersionCheck" % part)()
nvrtc = ctypes.CDLL("libnvrtc.so." + answer["cuda"].partition(".")[0])
program = ctypes.c_void_p()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void f() {}", None, 0, None, None)
answer["nvrtc"] = nvrtc.nvrtcCompileProgram(program, 0, None)
answer["mapped"] = mapped()
print(json.dumps(answer))
"""


@pytest.fixture(scope="module", params=CUDA_BUILDS)
def pair(request):
    """(the report, PyTorch's own answers, the environment's folder)"""
    prefix = real.environment(request.param)
    return real.check(prefix), real.ask(prefix, ASK), prefix


def test_versions_are_pytorchs_own(pair):
    report, said, _ = pair
    torch = report.facts.framework("torch")
    number = said["cudnn"]
    assert torch.cuda == said["cuda"]
    assert torch.cudnn == f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    assert torch.nccl == ".".join(map(str, said["nccl"]))


def test_arch_list_is_pytorchs_own(pair):
    report, said, _ = pair
    assert sorted(report.facts.framework("torch").archs) == sorted(said["archs"])


def test_every_mapped_cuda_library_is_where_it_was_predicted(pair):
    """Both ways: a mapped one is predicted, and a predicted one that got mapped is that file."""
    report, said, prefix = pair
    predicted = {library.real_path: library for library in report.libraries}
    mapped = [path for path in said["mapped"] if is_nvidia(path, prefix)]
    assert len(mapped) >= 18
    assert said["nvrtc"] == 0
    assert [path for path in mapped if path not in predicted] == []
    names = {path.rpartition("/")[2] for path in mapped}
    wrong = [p for p in predicted if p.rpartition("/")[2] in names and p not in mapped]
    assert wrong == []


def test_what_the_import_maps_is_predicted_as_loaded(pair):
    """Libraries that `import torch` itself maps are not merely candidates of a dlopen."""
    report, said, prefix = pair
    used = (x for x in report.libraries if x.needed_by or x.found_by.startswith("preload"))
    real_needed = {library.real_path for library in used}
    imported = {path for path in said["imported"] if is_nvidia(path, prefix)}
    assert imported <= real_needed


def test_library_versions_are_those_of_their_wheels(pair):
    """The oracle is the installed distribution that owns the file."""
    report, _, _ = pair
    assert len(report.libraries) >= 20
    for library in report.libraries:
        if library.family in ("cudnn", "nccl") and library.origin == "environment":
            name, _, version = (library.provided_by or "").partition(" ")
            assert name.startswith("nvidia-"), library
            assert version.startswith(library.version), library


def test_a_sound_environment_has_no_error_and_no_warning(pair):
    report, _, _ = pair
    assert real.rules_of_environment(report) == set()


def test_the_environment_is_not_touched(pair):
    """No file appears or changes by being looked at."""
    _, _, prefix = pair
    site = real.site_packages(prefix)
    before = {p: p.stat().st_mtime_ns for p in [site, *site.iterdir(), *(site / "torch").iterdir()]}
    real.check(prefix)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_observation_agrees_with_the_prediction(pair):
    from cudriver.stack.load.observe import observe

    report, _, _ = pair
    observation = observe(report.facts, environ=real.clean_environ())
    assert observation.error is None
    assert observation.imports["torch"] is None
    assert set(observation.imports.values()) == {None}  # with torch's kin: triton, cuda.bindings
    assert [row for row in observation.rows if not row.agrees] == []
    assert len(observation.rows) >= 15


def test_cpu_build_is_told_as_one():
    prefix = real.environment("torch-cpu")
    report = real.check(prefix)
    said = real.ask(prefix, "import json, torch; print(json.dumps(torch.version.cuda))")
    torch = report.facts.framework("torch")
    assert said is None
    assert torch.cuda is None
    assert torch.variant == "cpu"
    assert "torch" in real.finding(report, "CU401").title.lower()
    assert [lib.soname for lib in report.libraries if lib.family == "cudart"] == []


def is_nvidia(path: str, prefix) -> bool:
    """A library of NVIDIA's: from its wheels or by its name. Not by our own tables."""
    from pathlib import Path

    if not path.startswith("/") or ".so" not in path:
        return False
    inside = str(real.site_packages(Path(prefix)))
    if path.startswith((inside + "/nvidia/", inside + "/cusparselt/")):
        return True
    return "/torch/" not in path and Path(path).name.startswith(("libcu", "libnv", "libnccl"))


VISIBLE = r"""
import json, os
from torch.cuda import _parse_visible_devices
answer = {}
for value in json.loads(os.environ["VALUES"]):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    answer[value] = _parse_visible_devices()
print(json.dumps(answer))
"""


def test_cuda_visible_devices_is_read_as_pytorch_reads_it():
    values = [
        *("", " ", "0", "1,0", " 2 , 1 ", "-1", "0,-1,1", "0, 1, 2, -1, 3", "2, +3, -0, 5", "none"),
        *("0,0", "0, 1, 2, 1", "1gpu2,2ampere", "one,two,3,4", "4,3,two,one", "0,,1", "0x1", "1.5"),
        *("GPU-1", "GPU-1,2", "0,GPU-1", "GPU-0,GPU-3", "GPU-1,GPU-1", "GPU-1,none"),
    ]
    prefix = real.environment("torch-cpu")
    said = real.ask(prefix, VISIBLE, VALUES=json.dumps(values))
    devices = [Device(number, uuid=f"GPU-{number}") for number in range(8)]
    for value, theirs in said.items():
        ours = select(value, devices).ordinals
        assert ours == [int(str(name).removeprefix("GPU-")) for name in theirs], value
