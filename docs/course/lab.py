"""The course's laboratory: environments and servers that are made up, for a loader that is real.

Every library here is a few lines of C. It has the name, the SONAME, the search paths and the
version tags of NVIDIA's or PyTorch's library, and no CUDA. So the dynamic loader, `readelf`,
Python's import and `cudriver` treat it as they treat the real one, and nothing has to be
downloaded. Needs gcc.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
os.environ.setdefault("NO_COLOR", "1")
os.environ.setdefault("COLUMNS", "96")

HOME = Path(tempfile.mkdtemp(prefix="cudriver-course-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# The C library of this process, for the made-up servers.
MAPS = Path("/proc/self/maps").read_text()
LIBC = Path(re.findall(r"(/\S+/libc(?:\.so\.6|-2\.\d+\.so))\n", MAPS)[0])
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# What PyTorch 2.5.1+cu124 requires, of the libraries made here; cuSPARSE is linked with the first.
PINS = {
    "nvidia-nvjitlink-cu12": "12.4.127",
    "nvidia-cuda-runtime-cu12": "12.4.127",
    "nvidia-cudnn-cu12": "9.1.0.70",
    "nvidia-cusparse-cu12": "12.3.1.170",
    "nvidia-nccl-cu12": "2.21.5",
}
# The components of each toolkit release.
TABLE = resources.files("cudriver.stack") / "data" / "toolkits.json"
RELEASES = json.loads(TABLE.read_text("utf-8"))["releases"]
ENGINES = ("engines_precompiled", "engines_runtime_compiled")
PARTS = ("graph", "ops", "cnn", "adv", "heuristic", *ENGINES)
CUDNN_9 = ["libcudnn.so.9", *(f"libcudnn_{part}.so.9" for part in PARTS)]
FOLDERS = ("cuda_runtime", "cudnn", "cusparse", "nccl", "nvjitlink")
TORCH = """\
import ctypes, os
_lib = os.path.join(os.path.dirname(__file__), "lib")

