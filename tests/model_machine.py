"""The machine of the documentation's examples: its files are small, and the real check reads them.

    /srv/envs/train    PyTorch 2.8.0 for CUDA 12.8, beside an nvJitLink of CUDA 12.1: not importable
    /srv/envs/eval     the same, whole
    /usr/local/cuda-13.0, and the driver 580.159.04

Names, versions, pins, search paths and symbol versions are those of the real packages, which the
corpus breaks in the same way (torch-2.08-pip, nvjitlink-old). As a program it is `cudriver` on that
machine: `PYTHONPATH=tests python -m model_machine check /srv/envs/train`; `picture FILE en` draws
that report.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from elfkit import compile_c
from stack.synth import LINUX, Prefix, recorded, toolkit

TRAIN, EVAL = "/srv/envs/train", "/srv/envs/eval"
OLD = "12.1.105"
PICTURED = 54  # columns
CUDNN_PARTS = ["adv", "cnn", "engines_precompiled", "engines_runtime_compiled", "graph"]
CUDNN_PARTS += ["heuristic", "ops"]
CUDNN = ["libcudnn.so.9", *(f"libcudnn_{part}.so.9" for part in CUDNN_PARTS)]
# wheel: its version, folder, libraries
WHEELS = {
    "nvidia-cuda-nvrtc-cu12": ("12.8.93", "cuda_nvrtc", ["libnvrtc.so.12"]),
    "nvidia-cuda-runtime-cu12": ("12.8.90", "cuda_runtime", ["libcudart.so.12"]),
    "nvidia-cuda-cupti-cu12": ("12.8.90", "cuda_cupti", ["libcupti.so.12"]),
    "nvidia-cudnn-cu12": ("9.10.2.21", "cudnn", CUDNN),
    "nvidia-cublas-cu12": ("12.8.4.1", "cublas", ["libcublas.so.12", "libcublasLt.so.12"]),
    "nvidia-cufft-cu12": ("11.3.3.83", "cufft", ["libcufft.so.11"]),
    "nvidia-curand-cu12": ("10.3.9.90", "curand", ["libcurand.so.10"]),
    "nvidia-cusolver-cu12": ("11.7.3.90", "cusolver", ["libcusolver.so.11"]),
    "nvidia-cusparse-cu12": ("12.5.8.93", "cusparse", ["libcusparse.so.12"]),
    "nvidia-cusparselt-cu12": ("0.7.1", "cusparselt", ["libcusparseLt.so.0"]),
    "nvidia-nccl-cu12": ("2.27.3", "nccl", ["libnccl.so.2"]),
    "nvidia-nvtx-cu12": ("12.8.90", "nvtx", ["libnvToolsExt.so.1"]),
    "nvidia-nvjitlink-cu12": ("12.8.93", "nvjitlink", ["libnvJitLink.so.12"]),
    "nvidia-cufile-cu12": ("1.13.1.3", "cufile", ["libcufile.so.0"]),
}
RPATH = ":".join(f"$ORIGIN/../../nvidia/{folder}/lib" for _, folder, _ in WHEELS.values())
RPATH += ":$ORIGIN"
# By libtorch_cuda.so; the others are opened later, or by these.
NEEDED = ["libcudart.so.12", "libcusparse.so.12", "libcufft.so.11", "libcufile.so.0"]
NEEDED += ["libcusparseLt.so.0", "libnccl.so.2", "libcurand.so.10", "libcublas.so.12"]
NEEDED += ["libcublasLt.so.12", "libcudnn.so.9"]
# What the check reads of torch/__init__.py: which libraries it loads itself.
TORCH = '''
def _preload_cuda_deps(lib_folder, lib_name):
    """Loads one library of a wheel."""


def _load_global_deps():
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        _maps = open("/proc/self/maps").read()
        if "nvidia/cuda_runtime/lib/libcudart.so" not in _maps:
            return
        _preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")
    except OSError as err:
        cuda_libs = {"nvjitlink": "libnvJitLink.so.*[0-9]"}
        for lib_folder, lib_name in cuda_libs.items():
            _preload_cuda_deps(lib_folder, lib_name)


_load_global_deps()
'''
KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"


def library(
    file: Path, *needs: Path, source: str = "", versions: str | None = None, path: str = ""
) -> Path:
    """A library that needs others. `path`: its DT_RPATH, or DT_RUNPATH after "runpath "."""
    tag = "--enable-new-dtags" if path.startswith("runpath ") else "--disable-new-dtags"
    options = f"-Wl,-soname,{file.name},--no-as-needed,--allow-shlib-undefined"
    flags = ["-nostdlib", options, *map(str, needs)]
    if path:
        flags.append(f"-Wl,{tag},-rpath,{path.removeprefix('runpath ')}")
    made = compile_c(file, source, *flags, versions=versions)
    for rest in (".c", ".map"):
        file.with_name(file.name + rest).unlink(missing_ok=True)
    return made


def nvjitlink(file: Path, version: str) -> Path:
    """libnvJitLink with the versioned name of that CUDA release: __nvJitLinkCreate_12_8."""
    name = "__nvJitLinkCreate_" + "_".join(version.split(".")[:2])
    file.unlink(missing_ok=True)
    return library(
        file,
        source=f"int {name}(void) {{ return 0; }}",
        versions=f"{file.name} {{ global: {name}; local: *; }};",
    )


def nvidia(prefix: Prefix) -> dict[str, Path]:
    """NVIDIA's wheels; returns their libraries by name."""
    made = {}
    for _, folder, names in WHEELS.values():
        made.update({name: prefix.site / "nvidia" / folder / "lib" / name for name in names})
    nvjitlink(made["libnvJitLink.so.12"], "12.8.93")
    call = "int __nvJitLinkCreate_12_8(void); int f(void) { return __nvJitLinkCreate_12_8(); }"
    needs, path = made["libnvJitLink.so.12"], "runpath $ORIGIN/../../nvjitlink/lib:$ORIGIN"
    library(made["libcusparse.so.12"], needs, source=call, path=path)
    for file in made.values():
        if not file.exists():
            library(file)
    for wheel, (version, folder, names) in WHEELS.items():
        files = {f"nvidia/{folder}/lib/{name}": made[name] for name in names}
        prefix.dist(wheel, version, files=files)
    return made


