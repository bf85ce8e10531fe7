"""Files of packages that imports reach, or do not. The oracle is the real import."""

import os
import shutil
import sysconfig
from pathlib import Path

import numpy
import pytest
import real
from test_breakage_built import SUFFIX, Venv, compile_c, pytestmark  # noqa: F401

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.sources import prefixes

SOURCES = {
    "torch/__init__.py": """
import os
from typing import TYPE_CHECKING
from .version import __version__
if TYPE_CHECKING:
    from torch import never
try:
    from torch import optional
except ImportError:
    optional = None
try:
    from torch import needed
except ImportError:
    raise
from torch import nn as nn, overwritten
from torch.functional import *
if os.environ.get("NOT_SET_HERE"):
    import torch.chosen
overwritten = 1
def tensor():
    import torch.late
def lazily():
    from torch import late
def __getattr__(name):
    raise AttributeError(name)
class backends:
    import torch.inclass
""",
    "torch/version.py": "__version__ = '2.8.0'\ncuda = None\nhip = None\n",
    "torch/nn/__init__.py": "from .modules import *\nfrom . import functional as F\n",
    "torch/nn/functional.py": "from ..functional import einsum\n",
    "torch/nn/modules/__init__.py": "from .linear import Linear\n__all__ = ['Linear']\n",
    "torch/nn/modules/linear.py": "from torch.functional import einsum\nclass Linear: pass\n",
    "torch/functional.py": "__all__ = ['einsum']\ndef einsum(\n):\n    pass\n",
    "torch/overwritten.py": "x = 1\n",
    "torch/optional.py": "x = 1\n",
    "torch/needed.py": "x = 1\n",
    "torch/never.py": "x = 1\n",
    "torch/chosen.py": "x = 1\n",
    "torch/late.py": "x = 1\n",
    "torch/inclass.py": "x = 1\n",
}
FATAL = [
    "torch/nn/functional.py", "torch/nn/modules/__init__.py", "torch/nn/modules/linear.py",
    "torch/functional.py", "torch/needed.py", "torch/inclass.py", "torch/version.py",
]  # fmt: skip
HARMLESS = ["torch/optional.py", "torch/never.py", "torch/chosen.py", "torch/late.py"]


BY_C = """
#include <Python.h>
static const char named[] = "\\0numpy._core._multiarray_umath";
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__C(void)
{
    return PyImport_ImportModule(named + 1) ? PyModule_Create(&module) : NULL;
}
"""


@pytest.fixture
def venv(tmp_path):
    made = Venv(tmp_path / "env")
    for name, text in SOURCES.items():
        (made.site / name).parent.mkdir(parents=True, exist_ok=True)
        (made.site / name).write_text(text)
    made.distribution("torch", "2.8.0", files=[made.site / name for name in SOURCES])
    return made


def told(venv):
    report = real.check(venv.path, environ=real.clean_environ(), probe_driver=False)
    machine = "CU1", "CU401"  # where the machine has a GPU CU401 is an error, and holds others
    found = real.findings(report)
    return [f for f in found if f.severity != "note" and not f.rule.startswith(machine)]


def agrees(venv, file: str) -> None:
    """The check and the real import say the same of that file."""
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert found.rule == "CU404"
    assert found.because == str(venv.site / file)
    assert found.severity == ("error" if seen else "warning"), seen
    assert seen is None or found.predicts in seen
    if seen:
        assert found.subject == "torch"
        assert any("import torch fails" in e.value for e in found.evidence)


def test_nothing_is_wrong(venv):
    assert real.import_error(venv.path) is None
    assert told(venv) == []


@pytest.mark.parametrize("name", [*FATAL, *HARMLESS])
def test_a_module_that_is_gone(venv, name):
    (venv.site / name).unlink()
    # Without its __init__.py a folder is a package of nothing, of which `*` takes nothing.
    fatal = name in FATAL and name != "torch/nn/modules/__init__.py"
    assert (real.import_error(venv.path) is not None) == fatal
    agrees(venv, name)


@pytest.mark.parametrize("name", [*FATAL, *HARMLESS])
def test_an_empty_module(venv, name):
    (venv.site / name).write_text("")
    agrees(venv, name)


