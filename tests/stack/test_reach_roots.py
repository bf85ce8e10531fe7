"""Where imports begin, and end: packages without a recipe, what extras ask for, data libraries.
The oracle is the real import.
"""

import shutil
import sysconfig
from pathlib import Path

import pytest
import real
from test_breakage_built import MODULE, SUFFIX, Venv, compile_c, library, pytestmark  # noqa: F401
from test_reach import told

from cudriver.stack.collect.modules import Modules

TORCH = {
    "torch/__init__.py": "from .version import __version__\nfrom outer import inner\n"
    "class backends: pass\ntensor = 1\n",
    "torch/version.py": "__version__ = '2.8.0'\ncuda = None\nhip = None\n",
}
PARTS = ("__init__", "part")
FASTNET = {
    "fastnet/__init__.py": "from . import part, _C\ndef later():\n    import fastnet.late\n",
    "fastnet/part.py": "x = 1\n",
    "fastnet/late.py": "x = 1\n",
}


def put(venv, sources):
    for name, text in sources.items():
        (venv.site / name).parent.mkdir(parents=True, exist_ok=True)
        (venv.site / name).write_text(text)
    return [venv.site / name for name in sources]


@pytest.fixture
def venv(tmp_path):
    return Venv(tmp_path / "env")


@pytest.fixture
def fastnet(venv):
    """A package with an extension module and a library of its own, and without a recipe."""
    files = put(venv, FASTNET)
    own = library(venv.site / "fastnet.libs", "libown-1.so.5.0.0", "int own(void) { return 0; }")
    target = venv.site / f"fastnet/_C{SUFFIX}"
    flags = f"-I{sysconfig.get_paths()['include']}", str(own), f"-Wl,-rpath,{own.parent}"
    compile_c(target, MODULE.format(needs="own"), *flags)
    target.with_name(target.name + ".c").unlink()
    venv.distribution("fastnet", "1.0", files=[*files, target, own])
    return venv


@pytest.mark.parametrize("name", ["part.py", "late.py", f"_C{SUFFIX}"])
def test_a_package_without_a_recipe(fastnet, name):
    assert real.import_error(fastnet.path, "fastnet") is None
    assert told(fastnet) == []
    (fastnet.site / "fastnet" / name).unlink()
    seen = real.import_error(fastnet.path, "fastnet")
    (found,) = told(fastnet)
    assert found.severity == ("error" if seen else "warning"), seen
    assert bool(seen) == (name != "late.py")
    if seen:
        assert found.predicts in seen
        assert "import fastnet fails" in [e.value for e in found.evidence]


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, None])
def test_its_own_library(fastnet, damage):
    file = fastnet.site / "fastnet.libs/libown-1.so.5.0.0"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    assert real.import_error(fastnet.path, "fastnet")
    assert "error" in [f.severity for f in told(fastnet)]


def test_a_package_whose_recipe_says_that_it_uses_no_cuda(venv):
    """LightGBM's library has no CUDA; the import is that of any package."""
    sources = {"lightgbm/__init__.py": "from . import basic\n", "lightgbm/basic.py": "x = 1\n"}
    files = put(venv, sources)
    own = library(venv.site / "lightgbm/lib", "lib_lightgbm.so", "int own(void) { return 0; }")
    venv.distribution("lightgbm", "4.7.0", files=[*files, own])
    assert told(venv) == []
    files[1].unlink()
    (found,) = told(venv)
    assert found.severity == "error"
    assert str(found.predicts) in str(real.import_error(venv.path, "lightgbm"))


def test_what_others_require_is_reached_by_them_alone(fastnet):
    put(fastnet, {"user/__init__.py": ""})
    files = [fastnet.site / "user/__init__.py"]
    fastnet.distribution("user", "1.0", "fastnet>=1", files=files)
    (fastnet.site / "fastnet/part.py").unlink()
    (found,) = told(fastnet)
    assert found.severity == "warning"


@pytest.mark.parametrize("name", ["late.py", "__init__.py"])
def test_packages_of_python_alone_that_nobody_requires(venv, name):
    venv.distribution("fastnet", "1.0", files=put(venv, {"fastnet/__init__.py": "x = 1\n"}))
    sources = {"user/__init__.py": "from fastnet import x\n", "user/late.py": "x = 1\n"}
    venv.distribution("user", "1.0", "fastnet>=1", files=put(venv, sources))
    assert told(venv) == []
    folder = "user" if name == "late.py" else "fastnet"
    (venv.site / folder / name).unlink()
    seen = real.import_error(venv.path, "user")
    (found,) = told(venv)
    assert found.severity == ("error" if seen else "warning"), seen
    if seen:
        assert found.predicts in seen
        assert "import user fails" in [e.value for e in found.evidence]


