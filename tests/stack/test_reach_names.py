"""Names that a damaged module no longer binds, used in modules that imports reach, and what else
imports need. The oracle is the real import.
"""

import shutil

import pytest
import real
from test_breakage_built import Venv, pytestmark  # noqa: F401
from test_reach_roots import put
from test_reach_texts import agrees, lost

from cudriver.stack.collect import running


@pytest.fixture
def venv(tmp_path):
    return Venv(tmp_path / "env")


EXTEND = """
from . import lost, plain
def extend(module, *rest):
    every = module.y
extend(plain)
"""
# What stands in fastnet, whose module `lost` is emptied; in `other`, which it imports first.
USES = {
    "extend(lost)": EXTEND + "extend(lost)\n",
    "extend(*[plain, lost])": EXTEND + "extend(*[plain, lost])\n",
    "a context": "from . import lost\nwith lost.y:\n    pass\n",
    "a context, inside": "from . import lost\nclass C:\n    __enter__ = __exit__ = print\n"
    "with C(), lost.y:\n    pass\n",
    "a module sets it": "import other\nfrom .lost import y\n",
    "an object has it": "from .lost import z\n",
    "a star": "from .lost import *\nclass C:\n    own = 1\n    both = own, y\n",
    "a star, survived": "from .lost import *\ntry:\n    y\nexcept NameError:\n    y = 2\n",
    "a star, otherwise": "from .lost import *\ny = len([y for y in ()])\ny + 1\n",
    "two stars": "from .lost import *\nfrom .plain import *\ny\n",
    "a star, with globals": "from .lost import *\nglobals()['y'] = 1\ny\n",
}
MANAGER = "class Any:\n    __enter__ = __exit__ = print\ny = z = Any()\n"
OTHER = """import fastnet.lost as lost
lost.y = 2
class Thing: pass
thing = Thing()
thing.z = 3
"""


@pytest.mark.parametrize("use", USES)
def test_a_name_of_a_module_that_is_empty(venv, use):
    sources = {
        "fastnet/__init__.py": USES[use], "fastnet/lost.py": MANAGER,
        "fastnet/plain.py": "x = y = 1\n", "other.py": OTHER,
    }  # fmt: skip
    files = put(venv, sources)
    venv.distribution("fastnet", "1.0", files=files)
    assert real.import_error(venv.path, "fastnet") is None
    assert lost(venv) == []
    files[1].write_text("")
    if real.import_error(venv.path, "fastnet") is None:
        assert [found.severity for found in lost(venv)] == ["warning"]
    elif "*[" in use or "inside" in use:
        assert [found.severity for found in lost(venv)] == ["warning"]  # it fails, unproven
    else:
        agrees(venv)


@pytest.mark.parametrize(
    "end", ["del Cl", "test = Cl", "Class", "del Class", "import ot", "class A:\n x = Cl"]
)
def test_a_package_that_is_cut_within_a_name(venv, end):
    """Though it takes all names of another."""
    head = "from .plain import *\n"
    sources = {
        "fastnet/__init__.py": f"{head}del Class\n# more\n",
        "fastnet/plain.py": "Class = 1\n",
    }
    files = put(venv, sources)
    venv.distribution("fastnet", "1.0", files=files)
    files[0].write_text(head + end)
    if real.import_error(venv.path, "fastnet") is None:
        assert lost(venv) == []
    else:
        agrees(venv)


def test_a_call_is_followed_so_often(venv, monkeypatch):
    """A source may call one function again and again."""
    monkeypatch.setattr(running.Scope, "again", 0)
    sources = {"fastnet/__init__.py": USES["extend(lost)"], "fastnet/plain.py": "y = 1\n"}
    files = put(venv, {**sources, "fastnet/lost.py": "y = 1\n"})
    venv.distribution("fastnet", "1.0", files=files)
    files[2].write_text("")
    assert [found.severity for found in lost(venv)] == ["warning"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("from .lost import y", "cannot import name"),
        ("return lost.y", "module 'fastnet.lost' has no attribute"),
    ],
)
def test_a_name_of_an_empty_module_that_is_used_later(venv, line, says):
    init = f"from . import lost\ndef use():\n    {line}\n"
    files = put(venv, {"fastnet/__init__.py": init, "fastnet/lost.py": "y = 1\n"})
    venv.distribution("fastnet", "1.0", files=files)
    files[1].write_text("")
    (found,) = lost(venv)
    assert (found.severity, found.predicts) == ("warning", says)
    (venv.site / "app.py").write_text("import fastnet\nfastnet.use()\n")
    assert says in real.import_error(venv.path, "app")


