"""Imports that hide: behind a __path__, in a function that runs, as an attribute, in a folder that
comes first, of a package that is gone. The oracle is the real import.
"""

import shutil

import pytest
import real
from test_breakage_built import Venv, pytestmark  # noqa: F401

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.places import Place
from cudriver.stack.model import Environment
from cudriver.stack.rootfs import Root

SOURCES = {
    "torch/__init__.py": """
from .version import __version__
try:
    from torch import optional
except ImportError:
    optional = None
def _load():
    import torch.called
_load()
from torch import far, moved
class Module(far.Base): pass
tensor = far.tensor if moved.x else None
size = len(far.names)
import helper.deep
tensors = helper.lazy.x
from torch.moved import *
import single
class backends: pass
""",
    "torch/version.py": "__version__ = '2.8.0'\ncuda = None\nhip = None\n",
    "torch/called.py": "x = 1\n",
    "torch/optional.py": "x = [\n1]\n",
    "torch/far.py": "names = ['a']\ndef tensor():\n    pass\nclass Base:\n    pass\n",
    "torch/moved/__init__.py": """
import os
__path__ = [os.path.join(os.path.dirname(__file__), 'cu12')]
from torch.moved.inner import x
""",
    "torch/moved/cu12/inner.py": "x = 1\n",
}
HELPER = {
    "helper/__init__.py": """
from . import deep
def __getattr__(name):
    if name == 'lazy':
        import helper.lazy as lazy
        return lazy
    raise AttributeError(name)
""",
    "helper/lazy.py": "x = 1\n",
    "helper/deep.py": "from .deeper import x\n",
    "helper/deeper.py": "x = 1\n",
}


@pytest.fixture
def venv(tmp_path):
    made = Venv(tmp_path / "env")
    for name, text in {**SOURCES, **HELPER}.items():
        (made.site / name).parent.mkdir(parents=True, exist_ok=True)
        (made.site / name).write_text(text)
    files = [made.site / name for name in SOURCES]
    needs = "helper>=1", "single", "nvidia-x; extra == 'y'"
    made.distribution("torch", "2.8.0", *needs, files=files)
    (made.site / "single.py").write_text("x = 1\n")
    made.distribution("single", "1.0", files=[made.site / "single.py"])
    made.distribution("helper", "1.0", files=[made.site / name for name in HELPER])
    return made


def agrees(venv, *words: str, **variables: str):
    """The check's one finding, an error whose text is the real import's."""
    seen = real.import_error(venv.path, **variables)
    environ = real.clean_environ(**variables)
    report = real.check(venv.path, environ=environ, probe_driver=False)
    machine = "CU1", "CU401"
    found = real.findings(report)
    told = [f for f in found if f.severity != "note" and not f.rule.startswith(machine)]
    if seen is None:
        assert told == []
        return None
    (found,) = told
    assert (found.severity, found.subject) == ("error", "torch"), seen
    assert found.predicts in seen
    assert all(word in found.title for word in words)
    return found


def test_nothing_is_wrong(venv):
    assert agrees(venv) is None


@pytest.mark.parametrize(
    "name",
    [
        "torch/called.py", "torch/moved/cu12/inner.py", "helper/deep.py", "helper/deeper.py",
        "helper/lazy.py", "single.py",
    ],
)  # fmt: skip
def test_a_module_that_is_gone(venv, name):
    (venv.site / name).unlink()
    assert agrees(venv, name.rpartition("/")[2]) is not None


@pytest.mark.parametrize(
    "text", ["", "names = ['a']\n", "names = ['a']\ndef tensor():\n    pass\n"]
)
def test_attributes_that_are_gone(venv, text):
    (venv.site / "torch/far.py").write_text(text)
    found = agrees(venv, "far.py")
    assert "has no attribute" in found.predicts


def test_a_source_that_cannot_be_compiled_is_no_import_error(venv):
    (venv.site / "torch/optional.py").write_text("x = [\n1")
    assert agrees(venv, "optional.py").predicts == "'[' was never closed"
    (venv.site / "torch/optional.py").unlink()
    assert real.import_error(venv.path) is None


def test_a_package_that_is_required_and_gone(venv):
    shutil.rmtree(venv.site / "helper")
    shutil.rmtree(venv.site / "helper-1.0.dist-info")
    found = agrees(venv, "torch requires helper>=1 (installed: none)")
    assert found.rule == "CU402"
    assert found.fix[0].endswith("install 'helper>=1'")
    assert found.proven


