"""Frameworks: what each was built with, by the files in which it says so. Nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from cudriver.stack.collect.distributions import matters
from cudriver.stack.collect.records import Owners, is_library
from cudriver.stack.elfbits import ElfBits
from cudriver.stack.model import Distribution, Evidence, Framework, Problem
from cudriver.stack.rootfs import Root
from cudriver.stack.versions import cut

FILE_LIMIT = 256 << 10
RODATA_LIMIT = 64 << 20
MAX_LIBRARIES = 400  # of one framework

# A library that needs one of these uses CUDA.
_CUDA = frozenset(
    (
        *("cuda", "cudart", "cublas", "cublasLt", "cufft", "cufftw", "curand", "cusolver"),
        *("cusolverMg", "cusparse", "cusparseLt", "nccl", "nvrtc", "nvrtc-builtins", "nvJitLink"),
        *("nvToolsExt", "nvtx3interop", "cupti", "cufile", "cufile_rdma", "nvshmem_host"),
        *("nvjpeg", "nvonnxparser", "nvfatbin", "nvvm", "nvblas", "nvptxcompiler", "nvidia-ml"),
        *("nvml", "accinj64", "cuinj64", "cublasmp", "cusolverMp", "cudla", "custatevec"),
    )
)
_CUDA_FAMILIES = (
    "cudnn",
    "cutensor",
    "npp",
    "nvinfer",
    "cudss",
    "nvcomp",
)  # and what they go on to
_ASSIGNED = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:(None)|['\"]([^'\"\n]*)['\"])", re.MULTILINE)


def is_cuda_library(name: str) -> bool:
    """Whether a SONAME is a CUDA library's. (A pattern of them all takes 1 ms to compile.)"""
    stem, so, number = name.partition(".so")
    if not so or not stem.startswith("lib"):
        return False
    if number and (number[0] != "." or number == "." or number.strip(".0123456789")):
        return False
    stem = stem[3:]
    return stem in _CUDA or (stem.startswith(_CUDA_FAMILIES) and stem.replace("_", "").isalnum())