MAKES = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", NULL, -1};
PyMODINIT_FUNC PyInit__C(void) {
    PyImport_AddModule("fastnet._C.made");
    return PyModule_Create(&definition);
}
"""


def test_a_module_that_an_extension_module_makes(fastnet):
    target = fastnet.site / f"fastnet/_C{SUFFIX}"
    target.unlink()
    compile_c(target, MAKES, f"-I{sysconfig.get_paths()['include']}")
    shutil.rmtree(fastnet.site / "fastnet-1.0.dist-info")
    text = "from . import _C\nimport fastnet._C.made\nimport outer\n"
    files = [*put(fastnet, {"fastnet/__init__.py": text}), target]
    fastnet.distribution("fastnet", "1.0", "outer-parts", files=files)
    seen = real.import_error(fastnet.path, "fastnet")
    (found,) = told(fastnet)
    assert seen.endswith("No module named 'outer'")
    assert found.predicts in seen


TAKES = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static const char texts[] = "%s";
static const char runtime[] = "\\0cython_runtime\\0outer.parts\\0";
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", NULL, -1};
PyMODINIT_FUNC PyInit__C(void) {
    const char *volatile name = strstr(texts, "net__pyx");
    if (name) {
        PyObject *list = Py_BuildValue("[s#]", name, (Py_ssize_t)3);
        if (!PyImport_ImportModuleLevel(runtime + 16, NULL, NULL, list, 0))
            return NULL;
        PyObject *parts = PyImport_AddModule(runtime + 16);
        PyObject *taken = PyObject_GetAttr(parts, PyList_GetItem(list, 0));
        if (!taken)
            return PyErr_Format(PyExc_ImportError, "cannot import name 'net'");
    }
    return PyModule_Create(&definition);
}
"""


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ("__main____module____name__net__pyx_capi____qualname____test__", True),
        ("__main____module____name__net_use__pyx_capi____qualname____test__", False),
        ("__main____module____name____pyx_capi____qualname____test__use_netvalues__zip__", False),
    ],
)
def test_a_module_that_cython_takes_from_a_package(fastnet, texts, named):
    """Its names are one text without ends, sorted."""
    include = f"-I{sysconfig.get_paths()['include']}"
    parts = put(fastnet, {"outer/__init__.py": "", "outer/parts/__init__.py": ""})
    net = parts[1].with_name(f"net{SUFFIX}")
    compile_c(net, MAKES.replace("PyInit__C", "PyInit_net"), include)
    fastnet.distribution("outer", "1.0", files=[*parts, net])
    target = fastnet.site / f"fastnet/_C{SUFFIX}"
    target.unlink()
    compile_c(target, TAKES % texts, include)
    shutil.rmtree(fastnet.site / "fastnet-1.0.dist-info")
    files = [*put(fastnet, {"fastnet/__init__.py": "from . import _C\n"}), target]
    fastnet.distribution("fastnet", "1.0", files=files)
    assert real.import_error(fastnet.path, "fastnet") is None
    assert told(fastnet) == []
    net.unlink()
    seen = real.import_error(fastnet.path, "fastnet")
    assert (seen is not None) == named
    (found,) = told(fastnet)
    assert found.severity == ("error" if named else "warning")