@pytest.mark.parametrize("name", ["torch/functional.py", "torch/late.py"])
@pytest.mark.parametrize("text", ["def einsum(", "# edited here\ndef einsum(): pass\n"])
def test_a_module_that_is_cut_or_edited(venv, name, text):
    (venv.site / name).write_text(text)
    if text.endswith("pass\n"):
        assert real.import_error(venv.path) is None
        assert told(venv) == []
    else:  # what Python cannot compile is told, though nothing reaches it
        agrees(venv, name)


@pytest.mark.parametrize(
    "end",
    [
        "ein",
        "x = ein",
        "x: int = ein",
        "einsum",
        "from torch.overwritten import xy",
        "from torch.overwritten import x",
        "len",
    ],
)
def test_a_module_that_is_cut_within_a_name(venv, end):
    """What is left can be compiled."""
    file = venv.site / "torch/functional.py"
    file.write_text(SOURCES["torch/functional.py"] + end)
    if real.import_error(venv.path) is None:
        assert end in ("einsum", "len", "from torch.overwritten import x")
        assert told(venv) == []
    else:
        agrees(venv, "torch/functional.py")


@pytest.mark.parametrize(
    "end",
    [
        *("import functoo", "import json, functoo", "import functools"),
        *("from torch.overwritten import xy", "from .overwritten import y"),
    ],
)
def test_a_module_that_is_cut_within_an_import(venv, end):
    (venv.site / "torch/functional.py").write_text(end)
    agrees(venv, "torch/functional.py")


def test_a_folder_that_is_gone(venv):
    shutil.rmtree(venv.site / "torch/nn")
    agrees(venv, "torch/nn/__init__.py")


def test_a_whole_package_that_is_gone(venv):
    shutil.rmtree(venv.site / "torch")
    assert "No module named 'torch'" in real.import_error(venv.path)
    (found,) = (f for f in told(venv) if f.rule == "CU404")
    assert (found.severity, found.predicts) == ("error", "No module named 'torch'")