NUMBA = {
    "numba/__init__.py": "import os\n__path__ = [os.path.join("
    "os.path.dirname(os.path.dirname(__file__)), 'numba_cuda', 'numba')]\n",
    "numba_cuda/__init__.py": "__version__ = '0.30.4'\n",
    "numba_cuda/numba/cuda/__init__.py": "from . import utils\nopen(utils.__file__.replace("
    "'utils.py', 'memory_management/nrt.cu'))\ndef use():\n    import numba.cuda.late\n",
    "numba_cuda/numba/cuda/utils.py": "x = 1\n",
    "numba_cuda/numba/cuda/late.py": "x = 1\n",
    "numba_cuda/numba/cuda/memory_management/nrt.cu": "__device__\n",
}  # fmt: skip


@pytest.fixture
def numba_cuda(venv):
    numba, *files = put(venv, NUMBA)
    venv.distribution("numba", "0.68.1", files=[numba])
    venv.distribution("numba-cuda", "0.30.4", files=files)
    assert lost(venv) == []
    return venv


def test_a_module_of_a_package_that_replaces_another(numba_cuda):
    """It is told by the name that is imported."""
    (numba_cuda.site / "numba_cuda/numba/cuda/late.py").unlink()
    (found,) = lost(numba_cuda)
    assert found.predicts == "No module named 'numba.cuda.late'"
    (numba_cuda.site / "app.py").write_text("import numba.cuda\nnumba.cuda.use()\n")
    assert found.predicts in real.import_error(numba_cuda.path, "app")


def test_half_of_a_package_that_replaces_another_comes_first(numba_cuda, tmp_path):
    side = tmp_path / "side"
    shutil.copytree(numba_cuda.site / "numba_cuda", side / "numba_cuda")
    shutil.copy(numba_cuda.site / "numba/__init__.py", side / "numba.py")
    (side / "numba_cuda/numba/cuda/utils.py").unlink()
    environ = real.clean_environ(PYTHONPATH=str(side))
    report = real.check(numba_cuda.path, environ=environ, probe_driver=False)
    (found,) = (f for f in real.findings(report) if f.rule == "CU404")
    assert (found.severity, found.predicts) == ("error", "cannot import name 'utils' from")


@pytest.mark.parametrize("damage", ["gone", "folder", "link", "empty"])
def test_a_file_that_an_import_opens(numba_cuda, damage):
    file = numba_cuda.site / "numba_cuda/numba/cuda/memory_management/nrt.cu"
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "link":
        file.symlink_to(file.name)
    elif damage == "empty":
        file.write_text("")
    seen = real.import_error(numba_cuda.path, "numba.cuda")
    assert [f.severity for f in lost(numba_cuda)] == ["error"] * (seen is not None)
    assert all(f.predicts in seen for f in lost(numba_cuda))


LOOKS = """import os
path = os.path.join(os.path.dirname(__file__), "bin", "torch_shm_manager")
if not os.path.exists(path):
    raise RuntimeError("Unable to find torch_shm_manager at " + path)
"""


@pytest.mark.parametrize("damage", ["gone", "folder", "link", "empty", "its folder"])
def test_a_file_that_an_import_looks_for(venv, damage):
    """Images are made small without PyTorch's bin/, of which an import opens nothing."""
    files = put(venv, {"torch/__init__.py": LOOKS, "torch/bin/torch_shm_manager": "x"})
    venv.distribution("torch", "2.13.0", files=files)
    assert lost(venv) == []
    files[1].unlink()
    if damage == "folder":
        files[1].mkdir()
    elif damage == "link":
        files[1].symlink_to("gone")
    elif damage == "empty":
        files[1].write_text("")
    elif damage == "its folder":
        files[1].parent.rmdir()
    seen = real.import_error(venv.path, "torch")
    assert (seen is None) == (damage in ("folder", "empty"))
    assert [f.severity for f in lost(venv)] == ["error"] * (seen is not None)
    assert all(f.predicts in seen for f in lost(venv))


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_what_only_compiled_code_of_another_package_imports(venv, damage):
    """pandas, which has the recipe, is required by what a program imports."""
    pandas = "for name in ['tz']:\n    exec(f'from dateutil.{name} import gettz')\n"
    sources = {"app/__init__.py": "import pandas\n", "pandas/__init__.py": pandas}
    sources.update({f"dateutil/{name}.py": "" for name in ("__init__", "parser", "easter")})
    sources["dateutil/relativedelta.py"] = ""
    app, pandas, *dateutil, tz = put(venv, {**sources, "dateutil/tz.py": "gettz = 1\n"})
    venv.distribution("app", "1.0", "pandas", files=[app])
    venv.distribution("pandas", "2.3.3", "python-dateutil", files=[pandas])
    venv.distribution("python-dateutil", "4.0.0", files=[*dateutil, tz])
    assert real.import_error(venv.path, "app") is None
    assert lost(venv) == []
    if damage == "gone":
        tz.unlink()
    else:
        tz.write_text("")
    assert real.import_error(venv.path, "app")
    (found,) = lost(venv)
    assert (found.severity, found.predicts) == ("error", "cannot import name")  # as Cython says it