@pytest.mark.parametrize("name", ["fastnet.other.late", "fastnet.other"])
def test_what_cython_imports_when_it_is_called(fastnet, name):
    """Of its own distribution: the name alone does not tell when."""
    sources = {"fastnet/__init__.py": "from .part import _C\n", "fastnet/part/__init__.py": ""}
    files = put(fastnet, {**sources, "fastnet/other/__init__.py": "from . import late\n"})
    files += put(fastnet, {"fastnet/other/late.py": "x = 1\n"})
    target = fastnet.site / f"fastnet/part/_C{SUFFIX}"
    named = f'const char named[] = "\\0cython_runtime\\0{name}\\0";'
    compile_c(target, MAKES + named, f"-I{sysconfig.get_paths()['include']}")
    target.with_name(target.name + ".c").unlink()
    shutil.rmtree(fastnet.site / "fastnet-1.0.dist-info")
    fastnet.distribution("fastnet", "1.0", files=[*files, target])
    (fastnet.site / "fastnet/other/late.py").unlink()
    assert real.import_error(fastnet.path, "fastnet") is None
    (found,) = told(fastnet)
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("texts", "lost"),
    [
        (r"\0outer.late\0", "late.py"),  # a module in Python: pandas takes dateutil.easter so
        ("Like ``outer.late.best``.", "__init__.py"),  # pandas tells of scipy.stats.rankdata so
    ],
)
def test_what_cython_names_of_another_distribution(fastnet, texts, lost):
    """It imports that when it is called, or never."""
    target = fastnet.site / f"fastnet/_C{SUFFIX}"
    target.unlink()
    named = rf'const char named[] = "\0cython_runtime\0{texts}";'
    compile_c(target, MAKES + named, f"-I{sysconfig.get_paths()['include']}")
    target.with_name(target.name + ".c").unlink()
    shutil.rmtree(fastnet.site / "fastnet-1.0.dist-info")
    files = [*put(fastnet, {"fastnet/__init__.py": "from . import _C\n"}), target]
    fastnet.distribution("fastnet", "1.0", files=files)
    others = put(fastnet, {"outer/__init__.py": "x = 1\n", "outer/late.py": "x = 1\n"})
    fastnet.distribution("python-outer", "1.0", files=others)
    (fastnet.site / "outer" / lost).unlink()
    assert real.import_error(fastnet.path, "fastnet") is None
    assert [found.severity for found in told(fastnet)] == ["warning"]


def test_half_of_a_package_of_another_name_comes_first(fastnet, tmp_path):
    files = [*(fastnet.site / "fastnet").iterdir()]
    shutil.rmtree(fastnet.site / "fastnet-1.0.dist-info")
    fastnet.distribution("fast-net-cu12", "1.0", files=files)
    side = {"PYTHONPATH": str(tmp_path / "side")}
    (tmp_path / "side/fastnet").mkdir(parents=True)
    (tmp_path / "side/fastnet/__init__.py").write_text(FASTNET["fastnet/__init__.py"])
    seen = real.import_error(fastnet.path, "fastnet", **side)
    report = real.check(fastnet.path, environ=real.clean_environ(**side), probe_driver=False)
    (found,) = [f for f in real.findings(report) if f.severity == "error"]
    assert "hides fast-net-cu12 1.0" in found.title
    assert found.predicts in seen


@pytest.mark.parametrize("name", ["fft", "named", "other"])
def test_submodules_that_a_star_imports(venv, name):
    """NumPy's __getattr__ imports what its __all__ names."""
    first = """
_parts = {"fft"}
__all__ = list(_parts | set(["named"]))
def __getattr__(name):
    import importlib
    return importlib.import_module("numbers_." + name)
"""
    parts = {f"numbers_/{each}.py": "x = 1\n" for each in ("fft", "named", "other")}
    files = put(venv, {"numbers_/__init__.py": first, **parts})
    files += put(venv, {"user/__init__.py": "from numbers_ import *\n"})
    venv.distribution("user", "1.0", files=files)
    (venv.site / f"numbers_/{name}.py").unlink()
    venv.distribution("torch", "2.8.0", "user", files=put(venv, TORCH | {"outer/inner.py": ""}))
    (venv.site / "torch/__init__.py").write_text("import user\n" + TORCH["torch/__init__.py"])
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert found.severity == ("error" if seen else "warning"), seen
    assert bool(seen) == (name != "other")


def test_the_first_file_of_a_package_is_a_folder(venv):
    sources = {**TORCH, "outer/__init__.py": "", "outer/inner/__init__.py": "x = 1\n"}
    sources["torch/__init__.py"] += "inner.x\n"
    venv.distribution("torch", "2.8.0", files=put(venv, sources))
    assert told(venv) == []
    file = venv.site / "outer/inner/__init__.py"
    file.unlink()
    file.mkdir()
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert found.severity == "error"
    assert found.predicts in seen


@pytest.mark.parametrize("python", ["", "if x:\n    y"])
@pytest.mark.parametrize(
    "end", ["if x:\n    #", "def f(self):\n", "x = y.", "if value", "x = 'a", "import", "x = f("]
)
def test_a_source_that_ends_too_early(venv, monkeypatch, python, end):
    """What a parser of any release refuses."""
    monkeypatch.setattr("cudriver.stack.collect.modules.sys.version_info", (3, 7))
    files = put(venv, {**TORCH, "outer/__init__.py": "inner = 1\n"})
    venv.distribution("torch", "2.8.0", files=files)
    files[-1].write_text(f"inner = x = y = 1\n{python}\n{end}")
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert (found.severity, found.because) == ("error", str(files[-1]))
    assert found.predicts in seen


