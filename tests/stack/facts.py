"""Facts made by hand, for tests of rules."""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from cudriver.stack.facts import (
    Distribution,
    Environment,
    Evidence,
    Facts,
    Framework,
    Library,
    LoadFault,
    Requirement,
)
from cudriver.stack.machine_facts import Device, Driver, NvccChoice, Toolkit
from cudriver.stack.record import Record

T = TypeVar("T", bound=Record)

PREFIX = "/envs/train"
SITE = f"{PREFIX}/lib/python3.11/site-packages"
PYTHON = f"{PREFIX}/bin/python"
LIB64 = f"{PREFIX}/lib64/python3.11/site-packages"
COMPAT = "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05"
VERSION_PY = Evidence(f"{SITE}/torch/version.py", 5, "cuda: Optional[str] = '12.8'")


def environment(kind: str = "venv", installer: str = "pip", **variables: str) -> Environment:
    return Environment(PREFIX, kind, "3.11.7", PYTHON, [SITE], installer, variables=variables)


def driver(release: str | None = "580.95.05", cuda: str | None = "13.0", **more: object) -> Driver:
    path = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{release}"
    made = {
        "release": release,
        "kernel_release": release,
        "paired_release": release,
        "cuda": cuda,
        "path": path,
        "found_by": "cache",
        "release_evidence": Evidence(path, None, f"libcuda.so.{release}"),
        "kernel_evidence": Evidence("/proc/driver/nvidia/version", 1, f"Kernel Module  {release}"),
        **more,
    }
    return Driver(**made)  # type: ignore[arg-type]


def torch(version: str = "2.8.0+cu128", cuda: str | None = "12.8", **more: object) -> Framework:
    made = {
        "path": f"{SITE}/torch",
        "variant": "cuda" if cuda else "cpu",
        "cuda_evidence": VERSION_PY,
        "cudnn_built": "9.10.2",
        "cudnn": "9.10.2",
        "cudnn_evidence": Evidence(
            f"{SITE}/torch-2.8.0.dist-info/METADATA", 47, "nvidia-cudnn-cu12==9.10.2.21"
        ),
        "archs": ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"],
        "archs_evidence": Evidence(
            f"{SITE}/torch/lib/libtorch_python.so", None, "sm_75 sm_80 sm_90 sm_100 sm_120"
        ),
        "distribution": "torch",
        **more,
    }
    return Framework(**{"name": "torch", "version": version, "cuda": cuda, **made})  # type: ignore[arg-type]


def kin(
    name: str, version: str, cuda: str | None, variant: str = "cuda", **more: object
) -> Framework:
    """A framework whose version.py tells its version."""
    evidence = Evidence(f"{SITE}/{name}/version.py", 1, f"__version__ = '{version}'")
    return Framework(name, version, cuda, variant=variant, cuda_evidence=evidence, **more)  # type: ignore[arg-type]


def tensorrt(cuda: str, version: str = "10.13.3.9", **more: object) -> Framework:
    name = f"tensorrt-cu{cuda}"
    made = {
        "distribution": name,
        "cuda_evidence": Evidence(f"{SITE}/{name}/METADATA", 3, name),
        **more,
    }
    return Framework("tensorrt", version, cuda, **made)  # type: ignore[arg-type]


def compat(**more: object) -> Driver:
    """cuda-compat's half of a driver."""
    return driver(path=COMPAT, kind="compat", found_by="LD_LIBRARY_PATH", **more)


def wheel(
    name: str,
    version: str,
    *requires: str,
    installer: str = "pip",
    location: str = SITE,
    **more: object,
) -> Distribution:
    """requires: "name==1.2", with "[extra]" before for one that counts with that extra only."""
    path = f"{location}/{name.replace('-', '_')}-{version}.dist-info"
    made = Distribution(name, version, "wheel", path, location, 3, installer=installer)
    vars(made).update(more)
    for line, text in enumerate(requires, 5):
        extra, _, rest = text.rpartition("]")
        at = min((rest.find(s) for s in "=<>!~" if s in rest), default=len(rest))
        asked, _, extras = rest[:at].partition("{")
        made.requires.append(
            Requirement(
                asked,
                rest[at:],
                Evidence(f"{path}/METADATA", line, text),
                extras=extras.rstrip("}").split(",") if extras else [],
                extra=extra.lstrip("["),
            )
        )
    return made