class Source:
    """A file of assignments, read without running it."""

    def __init__(self, root: Root, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.text = ""
        self.there = root.exists(path)
        if self.there:
            text = root.text(path, FILE_LIMIT)
            if text is None:
                problems.append(Problem(path, "cannot be read"))
            elif "\0" in text:
                problems.append(Problem(path, "is not text"))
            else:
                self.text = text

    def value(self, pattern: str) -> tuple[str, Evidence] | None:
        """The first group that matched, and where. The pattern is multi-line."""
        match = re.search(pattern, self.text, re.MULTILINE)
        if match is None:
            return None
        line = self.text.count("\n", 0, match.start()) + 1
        group = next((g for g in match.groups() if g is not None), "")
        return group, Evidence(self.path, line, match[0].strip()[:200])

    def assigned(self, name: str) -> tuple[str, Evidence] | None:
        """The text assigned to a name; "None" for None."""
        for match in _ASSIGNED.finditer(self.text):
            if match[1] == name:
                line = self.text.count("\n", 0, match.start()) + 1
                return match[2] or match[3], Evidence(self.path, line, match[0].strip()[:200])
        return None


class Finder:
    """Makes Framework facts of one environment."""

    def __init__(
        self,
        root: Root,
        distributions: list[Distribution],
        owners: Owners,
        site_packages: list[str],
        problems: list[Problem],
    ) -> None:
        self.root = root
        self.distributions = {d.name: d for d in reversed(distributions)}
        self.owners = owners
        self.site_packages = site_packages
        self.problems = problems

    def all(self) -> list[Framework]:
        """Every framework, PyTorch and its kin first."""
        found = []
        for make in (
            self.torch,
            self.torchvision,
            self.torchaudio,
            self.triton,
            self.tensorflow,
            self.jax,
            self.cupy,
            self.onnxruntime,
            self.tensorrt,
            self.numba,
        ):
            framework = self._guarded(make)
            if framework is not None:
                found.append(framework)
        known = {f.distribution for f in found} | {f.name for f in found}
        for dist in self.distributions.values():
            if (
                dist.name not in known
                and not dist.name.startswith("nvidia-")
                and matters_here(dist)
            ):
                other = self.other(dist)
                if other is not None:
                    found.append(other)
        return found

    def _guarded(self, make: Callable[[], Framework | None]) -> Framework | None:
        try:
            return make()
        except (OSError, ValueError) as error:
            self.problems.append(Problem(make.__name__, f"could not be read: {error}"))
            return None

    def package(self, name: str) -> str | None:
        """The folder of an importable package: the first on the path."""
        for folder in self.site_packages:
            if self.root.is_dir(f"{folder}/{name}"):
                return f"{folder}/{name}"
        return None

    def source(self, *parts: str) -> Source:
        return Source(self.root, os.path.join(*parts), self.problems)

    def pin(self, dist: Distribution | None, *stems: str) -> tuple[str, Evidence] | None:
        """The version that a distribution pins of the first of these packages: "==9.19.0.56"."""
        for requirement in dist.requires if dist else ():
            match = re.match(r"==\s*([0-9][0-9.]*)", requirement.specifier)
            if match and re.sub(r"-cu\d+\Z", "", requirement.name) in stems:
                return match[1].rstrip("."), requirement.evidence
        return None

    def libraries(self, dist: Distribution | None, package: str | None) -> list[str]:
        """A package's own shared libraries: RECORD's, or those in its usual folders."""
        entries = self.owners.of.get(dist.path, []) if dist else []
        paths = [e.path for e in entries]
        if not paths and package:
            for folder in (package, f"{package}/lib", f"{package}/capi", f"{package}/libs"):
                names = self.root.names(folder)
                paths += [f"{folder}/{n}" for n in names if is_library(n)]
        return [p for p in paths[:MAX_LIBRARIES] if self.root.is_file(p)]

    # PyTorch and the packages built on it

    def torch(self) -> Framework | None:
        package = self.package("torch")
        dist = self.distributions.get("torch")
        if package is None:
            return None
        source = self.source(package, "version.py")
        if not source.there and dist is None:
            return None  # a folder of this name that is not PyTorch
        version = source.assigned("__version__")
        framework = Framework("torch", version[0] if version else dist.version if dist else "")
        framework.path = package
        framework.distribution = dist.name if dist else None
        cuda, hip = source.assigned("cuda"), source.assigned("hip")
        if cuda:
            framework.cuda_evidence = cuda[1]
            framework.cuda = cut(cuda[0], 3) if cuda[0] != "None" else None
        if source.there and source.text and version is None:
            self.problems.append(Problem(source.path, "has no __version__"))
        if framework.cuda:
            framework.variant = "cuda"
        elif hip and hip[0] != "None":
            framework.variant = "rocm"
        else:
            framework.variant = "cpu" if cuda or source.assigned("debug") else "unknown"
        self._torch_pins(framework, dist)
        framework.libraries = self._torch_libraries(package, dist)
        if framework.variant == "cuda":
            self._torch_archs(framework, package)
        return framework

    def _torch_pins(self, framework: Framework, dist: Distribution | None) -> None:
        cudnn = self.pin(dist, "nvidia-cudnn")
        nccl = self.pin(dist, "nvidia-nccl")
        if cudnn:
            framework.cudnn_built, framework.cudnn_evidence = cut(cudnn[0], 3), cudnn[1]
            framework.cudnn_by_pin = True
        if nccl:
            framework.nccl_built = cut(nccl[0], 3)

    def _torch_libraries(self, package: str, dist: Distribution | None) -> list[str]:
        names = [n for n in self.root.names(package) if n.startswith("_C.") and n.endswith(".so")]
        found = [f"{package}/{n}" for n in names]
        lib = f"{package}/lib"
        found += [f"{lib}/{n}" for n in self.root.names(lib) if is_library(n)]
        return found

    def _torch_archs(self, framework: Framework, package: str) -> None:
        """The list is one string in the Python bindings' read-only data."""
        for name in ("libtorch_python.so", "libtorch_cuda.so"):
            path = f"{package}/lib/{name}"
            text = self.strings(path)
            archs = _arch_list(text or b"")
            if archs:
                framework.archs = archs.split()
                framework.archs_evidence = Evidence(path, None, archs)
                return

    def strings(self, path: str) -> bytes | None:
        """The read-only data of a library; None where it cannot be read."""
        try:
            with ElfBits(self.root.open(path)) as file:
                return file.section(".rodata", RODATA_LIMIT)
        except (OSError, ValueError):
            return None

    def _kin(self, name: str) -> Framework | None:
        package = self.package(name)
        dist = self.distributions.get(name)
        if package is None:
            return None
        source = self.source(package, "version.py")
        version = source.assigned("__version__")
        if version is None and dist is None:
            return None
        framework = Framework(name, version[0] if version else dist.version if dist else "")
        framework.path, framework.distribution = package, dist.name if dist else None
        framework.libraries = self.libraries(dist, package)
        evidence = version[1] if version else dist.evidence if dist else Evidence(package)
        self._by_tag(framework, evidence, dist)
        return framework

    def _by_tag(self, framework: Framework, evidence: Evidence, dist: Distribution | None) -> None:
        """CUDA from a local version: "+cu128" is 12.8, "+cu118" 11.8, "+cpu" none."""
        text = framework.version if "+" in framework.version else dist.version if dist else ""
        tag = re.search(r"\+(cu(\d+)(\d)|cpu|rocm)", text) if "+" in text else None
        framework.variant = "unknown"
        if tag is None:
            return
        framework.cuda_evidence = evidence
        if tag[1].startswith("cu"):
            framework.cuda, framework.variant = f"{tag[2]}.{tag[3]}", "cuda"
        else:
            framework.variant = tag[1]

    def torchvision(self) -> Framework | None:
        return self._kin("torchvision")

    def torchaudio(self) -> Framework | None:
        return self._kin("torchaudio")

    def triton(self) -> Framework | None:
        dist, package = self.distributions.get("triton"), self.package("triton")
        if dist is None or package is None:
            return None
        framework = Framework("triton", dist.version, variant="unknown", path=package)
        framework.distribution = dist.name
        return framework

    # the others

    def tensorflow(self) -> Framework | None:
        package = self.package("tensorflow")
        if package is None:
            return None
        names = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-intel")
        dist = next((d for n in names if (d := self.distributions.get(n))), None)
        source = self.source(package, "python/platform/build_info.py")
        if dist is None and not source.there:
            return None
        framework = Framework("tensorflow", dist.version if dist else "", path=package)
        framework.distribution = dist.name if dist else None
        cuda = source.value(r"['\"]cuda_version['\"]\s*[:,]\s*['\"]([\d.]+)['\"]")
        cudnn = source.value(r"['\"]cudnn_version['\"]\s*[:,]\s*['\"]([\d.]+)['\"]")
        built = source.value(r"['\"]is_cuda_build['\"]\s*[:,]\s*(True|False)")
        archs = source.value(r"['\"]cuda_compute_capabilities['\"]\s*[:,]\s*\[([^\]]*)\]")
        if cuda:
            framework.cuda, framework.cuda_evidence = cuda
        if cudnn:
            framework.cudnn_built, framework.cudnn_evidence = cudnn
        if archs:
            framework.archs = re.findall(r"(?:sm|compute)_\d+", archs[0])
            framework.archs_evidence = archs[1]
        framework.variant = "cuda" if framework.cuda else "cpu" if built else "unknown"
        if framework.variant == "cpu" and built:
            framework.cuda_evidence = built[1]
        framework.libraries = [
            p
            for p in self.libraries(dist, package)
            if "/libtensorflow_" in p or p.endswith("_pywrap_tensorflow_internal.so")
        ]
        return framework

    def jax(self) -> Framework | None:
        dist = self.distributions.get("jaxlib") or self.distributions.get("jax")
        package = self.package("jaxlib") or self.package("jax")
        if dist is None or package is None:
            return None
        framework = Framework("jax", dist.version, variant="cpu", path=package)
        framework.distribution = dist.name
        for major in ("13", "12", "11"):
            plugin = self.distributions.get(f"jax-cuda{major}-pjrt") or self.distributions.get(
                f"jax-cuda{major}-plugin"
            )
            if plugin is None:
                continue
            framework.variant, framework.cuda = "cuda", major
            framework.distribution = plugin.name
            framework.cuda_evidence = plugin.evidence
            framework.path = self.package(f"jax_plugins/xla_cuda{major}") or package
            framework.libraries = self.libraries(plugin, framework.path)
            return framework
        conda = re.match(r"cuda(\d)?(\d+)?", dist.build or "")
        local = re.search(r"\+cuda(\d+)", dist.version)
        if local or conda:
            framework.variant = "cuda"
            framework.cuda = local[1] if local else None
            framework.cuda_evidence = dist.evidence
            framework.libraries = self.libraries(dist, package)
        return framework

    def cupy(self) -> Framework | None:
        package = self.package("cupy")
        dists = [
            d
            for n, d in self.distributions.items()
            if n == "cupy" or n.startswith(("cupy-cuda", "cupy-rocm"))
        ]
        if package is None or not dists:
            return None
        dist = next((d for d in dists if d.name != "cupy"), dists[0])
        framework = Framework("cupy", dist.version, variant="unknown", path=package)
        framework.distribution = dist.name
        tag = re.fullmatch(r"cupy-cuda(\d+?)(x|\d)", dist.name)
        if tag:
            framework.cuda = tag[1] if tag[2] == "x" else f"{tag[1]}.{tag[2]}"
            framework.variant = "cuda"
            framework.cuda_evidence = dist.evidence
        elif "rocm" in dist.name:
            framework.variant = "rocm"
        framework.libraries = self.libraries(dist, package)
        framework.finds_wheels = any(r.name == "cuda-pathfinder" for r in dist.requires)
        return framework

    def onnxruntime(self) -> Framework | None:
        package = self.package("onnxruntime")
        names = ("onnxruntime-gpu", "onnxruntime-training", "onnxruntime")
        dist = next((d for n in names if (d := self.distributions.get(n))), None)
        if package is None or dist is None:
            return None
        framework = Framework("onnxruntime", dist.version, path=package, distribution=dist.name)
        source = self.source(package, "capi/build_and_package_info.py")
        cuda = source.assigned("cuda_version")
        cudnn = source.assigned("cudnn_version")
        if cuda and cuda[0] not in ("None", ""):
            framework.cuda, framework.cuda_evidence = cuda
        if cudnn and cudnn[0] not in ("None", ""):
            framework.cudnn_built, framework.cudnn_evidence = cudnn
        framework.variant = "cuda" if framework.cuda or dist.name.endswith("-gpu") else "cpu"
        framework.libraries = self.libraries(dist, package)
        return framework

    def tensorrt(self) -> Framework | None:
        dists = [
            d
            for n, d in self.distributions.items()
            if n == "tensorrt" or (n.startswith("tensorrt-cu") and n[11:].isdigit())
        ]
        if not dists:
            return None
        dist = next((d for d in dists if d.name != "tensorrt"), dists[0])
        framework = Framework("tensorrt", dist.version, variant="unknown", distribution=dist.name)
        framework.path = self.package("tensorrt_libs") or self.package("tensorrt") or dist.path
        tag = re.search(r"-cu(\d+)\Z", dist.name)
        if tag:
            framework.cuda, framework.variant = tag[1], "cuda"
            framework.cuda_evidence = dist.evidence
        libs = self.distributions.get(f"{dist.name}-libs")
        framework.libraries = self.libraries(libs or dist, framework.path)
        return framework

    def numba(self) -> Framework | None:
        dist = self.distributions.get("numba-cuda") or self.distributions.get("numba")
        package = self.package("numba_cuda") or self.package("numba")
        if dist is None or package is None:
            return None
        framework = Framework("numba", dist.version, variant="unknown", path=package)
        framework.distribution = dist.name
        return framework

    def other(self, dist: Distribution) -> Framework | None:
        """Any other package with shared libraries; libraries.py drops those that use no CUDA."""
        paths = self.libraries(dist, None)
        if not paths:
            return None
        package = os.path.commonpath(paths) if len(paths) > 1 else os.path.dirname(paths[0])
        framework = Framework(dist.name, dist.version, variant="unknown", path=package)
        framework.distribution, framework.libraries = dist.name, paths
        framework.finds_wheels = any(r.name == "cuda-pathfinder" for r in dist.requires)
        framework.modelled = False
        self._by_tag(framework, dist.evidence, dist)
        return framework


_ARCHS = re.compile(rb"(?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)* ?\0")


def _arch_list(data: bytes) -> str:
    """The longest list of architectures in a library's read-only data; "" where there is none.

    What lies before it may be a constant without a terminator. Found by its first bytes: a regular
    expression over a megabyte takes a tenth of the whole check.
    """
    best = b""
    for start in (b"sm_", b"compute_"):
        at = data.find(start)
        while at >= 0:
            match = _ARCHS.match(data, at)
            if match and match.end() - at > len(best):
                best = match[0]
            at = data.find(start, match.end() if match else at + 1)
    return best.rstrip(b" \0").decode()


# Packages with many libraries and no CUDA: a look at each would cost 50 ms in a large environment.
# fmt: off
_PLAIN = frozenset(
    (
        "aiohttp", "brotli", "cffi", "charset-normalizer", "coverage", "cryptography", "cython",
        "debugpy", "frozenlist", "fsspec", "gevent", "google-crc32c", "greenlet", "grpcio",
        "h5py", "hdf5plugin", "jupyter", "kiwisolver", "lxml", "markupsafe", "matplotlib",
        "msgpack", "multidict", "mypy", "netcdf4", "numexpr", "numpy", "opencv-python",
        "opencv-python-headless", "orjson", "pandas", "pillow", "pip", "polars", "propcache",
        "protobuf", "psutil", "pyarrow", "pydantic-core", "pymupdf", "pyside6", "pywavelets",
        "pyyaml", "pyzmq", "ray", "rasterio", "regex", "rpds-py", "ruff", "safetensors",
        "scikit-image", "scikit-learn", "scipy", "sentencepiece", "setuptools", "shapely",
        "simplejson", "soxr", "spacy", "sqlalchemy", "statsmodels", "tables", "thinc",
        "tiktoken", "tokenizers", "tornado", "ujson", "uv", "uvloop", "watchfiles",
        "websockets", "wrapt", "xxhash", "yarl", "zmq", "zstandard",
    )
)
# fmt: on
_NOT_OTHER = ("cuda-", "torchgen", "triton", "nvidia-", "conda")


def matters_here(dist: Distribution) -> bool:
    """Whether a distribution's own libraries are worth a look for CUDA."""
    if dist.kind == "conda" or dist.name in _PLAIN or dist.name.startswith(_NOT_OTHER):
        return False
    return dist.kind == "wheel" or matters(dist.name)