def test_each_import_is_followed_so_far(venv, monkeypatch):
    """What one import reads is not taken from the next."""
    monkeypatch.setattr("cudriver.stack.collect.reach.MODULES", 8)
    many = [f"part{number}" for number in range(9)]
    first = {"alpha/__init__.py": "".join(f"from alpha import {name}\n" for name in many)}
    first |= {f"alpha/{name}.py": "x = 1\n" for name in many}
    second = {"beta/__init__.py": "import beta.middle\n", "beta/middle.py": "import beta.inner\n"}
    second |= {"beta/inner.py": "x = 1\n"}
    for name, sources in (("alpha", first), ("beta", second)):
        venv.distribution(name, "1.0", files=put(venv, sources))
    (venv.site / "beta/inner.py").unlink()
    (found,) = told(venv)
    assert found.severity == "error"
    assert found.predicts in real.import_error(venv.path, "beta")


FOLDER = "a folder"


def fill(file: Path, content: bytes | str | None) -> None:
    """What the file has then; None: there is none."""
    if content == FOLDER:
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)


NUMBERS = """
import os
with open(os.path.join(os.path.dirname(__file__), "VERSION"), encoding="ascii") as file:
    text = file.read().strip()
major, minor, patch = text.split(".")
assert (int(major), int(minor), int(patch)) == (3, 4, 1)
"""


@pytest.mark.parametrize(
    "content", [b"3.4.1\n", b"3.4.1", b"", b"3.4", b"3.4.\n", b"3.4.\0\0", b"\0" * 6, None, FOLDER]
)
def test_a_version_that_an_import_takes_apart(venv, content):
    """XGBoost compares it with its library's own."""
    files = put(venv, {"xgboost/__init__.py": NUMBERS, "xgboost/VERSION": "3.4.1\n"})
    own = library(venv.site / "xgboost/lib", "libxgboost.so", "int own(void) { return 0; }")
    venv.distribution("xgboost", "3.4.1", files=[*files, own])
    files[1].unlink()
    fill(files[1], content)
    seen, found = real.import_error(venv.path, "xgboost"), told(venv)
    assert [f.severity for f in found] == ["error"] * bool(seen), seen
    for each in found:
        assert each.predicts in seen
        assert (each.rule, each.subject, each.because) == ("CU404", "xgboost", str(files[1]))


POINTS = "[console_scripts]\nother = other:main\n\n# one more\n[pytest11]\nother = other.plugin\n"


@pytest.mark.parametrize("version", ["2.8.0", "2.4.1"])
@pytest.mark.parametrize(
    "content",
    [
        POINTS.encode(), b"", POINTS[:-5].encode(), POINTS[:-16].encode(), b"\0" * 60, b"x",
        POINTS[:30].encode() + b"\0" * 50, b"[x]\n\xff=1\n", None, FOLDER, POINTS[:-24].encode(),
        b"[x]\nother = not-one\n",
    ],
)  # fmt: skip
def test_entry_points_that_an_import_reads(venv, version, content):
    """PyTorch reads those of all packages from 2.5 on, for its backends."""
    code = "from importlib.metadata import entry_points\nentry_points(group='torch.backends')\n"
    text = TORCH["torch/__init__.py"].replace("from outer import inner\n", "")
    text = f"{code if version > '2.5' else ''}{text}"
    names = {**TORCH, "torch/__init__.py": text}
    names["torch/version.py"] = names["torch/version.py"].replace("2.8.0", version)
    venv.distribution("torch", version, files=put(venv, names))
    venv.distribution("other", "1.0")
    file = venv.site / "other-1.0.dist-info/entry_points.txt"
    if content is None:
        file.symlink_to(file.name)
    fill(file, content)
    seen, found = real.import_error(venv.path), told(venv)
    assert [f.severity for f in found] == ["error"] * bool(seen), seen
    for each in found:
        assert each.predicts in seen
        assert (each.rule, each.subject, each.because) == ("CU404", "torch", str(file))


