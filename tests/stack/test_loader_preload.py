"""What torch preloads: three generations of its code, and made libraries loaded by real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudriver.stack.loader import preload
from cudriver.stack.loader.preload import Preload, import_torch, read_torch
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import Loader
from elfkit import clean_environment, compile_c

# The shape of torch/__init__.py through the years, in our words; each runs as it stands.
HEAD = """
import ctypes, glob, os, sys

"""
SPLIT = '''
def _preload_cuda_deps(lib_folder, lib_name):
    """Looks on sys.path."""
    lib_path = None
    for path in sys.path:
        nvidia = os.path.join(path, "nvidia")
        found = glob.glob(os.path.join(nvidia, lib_folder, "lib", lib_name))
        if found:
            lib_path = found[0]
            break
    if not lib_path:
        raise ValueError(f"{lib_name} not found in the system path {sys.path}")
    ctypes.CDLL(lib_path)


def _load_global_deps():
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "lib", "libtorch_global_deps.so")
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as err:
        # "libcomment.so" is not a library
        cuda_libs: dict[str, str] = {
            'cublas': 'libcublas.so.*[0-9]',
            'nvjitlink': 'libnvJitLink.so.*[0-9]',
        }
        is_cuda_lib_err = [lib for lib in cuda_libs.values() if lib.split(".")[0] in err.args[0]]
        if not is_cuda_lib_err:
            raise err
        for lib_folder, lib_name in cuda_libs.items():
            _preload_cuda_deps(lib_folder, lib_name)
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


'''
MAPS = SPLIT.replace(
    "        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)\n    except",
    """        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        try:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "nvidia/cuda_runtime/lib/libcudart.so" not in _maps:
                return
            _preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")
        except Exception:
            pass
    except""",
)
UNIFIED = """
def _get_cuda_dep_paths(path, lib_folder, lib_name):
    from torch.version import cuda as cuda_version
    found = glob.glob(os.path.join(path, "nvidia", lib_folder, "lib", lib_name))
    major = cuda_version.split(".")[0]
    found += glob.glob(os.path.join(path, "nvidia", f"cu{major}", "lib", lib_name))
    found += glob.glob(os.path.join(path, lib_folder, "lib", lib_name))
    return found


def _preload_cuda_lib(lib_folder, lib_name, required=True):
    lib_path = None
    for path in sys.path:
        found = _get_cuda_dep_paths(path, lib_folder, lib_name)
        if found:
            lib_path = found[0]
            break
    if not lib_path and required:
        raise ValueError(f"{lib_name} not found in the system path {sys.path}")
    if lib_path:
        ctypes.CDLL(lib_path)


def _preload_cuda_deps(err=None):
    cuda_libs = [
        ("cublas", "libcublasLt.so.*[0-9]"),
        ("cublas", "libcublas.so.*[0-9]"),
        ("nvjitlink", "libnvJitLink.so.*[0-9]"),
    ]
    if err is not None and not [lib for _, lib in cuda_libs if lib.split(".", 1)[0] in err.args[0]]:
        raise err
    for lib_folder, lib_name in cuda_libs:
        _preload_cuda_lib(lib_folder, lib_name)
    _preload_cuda_lib("nvtx", "libnvToolsExt.so.*[0-9]", required=False)


def _load_global_deps():
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "lib", "libtorch_global_deps.so")
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        try:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "libcudart.so" not in _maps:
                return
            _preload_cuda_deps()
        except Exception:
            pass
    except OSError as err:
        _preload_cuda_deps(err)
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