def _load_global_deps():
    ctypes.CDLL(os.path.join(_lib, "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)

_load_global_deps()
_C = ctypes.CDLL(os.path.join(_lib, "libtorch_python.so"))
from .version import __version__, cuda

def cudnn_version():
    return _C.cudnnGetVersion()
"""
# An encoded version, and one of cuDNN's parts, opened by its name as the real one opens it.
CUDNN = """
#include <dlfcn.h>
int cudnnGetVersion(void) {{ dlopen("libcudnn_graph.so.9", RTLD_NOW); return {code}; }}
"""


_built: dict[tuple[object, ...], Path] = {}


def build(target: Path, source: str, *flags: str, shared: bool = True) -> Path:
    """Compiles C to a library, or to a program. The same one a second time is copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    key = (source, flags, shared)
    if key not in _built:
        _built[key] = HOME / "built" / str(len(_built))
        _built[key].parent.mkdir(exist_ok=True)
        kind = ["-shared", "-fPIC"] if shared else []
        command = ["gcc", "-w", *kind, "-x", "c", "-", "-o", str(_built[key]), *flags]
        subprocess.run(command, input=source, text=True, check=True)
    shutil.copy(_built[key], target)
    return target


def library(target: Path, version: str) -> Path:
    """A made-up library, recognised by the first part of its file's name."""
    soname = f"-Wl,-soname,{target.name}"
    name = target.name.split(".")[0]
    if name == "libcudnn":
        major, minor, patch = map(int, version.split(".")[:3])
        code = major * 10000 + minor * 100 + patch
        paths = "-Wl,--enable-new-dtags,-rpath,$ORIGIN"
        return build(target, CUDNN.format(code=code), soname, paths, "-ldl")
    if name == "libnvJitLink":
        minors = range(int(version.split(".")[1]) + 1)
        source = "".join(
            f"int __nvJitLinkComplete_12_{minor}(void) {{ return 0; }}\n" for minor in minors
        )
        script = HOME / f"{target.name}.map"
        script.write_text(target.name + " { *; };\n")
        return build(target, source, soname, f"-Wl,--version-script={script}")
    if name == "libcusparse":
        # The release that it was built with decides which symbol of nvJitLink it needs.
        jit = target.parents[2] / "nvjitlink" / "lib"
        source = "int __nvJitLinkComplete_12_4(void);"
        source += "int use(void) { return __nvJitLinkComplete_12_4(); }"
        paths = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../../nvjitlink/lib"
        return build(target, source, soname, paths, f"-L{jit}", "-l:libnvJitLink.so.12")
    return build(target, f'const char made_up[] = "{name} {version}";', soname)


class Environment:
    """A virtual environment. root: the file system of the server that it is on, if any."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path, self.root = path, root
        self.site = path / "lib" / f"python{PYTHON}" / "site-packages"
        shutil.rmtree(path, ignore_errors=True)  # of an earlier run of the cell
        self.site.mkdir(parents=True)
        self.python = path / "bin" / "python"
        self.python.parent.mkdir()
        home = os.path.dirname(os.path.realpath(sys.executable)) if root is None else "/usr/bin"
        version = ".".join(map(str, sys.version_info[:3]))
        (path / "pyvenv.cfg").write_text(f"home = {home}\nversion = {version}\n")
        if root is None:
            self.python.symlink_to(os.path.realpath(sys.executable))
        else:
            build(
                self.python,
                "int _Py_NoneStruct; int main(void) { return 0; }",
                "-rdynamic",
                shared=False,
            )

    def install(
        self, name: str, version: str, files: Iterable[Path] = (), requires: Iterable[str] = ()
    ) -> None:
        """Records a package as pip does: metadata, and a list of its files with their hashes."""
        stem = re.sub(r"[-.]+", "_", name)
        for old in self.site.glob(f"{stem}-*.dist-info"):
            shutil.rmtree(old)
        info = self.site / f"{stem}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        rows = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
        for file in files:
            data = file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{file.relative_to(self.site)},sha256={digest},{len(data)}")
        (info / "RECORD").write_text("\n".join(rows) + "\n")

    def wheel(self, name: str, version: str) -> None:
        """One of NVIDIA's wheels; an installed one of another version is replaced."""
        folder = name.removeprefix("nvidia-").removesuffix("-cu12").replace("-", "_")
        names = {
            "cuda_runtime": ["libcudart.so.12"],
            "cudnn": CUDNN_9,
            "cusparse": ["libcusparse.so.12"],
            "nccl": ["libnccl.so.2"],
            "nvjitlink": ["libnvJitLink.so.12"],
        }[folder]
        into = self.site / "nvidia" / folder / "lib"
        self.install(name, version, [library(into / file, version) for file in names])

    def torch(self, version: str = "2.5.1+cu124", release: str = "12.4") -> None:
        """A made-up PyTorch: its metadata, and libraries with the search paths of the real one."""
        package, nvidia = self.site / "torch", self.site / "nvidia"
        package.mkdir()
        (package / "__init__.py").write_text(TORCH)
        stated = {"__version__": version, "debug": False, "cuda": release, "hip": None}
        lines = [f"{name} = {value!r}\n" for name, value in stated.items()]
        (package / "version.py").write_text("".join(lines))
        rpath = ":".join(f"$ORIGIN/../../nvidia/{folder}/lib" for folder in FOLDERS) + ":$ORIGIN"
        link = [f"-L{nvidia / folder / 'lib'}" for folder in FOLDERS]
        link += [
            "-Wl,--no-as-needed",
            "-Wl,--allow-shlib-undefined",
            f"-Wl,--disable-new-dtags,-rpath,{rpath}",
        ]
        needs = ["libcudart.so.12", "libcudnn.so.9", "libnccl.so.2", "libcusparse.so.12"]
        archs = 'const char archs[] = "\\0sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90\\0";'
        lib = package / "lib"
        cuda = ["-Wl,-soname,libtorch_cuda.so", *link, *(f"-l:{name}" for name in needs)]
        files = [
            package / "__init__.py",
            package / "version.py",
            build(lib / "libtorch_global_deps.so", "", *link, "-l:libcudart.so.12"),
            build(lib / "libtorch_cuda.so", "", *cuda),
            build(lib / "libtorch_python.so", archs, *link, f"-L{lib}", "-l:libtorch_cuda.so"),
        ]
        pins = [f"{name}=={pin}; platform_system == 'Linux'" for name, pin in PINS.items()]
        self.install("torch", version, files, pins)

    def tensorrt(self, cuda: int, version: str = "10.14.1.48") -> None:
        """TensorRT for one CUDA major, in the two packages that it is published in."""
        module = self.site / "tensorrt" / "__init__.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text("")
        for other in self.site.glob("tensorrt_cu*.dist-info"):
            shutil.rmtree(other)
        self.install(f"tensorrt-cu{cuda}", version, [module])
        file = library(self.site / "tensorrt_libs" / "libnvinfer.so.10", version)
        self.install(f"tensorrt-cu{cuda}-libs", version, [file])

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs Python code in the environment: a real import by the real loader."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "PYTHON"))}
        command = [str(self.python), "-c", code]
        return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True)

    def trace(self, code: str, **variables: str) -> list[str]:
        """The libraries of CUDA and PyTorch that the loader says it has loaded: LD_DEBUG=libs."""
        said = self.run(code, LD_DEBUG="libs", **variables).stderr
        paths = [os.path.normpath(path) for path in re.findall(r"calling init: (\S+)", said)]
        return [path for path in paths if re.search(r"/lib(cu|nccl|nvJit|torch)", path)]


def environment(name: str = "train", root: Path | None = None, **other: str) -> Environment:
    """An environment with PyTorch 2.5.1+cu124. other: versions that its pins do not name."""
    parent = HOME / "envs" if root is None else root / "srv" / "envs"
    made = Environment(parent / name, root)
    changed = {"nvidia-" + key.replace("_", "-") + "-cu12": value for key, value in other.items()}
    for wheel, version in PINS.items():
        made.wheel(wheel, version)
    made.torch()
    for wheel, version in changed.items():
        made.wheel(wheel, version)
    return made


def conda_environment(name: str, cuda: str, root: Path) -> Path:
    """A conda environment with CUDA's runtime of this release, as conda-forge packages it."""
    made = Environment(root / "srv" / "envs" / name, root)
    (made.path / "pyvenv.cfg").unlink()
    (made.path / "conda-meta").mkdir()
    library(made.path / "lib" / "libcudart.so.12", cuda)
    files = {"cuda-cudart": ["lib/libcudart.so.12"]}
    packages = {"python": f"{PYTHON}.0", "cuda-version": cuda[:4], "cuda-cudart": cuda}
    for package, version in packages.items():
        record = {"name": package, "version": version, "build": "0", "depends": []}
        record |= {"channel": "conda-forge/linux-64", "files": files.get(package, [])}
        meta = made.path / "conda-meta" / f"{package}-{version}-0.json"
        meta.write_text(json.dumps(record))
    (made.path / "conda-meta" / "history").write_text("==> made up <==\n")
    return made.path


def toolkit(
    version: str, nvjitlink: str, cudnn: str | None = None, root: Path | None = None
) -> Path:
    """A system toolkit's folder: nvcc, headers, libcudart, libnvJitLink, and cuDNN if asked for."""
    major, minor = version.split(".")[:2]
    its = RELEASES[version]
    folder = (root or HOME) / "usr" / "local" / f"cuda-{major}.{minor}"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run of the cell
    versions = {f"libcudart.so.{major}": its["cudart"], f"libnvJitLink.so.{major}": nvjitlink}
    versions |= dict.fromkeys(CUDNN_9, cudnn) if cudnn else {}
    for name, release in versions.items():
        file = library(folder / "lib64" / name, release)
        whole = file.rename(file.with_name(name.partition(".so")[0] + f".so.{release}"))
        file.symlink_to(whole.name)
    (folder / "include").mkdir()
    (folder / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {major}0{minor}0\n")
    (folder / "version.json").write_text(
        json.dumps({"cuda": {"name": "CUDA SDK", "version": version}})
    )
    says = f"Cuda compilation tools, release {major}.{minor}, V{its['nvcc']}"
    build(
        folder / "bin" / "nvcc",
        f'int puts(const char *); int main(void) {{ puts("{says}"); }}',
        shared=False,
    )
    return folder


def choose_driver() -> None:
    """Without a GPU takes the simulated driver, also for the commands that cells start.

    Another process looks, because this one must not call cuInit before chapter 1 does.
    """
    import cudriver as cu

    look = "import cudriver as cu; raise SystemExit(not cu.is_available())"
    if subprocess.run([sys.executable, "-c", look], check=False).returncode != 0:
        os.environ["CUDRIVER_LIBRARY"] = "sim"
        cu.use_driver("sim")


def libraries_of(root: Path) -> Path:
    """The folder of a server's libraries, which is named as this machine's."""
    return root / LIBC.parent.relative_to("/")


def server(driver: str, name: str = "server") -> Path:
    """A server's file system with a driver of this release. Give it to `cudriver` as --root."""
    root = HOME / name
    shutil.rmtree(root, ignore_errors=True)  # of an earlier run of the cell
    folder = libraries_of(root)
    folder.mkdir(parents=True)
    (root / "usr" / "lib").mkdir(exist_ok=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").mkdir()
    (root / "proc" / "driver" / "nvidia").mkdir(parents=True)
    shutil.copy(LIBC, folder / "libc.so.6")
    for loader in LIBC.parent.glob("ld-linux*"):
        shutil.copy(loader, root / "lib64")  # of x86-64
        shutil.copy(loader, root / "usr" / "lib")  # of aarch64
    install_driver(root, driver)
    reboot(root)
    return root


def install_driver(root: Path, release: str) -> None:
    """Replaces the driver's files. The kernel goes on with the module that it has: see reboot."""
    folder = libraries_of(root)
    for old in folder.glob("libcuda.so*"):
        old.unlink()
    build(folder / f"libcuda.so.{release}", "int cuInit;", "-Wl,-soname,libcuda.so.1")
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{release}")


def reboot(root: Path) -> None:
    """The kernel loads the module of the driver that is installed."""
    (file,) = libraries_of(root).glob("libcuda.so.*.*")
    release = file.name.removeprefix("libcuda.so.")
    says = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  made up\n"
    (root / "proc" / "driver" / "nvidia" / "version").write_text(says)


def choose(root: Path, version: str) -> None:
    """Lets /usr/local/cuda of a server lead to this toolkit, as update-alternatives does."""
    link = root / "usr" / "local" / "cuda"
    link.unlink(missing_ok=True)
    link.symlink_to(f"cuda-{version}")