@pytest.mark.parametrize(
    "content",
    [b'{"a": 1}', b"", b'{"a": "\0\0\0', b"\0" * 9, b'{"a":', b'{"\xff": 1}', None, FOLDER],
)
def test_a_json_file_that_an_import_reads(venv, content):
    """CuPy asks whether it is there."""
    code = (
        "import json, os\npath = os.path.join(os.path.dirname(__file__), '.data', '_wheel.json')\n"
        "if os.path.exists(path):\n    with open(path) as file: json.load(file)\n"
    )
    files = put(venv, {"cupy/__init__.py": code})
    venv.distribution("cupy-cuda12x", "14.2.0", files=files)
    file = venv.site / "cupy/.data/_wheel.json"
    file.parent.mkdir()
    fill(file, content)
    seen = real.import_error(venv.path, "cupy")
    found = [each for each in told(venv) if each.rule == "CU404"]
    assert [f.severity for f in found] == ["error"] * bool(seen), seen
    for each in found:
        assert each.predicts in seen
        assert (each.subject, each.because) == ("cupy", str(file))


def test_what_is_required_by_another_name(venv):
    """A package's name need not be its module's: protobuf brings google.protobuf."""
    venv.distribution("torch", "2.8.0", "something-else>=2", files=put(venv, TORCH))
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU402", "error")
    assert "requires something-else>=2" in found.title
    assert found.predicts in seen


@pytest.mark.parametrize("name", ["outer", "outer-inner", "unused"])
def test_what_is_required_and_imported_later(venv, name):
    module = "outer.inner" if "-" in name else "outer"
    later = {"torch/late.py": f"def use():\n    import {module}\n", "outer/inner.py": ""}
    files = put(venv, TORCH | later)
    (venv.site / "torch/__init__.py").write_text("from . import late\nclass backends: pass\n")
    venv.distribution("torch", "2.8.0", name, files=files)
    shutil.rmtree(venv.site / "outer")
    assert real.import_error(venv.path) is None
    seen = real.run(venv.path / "bin/python", "-c", "import torch.late as l; l.use()").stderr
    found = [f for f in told(venv) if f.rule == "CU402"]
    assert [f.severity for f in found] == ["warning"] * (name != "unused")
    for each in found:
        assert each.predicts in seen


@pytest.mark.parametrize("zeros", [0, 300])
def test_metadata_that_is_gone(venv, zeros):
    """importlib.metadata knows no version then, which who asks does not expect."""
    venv.distribution("nvidia-cuda-runtime", "13.0", files=[])
    file = venv.site / "nvidia_cuda_runtime-13.0.dist-info/METADATA"
    file.unlink()
    if zeros:
        file.write_bytes(bytes(zeros))
    code = "import importlib.metadata as m; print(m.version('nvidia-cuda-runtime'))"
    assert real.run(venv.path / "bin/python", "-c", code).stdout.strip() in ("None", "")
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU404", "warning")
    assert found.title.startswith("METADATA is ")
    assert found.title.endswith("nvidia-cuda-runtime 13.0 brought it")


@pytest.mark.parametrize(
    "damage",
    ["gone", "empty", "folder", "link", "zeros", "zeros behind", "zeros in it", "cut before it"],
)
def test_metadata_that_an_import_reads(venv, damage):
    read = "import importlib.metadata as m\nm.version('cuda-bindings').partition('+')\n"
    venv.distribution("cuda-core", "1.2.2", files=put(venv, {"cuda/core/__init__.py": read}))
    venv.distribution("cuda-bindings", "13.5.0", files=[])
    file = venv.site / "cuda_bindings-13.5.0.dist-info/METADATA"
    assert real.import_error(venv.path, "cuda.core") is None
    assert "METADATA" not in str(told(venv))
    whole = file.read_bytes()
    file.unlink()
    {"empty": file.touch, "folder": file.mkdir}.get(damage, str)()
    if damage == "link":
        file.symlink_to(file.name)
    elif damage not in ("gone", "empty", "folder"):
        before = {"zeros behind": whole, "zeros in it": whole.partition(b"13.5")[0]}
        before["cut before it"] = whole.partition(b"\nVersion")[0]
        file.write_bytes(before.get(damage, b"") + bytes(99))
    (found,) = [each for each in told(venv) if each.rule == "CU404"]
    seen = real.import_error(venv.path, "cuda.core")
    assert found.severity == ("error" if seen else "warning")
    assert (seen is None) == (damage in ("zeros behind", "zeros in it"))
    assert seen is None or found.predicts in seen


def test_of_two_that_are_missing_nobody_can_tell(venv):
    venv.distribution("torch", "2.8.0", "something-else>=2", "more", files=put(venv, TORCH))
    assert real.import_error(venv.path)
    assert told(venv) == []


