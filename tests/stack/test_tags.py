"""Tags of wheels against an interpreter: packaging.tags decides, and the real import."""

import os
import subprocess
import sysconfig

import pytest
from packaging.tags import Tag, compatible_tags, cpython_tags
from test_unmet import PYTHON, environment

from cudriver import _elf
from cudriver.stack import inspect
from cudriver.stack.facts import Environment
from cudriver.stack.integrity.tags import takes
from cudriver.stack.record import put
from elfkit import compile_c

PLATFORMS = [
    "any", "linux_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux1_i686",
    "manylinux_2_28_aarch64", "linux_aarch64", "musllinux_1_2_x86_64", "musllinux_1_2_aarch64",
    "win_amd64", "win32", "macosx_11_0_arm64", "manylinux_2_34_ppc64le", "macosx_10_9_x86_64",
]  # fmt: skip
PYTHONS = ["cp39", "cp310", "cp311", "cp312", "cp313", "cp314", "py2", "py3", "py311", "py313"]
ABIS = ["none", "abi3", "cp310", "cp311", "cp312", "cp313", "cp313t", "cp314", "cp314t", "cp37m"]


@pytest.mark.parametrize("threaded", ["", "t"])
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("libc", ["gnu", "musl"])
def test_as_packaging_has_it(minor, threaded, machine, libc):
    env = Environment("/env", "venv", f"3.{minor}.1", platform=machine)
    put(env, site_packages=[f"/env/lib/python3.{minor}{threaded}/site-packages"], libc=libc)
    kind = "many" if libc == "gnu" else libc
    mine = [f"{kind}linux_{v}_{machine}" for v in ("2_28", "2_34", "1_2")]
    mine += [f"linux_{machine}", f"manylinux2014_{machine}", f"manylinux1_{machine}"]
    mine = [each for each in mine if libc == "gnu" or not each.startswith("many")]
    abis = [f"cp3{minor}{threaded}"]
    known = {*cpython_tags((3, minor), abis, mine), *compatible_tags((3, minor), None, mine)}
    if threaded:  # a Python without the GIL has no stable ABI before 3.15
        known = {tag for tag in known if tag.abi != "abi3"}
    for python in PYTHONS:
        for abi in ABIS:
            for platform in PLATFORMS:
                tag = f"{python}-{abi}-{platform}"
                if python.startswith("py") != (abi == "none") or platform == "any":
                    continue  # of no wheel, or of one without an extension module
                assert takes(env, tag) == (Tag(python, abi, platform) in known), tag
    assert takes(env, f"py2.py3-none-win_amd64.linux_{machine}")


OWN = sysconfig.get_config_var("EXT_SUFFIX")
TAG = f"cp{OWN.split('-')[1]}" if OWN.startswith(".cpython-") else ""


@pytest.mark.skipif(not TAG or not OWN.endswith("-linux-gnu.so"), reason="not CPython with glibc")
@pytest.mark.parametrize(
    ("tag", "ending", "works"),
    [
        ("{own}-{own}-manylinux_2_28_{machine}", "{suffix}", True),
        ("cp39-cp39-manylinux_2_28_{machine}", ".cpython-39-{machine}-linux-gnu.so", False),
        ("{own}-{own}-manylinux_2_28_s390x", ".cpython-{digits}-s390x-linux-gnu.so", False),
        ("{own}-{own}-musllinux_1_2_{machine}", ".cpython-{digits}-{machine}-linux-musl.so", False),
        ("{own}-{own}-win_amd64", ".{own}-win_amd64.pyd", False),
        # Built again where it lies, or named wrongly by who built it: the file is what counts.
        ("cp39-cp39-manylinux_2_28_{machine}", "{suffix}", True),
        ("py3-none-any", ".cpython-39-{machine}-linux-gnu.so", True),
    ],
)
def test_as_the_import_has_it(tmp_path, tag, ending, works):
    """The extension is this Python's own; only its name tells another."""
    machine = OWN.split("-")[2]
    words = {"own": TAG, "machine": machine, "digits": TAG[2:], "suffix": OWN}
    prefix = environment(tmp_path)
    with open(_elf.__file__, "rb") as file:
        data = file.read()
    name = f"cupy/_elf{ending.format(**words)}"
    optional = b"" if tag.startswith("py3") else b"from . import _elf\n"
    info = prefix.dist("cupy-cuda12x", "14.2.0", files={"cupy/__init__.py": optional, name: data})
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag.format(**words)}\n")
    python = prefix.path / "bin/python"
    done = subprocess.run([python, "-Bc", "import cupy"], env={}, capture_output=True, check=False)
    assert (done.returncode == 0) == works, done.stderr
    report = inspect(prefix.inside, environ={}, probe_driver=False)
    found = [f for f in report.findings if f.rule == "CU409"]
    assert [f.severity for f in found] == ([] if works else ["error"])
    for finding in found:
        assert f"is a wheel for {tag.format(**words)}" in finding.title
        assert f"Python {PYTHON}" in finding.title
        assert finding.proven


