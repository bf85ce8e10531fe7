"""All that is read from a machine's files, word by word: golden/facts.txt.

One root with a system driver, toolkits and libraries, a virtual environment and conda's. What a
rule makes of facts is tested with facts made by hand; this is where the facts themselves are held.
"""

import json
import platform
import re

import pytest
from golden import assert_words_as_before
from synth import Prefix, toolkit

from cudriver import cli, stack
from cudriver.stack.collect import ask, collect
from cudriver.stack.record import but
from elfkit import compile_c

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the golden file has the folders of x86-64"
)
CUDNN = "int cudnnGetVersion(void) {{ return {}; }}"
NCCL = "int ncclGetVersion(int *v) {{ *v = {}; return 0; }}"


def written(root, path, text):
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def library(root, path, source="int x;", soname=None, *flags):
    target = root / path.lstrip("/")
    name = soname or target.name
    compile_c(target, source, "-nostdlib", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", *flags)
    target.with_name(target.name + ".c").unlink()
    return target


def machine(root):
    """The driver, toolkits of three kinds, and system libraries with Debian's records of them."""
    written(
        root,
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n",
    )
    written(root, "/proc/sys/kernel/osrelease", "6.1.0-30-amd64\n")
    written(root, "/proc/1/cgroup", "0::/kubepods/burstable/docker-abc\n")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidiax"):
        written(root, f"/dev/{name}", "")
    system = "/usr/lib/x86_64-linux-gnu"
    library(root, f"{system}/libcuda.so.580.95.05", soname="libcuda.so.1")
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    library(root, f"{system}/libcudnn.so.9.14.0", CUDNN.format(91400), "libcudnn.so.9")
    (root / "usr/lib/x86_64-linux-gnu/libcudnn.so.9").symlink_to("libcudnn.so.9.14.0")
    written(root, "/etc/ld.so.conf", f"# all\ninclude ld.so.conf.d/*.conf\n{system}\n")
    written(root, "/etc/ld.so.conf.d/988_cuda-11.conf", "/opt/cuda-11.8/targets/x86_64-linux/lib\n")
    written(
        root,
        "/var/lib/dpkg/status",
        "Package: libcudnn9-cuda-12\nStatus: install ok installed\nVersion: 9.14.0.64-1\n",
    )
    listed = f"/.\n{system}\n{system}/libcudnn.so.9\n{system}/libcudnn.so.9.14.0\n"
    written(root, "/var/lib/dpkg/info/libcudnn9-cuda-12.list", listed)
    toolkit(root / "usr/local/cuda-12.4", "12.4", json_version="12.4.1")
    (root / "usr/local/cuda").symlink_to("cuda-12.4")
    library(root, "/usr/local/cuda-12.4/compat/libcuda.so.550.54.15", soname="libcuda.so.1")
    toolkit(root / "opt/cuda-11.8", "11.8", nvcc=False, header=False)
    written(root, "/opt/cuda-11.8/version.txt", "\nCUDA Version 11.8.0\n")


def train(root):
    """PyTorch with some of its wheels, files that the disk lacks, damaged metadata."""
    prefix = Prefix(root / "envs/train", root=root).venv(uv="0.9.1")
    prefix.torch(libraries=True, more=["triton==3.4.0; extra == 'opt' and python_version > '3'"])
    site, near = prefix.site, "-Wl,-rpath,$ORIGIN/../../nvidia/{}/lib"
    cudnn = library(root, f"{prefix.inside}/cudnn.so", CUDNN.format(91002), "libcudnn.so.9")
    nccl = library(root, f"{prefix.inside}/nccl.so", NCCL.format(22703), "libnccl.so.2")
    lone = "libnvrtc.so.12"
    nvrtc = library(root, f"{prefix.inside}/nvrtc.so", soname=lone)
    cudart = library(root, f"{prefix.inside}/cudart.so", soname="libcudart.so.12")
    for name, version, made, file in (
        ("nvidia-cudnn-cu12", "9.10.2.21", cudnn, "nvidia/cudnn/lib/libcudnn.so.9"),
        ("nvidia-nccl-cu12", "2.26.2", nccl, "nvidia/nccl/lib/libnccl.so.2"),
        ("nvidia-cuda-nvrtc-cu12", "12.8.93", nvrtc, f"nvidia/cuda_nvrtc/lib/{lone}"),
    ):
        gone = file.replace("lib/", "lib/gone-").replace("lib/gone-lib", "lib/libgone")
        info = prefix.dist(name, version, files={file: made.read_bytes()}, installer="uv")
        with open(info / "RECORD", "a") as record:
            record.write(f"{gone},sha256=x,{version[0]}00\n")
    prefix.dist("nvidia-cuda-runtime-cu12", "12.8.90", files={
        "nvidia/cuda_runtime/include/cuda.h": b"#define CUDA_VERSION 12080\n",
        "nvidia/cuda_runtime/lib/libcudart.so.12": cudart.read_bytes(),
    })  # fmt: skip
    linked = [str(cudnn), str(nccl), str(nvrtc)]
    paths = [near.format(name) for name in ("cudnn", "nccl", "cuda_nvrtc")]
    library(root, f"{prefix.inside}/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
            "int cuda_half;", None, *linked, *paths)  # fmt: skip
    library(root, f"{prefix.inside}/lib/python3.11/site-packages/torch/lib/libtorch_global_deps.so",
            "int deps;", None, str(site / "torch/lib/libtorch_cuda.so"), *paths,
            "-Wl,-rpath,$ORIGIN")  # fmt: skip
    for made in (cudnn, nccl, nvrtc, cudart):
        made.unlink()
    bad = prefix.dist("jax-cuda12-plugin", "0.7.2", ["nvidia-nccl-cu12>=2.18", "nvidia-x =="])
    (bad / "INSTALLER").write_text("\n")
    crlf = prefix.dist("cupy-cuda12x", "14.0.0", ["numpy>=2", "cuda-pathfinder[cu12]>=1,<2"])
    text = (crlf / "METADATA").read_text().replace("\n", "\r\n")
    (crlf / "METADATA").write_bytes(text.encode())
    (site / "nvidia_cufft_cu12-11.3.dist-info").mkdir()
    written(root, f"{prefix.inside}/lib/python3.11/site-packages/old.egg-info/PKG-INFO",
            "Name: nvidia-old\nVersion: 1.5\n")  # fmt: skip
    (site / "bad.pth").mkdir()
    prefix.dist("requests", "2.32.5")
    for info in site.glob("*.dist-info/RECORD"):  # a wheel of NVIDIA's has no modules that count
        if info.parent.name.startswith(("torch-", "requests-", "nvidia_nccl")):
            package = info.parent.name.partition("-")[0]
            info.write_text(info.read_text() + f"{package}/gone.py,sha256=x,10\n")
    written(root, "/srv/more/nvidia_curand_cu12-10.3.9.90.dist-info/METADATA",
            "Name: nvidia-curand-cu12\nVersion: 10.3.9.90\nVersion: 10.3.9.90\n\n")  # fmt: skip
    (site / "more.pth").write_text("# words\nimport nothing\n\n/srv/more\n/srv/absent\n")
    return prefix


def science(root):
    """conda's compiler and a PyTorch of conda's, whose NCCL pip has a wheel for."""
    prefix = Prefix(root / "opt/conda/envs/science", root=root).conda()
    prefix.conda_package("cuda-version", "12.8", "h5d125a7_3")
    prefix.conda_package("cuda-nvcc", "12.8.93", "hcdd1206_0", depends=["cuda-version >=12.8,<13"])
    prefix.conda_package("cuda-cudart", "12.8.90", "h5888daf_1", depends=["libgcc >=13", "__glibc"])
    prefix.conda_package(
        "pytorch", "2.8.0", "cuda128_py311_0", channel="pytorch/linux-64",
        depends=["cudnn >=9.10,<10.0a0 h1_0", "python 3.11.*"], files=["lib/libnccl.so.2"],
    )  # fmt: skip
    nccl = library(root, f"{prefix.inside}/lib/libnccl.so.2", NCCL.format(22703))
    prefix.torch("2.8.0", pins={"nvidia-nccl-cu12": "2.27.3"})
    place = f"{prefix.inside}/lib/python3.11/site-packages/torch/lib"
    up = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../../.."
    library(root, f"{place}/libtorch_global_deps.so", "int deps;", None, str(nccl), up)
    (prefix.path / "conda-meta/cudnn-9.10.1-0.json").write_text('{"files": [')
    toolkit(prefix.path / "kit", "12.8", nvcc=False)
    (prefix.path / "kit/include").rename(prefix.path / "include")
    written(root, f"{prefix.inside}/bin/nvcc", "no program that could be read for its release\n")
    return prefix


def lines(value, name=""):
    """All that says anything: a line for each list, and for the plain fields of a record."""
    if isinstance(value, dict) and "value" in value:
        return [f"{name[1:]} {value['file']}:{value['line']} {json.dumps(value['value'])}"]
    if isinstance(value, dict) and "searched" in value:
        said = {key: part for key, part in value.items() if part}
        return [f"{name[1:]} {json.dumps(said)}"]
    if isinstance(value, dict):
        own = [f"{key} {json.dumps(part)}" for key, part in value.items() if part and plain(part)]
        others = [(key, part) for key, part in value.items() if not plain(part)]
        told = [line for key, part in others for line in lines(part, f"{name}.{key}")]
        return [f"{name[1:]}  {'  '.join(own)}".strip()] * bool(own) + told
    if isinstance(value, list) and any(isinstance(part, (dict, list)) for part in value):
        return [line for at, part in enumerate(value) for line in lines(part, f"{name}.{at}")]
    return [f"{name[1:]} {json.dumps(value)}"] if value else []


def plain(value):
    """Whether it is text or a number."""
    return value is None or isinstance(value, (str, int))


@pytest.mark.parametrize("make", [train, science])
def test_facts_are_as_before(tmp_path, make):
    machine(tmp_path)
    prefix = make(tmp_path)
    variables = {"CUDA_HOME": "/usr/local/cuda", "PATH": "/usr/bin:/usr/local/cuda/bin"}
    found = collect(ask(prefix.inside, root=str(tmp_path), environ=variables, probe=False))
    text = "\n".join(lines(found.to_dict())).replace(str(tmp_path), "ROOT")
    text = text.replace(f"{prefix.inside}/lib/python3.11/site-packages", "SITE")
    text = re.sub(r"  size \d{4,}", "  size (of what was compiled)", text)
    assert_words_as_before("facts", text)


OTHER = ("--ld-library-path", "/usr/lib/x86_64-linux-gnu")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (train, ("cudnn", "libnccl", "libnvrtc-builtins.so.12.8", "cufft")),
        (train, ("cudnn", *OTHER)),
        (train, ("libcudnn.so.9", "cublas", "--json", *OTHER)),
        (science, ()),
        (science, ("nccl", "cudnn")),
        (science, ("nccl", *OTHER)),
    ],
)
def test_which_is_as_before(tmp_path, capsys, make, words):
    """What the loader finds, what it would find by LD_LIBRARY_PATH, and what nothing answers to."""
    machine(tmp_path)
    prefix = make(tmp_path)
    status = cli.main(["which", "--root", str(tmp_path), "--prefix", prefix.inside, *words])
    assert_words_as_before("facts", f"{capsys.readouterr().out}status {status}")


@pytest.mark.parametrize("make", [train, science])
def test_a_program_is_told_what_which_says(tmp_path, capsys, make):
    machine(tmp_path)
    names, inside = ("cudnn", "cufft", "nothing"), make(tmp_path).inside
    status = cli.main(["which", "--root", str(tmp_path), "--prefix", inside, "--json", *names])
    found = stack.which(*names, prefix=inside, root=str(tmp_path))
    assert found.to_dict() == json.loads(capsys.readouterr().out)
    assert found.exit_code == status
    assert found.unknown[-1] == "nothing"


def test_what_is_asked_for_is_not_changed():
    asked = ask()
    with pytest.raises(AttributeError, match="is a fact"):
        asked.prefix = "/elsewhere"
    assert but(asked, prefix="/x").prefix == "/x" != asked.prefix