@pytest.mark.parametrize("other", ["outer-inner==12.*; extra == 'cu12'", "more; extra == 'cu12'"])
def test_what_every_extra_for_a_cuda_release_asks_for(venv, other):
    asks = "outer-inner==13.*; extra == 'cu13'", other
    venv.distribution("torch", "2.8.0", *asks, files=put(venv, TORCH))
    part = put(venv, {"outer/part.py": "x = 1\n"})  # a folder without a first file
    venv.distribution("outer-part", "1.0", files=part)
    seen = real.import_error(venv.path)
    found = told(venv)
    assert [f.severity for f in found] == ["error"] * ("outer" in other)
    for each in found:
        assert each.predicts in seen
        assert each.title == "torch requires outer-inner==13.* (installed: none)"


def test_what_one_release_alone_asks_for_is_no_requirement(venv):
    venv.distribution(
        "torch", "2.8.0", "outer-inner==13.*; extra == 'cu13'", files=put(venv, TORCH)
    )
    venv.distribution("outer-part", "1.0", files=put(venv, {"outer/part.py": "x = 1\n"}))
    assert real.import_error(venv.path)
    assert told(venv) == []


def test_the_import_that_a_user_writes_is_named(venv):
    """PyTorch is required by what nobody requires: that is what a program imports."""
    torch = put(venv, {**TORCH, "torch/__init__.py": "from .version import __version__\n"})
    venv.distribution("torch", "2.8.0", files=torch)
    app = put(venv, {"app/__init__.py": "import torch\n"})
    venv.distribution("app", "1.0", "torch", files=app)
    (venv.site / "torch/version.py").unlink()
    assert real.import_error(venv.path, "app")
    (found,) = told(venv)
    assert "import app fails" in [each.value for each in found.evidence]


@pytest.mark.parametrize("name", ["driver", "nvrtc", "cynvrtc", "nvvm"])
def test_what_programs_import_besides(venv, name):
    """cuda-bindings has a module for each library; the first of them does not import the others."""
    parts = dict.fromkeys(("driver", "runtime", "cynvrtc", "nvvm"), "")
    parts["nvrtc"] = "from cuda.bindings import cynvrtc\n"
    files = put(venv, {f"cuda/bindings/{part}.py": text for part, text in parts.items()})
    venv.distribution("cuda-bindings", "13.0.0", files=files)
    assert told(venv) == []
    (venv.site / f"cuda/bindings/{name}.py").unlink()
    (found,) = told(venv)
    module = "cuda.bindings.driver" if name == "driver" else "cuda.bindings.nvrtc"
    seen = real.import_error(venv.path, module)
    assert (
        found.severity == ("error" if seen else "warning") == ("error", "warning")[name == "nvvm"]
    )
    if seen:
        assert found.predicts in seen
        assert f"import {module} fails" in [each.value for each in found.evidence]


@pytest.mark.parametrize(("version", "known"), [("14.2.0", True), ("13.6.0", False)])
@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_what_no_source_says_that_it_imports(venv, version, known, damage):
    sources = {
        "cupy/__init__.py": "for name in ['new_fusion']:\n    exec(f'from ._core import {name}')\n",
        "cupy/_core/__init__.py": "",
    }
    target = venv.site / f"cupy/_core/new_fusion{SUFFIX}"
    source = MODULE.format(needs="sched_yield").replace("__C", "_new_fusion")
    files = put(venv, sources)
    compile_c(target, source, f"-I{sysconfig.get_paths()['include']}")
    venv.distribution("cupy-cuda12x", version, files=[*files, target])
    assert real.import_error(venv.path, "cupy") is None
    target.unlink()
    if damage == "empty":
        target.write_bytes(b"")
    seen = real.import_error(venv.path, "cupy")
    (found,) = (f for f in told(venv) if f.rule == "CU404")
    assert found.severity == ("error" if known else "warning")
    assert not known or found.predicts in seen
    files[0].unlink()  # what is left is a folder, which imports nothing
    assert real.import_error(venv.path, "cupy") is None
    assert not any("import cupy fails" in str(f.evidence) for f in told(venv))


def test_the_first_file_of_a_package_of_modules(venv):
    """Without it cuda.bindings is a folder of modules, and those are what programs import."""
    files = put(venv, {"cuda/bindings/driver.py": "", "cuda/bindings/__init__.py": "x = 1\n"})
    venv.distribution("cuda-bindings", "13.0.0", files=files)
    files[1].unlink()
    assert real.import_error(venv.path, "cuda.bindings.driver") is None
    (found,) = told(venv)
    assert found.severity == "warning"