def test_a_part_of_a_package_that_comes_first(venv, tmp_path):
    side = tmp_path / "side"
    shutil.copytree(venv.site / "helper", side / "helper")
    assert agrees(venv, PYTHONPATH=str(side)) is None
    (side / "helper/deeper.py").unlink()
    found = agrees(venv, "hides helper 1.0", PYTHONPATH=str(side))
    assert found.fix[0] == "unset PYTHONPATH"


def test_a_part_of_a_package_below_another_that_comes_first(venv, tmp_path):
    """space-parts is space_parts, or space/parts."""
    for name, text in {"space/parts/__init__.py": "", "space/parts/a.py": "x = 1\n"}.items():
        (venv.site / name).parent.mkdir(parents=True, exist_ok=True)
        (venv.site / name).write_text(text)
    files = [venv.site / f"space/parts/{name}.py" for name in ("__init__", "a")]
    venv.distribution("space-parts", "1.0", files=files)
    with open(venv.site / "torch/__init__.py", "a") as file:
        file.write("import space.parts.a\n")
    with open(venv.site / "torch-2.8.0.dist-info/METADATA", "a") as file:
        file.write("Requires-Dist: space-parts\n")
    side = tmp_path / "side"
    shutil.copytree(venv.site / "space", side / "space")
    assert agrees(venv, PYTHONPATH=str(side)) is None
    (side / "space/parts/a.py").unlink()
    agrees(venv, "hides space-parts 1.0", PYTHONPATH=str(side))


@pytest.mark.parametrize("damage", ["gone", "empty", "an attribute less", "cut"])
@pytest.mark.parametrize(
    "errors",
    [
        *("ModuleNotFoundError", "ImportError", "AttributeError", "(ImportError, AttributeError)"),
        "ImportError as e:\n    if 'No module named' in str(e): pass\n    else: raise#",
        "ImportError as e:\n    if 'No module named' not in str(e):\n        raise#",
    ],
)
def test_what_a_try_survives(venv, errors, damage):
    """Not every error that an import may end in."""
    with open(venv.site / "torch/__init__.py", "a") as file:
        file.write(f"try:\n    import helper.guarded\nexcept {errors}:\n    pass\n")
    guarded = "import helper.odd as odd\nfrom helper.odd import x\nclass A(odd.Base): pass\n"
    (venv.site / "helper/guarded.py").write_text(guarded)
    odd = venv.site / "helper/odd.py"
    odd.write_text("x = 1\nclass Base: pass\n")
    shutil.rmtree(venv.site / "helper-1.0.dist-info")
    files = [venv.site / name for name in (*HELPER, "helper/guarded.py", "helper/odd.py")]
    venv.distribution("helper", "1.0", files=files)
    assert agrees(venv) is None
    if damage == "gone":
        odd.unlink()
    else:
        odd.write_text({"empty": "", "cut": "x = (1,"}.get(damage, "x = 1\n"))
    seen = real.import_error(venv.path)
    report = real.check(venv.path, environ=real.clean_environ(), probe_driver=False)
    found = [f for f in real.findings(report) if f.severity == "error" and f.rule == "CU404"]
    assert [f.predicts in (seen or "") for f in found] == [True] * (seen is not None)


def test_a_package_that_no_import_reaches(venv):
    """Its own first file is gone: a warning, since nothing here fails."""
    (venv.site / "spare").mkdir()
    files = [venv.site / "spare/__init__.py", venv.site / "spare/a.py"]
    for file in files:
        file.write_text("x = 1\n")
    venv.distribution("spare", "1.0", files=files)
    files[0].unlink()
    assert real.import_error(venv.path) is None
    report = real.check(venv.path, environ=real.clean_environ(), probe_driver=False)
    assert [f.severity for f in real.findings(report) if f.rule == "CU404"] == ["warning"]


def test_names_below_a_package_that_is_elsewhere(venv):
    env = Environment(str(venv.path), "venv", python="3.12", site_packages=[str(venv.site)])
    assert "inner" in Modules(Root("/"), env, ()).children("torch.moved")


def test_a_source_that_is_newer_than_this_python(tmp_path):
    file = tmp_path / "part.py"
    file.write_text(
        "from . import a\ntype A[T] = list[T]\nclass Holder[T](list[T]):\n"
        "    def of[S: dict[str, int]](self, x: S): ...\n    type B = int\n"
    )
    modules = Modules(Root("/"), Environment(str(tmp_path), "venv", python="3.99"), ())
    assert modules.tree(Place(str(file), [], None)) is not None
