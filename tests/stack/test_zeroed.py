"""Zeros in an extension module, or in the library that it links: whether an import of it ends. The
oracle is the real import.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import struct
import sys
import sysconfig
import time

import pytest
import real
from test_breakage_built import SUFFIX, Venv, compile_c, library, pytestmark  # noqa: F401
from test_cli import run
from test_reach import told
from test_reach_roots import put

from cudriver.stack.collect.records import altered, ending, whole
from cudriver.stack.rootfs import Root

OWN = """
static int ready;
__attribute__((constructor, noinline)) static void prepare(void) { ready = 1; }
__attribute__((destructor, noinline)) static void finish(void) { ready = 0; }
static const char *const names[] = {"a", "b", "c", "d"};
int own(void) { return ready + (names[ready] == 0); }
"""
MODULE = """
#include <Python.h>
int own(void);
static const char unread[8192] = "nothing reads this";
const char *never_called(void) { return unread; }
static int (*volatile call)(void) = own;
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", NULL, -1};
PyMODINIT_FUNC PyInit__C(void) { return call() < 0 ? NULL : PyModule_Create(&module); }
"""


@pytest.fixture
def venv(tmp_path):
    venv = Venv(tmp_path / "env")
    files = put(venv, {"fastnet/__init__.py": "from . import _C\n"})
    own = library(venv.site / "fast_net.libs", "libown-1.so.5.0.0", OWN)
    target = venv.site / f"fastnet/_C{SUFFIX}"
    flags = f"-I{sysconfig.get_paths()['include']}", str(own), f"-Wl,-rpath,{own.parent}"
    compile_c(target, MODULE, *flags)
    target.with_name(target.name + ".c").unlink()
    venv.distribution("fast-net", "1.0", files=[*files, target, own])
    return venv


def section(file, name: str) -> tuple[int, int]:
    """Where a section lies in the file, and its size."""
    pattern = rf"\] {re.escape(name)} +\S+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) "
    found = re.search(pattern, real.run("readelf", "-SW", file).stdout)
    assert found is not None
    return int(found[1], 16), int(found[2], 16)


def function(file, name: str) -> tuple[int, int]:
    """The same of a function; its address is its place, in the segments before the data."""
    pattern = rf": ([0-9a-f]+) +(\d+) FUNC .* {name}$"
    found = re.search(pattern, real.run("readelf", "-sW", file).stdout, re.MULTILINE)
    assert found is not None
    return int(found[1], 16), int(found[2])


def zero(file, at: int, size: int) -> None:
    data = bytearray(file.read_bytes())
    data[at : at + size] = bytes(size)
    file.unlink()
    file.write_bytes(data)
    later = file.stat().st_mtime + 60  # an installer writes RECORD last
    os.utime(file, (later, later))


def agrees(venv, file) -> str | None:
    """The check and the real import agree. The text, where one is told."""
    seen = real.import_error(venv.path, "fastnet")
    found = [f for f in told(venv) if file.name in f.title]
    assert [f.severity for f in found] == ["error" if seen else "warning"], seen
    said = (seen or "").replace("killed by signal 11", "Segmentation fault")
    assert all(f.predicts in said for f in found if f.predicts)
    return found[0].predicts


OWNS = ("fastnet/_C{}", "fast_net.libs/libown-1.so.5.0.0")
CRASH = "Segmentation fault"
SECTIONS = {  # and what a user reads, where that is always the same
    ".init": CRASH, ".fini": CRASH, ".dynsym": None, ".dynstr": "undefined symbol:",
    ".gnu.hash": None, ".rela.dyn": "Inconsistency detected by ld.so", ".dynamic": CRASH,
    ".comment": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("which", "name"),
    # Of the other library the import uses what stands in .rodata, which no check can tell.
    [*((which, name) for which in OWNS for name in SECTIONS), (OWNS[0], ".rodata")],
)
def test_a_section(venv, which, name):
    file = venv.site / which.format(SUFFIX)
    zero(file, *section(file, name))
    assert agrees(venv, file) == SECTIONS.get(name)


@pytest.mark.parametrize(
    ("which", "name"),
    [
        ("fastnet/_C{}", "PyInit__C"),
        ("fastnet/_C{}", "never_called"),
        ("fast_net.libs/libown-1.so.5.0.0", "prepare"),
        ("fast_net.libs/libown-1.so.5.0.0", "finish"),
    ],
)
def test_a_function(venv, which, name):
    file = venv.site / which.format(SUFFIX)
    zero(file, *function(file, name))
    agrees(venv, file)


@pytest.mark.parametrize("rule", ["enable-new-dtags", "disable-new-dtags"])
@pytest.mark.parametrize("damage", ["none", "half", "empty", "zeros"])
def test_another_in_a_folder_of_the_library_path(venv, tmp_path, damage, rule):
    """It comes before a RUNPATH, and after an RPATH."""
    own = venv.site / OWNS[1]
    target = venv.site / f"fastnet/_C{SUFFIX}"
    flags = f"-I{sysconfig.get_paths()['include']}", str(own), f"-Wl,-rpath,{own.parent}"
    compile_c(target, MODULE, *flags, f"-Wl,--{rule}")
    shutil.rmtree(venv.site / "fast_net-1.0.dist-info")
    venv.distribution("fast-net", "1.0", files=[venv.site / "fastnet/__init__.py", target, own])
    data = own.read_bytes()
    broken = {"none": data, "half": data[: len(data) // 2], "empty": b"", "zeros": bytes(5000)}
    (tmp_path / "side").mkdir()
    file = tmp_path / "side" / own.name
    file.write_bytes(broken[damage])
    side = {"LD_LIBRARY_PATH": str(file.parent)}
    seen = real.import_error(venv.path, "fastnet", **side)
    assert (seen is None) == (damage == "none" or rule == "disable-new-dtags")
    report = real.check(venv.path, environ=real.clean_environ(**side), probe_driver=False)
    found = [f for f in real.findings(report) if f.rule == "CU404"]
    assert [f.severity for f in found] == ["error"] * bool(seen), seen
    for each in found:
        assert each.because == str(file)
        assert each.fix[0] == "unset LD_LIBRARY_PATH"


FILLS = """
#include <Python.h>
static volatile int many[4000];
__attribute__((noinline)) static void texts(void) { %s }
static int fill(PyObject *module) {
    texts();
    %s
    return 0;
}
static PyObject *create(PyObject *spec, PyModuleDef *def) { return PyModule_New("_C"); }
static PyModuleDef_Slot slots[] = {{Py_mod_create, create}, {Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", NULL, 0, NULL, slots};
int after(void) { return many[0]; }
PyMODINIT_FUNC PyInit__C(void) { return PyModuleDef_Init(&module); }
"""


@pytest.mark.parametrize("name", ["fill", "texts", "after"])
def test_a_hole_in_the_function_that_fills_a_module(venv, name):
    target = venv.site / f"fastnet/_C{SUFFIX}"
    long = "".join(f"many[{number}] = {number};" for number in range(500))
    source = FILLS % (long, long)
    compile_c(target, source, f"-I{sysconfig.get_paths()['include']}")
    target.with_name(target.name + ".c").unlink()
    shutil.rmtree(venv.site / "fast_net-1.0.dist-info")
    venv.distribution("fast-net", "1.0", files=[venv.site / "fastnet/__init__.py", target])
    assert told(venv) == []
    at, size = function(target, name)
    hole = (at, size) if name == "after" else (at + size // 2, 256)
    zero(target, *hole)
    agrees(venv, target)


@pytest.mark.parametrize("numbers", [(1, 2), (84, 85)])
def test_the_numbers_of_the_slots_are_those_of_any_python(venv, numbers):
    """CPython 3.15 has new ones."""
    target = venv.site / f"fastnet/_C{SUFFIX}"
    source = FILLS % ("", "".join(f"many[{number}] = {number};" for number in range(500)))
    for name, number in zip(("Py_mod_create", "Py_mod_exec"), numbers, strict=True):
        source = source.replace(name, str(number))
    compile_c(target, source, f"-I{sysconfig.get_paths()['include']}")
    target.with_name(target.name + ".c").unlink()
    shutil.rmtree(venv.site / "fast_net-1.0.dist-info")
    venv.distribution("fast-net", "1.0", files=[venv.site / "fastnet/__init__.py", target])
    assert told(venv) == []
    at, size = function(target, "fill")
    zero(target, at + size // 2, 256)
    assert [f.severity for f in told(venv)] == ["error"]


def test_what_is_well_is_not_taken_for_zeroed():
    """Of the libraries that are mapped here."""
    with open("/proc/self/maps") as maps:
        named = {line.split()[-1] for line in maps if ".so" in line}
    paths = {path for path in named if os.path.isfile(path)}  # a test may have deleted its own
    assert len(paths) > 5
    assert [path for path in sorted(paths) if ending(Root("/"), path) is not None] == []


def test_a_segment_that_ends_in_zeros_behind_the_sections_table(tmp_path):
    """As patchelf leaves libraries: that table is before what it adds at the end."""
    source = '__attribute__((section(".data.z"))) char z[256] = {0}; int own(void) { return z[1]; }'
    file = library(tmp_path, "libz.so", source)
    at, size = section(file, ".data")
    data = bytearray(file.read_bytes()[: at + size])
    assert not any(data[-64:])
    data[40:48] = (64).to_bytes(8, "little")
    file.write_bytes(data)
    ctypes.CDLL(str(file))
    assert ending(Root("/"), str(file)) is None


@pytest.mark.parametrize(("machine", "foreign"), [(62, False), (183, True)])
def test_a_large_file_of_another_machine(tmp_path, machine, foreign):
    """Its size is as before, and its hash is not asked."""
    file = library(tmp_path, "libx.so", OWN)
    own = 62 if "x86" in sysconfig.get_platform() else 183
    wanted = machine if own == 62 else {62: 183, 183: 62}[machine]
    assert altered(Root("/"), str(file), "libx.so,sha256=?,1", False, wanted) == foreign
    assert (ending(Root("/"), str(file), wanted) == "") == foreign


@pytest.mark.parametrize(("ask", "answer"), [(ending, ""), (whole, False)])
def test_a_file_that_its_server_loses_once_it_is_open(tmp_path, monkeypatch, ask, answer):
    """NFS: removed by another machine."""
    file = library(tmp_path, "libx.so", OWN)

    def lost(descriptor):
        raise OSError(errno.ESTALE, "Stale file handle")

    class Lossy(Root):
        def open(self, path):
            opened = super().open(path)
            patched.setattr(os, "fstat", lost)
            return opened

    with monkeypatch.context() as patched:
        given = ask(Lossy("/"), str(file))
    assert given == answer


NVIDIA = {"cuda_runtime": ["libcudart"], "cublas": ["libcublas", "libcublasLt"]}


def test_a_library_of_nvidia_that_keeps_its_size(tmp_path):
    """--verify reads it, and the check itself where it was changed after it was installed."""
    venv = Venv(tmp_path / "env")
    loads = "import ctypes, os\nsite = os.path.dirname(os.path.dirname(__file__))\n"
    for folder, names in NVIDIA.items():
        files = [venv.library(folder, f"{name}.so.12", OWN) for name in names]
        venv.distribution(f"nvidia-{folder.replace('_', '-')}-cu12", "12.8", files=files)
        paths = [str(file.relative_to(venv.site)) for file in files]
        loads += "".join(f"ctypes.CDLL(f'{{site}}/{path}')\n" for path in paths)
    files = put(venv, {"faiss/__init__.py": loads + "from . import _swigfaiss\n"})
    target = venv.site / f"faiss/_swigfaiss{SUFFIX}"
    source = MODULE.replace("__C", "__swigfaiss").replace('"_C"', '"_swigfaiss"') + OWN
    compile_c(target, source, f"-I{sysconfig.get_paths()['include']}")
    venv.distribution("faiss-gpu-cu12", "1.14.1", files=[*files, target])
    assert real.import_error(venv.path, "faiss") is None
    words = ["check", str(venv.path), "--json", "--no-probe"]
    assert json.loads(run(*words, "--verify").stdout)["verdict"] == "consistent"
    file = venv.site / "nvidia/cublas/lib/libcublas.so.12"
    zero(file, *section(file, ".init"))
    os.utime(file, (1, 1))
    assert "signal" in str(real.import_error(venv.path, "faiss"))
    assert json.loads(run(*words).stdout)["verdict"] == "consistent"
    for more in (["--verify"], []):
        findings = json.loads(run(*words, *more).stdout)["findings"]
        (found,) = [each for each in findings if file.name in each["title"]]
        assert (found["rule"], found["severity"], found["subject"]) == ("CU404", "error", "faiss")
        os.utime(file, (time.time() + 60,) * 2)


@pytest.mark.parametrize(
    ("kept", "flags", "name"),
    [
        # The rest of the file's last page is zeros; behind it nothing can be read.
        (".dynamic", ("-nostdlib", "-Wl,-z,noseparate-code,-z,norelro"), "SIGSEGV"),
        (".text", (), "SIGBUS"),
        (".dynamic", (), "SIGBUS"),
    ],
)
def test_a_file_that_is_cut(tmp_path, kept, flags, name):
    file = library(tmp_path, "libx.so", "int own(void) { return 1; } int own_data;", *flags)
    at, _ = section(file, kept)
    file.write_bytes(file.read_bytes()[: at + 16])
    done = real.run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(file)!r})")
    number = signal.Signals[name]
    assert done.returncode == -number
    assert ending(Root("/"), str(file)) == signal.strsignal(number)


@pytest.mark.parametrize(
    ("name", "kept", "says"),
    [
        (".gnu.version_r", b"", "unsupported version 0 of Verneed record"),
        (".dynstr", b"", "undefined symbol:"),
        (".dynstr", b"libc.so.6", "version `' not found"),
    ],
)
@pytest.mark.parametrize("sections", [True, False])
def test_names_and_versions(tmp_path, name, kept, says, sections):
    source = "char *getenv(const char *); char *own(void) { return getenv(0); }"
    file = library(tmp_path, "libx.so", source)
    at, size = section(file, name)
    data = file.read_bytes()
    keep = data.index(kept, at) if kept else 0
    zero(file, at, size)
    data = bytearray(file.read_bytes())
    data[keep : keep + len(kept)] = kept
    data[40:48] = data[40:48] if sections else bytes(8)  # where their table is
    file.write_bytes(data)
    done = real.run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(file)!r})")
    assert says in done.stderr
    assert ending(Root("/"), str(file)) == says


@pytest.mark.parametrize("name", [".dynsym", ".dynstr"])
def test_symbols_that_nobody_asks_for(tmp_path, name):
    """Of a library: what another one needs of it, may still be there."""
    source = "".join(f"int unused_{number}(void) {{ return {number}; }}" for number in range(99))
    file = library(tmp_path, "libx.so", source)
    at, size = section(file, name)
    zero(file, at + size // 2, size // 4)
    real.run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(file)!r})").check_returncode()
    assert ending(Root("/"), str(file)) is None


def test_a_file_that_is_cut_in_the_last_page_of_its_data(tmp_path):
    """It loads: what is lost reads as zeros, and may never be asked for."""
    file = library(tmp_path, "libx.so", "char own[9000] = {1};")
    at, size = section(file, ".data")
    file.write_bytes(file.read_bytes()[: at + size - min((at + size) % 4096, 500)])
    real.run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(file)!r})").check_returncode()
    assert ending(Root("/"), str(file)) is None


def test_a_signal_comes_before_a_symbol_that_is_missed(tmp_path):
    """FAISS's import by its recipe. Of a library whose tables are zeros no symbol is looked for."""
    venv = Venv(tmp_path / "env")
    files = put(venv, {"faiss/__init__.py": "from . import _swigfaiss\n"})
    own = library(venv.site / "faiss", "libown.so", OWN)
    target = venv.site / f"faiss/_swigfaiss{SUFFIX}"
    source = MODULE.replace("__C", "__swigfaiss").replace('"_C"', '"_swigfaiss"')
    flags = f"-I{sysconfig.get_paths()['include']}", str(own), "-Wl,-z,now,-rpath,$ORIGIN"
    compile_c(target, source, *flags)
    venv.distribution("faiss-cpu", "1.15.1", files=[*files, target, own])
    assert real.import_error(venv.path, "faiss") is None
    assert told(venv) == []
    zero(own, section(own, ".dynamic")[0], own.stat().st_size)
    assert real.import_error(venv.path, "faiss") == "killed by signal 11"
    (found,) = told(venv)
    assert (found.rule, found.severity, found.predicts) == ("CU404", "error", CRASH)


@pytest.mark.parametrize("damage", ["zeros", "gone"])
def test_what_only_a_recipe_tells_to_be_loaded(tmp_path, damage):
    """OpenCV has no CUDA, and its first file finds the extension module by a changed sys.path."""
    venv = Venv(tmp_path / "env")
    body = f"import ctypes\nctypes.CDLL(__file__.replace('__init__.py', 'cv2{SUFFIX}'))\n"
    files = put(venv, {"cv2/__init__.py": body})
    own = library(venv.site / "cv2.libs", "libown.so", OWN)
    target = venv.site / f"cv2/cv2{SUFFIX}"
    compile_c(target, "int x;", "-Wl,--no-as-needed", str(own), "-Wl,-rpath,$ORIGIN/../cv2.libs")
    venv.distribution("opencv-python-headless", "4.13.0", files=[*files, target, own])
    assert real.import_error(venv.path, "cv2") is None
    assert told(venv) == []
    if damage == "gone":
        own.unlink()
    else:
        zero(own, section(own, ".dynamic")[0], own.stat().st_size)
    seen = real.import_error(venv.path, "cv2")
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU404", "error")
    assert found.predicts
    assert found.predicts in seen or (found.predicts == CRASH and "signal 11" in seen)


@pytest.mark.parametrize("damage", ["zeros", "cut", "other machine"])
def test_the_builtins_of_nvrtc(venv, damage):
    """NVRTC tells what the loader refuses, and no end of the process by a signal."""
    file = library(venv.site / "nvidia/cu13/lib", "libnvrtc-builtins.so.13.0", OWN)
    venv.distribution("torch", "2.8.0", files=put(venv, {"torch/version.py": "cuda = '13.0'\n"}))
    venv.distribution("nvidia-cuda-nvrtc", "13.0.88", files=[file])
    if damage == "zeros":
        zero(file, *section(file, ".dynamic"))
    elif damage == "cut":
        os.truncate(file, section(file, ".dynamic")[0] // 4096 * 4096)
    else:
        zero(file, 18, 2)
    code = f"import ctypes\ntry: ctypes.CDLL({str(file)!r})\nexcept OSError: print('refused')"
    done = real.run(sys.executable, "-c", code)
    (found,) = (f for f in told(venv) if file.name in f.title and f.rule == "CU404")
    if damage == "other machine":
        assert done.stdout == "refused\n"
        assert found.predicts == "nvrtc: error: failed to open libnvrtc-builtins.so.13.0."
    else:
        assert signal.strsignal(-done.returncode) == found.predicts


def test_a_library_that_was_shifted(venv):
    """By `strip`: patchelf left segments without content, whose place in the file then changed."""
    (file,) = (venv.site / "fast_net.libs").iterdir()
    data = bytearray(file.read_bytes())
    (table,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    kinds = [struct.unpack_from("<I", data, table + 56 * index)[0] for index in range(count)]
    stack = table + 56 * kinds.index(0x6474E551)  # PT_GNU_STACK
    struct.pack_into("<IIQQQQQQ", data, stack, 1, 6, 0x98, 1 << 20, 1 << 20, 0, 0x98, 0x1000)
    file.write_bytes(data + b"\0" * 8)
    said = real.import_error(venv.path, "fastnet") or ""
    assert "ELF load command address/offset not page-aligned" in said
    assert [(f.severity, f.predicts) for f in told(venv)] == [
        ("error", ending(Root("/"), str(file)))
    ]
    assert told(venv)[0].predicts in said


def test_a_library_for_larger_pages(venv):
    """Its segments are shifted by whole pages of this machine, not of the size that it states."""
    (file,) = (venv.site / "fast_net.libs").iterdir()
    data = bytearray(file.read_bytes())
    (table,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    for header in range(table, table + 56 * count, 56):
        if data[header] == 1:  # PT_LOAD
            struct.pack_into("<Q", data, header + 48, 1 << 16)
    file.write_bytes(data + b"\0" * 8)
    assert real.import_error(venv.path, "fastnet") is None
    assert [f for f in told(venv) if f.severity == "error"] == []