@pytest.mark.parametrize("name", ["_version", "cu13/_version", "cu13/part"])
def test_a_package_that_moves_to_a_folder_of_its_own(venv, name):
    """What it imports before that lies beside its first file."""
    venv.distribution("cuda-bindings", "13.2.0", files=put(venv, {"cuda/bindings/driver.py": ""}))
    init = "from cuda.core._version import x\n__path__ = [__path__[0] + '/cu13']\n"
    sources = {"__init__": init + "import cuda.core.part\n"}
    sources.update(dict.fromkeys(("_version", "cu13/_version", "cu13/part"), "x = 1\n"))
    files = put(venv, {f"cuda/core/{name}.py": text for name, text in sources.items()})
    venv.distribution("cuda-core", "1.2.2", files=files)
    (venv.site / f"cuda/core/{name}.py").unlink()
    seen = real.import_error(venv.path, "cuda.core")
    (found,) = [each for each in told(venv) if each.rule == "CU404"]
    assert found.severity == ("error" if seen else "warning"), seen
    assert (seen is None) == (name == "cu13/_version")


@pytest.mark.parametrize("half", ["cu12", "cu13"])
def test_half_of_a_package_that_moves_comes_first(venv, tmp_path, half):
    """With the folder for another CUDA release, or with the one that it wants."""
    venv.distribution("cuda-bindings", "13.2.0", files=put(venv, {"cuda/bindings/driver.py": ""}))
    init = """import importlib
def _move():
    try:
        globals().update(importlib.import_module('.cu13', __package__).__dict__)
    except ImportError:
        pass
_move()  # __path__ is another one now
from cuda.core import part
"""
    names = [f"cuda/core/{folder}/{name}.py" for folder in ("cu12", "cu13") for name in PARTS]
    files = put(venv, {"cuda/core/__init__.py": init, **dict.fromkeys(names, "")})
    venv.distribution("cuda-core", "1.2.2", files=files)
    side = tmp_path / "side"
    shutil.copytree(venv.site / f"cuda/core/{half}", side / "cuda/core" / half)
    shutil.copy(files[0], side / "cuda/core")
    environ = {"PYTHONPATH": str(side)}
    seen = real.import_error(venv.path, "cuda.core", **environ)
    report = real.check(venv.path, environ=real.clean_environ(**environ), probe_driver=False)
    found = [each for each in real.findings(report) if each.rule == "CU404"]
    assert [each.predicts in (seen or "") for each in found] == [True] * (seen is not None)
    assert (seen is None) == (half == "cu13")


@pytest.mark.parametrize("simulator", ["0", "1"])
def test_a_condition_that_a_variable_decides(venv, simulator):
    """Of both branches of an `if` the recipe tells the one that runs, without that variable."""
    config = "import os\nENABLE_CUDASIM = int(os.environ.get('NUMBA_ENABLE_CUDASIM') or 0)\n"
    init = "from numba.core import config\nif not config.ENABLE_CUDASIM:\n    from . import part\n"
    sources = {"__init__": "", "core/config": config, "cuda/__init__": init, "cuda/part": ""}
    files = put(venv, {f"numba/{name}.py": text for name, text in sources.items()})
    venv.distribution("numba", "0.61.2", files=files)
    files[-1].unlink()
    environ = {"NUMBA_ENABLE_CUDASIM": "1"} if simulator == "1" else {}
    seen = real.import_error(venv.path, "numba.cuda", **environ)
    report = real.check(venv.path, environ=real.clean_environ(**environ), probe_driver=False)
    (found,) = [each for each in real.findings(report) if each.rule == "CU404"]
    assert found.severity == ("error" if seen else "warning"), seen
    assert (seen is None) == (simulator == "1")


@pytest.mark.parametrize("number", ["0", "1"])
def test_a_condition_of_a_comparison(venv, number):
    """Of what another package imports, and what that requires."""
    helper = "import os\nmp = int(os.environ.get('JOBLIB_MULTIPROCESSING', 1)) or None\n"
    init = "from .helper import mp\nif mp is not None:\n    import cloudpickle\n"
    files = put(venv, {"joblib/__init__.py": init, "joblib/helper.py": helper})
    venv.distribution("joblib", "1.6.0", "cloudpickle>=3", files=files)
    app = put(venv, {"app/__init__.py": "import joblib\n"})
    venv.distribution("app", "1.0", "joblib", files=app)
    environ = {"JOBLIB_MULTIPROCESSING": "0"} if number == "0" else {}
    seen = real.import_error(venv.path, "app", **environ)
    report = real.check(venv.path, environ=real.clean_environ(**environ), probe_driver=False)
    found = [f for f in real.findings(report) if "cloudpickle" in f.title]
    assert [f.predicts in seen for f in found if f.severity == "error"] == [True] * bool(seen)
    assert (seen is None) == (number == "0")