def library(soname: str, version: str, family: str, **more: object) -> Library:
    folder = {
        "cudnn": "cudnn",
        "nccl": "nccl",
        "cublas": "cublas",
        "nvjitlink": "nvjitlink",
        "nvrtc": "cuda_nvrtc",
    }.get(family, family)
    made = {
        "path": f"{SITE}/nvidia/{folder}/lib/{soname}",
        "version": version,
        "family": family,
        "found_by": "rpath",
        "version_evidence": Evidence(f"{SITE}/nvidia/{folder}/lib/{soname}", None, version),
        **more,
    }
    return Library(soname, **made)  # type: ignore[arg-type]


def toolkit(
    version: str, *chosen_by: str, path: str | None = None, origin: str = "system", **more: object
) -> Toolkit:
    short = ".".join(version.split(".")[:2])
    path = path or f"/usr/local/cuda-{short}"
    evidence = Evidence(f"{path}/version.json", 4, version)
    made = {
        "evidence": evidence,
        "nvcc": f"{path}/bin/nvcc",
        "nvcc_version": f"{short}.77",
        "chosen_by": list(chosen_by),
        "headers": f"{path}/include",
        **more,
    }
    return Toolkit(origin, "directory", version, path, **made)  # type: ignore[arg-type]


def nvcc(kit: Toolkit, chosen_by: str = "PATH") -> NvccChoice:
    return NvccChoice(
        kit.path,
        chosen_by,
        kit.nvcc,
        True,
        kit.nvcc_version,
        Evidence(kit.nvcc or "", None, kit.nvcc_version or ""),
    )


def gpu(
    index: int = 0, capability: str = "9.0", name: str = "NVIDIA H200", **more: object
) -> Device:
    return Device(index, name, f"GPU-{index}aaa-bbbb", compute_capability=capability, **more)  # type: ignore[arg-type]


def fault(kind: str, name: str, library: str, message: str, **more: object) -> LoadFault:
    return LoadFault(kind, library, message, name, framework=more.pop("framework", "torch"), **more)  # type: ignore[arg-type]


def but(record: T, **fields: object) -> T:
    """A copy of it in which these fields have other values."""
    made = copy(record)
    vars(made).update(fields)
    return made


def facts(**parts: object) -> Facts:
    """A healthy environment with PyTorch cu128 on one H200, but for `parts`."""
    made = {
        "environment": environment(),
        "driver": driver(devices=[gpu()]),
        "frameworks": [torch()],
        "distributions": [wheel("torch", "2.8.0")],
        **parts,
    }
    return Facts(**made)  # type: ignore[arg-type]


PINS = wheel(
    "torch",
    "2.8.0",
    "nvidia-cudnn-cu12==9.10.2.21",
    "nvidia-nvjitlink-cu12==12.8.93",
    "nvidia-cublas-cu12==12.8.4.1",
    "nvidia-cuda-nvrtc-cu12==12.8.93",
    "nvidia-nccl-cu12==2.27.3",
)
WHEELS = [
    PINS,
    wheel("nvidia-cudnn-cu12", "9.1.0.70"),
    wheel("nvidia-nvjitlink-cu12", "12.1.105"),
    wheel("nvidia-cublas-cu12", "12.8.4.1"),
    wheel("nvidia-cuda-nvrtc-cu12", "12.8.93"),
    wheel("nvidia-nccl-cu12", "2.18.1"),
]


def pip(requirement):
    return f"{PYTHON} -m pip install --force-reinstall --no-deps {requirement}"


def used(*libraries, **more):
    """Facts in which PyTorch's process loads these."""
    return facts(
        distributions=WHEELS,
        libraries=list(libraries),
        frameworks=[torch(loads=[x.path for x in libraries], **more.pop("torch", {}))],
        **more,
    )