def pytorch(prefix: Prefix) -> None:
    """PyTorch 2.8.0 with the libraries that decide."""
    made, package = nvidia(prefix), prefix.site / "torch"
    lib = package / "lib"
    files = [library(lib / "libtorch_global_deps.so", made["libcudart.so.12"], path=RPATH)]
    files.append(library(lib / "libtorch_cuda.so", *[made[name] for name in NEEDED], path=RPATH))
    archs = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
    text = f'const char arch_flags[] = "\\0{archs}\\0"; int torch_python;'
    first = [files[-1], *(made[name] for name in ("libcudart.so.12", "libcudnn.so.9"))]
    first += [made[name] for name in ("libcusparseLt.so.0", "libcufile.so.0")]
    files.append(library(lib / "libtorch_python.so", *first, source=text, path=RPATH))
    suffix = ".cpython-311-x86_64-linux-gnu.so"
    files.append(library(package / f"_C{suffix}", files[-1], path="$ORIGIN/lib"))
    (package / "__init__.py").write_text(TORCH)
    (package / "version.py").write_text(
        "from typing import Optional\n\n__all__ = []\n__version__ = '2.8.0+cu128'\n"
        "debug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    )
    files += [package / "__init__.py", package / "version.py"]
    requires = [f"{wheel}=={version}; {LINUX}" for wheel, (version, *_) in WHEELS.items()]
    named = {str(file.relative_to(prefix.site)): file for file in files}
    prefix.dist("filelock", "3.16.1", files={"filelock/__init__.py": b"class FileLock: pass\n"})
    prefix.dist("torch", "2.8.0", ["filelock", *requires], named)


def install_nvjitlink(root: Path, version: str) -> None:
    """What `/srv/envs/train/bin/python -m pip install nvidia-nvjitlink-cu12==VERSION` leaves."""
    (site,) = (root / TRAIN.lstrip("/")).glob("lib/python*/site-packages")
    name = "nvidia/nvjitlink/lib/libnvJitLink.so.12"
    data = nvjitlink(site / name, version).read_bytes()
    (old,) = site.glob("nvidia_nvjitlink_cu12-*.dist-info")
    new = site / f"nvidia_nvjitlink_cu12-{version}.dist-info"
    (old / "RECORD").write_text(f"{recorded(name, data)}\n{new.name}/RECORD,,\n")
    metadata = old / "METADATA"
    text = re.sub(r"(?m)^Version: .*", f"Version: {version}", metadata.read_text())
    metadata.write_text(text)
    old.rename(new)


def make(root: Path) -> None:
    """Writes the machine."""
    healthy = Prefix(root / EVAL.lstrip("/"), root=root).venv()
    pytorch(healthy)
    shutil.copytree(healthy.path, root / TRAIN.lstrip("/"), symlinks=True)
    install_nvjitlink(root, OLD)
    toolkit(root / "usr/local/cuda-13.0", "13.0", json_version="13.0.1")
    driver = library(root / "usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04")
    driver.with_name("libcuda.so.1").symlink_to(driver.name)
    kernel = root / "proc/driver/nvidia/version"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(KERNEL)


def import_torch(root: Path) -> int:
    """`import torch` in /srv/envs/train, as far as the system's loader has a part in it."""
    (site,) = (root / TRAIN.lstrip("/")).glob("lib/python*/site-packages")
    (module,) = (site / "torch").glob("_C.*.so")
    program = """
import ctypes, sys
deps, preloaded, module = sys.argv[1:]
ctypes.CDLL(deps, ctypes.RTLD_GLOBAL), ctypes.CDLL(preloaded)
try:
    ctypes.CDLL(module)
except OSError as error:
    sys.exit(f"Traceback (most recent call last):\\n  ...\\nImportError: {error}")
"""
    files = ["torch/lib/libtorch_global_deps.so", "nvidia/nvjitlink/lib/libnvJitLink.so.12"]
    paths = [str(site / file) for file in files]
    done = subprocess.run(
        [sys.executable, "-c", program, *paths, str(module)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stderr.replace(str(root), ""), end="", file=sys.stderr)
    return done.returncode


def command(root: Path, words: Sequence[str]) -> int:
    """A command on the machine: one of `cudriver`, `-m pip install ...` or `-c "import torch"`."""
    from cudriver.cli import main
    from cudriver.stack import collect, inspect, planning
    from cudriver.stack.record import but

    if words[:3] == ["-m", "pip", "install"]:
        name, _, version = words[-1].partition("==")
        assert name == "nvidia-nvjitlink-cu12", words
        install_nvjitlink(root, version)
        print(f"Successfully installed {name}-{version}")
        return 0
    if words[0] == "-c":
        assert words[1:] == ["import torch"], words
        return import_torch(root)
    facts = collect.collect

    def inside(asked, machine=None):
        return but(facts(asked, machine), root="/")  # what a report there would say

    def added_to(prefix, **stated):
        return inspect(prefix, root=str(root), **stated)

    collect.collect, planning.inspect = inside, added_to
    try:
        there = ["--root", str(root)] if words[0] in ("check", "which") else []
        return main([words[0], *there, *words[1:]])
    finally:
        collect.collect, planning.inspect = facts, inspect


def picture(root: Path, language: str) -> str:
    """The report of /srv/envs/train as a terminal shows it, in SVG; narrow enough for a phone."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    from cudriver import stack
    from cudriver.stack import say
    from cudriver.stack.record import put
    from cudriver.stack.report.text import Style, render

    def wide(found: re.Match[str]) -> str:  # rich counts letters, and Chinese ones take two cells
        cells = cell_len(unescape(found[2]))
        return f'textLength="{12.2 * cells:g}"{found[1]}{found[2]}<'

    say.choose(language)
    report = stack.inspect(TRAIN, root=str(root)).restricted(["CU303"], [])
    put(report.facts, root="/")
    lines = []
    for line in Text.from_ansi(render(report, Style(width=PICTURED, colour=True))).split("\n"):
        while line.cell_len > PICTURED:  # a path
            end = line.plain.rindex("/", 0, PICTURED) + 1
            first, line = line.divide([end])
            lines.append(first)
            line = Text(" " * 14).append_text(line)
        lines.append(line)
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=PICTURED, file=nowhere, force_terminal=True)
        console.print(Text("\n").join(lines), soft_wrap=True)
    title = f"cudriver check --select CU303 {TRAIN}"
    drawn = console.export_svg(title=title, unique_id="check")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # fonts of another server
    drawn = re.sub(r'textLength="[^"]*"( [^>]*>)([^<]*)<', wide, drawn)
    return drawn.replace("<svg ", '<svg width="620" ', 1)  # a page that has more room needs no more


if __name__ == "__main__":
    if sys.argv[1] == "in":  # a machine that is there
        sys.exit(command(Path(sys.argv[2]), sys.argv[3:]))
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        if sys.argv[1] == "picture":
            drawn = picture(Path(folder), sys.argv[3])
            Path(sys.argv[2]).write_text(drawn + "\n", encoding="utf-8")
        else:
            sys.exit(command(Path(folder), sys.argv[1:]))