@pytest.mark.parametrize("version", ["13.1.0", "13.2.0"])
def test_a_condition_that_a_version_decides(venv, version):
    files = put(venv, {"cuda/bindings/__init__.py": f"__version__ = '{version}'\n"})
    venv.distribution("cuda-bindings", version, files=files)
    name = "CUDA_BINDINGS_NVML_IS_COMPATIBLE"
    init = "from cuda.bindings import __version__\n"
    init += f"{name} = __version__ > '13.1.1'\nif {name}:\n    import cuda.core.part\n"
    files = put(venv, {"cuda/core/__init__.py": init, "cuda/core/part.py": ""})
    venv.distribution("cuda-core", "1.2.2", files=files)
    files[-1].unlink()
    seen = real.import_error(venv.path, "cuda.core")
    (found,) = [each for each in told(venv) if each.rule == "CU404"]
    assert found.severity == ("error" if seen else "warning"), seen
    assert (seen is None) == (version == "13.1.0")


@pytest.mark.parametrize("own", [False, True])
def test_what_a_distribution_without_files_of_its_own_requires(venv, own):
    """cuda-python brings nothing but cuda-bindings."""
    files = put(venv, {"cuda/pathfinder/__init__.py": ""})
    venv.distribution("cuda-pathfinder", "1.0", files=files)
    brings = put(venv, {"cuda_python.py": "x = 1\n"}) if own else []
    venv.distribution("cuda-python", "13.0", "cuda-bindings~=13.0.0", files=brings)
    seen = real.import_error(venv.path, "cuda.bindings.driver")
    found = told(venv)
    assert [(each.rule, each.severity) for each in found] == [("CU402", "error")] * (not own)
    for each in found:
        assert each.predicts in seen
        assert each.fix[0].endswith("install 'cuda-bindings~=13.0.0'")
        assert each.proven


def test_a_framework_that_needs_one_which_is_not_installed(venv):
    files = put(venv, {"torchvision/__init__.py": "import torch\n"})
    venv.distribution("torchvision", "0.29.2", "torch>=2.14", files=files)
    (found,) = told(venv)
    assert (found.rule, found.severity, found.subject) == ("CU402", "error", "torchvision")
    assert found.predicts in real.import_error(venv.path, "torchvision")


LACKS = "import gone\n"


def test_what_lacks_something_is_followed_from_what_requires_it(venv, monkeypatch):
    """Of others, which may be large, no source is read."""
    read = []
    monkeypatch.setattr(
        "cudriver.stack.collect.modules.Modules._parse",
        lambda modules, place, parse=Modules._parse: (
            read.append(place.path) or parse(modules, place)
        ),
    )
    torch = {**TORCH, "torch/__init__.py": "import other, middle\nfrom .version import cuda\n"}
    venv.distribution("torch", "2.8.0", "other", "middle", files=put(venv, torch))
    inner = {"middle/__init__.py": "import inner\n"}
    venv.distribution("middle", "1.0", "inner", files=put(venv, inner))
    venv.distribution("inner", "1.0", "gone", files=put(venv, {"inner/__init__.py": LACKS}))
    for name in ("other", "another"):
        venv.distribution(name, "1.0", files=put(venv, {f"{name}/__init__.py": "x = 1\n"}))
    (found,) = told(venv)
    assert (found.severity, found.subject) == ("error", "torch")
    assert found.predicts in real.import_error(venv.path)
    assert [path for path in read if "other/" in path] == []


def test_a_copy_that_comes_first_and_is_whole_is_not_followed(fastnet, tmp_path, monkeypatch):
    side = tmp_path / "side"
    shutil.copytree(fastnet.site / "fastnet", side / "fastnet")
    environ = real.clean_environ(PYTHONPATH=str(side))
    read = []
    monkeypatch.setattr(Modules, "tree", lambda modules, place: read.append(place.path))
    real.check(fastnet.path, environ=environ, probe_driver=False)
    assert read == []
    (side / "fastnet/__init__.py").unlink()
    real.check(fastnet.path, environ=environ, probe_driver=False)
    assert read