@pytest.mark.skipif(
    numpy.lib.NumpyVersion(numpy.__version__) < "2.0.0", reason="names the files as NumPy 2 does"
)
class TestNumPy:
    """One that PyTorch's own import does without, and this one's does not."""

    @pytest.fixture
    def venv(self, venv):
        site = Path(numpy.__file__).parent.parent
        name = f"numpy-{numpy.__version__}.dist-info"
        for folder in ("numpy", "numpy.libs", name):
            shutil.copytree(site / folder, venv.site / folder, copy_function=os.link)
        init = venv.site / "torch/__init__.py"
        init.write_text("import numpy\n" + init.read_text())
        return venv

    def replace(self, venv, name: str, data: bytes) -> None:
        (venv.site / name).unlink()  # a link to NumPy's own
        (venv.site / name).write_bytes(data)

    def test_nothing_is_wrong(self, venv):
        assert real.import_error(venv.path) is None
        assert told(venv) == []

    @pytest.mark.parametrize(
        "name", ["_core/numeric", "lib/_shape_base_impl", "linalg/_linalg", "_core/_exceptions"]
    )
    def test_a_module_that_is_gone(self, venv, name):
        (venv.site / f"numpy/{name}.py").unlink()
        assert real.import_error(venv.path) is not None
        agrees(venv, f"numpy/{name}.py")

    @pytest.mark.parametrize("name", ["exceptions", "dtypes", "_core/_exceptions"])
    def test_an_empty_module_of_which_the_core_takes_names(self, venv, name):
        self.replace(venv, f"numpy/{name}.py", b"")
        agrees(venv, f"numpy/{name}.py")

    def test_its_first_file_is_gone_under_an_extension_module(self, venv):
        files = [venv.site / "fastnet/__init__.py", venv.site / f"fastnet/_C{SUFFIX}"]
        files[0].parent.mkdir()
        files[0].write_text("from . import _C\n")
        compile_c(files[1], BY_C, f"-I{sysconfig.get_paths()['include']}")
        venv.distribution("fastnet", "1.0", "numpy", files=files)
        assert real.import_error(venv.path, "fastnet") is None
        (venv.site / "numpy/__init__.py").unlink()
        (found,) = told(venv)
        assert found.predicts == "module 'numpy' has no attribute"
        assert found.predicts in str(real.import_error(venv.path, "fastnet"))

    @pytest.mark.parametrize("damage", ["gone", "empty", "zeroed", "half", "foreign"])
    @pytest.mark.parametrize("name", ["umath", "linalg", "openblas"])
    def test_an_extension_module_or_its_library(self, venv, name, damage):
        (file,) = {
            "umath": (venv.site / "numpy/_core").glob("_multiarray_umath*.so"),
            "linalg": (venv.site / "numpy/linalg").glob("_umath_linalg*.so"),
            "openblas": (venv.site / "numpy.libs").glob("*openblas*"),
        }[name]
        data = file.read_bytes()
        broken = {"empty": b"", "zeroed": bytes(64) + data[64:], "half": data[: len(data) // 2]}
        broken["foreign"] = data[:18] + b"\xf3\0" + data[20:]  # RISC-V
        file.unlink()
        if damage != "gone":
            file.write_bytes(broken[damage])
        seen = real.import_error(venv.path)
        assert seen is not None
        (found,) = told(venv)
        assert (found.rule, found.severity) == ("CU404", "error"), seen
        assert file.name in found.title
        assert "--force-reinstall" in found.fix[0] or "--reinstall-package" in found.fix[0]
        if "signal" not in seen and damage != "gone" and name != "umath":
            assert found.predicts in seen

    @pytest.mark.parametrize("damage", ["zeroed", "half"])
    def test_a_try_survives_a_refused_library_and_no_signal(self, venv, damage):
        init = venv.site / "torch/__init__.py"
        guarded = "try:\n    import numpy\nexcept ImportError:\n    pass\n"
        init.write_text(init.read_text().replace("import numpy\n", guarded))
        (file,) = (venv.site / "numpy/linalg").glob("_umath_linalg*.so")
        data = file.read_bytes()
        broken = {"zeroed": bytes(64) + data[64:], "half": data[: len(data) // 2]}
        self.replace(venv, str(file), broken[damage])
        seen = real.import_error(venv.path)
        (found,) = told(venv)
        assert (seen is None) == (damage == "zeroed")
        # Nobody requires NumPy there: its own import is one that a program makes.
        assert real.import_error(venv.path, "numpy") is not None
        assert (found.rule, found.severity) == ("CU404", "error")
        if seen is None:
            assert found.subject == "numpy"


def test_a_source_without_an_end(venv):
    """Nothing that a package holds makes the check fail."""
    (venv.site / "torch/late.py").unlink()
    init = venv.site / "torch/__init__.py"
    for text in ("x = " + "(" * 5000, "\0", "import torch." + ".".join("a" * 4000)):
        init.write_text(text)
        assert {f.rule for f in told(venv)} == {"CU404"}


def test_the_parts_of_a_long_import_are_made_one_at_a_time():
    """All those of 60,000 parts are gigabytes."""
    parts = prefixes("a.b.c")
    assert (next(parts), *parts) == ("a", "a.b", "a.b.c")


def test_a_long_import_is_followed_to_what_is_not_there(venv, monkeypatch):
    find, asked = Modules.find, []

    def counted(self, name):
        asked.append(name)
        return find(self, name)

    monkeypatch.setattr(Modules, "find", counted)
    (venv.site / "torch/late.py").unlink()
    (venv.site / "torch/__init__.py").write_text("import torch." + ".".join("a" * 100))
    told(venv)
    assert 0 < asked.count("torch.a") < 10


def test_sources_are_not_read_for_each_attribute(venv, monkeypatch):
    """Another module may set what a damaged one lacks: JAX takes thousands from one."""
    text, read = Modules.text, []
    monkeypatch.setattr(
        Modules, "text", lambda self, place: read.append(place) or text(self, place)
    )
    with open(venv.site / "torch/needed.py", "a") as file:
        file.write("import torch\nfrom torch import functional as f\ntorch.functional.made_0 = 1\n")
        file.write("".join(f"f.made_{number % 500}\n" for number in range(2000)))
    (venv.site / "torch/functional.py").write_text("")
    told(venv)
    assert 0 < len(read) < 200


def test_suffix_of_the_environments_python(venv):
    """An extension module for another Python is none of this one's."""
    init = venv.site / "torch/__init__.py"
    init.write_text("import torch._C\n")
    (venv.site / "torch/late.py").unlink()
    (venv.site / f"torch/_C{SUFFIX.replace('cpython-3', 'cpython-2')}").write_bytes(b"x")
    assert [f.severity for f in told(venv)] == ["warning"]