ASKS = """
void *PyErr_Format(void *, const char *, ...); extern void *PyExc_ImportError;
const char *Py_GetVersion(void); int strncmp(const char *, const char *, unsigned long);
void *PyInit__lib(void) {
    if (strncmp("3.9.", Py_GetVersion(), 4) != 0)
        return PyErr_Format(PyExc_ImportError, "Python version mismatch: module was compiled for "
            "Python %s, but the interpreter version is incompatible: %s.", "3.9", Py_GetVersion());
    return 0;
}
"""
ASKS_NOTHING = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lib"};
PyMODINIT_FUNC PyInit__lib(void) { return PyModule_Create(&module); }
const char text[] = "Python version mismatch: module was compiled for Python %s";
"""
PLAN9 = f"{TAG}-{TAG}-plan9"


@pytest.mark.parametrize(
    ("source", "tag"),
    [
        (ASKS, "cp39-cp39-manylinux_2_28_x86_64"),
        (ASKS_NOTHING.rpartition("const")[0], "cp39-cp39-manylinux_2_28_x86_64"),
        (ASKS_NOTHING, PLAN9),  # it was compiled for this Python
    ],
)
def test_an_extension_whose_name_tells_no_python(tmp_path, source, tag):
    """As torchaudio's, made with pybind11, which asks; JAX's of Python 3.10 works in 3.11."""
    prefix, include = environment(tmp_path), f"-I{sysconfig.get_path('include')}"
    data = compile_c(tmp_path / "_lib.so", source, include).read_bytes()
    files = {"torchaudio/__init__.py": b"from . import _lib\n", "torchaudio/_lib.so": data}
    info = prefix.dist("torchaudio", "2.8.0", ["torch"], files=files)
    (info / "WHEEL").write_text(f"Tag: {tag.replace('x86_64', os.uname().machine)}\n")
    words = [prefix.path / "bin/python", "-Bc", "import torchaudio"]
    done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    report = inspect(prefix.inside, environ={}, probe_driver=False)
    found = [f for f in report.findings if f.rule == "CU409"]
    assert [f.severity for f in found] == ["error"] * bool(done.returncode), done
    assert bool(found) == (source == ASKS)
    assert all(f.predicts in done.stderr and f.proven for f in found)


@pytest.mark.parametrize("libc", ["gnu", "musl"])
def test_on_musl(tmp_path, libc):
    prefix = environment(tmp_path)
    (prefix.path / "bin/python").unlink()
    linked = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    compile_c(prefix.path / "bin/python", "int main(void) { return 0; }", linked, shared=False)
    own, kind = f"cp{PYTHON.replace('.', '')}", {"gnu": "manylinux_2_28"}.get(libc, "musllinux_1_2")
    name = f"cupy/_x.cpython-{own[2:]}-{os.uname().machine}-linux-{libc}.so"
    info = prefix.dist("cupy-cuda12x", "14.2.0", files={"cupy/__init__.py": b"", name: b"x"})
    (info / "WHEEL").write_text(f"Tag: {own}-{own}-{kind}_{os.uname().machine}\n")
    found = {f.rule for f in inspect(prefix.inside, environ={}, probe_driver=False).findings}
    assert ("CU409" in found) == (libc == "gnu")