"""
TAIL = """
_load_global_deps()
from torch import _C
"""
STYLES = {"split": SPLIT, "maps": MAPS, "unified": UNIFIED}
C_MODULE = (
    '#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "_C", 0, -1};'
    "PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&d); }"
)


def test_the_three_generations_are_read() -> None:
    cublas = Preload("cublas", "libcublas.so.*[0-9]")
    link = Preload("nvjitlink", "libnvJitLink.so.*[0-9]")
    split = read_torch(HEAD + SPLIT + TAIL, 12)
    assert (split.rescue, split.always, split.shared) == ([cublas, link], [], "")
    maps = read_torch(HEAD + MAPS + TAIL, 12)
    assert (maps.rescue, maps.always) == ([cublas, link], [link])
    assert maps.needs_mapped == "nvidia/cuda_runtime/lib/libcudart.so"
    unified = read_torch(HEAD + UNIFIED + TAIL, 13)
    everything = [
        Preload("cublas", "libcublasLt.so.*[0-9]"),
        cublas,
        link,
        Preload("nvtx", "libnvToolsExt.so.*[0-9]", False),
    ]
    assert (unified.rescue, unified.always) == (everything, everything)
    assert unified.shared == "nvidia/cu13/lib"
    assert unified.needs_mapped == "libcudart.so"


def test_an_entry_for_later_cuda_only() -> None:
    text = HEAD + SPLIT.replace(
        "        is_cuda", '        cuda_libs["cufile"] = "libcufile.so.*[0-9]"\n        is_cuda'
    )
    assert Preload("cufile", "libcufile.so.*[0-9]") in read_torch(text, 12).rescue
    assert Preload("cufile", "libcufile.so.*[0-9]") not in read_torch(text, 11).rescue


def test_a_function_at_the_very_start() -> None:
    _, _, start = SPLIT.partition("\n\n\n")
    assert start.startswith("def _load_global_deps(")
    assert read_torch("\n" + start, 12) == read_torch(HEAD + SPLIT + TAIL, 12)


def test_a_function_ends_where_the_next_statement_begins() -> None:
    """Not at a blank line, a comment, or the bracket that closes its parameters."""
    inside = "\n\n# more\n    # libcomment.so\n x = 1\n"
    text = f"\ndef f(\n    a,\n) -> None:{inside}y = 2\ndef g(): pass"
    assert preload._function(text, "f") == "def f(\n    a,\n) -> None:\n\n x = 1"
    assert preload._function(text, "g") == "def g(): pass"
    assert preload._function(text, "h") == ""


@pytest.mark.parametrize("text", ["", "import x\n", "def _load_global_deps(", "\0" * 50])
def test_other_sources_have_no_preloads(text: str) -> None:
    plan = read_torch(text, 12)
    assert (plan.rescue, plan.always) == ([], [])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries with CUDA's names, and a torch that needs them."""
    import sysconfig

    folder = tmp_path_factory.mktemp("parts")
    link = compile_c(folder / "libnvJitLink.so.12", "int jit;", "-Wl,-soname,libnvJitLink.so.12")
    runtime = compile_c(folder / "libcudart.so.12", "int rt;", "-Wl,-soname,libcudart.so.12")
    light = compile_c(folder / "libcublasLt.so.12", "int lt;", "-Wl,-soname,libcublasLt.so.12")
    needs = ["-Wl,--no-as-needed"]
    blas = compile_c(
        folder / "libcublas.so.12", "int blas;", "-Wl,-soname,libcublas.so.12", *needs, str(light),
        "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    path = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../nvidia/cuda_runtime/lib"
    compile_c(folder / "deps-easy.so", "int deps;", *needs, str(runtime), path)
    compile_c(folder / "deps-hard.so", "int deps;", *needs, str(runtime), str(blas), path)
    other = compile_c(folder / "libother.so.1", "int other;", "-Wl,-soname,libother.so.1")
    compile_c(folder / "deps-other.so", "int deps;", *needs, str(other), path)
    include = sysconfig.get_paths()["include"]
    compile_c(folder / "_C.so", C_MODULE, f"-I{include}", *needs, str(link), "-Wl,-rpath,/absent")
    return folder


def lay_out(site: Path, parts: Path, style: str, dependencies: str, leave_out: str) -> None:
    import shutil
    import sysconfig

    torch = site / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text(HEAD + STYLES[style] + TAIL)
    (torch / "version.py").write_text("__version__ = '2.9.9'\ncuda: str = '12.8'\n")
    shutil.copy(parts / f"deps-{dependencies}.so", torch / "lib/libtorch_global_deps.so")
    shutil.copy(parts / "_C.so", torch / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}")
    for name, folder in (
        ("libcublas.so.12", "cublas"),
        ("libcublasLt.so.12", "cublas"),
        ("libcudart.so.12", "cuda_runtime"),
        ("libnvJitLink.so.12", "cu12" if style == "unified" else "nvjitlink"),
    ):
        if name != leave_out:
            (site / "nvidia" / folder / "lib").mkdir(parents=True, exist_ok=True)
            shutil.copy(parts / name, site / "nvidia" / folder / "lib" / name)


REPORT = """
import sys
try:
    import torch
    print("ok")
except Exception as error:
    print(error)
for line in open("/proc/self/maps"):
    if sys.argv[1] in line:
        print(line.split()[-1])
"""


def imported_as_predicted(site: Path, sys_path: list[str] | None = None) -> set[str]:
    """What `import torch` says and maps is what the model says, which knows of `sys_path`."""
    real = subprocess.run(
        [sys.executable, "-c", REPORT, str(site)],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(PYTHONPATH=str(site)),
    ).stdout.splitlines()
    process = Process(Loader(environ={}), sys.executable)
    known = [str(site)] if sys_path is None else sys_path
    loads = import_torch(process, str(site / "torch"), 12, known)
    failures = [load.error for load in loads if load.error is not None]
    if failures and failures[-1].endswith("not found in the system path"):
        assert real[0].startswith(failures[-1] + " [")
    else:
        assert real[0] == (failures[-1] if failures else "ok")
    mapped = {obj.real_path for obj in process.objects if str(site) in obj.real_path}
    assert mapped == set(real[1:])
    return mapped


@pytest.mark.parametrize("style", list(STYLES))
@pytest.mark.parametrize("dependencies", ["easy", "hard", "other"])
@pytest.mark.parametrize(
    "leave_out", ["", "libnvJitLink.so.12", "libcublas.so.12", "libcudart.so.12"]
)
def test_the_import_as_it_really_goes(
    tmp_path: Path, parts: Path, style: str, dependencies: str, leave_out: str
) -> None:
    lay_out(tmp_path, parts, style, dependencies, leave_out)
    imported_as_predicted(tmp_path)


@pytest.mark.parametrize("style", list(STYLES))
def test_without_the_global_dependencies(tmp_path: Path, parts: Path, style: str) -> None:
    lay_out(tmp_path, parts, style, "easy", "")
    (tmp_path / "torch/lib/libtorch_global_deps.so").unlink()
    (tmp_path / "torch/_utils_internal.py").write_text("import os\nUSE_GLOBAL_DEPS = True\n")
    assert imported_as_predicted(tmp_path) == set()


@pytest.mark.parametrize("style", list(STYLES))
@pytest.mark.parametrize("dependencies", ["easy", "hard"])
@pytest.mark.parametrize("damaged", ["cublas/lib/libcublas.so.12", "*/lib/libnvJitLink.so.12"])
def test_the_first_preload_that_fails_is_the_last(
    tmp_path: Path, parts: Path, style: str, dependencies: str, damaged: str
) -> None:
    lay_out(tmp_path, parts, style, dependencies, "")
    (file,) = (tmp_path / "nvidia").glob(damaged)
    file.write_bytes(b"no library")
    imported_as_predicted(tmp_path)


@pytest.mark.parametrize("places", [["cublas"], ["nvidia/cublas"], ["cublas", "nvidia/cublas"]])
def test_nvidias_folder_comes_before_a_package_of_its_own(
    tmp_path: Path, parts: Path, places: list[str]
) -> None:
    import shutil

    lay_out(tmp_path, parts, "unified", "hard", "")
    shutil.move(tmp_path / "nvidia/cublas", tmp_path / "made")
    for place in places:
        shutil.copytree(tmp_path / "made", tmp_path / place)
    mapped = imported_as_predicted(tmp_path)
    assert f"{tmp_path}/{places[-1]}/lib/libcublas.so.12" in mapped


@pytest.mark.parametrize("style", list(STYLES))
def test_a_torch_beside_the_known_folders_finds_what_lies_beside_it(
    tmp_path: Path, parts: Path, style: str
) -> None:
    """Where it was imported from is on sys.path."""
    lay_out(tmp_path, parts, style, "hard", "")
    mapped = imported_as_predicted(tmp_path, ["/absent"])
    assert any("libcublas" in path for path in mapped)


@pytest.mark.parametrize("style", list(STYLES))
@pytest.mark.parametrize("folders", [("nvjitlink", "cu12"), ("cu12",), ("cu13",), ("cu13", "cu12")])
def test_the_folder_of_the_cuda_that_torch_was_built_for(
    tmp_path: Path, parts: Path, style: str, folders: tuple[str, ...]
) -> None:
    """Wheels of CUDA 13 share nvidia/cu13/lib; a torch for CUDA 12 looks into cu12 only, and only
    one that knows of such folders.
    """
    import shutil

    lay_out(tmp_path, parts, style, "easy", "libnvJitLink.so.12")
    for folder in folders:
        (tmp_path / "nvidia" / folder / "lib").mkdir(parents=True)
        shutil.copy(parts / "libnvJitLink.so.12", tmp_path / "nvidia" / folder / "lib")
    mapped = imported_as_predicted(tmp_path)
    known = {"split": set(), "maps": {"nvjitlink"}, "unified": {"nvjitlink", "cu12"}}[style]
    assert any("libnvJitLink" in path for path in mapped) is not known.isdisjoint(folders)
