"""Which text a user reads of an import that ends: that of the first error in Python's own order.
The oracle is the real import.
"""

import sys
import sysconfig

import pytest
import real
from test_breakage_built import MODULE, SUFFIX, Venv, compile_c, pytestmark  # noqa: F401
from test_reach import told
from test_reach_roots import fastnet, put  # noqa: F401

from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.places import Place
from cudriver.stack.collect.running import attributes
from cudriver.stack.model import Environment, Evidence, FileFault
from cudriver.stack.rootfs import Root


@pytest.fixture
def venv(tmp_path):
    return Venv(tmp_path / "env")


def compiled(file, source: str) -> None:
    compile_c(file, source, f"-I{sysconfig.get_paths()['include']}")
    file.with_name(file.name + ".c").unlink()


def lost(venv):
    return [f for f in told(venv) if f.rule in ("CU402", "CU404")]


def agrees(venv, module: str = "fastnet") -> str:
    """The one error's text, which stands in that of the real import."""
    seen = real.import_error(venv.path, module)
    (found,) = lost(venv)
    assert found.severity == "error"
    assert found.predicts
    assert found.predicts in seen
    return found.predicts


@pytest.mark.parametrize(
    ("first", "says"),
    [
        # `from` imports what is there before it looks for what is not.
        ("from . import lost, uses", "No module named 'fastnet.lost'"),
        ("from . import lost, plain", "cannot import name 'lost' from"),
        ("from . import uses, lost", "No module named 'fastnet.lost'"),
        ("from fastnet import lost as a, plain, uses as b", "No module named 'fastnet.lost'"),
    ],
)
def test_the_first_error_of_a_from(venv, first, says):
    sources = {
        "fastnet/__init__.py": f"{first}\n",
        "fastnet/uses.py": "from fastnet.lost import x\n",
        "fastnet/plain.py": "x = 1\n",
        "fastnet/lost.py": "x = 1\n",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    assert told(venv) == []
    (venv.site / "fastnet/lost.py").unlink()
    assert agrees(venv) == says


SPELLED = {
    "fastnet/lost.py": "x = y = 1\n",
    "fastnet/plain.py": "x = 1\n",
    "fastnet/table/inner.py": "from fastnet.lost import x\n",
    "fastnet/table/__init__.py": "from importlib import import_module\nTYPE_CHECKING = False\n"
    "if TYPE_CHECKING:\n    from .inner import x\n"
    "TABLE = {'z': ('x', 'y'), 'x': (__package__, '.inner')}\ndef __getattr__(name):\n"
    "    if name not in TABLE:\n        raise AttributeError(name)\n"
    "    package, module = TABLE[name]\n"
    "    return getattr(import_module(module, package=package), name)\n",
    "fastnet/lazy.py": "from importlib import import_module\ndef attach(package, names):\n"
    "    def get(name):\n        if name in names:\n"
    "            return import_module(f'{package}.{name}')\n        raise AttributeError(name)\n"
    "    return get, names\n__getattr__, __all__ = attach('fastnet', ['plain', 'lost'])\n",
    "fastnet/helper.py": "def load(name):\n    from fastnet import lost\n    return lost.y\n",
    "fastnet/clones.py": "from importlib import import_module\ndef clone(name, names):\n"
    "    mod = import_module(name)\n    exec(f'from {mod.__name__} import *', names)\n",
}


@pytest.mark.parametrize(
    "lines",
    [
        "__import__(__package__ + '.lost')",
        "from importlib import import_module\nlost = import_module(f'{__name__}.lost')\nlost.y",
        "from fastnet.table import x",
        "from fastnet.lazy import lost",
        "import importlib\nx = importlib.import_module('.lost', package=__name__).x\n"
        "lost = importlib.import_module('.lost', __name__)",
        "from .plain import x\nif x:\n    from .lost import y\nelse:\n    from .other import y",
        "from .plain import x\nif not x:\n    from .other import y\nelse:\n    from . import lost",
        "try:\n    from .lost import x\nexcept ImportError:\n    from nowhere import x",
        "from . import lost\nif lost.y > 2:\n    pass",
        "from . import lost\nfor _ in [lost.y]:\n    pass",
        "for name in ('plain', 'lost'):\n    __import__(f'{__name__}.{name}')",
        "from importlib import import_module\nNAMES = ['.lost']\nfor name in NAMES:\n"
        "    import_module(name, __name__)",
        "lacking = []\nfor name in ('lost',):\n    try:\n        __import__('fastnet.' + name)\n"
        "    except ImportError as error:\n        lacking.append(str(error))\n"
        "if lacking:\n    raise ImportError(lacking)",
        "from .helper import load\nload('a')",
        "from . import helper as other\nx = other.load('a')",
        "import fastnet.helper\ntry:\n    fastnet.helper.load(1)\nexcept AttributeError:\n    pass",
        '"""Documented."""\nif __doc__ is not None:\n    from .lost import x',
    ],
)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_how_an_import_may_be_written(venv, lines, damage):
    files = put(venv, {"fastnet/__init__.py": f"{lines}\n", **SPELLED})
    venv.distribution("fastnet", "1.0", files=files)
    assert real.import_error(venv.path, "fastnet") is None
    assert told(venv) == []
    if damage == "gone":
        files[1].unlink()
    else:
        files[1].write_text("x = (1,")
    agrees(venv)


@pytest.mark.parametrize("own", ["x", "helper"])
def test_what_a_function_takes_from_an_empty_package(venv, own):
    init = (
        f"import helper\nclass here: x = y = 1\ndef use({own}):\n    if helper.y:\n        pass\n"
    )
    files = put(
        venv, {"fastnet/__init__.py": f"{init}use(here)\n", "helper/__init__.py": "y = 2\n"}
    )
    venv.distribution("fastnet", "1.0", files=files)
    assert real.import_error(venv.path, "fastnet") is None
    files[1].write_text("")
    seen = real.import_error(venv.path, "fastnet")
    (found,) = lost(venv)
    assert (seen is None) == (own == "helper")
    assert found.severity == ("warning" if seen is None else "error")


@pytest.mark.parametrize(
    "line", ["from fastnet import plain, lost", "from . import lost", "import fastnet.lost"]
)
def test_a_module_that_is_imported_later(venv, line):
    sources = {
        "fastnet/__init__.py": f"def use():\n    {line}\nuse.__doc__ = ''\n",
        "fastnet/lost.py": "x = 1\n",
        "fastnet/plain.py": "x = 1\n",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    (venv.site / "fastnet/lost.py").unlink()
    (found,) = lost(venv)
    done = real.run(venv.path / "bin/python", "-c", "import fastnet; fastnet.use()")
    assert found.severity == "warning"
    assert found.predicts in done.stderr


def test_what_suppress_does_not_survive(venv):
    init = "import contextlib\nwith contextlib.suppress(ImportError):\n"
    init += "    import helper\n    size = helper.x\n"
    files = put(venv, {"fastnet/__init__.py": init})
    parts = put(venv, {"helper/__init__.py": "x = 1\n", "helper/deep.py": "x = 1\n"})
    venv.distribution("fastnet", "1.0", "helper", files=files)
    venv.distribution("helper", "1.0", files=parts)
    assert real.import_error(venv.path, "fastnet") is None
    parts[0].unlink()
    assert agrees(venv) == "module 'helper' has no attribute"
    parts[1].unlink()
    (venv.site / "helper").rmdir()
    assert real.import_error(venv.path, "fastnet") is None
    assert [f.severity for f in lost(venv)] == ["warning"]


def test_a_package_is_imported_before_its_module(venv):
    parts = {"__init__": "from cuda.bindings import utils\n", "utils": "", "driver": ""}
    files = put(venv, {f"cuda/bindings/{name}.py": text for name, text in parts.items()})
    venv.distribution("cuda-bindings", "13.5.0", files=files)
    files[1].unlink()
    files[2].unlink()
    assert agrees(venv, "cuda.bindings.driver") == "cannot import name 'utils' from"


def test_a_function_that_imports_all_of_a_module(venv):
    lazy = (
        "__all__ = ['part']\ndef __getattr__(name):\n    import lazy.part\n    return lazy.part\n"
    )
    sources = {
        "fastnet/__init__.py": "from .clones import clone\nclone('lazy', globals())\n",
        **SPELLED,
        "lazy/__init__.py": lazy,
        "lazy/part.py": "x = 1\n",
    }
    files = put(venv, sources)
    venv.distribution("fastnet", "1.0", files=files)
    assert real.import_error(venv.path, "fastnet") is None
    assert told(venv) == []
    files[-1].write_text("x = (1,")
    agrees(venv)


def test_a_name_that_exec_binds_elsewhere(venv):
    lost = "def run(code, names):\n    exec(code, names)\n"
    sources = {"fastnet/__init__.py": "from .lost import x\n", "fastnet/lost.py": f"{lost}x = 1\n"}
    files = put(venv, sources)
    venv.distribution("fastnet", "1.0", files=files)
    files[1].write_text(lost)
    assert agrees(venv) == "cannot import name 'x' from"


def test_the_first_error_in_what_nothing_else_reads(venv):
    """A file that is near is read first, and proves the fault; another error comes first."""
    sources = {
        "fastnet/__init__.py": "from . import far\nfrom .lost import x\n",
        "fastnet/far/__init__.py": "from . import farther\n",
        "fastnet/far/farther.py": "from .. import lost\nlost.y\n",
        "fastnet/lost.py": "x = y = 1\n",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    assert told(venv) == []
    (venv.site / "fastnet/lost.py").write_text("")
    assert agrees(venv) == "module 'fastnet.lost' has no attribute"


def test_the_value_of_a_type_statement_is_not_evaluated(tmp_path):
    file = tmp_path / "part.py"
    file.write_text("import a\ntype T = a.b\nx = a.c\n")
    modules = Modules(Root("/"), Environment(str(tmp_path), "venv", python="3.99"), ())
    tree = modules.tree(Place(str(file), [], None))
    assert [each for node in tree.body for each in attributes(node)] == [["a", "c"]]


@pytest.mark.parametrize(("size", "says"), [(40, "invalid syntax"), (12, None)])
def test_a_source_of_a_newer_python_that_is_cut(tmp_path, size, says):
    """What is as long as it was may be good for that Python."""
    file = tmp_path / "part.py"
    file.write_text("from a impor")
    evidence = Evidence("RECORD", 1, f"part.py,sha256=x,{size}")
    fault = FileFault("part", str(file), "edited", evidence)
    modules = Modules(Root("/"), Environment(str(tmp_path), "venv", python="3.99"), ())
    assert modules.broken(Place(str(file), [], fault)) == says


@pytest.mark.parametrize("gone", [True, False])
def test_a_package_without_its_first_file(venv, gone):
    """What its use says, where no import is proven to take something from it."""
    sources = {
        "fastnet/__init__.py": "import helper\nlen(__name__) > 1 and helper.x\n",
        "helper/__init__.py": "x = 1\n",
        "helper/a.py": "",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    assert lost(venv) == []
    if gone:
        (venv.site / "helper/a.py").unlink()
        (venv.site / "helper/__init__.py").unlink()
        (venv.site / "helper/b.py").touch()
    else:
        (venv.site / "helper/__init__.py").write_text("")
    seen = real.import_error(venv.path, "fastnet")
    (found,) = lost(venv)
    assert (found.severity, found.predicts) == ("warning", "module 'helper' has no attribute")
    assert found.predicts in seen


@pytest.mark.parametrize("condition", ["", "if len(__name__) > 1: "])
def test_what_nothing_is_proven_to_import(venv, condition):
    """A warning says what an import would end in."""
    sources = {
        "fastnet/__init__.py": f"{condition}from fastnet import lost\n",
        "fastnet/lost.py": "x = 1\n",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    assert lost(venv) == []
    (venv.site / "fastnet/lost.py").write_text("x = (1\n")
    seen = real.import_error(venv.path, "fastnet")
    (found,) = lost(venv)
    assert found.severity == ("warning" if condition else "error")
    assert found.predicts
    assert found.predicts in seen


@pytest.mark.parametrize(
    "use",
    [
        "def f(x: lost.x): pass",
        "def f(*, x=1) -> lost.x: pass",
        "class C:\n    x: lost.x",
        "from __future__ import annotations\ndef f(x: lost.x): pass",
    ],
)
def test_an_attribute_in_an_annotation(venv, use):
    """Python evaluates it, if nothing defers that."""
    future, _, rest = use.rpartition("annotations\n")
    sources = {
        "fastnet/__init__.py": f"{future}{'annotations' * bool(future)}\nimport lost\n{rest}\n",
        "lost.py": "x = 1\n",
    }
    venv.distribution("fastnet", "1.0", files=put(venv, sources))
    assert lost(venv) == []
    (venv.site / "lost.py").write_text("")
    if future or sys.version_info >= (3, 14):
        assert real.import_error(venv.path, "fastnet") is None
        assert [f.severity for f in lost(venv)] == ["warning"]
    else:
        assert agrees(venv) == "module 'lost' has no attribute"


@pytest.mark.parametrize("caught", ["", "ImportError"])
def test_what_a_package_without_cuda_requires(venv, caught):
    """It is told where the import ends there, though another requires the package."""
    body = f"try: import helper\nexcept {caught}: pass\n" if caught else "import helper\n"
    outer, first, helper = put(
        venv, {"outer/__init__.py": "", "fastnet/__init__.py": body, "helper.py": ""}
    )
    venv.distribution("outer", "1.0", "fastnet", files=[outer])
    venv.distribution("fastnet", "1.0", "helper>=1", "other; extra == 'x'", files=[first])
    helper.unlink()
    if caught:
        assert real.import_error(venv.path, "fastnet") is None
        assert told(venv) == []
    else:
        assert agrees(venv) == "No module named 'helper'"


def test_what_an_import_of_another_package_reaches(venv):
    """dateutil imports its parser, which asks for six, only when pandas does."""
    sources = {
        "outer/__init__.py": "from fastnet.parser import parse\n",
        "fastnet/__init__.py": "",
        "fastnet/parser.py": "from helper import parse\n",
    }
    outer, *inner = put(venv, sources)
    venv.distribution("outer", "1.0", "fastnet", files=[outer])
    venv.distribution("fastnet", "1.0", "helper>=1", files=inner)
    assert real.import_error(venv.path, "fastnet") is None
    assert agrees(venv, "outer") == "No module named 'helper'"


def test_several_packages_that_are_required(venv):
    """The first that an import misses is told first; one command installs all of them."""
    outer, inner, *gone = put(
        venv,
        {
            "outer/__init__.py": "import fastnet\n",
            "fastnet/__init__.py": "import helper\nimport yam\nimport other\n",
            "helper.py": "", "yam.py": "", "other.py": "",
        },
    )  # fmt: skip
    venv.distribution("outer", "1.0", "fastnet", "other", files=[outer])
    wanted = "other>=2", "pyyam; python_version>'3'", "helper>=1"
    venv.distribution("fastnet", "1.0", *wanted, files=[inner])
    for file in gone:
        file.unlink()
    found = lost(venv)
    assert found[0].predicts == "No module named 'helper'"
    assert found[0].predicts in real.import_error(venv.path, "fastnet")
    assert [each.title.split()[2] for each in found] == ["helper>=1", "other"]
    (fix,) = {tuple(each.fix) for each in found}
    assert fix[0].split("install ")[1] == "'helper>=1' 'other>=2' pyyam"


def test_which_of_two_packages_brings_a_module_nobody_can_tell(venv):
    """Though another requires one of them as well."""
    sources = {"outer/__init__.py": "", "fastnet/__init__.py": "import yam\n"}
    outer, inner = put(venv, sources)
    venv.distribution("outer", "1.0", "fastnet", "pyyam", files=[outer])
    venv.distribution("fastnet", "1.0", "solo", "pyyam", files=[inner])
    assert real.import_error(venv.path, "fastnet")
    assert lost(venv) == []


def test_an_extension_module_that_is_a_folder(fastnet):  # noqa: F811
    """Python passes it over."""
    file = fastnet.site / f"fastnet/_C{SUFFIX}"
    file.unlink()
    file.mkdir()
    assert "_C" in agrees(fastnet)


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000])
def test_an_extension_module_of_a_package_that_replaces_another(venv, damage):
    """numba_cuda/numba/cuda is numba.cuda."""
    sources = {
        "numba/__init__.py": "import os\n__path__ = [os.path.join("
        "os.path.dirname(os.path.dirname(__file__)), 'numba_cuda', 'numba')]\n",
        "numba_cuda/__init__.py": "__version__ = '0.30.4'\n",
        "numba_cuda/numba/cuda/__init__.py": "from . import _C\n",
    }
    numba, *files = put(venv, sources)
    file = venv.site / f"numba_cuda/numba/cuda/_C{SUFFIX}"
    compiled(file, MODULE.format(needs="PyErr_CheckSignals"))
    venv.distribution("numba", "0.66.0", files=[numba])
    venv.distribution("numba-cuda", "0.30.4", files=[*files, file])
    assert lost(venv) == []
    file.write_bytes(damage)
    assert str(file) in agrees(venv, "numba.cuda")


COMPILED = """
#include <Python.h>
const char *const made_by = "cython_runtime";
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL};
PyMODINIT_FUNC PyInit__C(void)
{
    return PyImport_ImportModule("space.helper") ? PyModule_Create(&module) : NULL;
}
"""


@pytest.mark.parametrize("outer", ["alpha", "zeta"])
def test_what_two_require_and_an_extension_module_imports_first(venv, outer):
    sources = {
        f"{outer}/__init__.py": "import fastnet\nfrom space import helper\n",
        "fastnet/__init__.py": "from . import _C\n",
        "space/other/__init__.py": "",
        "space/helper/__init__.py": "",
    }
    top, first, other, helper = put(venv, sources)
    file = venv.site / f"fastnet/_C{SUFFIX}"
    compiled(file, COMPILED)
    own = venv.site / f"{outer}/_C{SUFFIX}"
    own.write_bytes(file.read_bytes())
    venv.distribution(outer, "1.0", "fastnet", "space-helper", files=[top, own])
    venv.distribution("fastnet", "1.0", "space-helper", "space-other", files=[first, file])
    venv.distribution("space-other", "1.0", files=[other])
    assert real.import_error(venv.path, outer) is None
    helper.unlink()
    helper.parent.rmdir()
    assert agrees(venv, outer) == "No module named 'space.helper'"


BY_CYTHON = COMPILED.replace(
    'PyImport_ImportModule("space.helper")',
    """(PyObject_HasAttrString(PyImport_ImportModule("fastnet.lost"), "x")
            || PyErr_Format(PyExc_ImportError, "cannot import name %s", "x"))""",
).replace("cython_runtime", "cython_runtime\\0fastnet.lost")


def test_an_empty_module_of_which_cython_takes_a_name(venv):
    sources = {"fastnet/__init__.py": "from . import _C\n", "fastnet/lost.py": "x = 1\n"}
    files = put(venv, sources)
    file = venv.site / f"fastnet/_C{SUFFIX}"
    compiled(file, BY_CYTHON)
    venv.distribution("fastnet", "1.0", files=[*files, file])
    assert real.import_error(venv.path, "fastnet") is None
    assert lost(venv) == []
    files[1].write_text("")
    assert agrees(venv) == "cannot import name"


@pytest.mark.parametrize("gone", ["helper", "other"])
def test_what_an_extension_module_names_of_half_a_package(venv, gone):
    """Without its first file it is a folder, of which a module may be there or not."""
    sources = {f"space/{name}.py": "x = 1\n" for name in ("__init__", "helper", "other")}
    init, *rest = put(venv, {"fastnet/__init__.py": "from . import _C\n", **sources})
    file = venv.site / f"fastnet/_C{SUFFIX}"
    compiled(file, COMPILED)
    venv.distribution("fastnet", "1.0", "space", files=[init, file])
    venv.distribution("space", "1.0", files=rest)
    assert lost(venv) == []
    (venv.site / "space/__init__.py").unlink()
    (venv.site / f"space/{gone}.py").unlink()
    if gone == "helper":
        assert agrees(venv) == "No module named 'space.helper'"
    else:
        assert real.import_error(venv.path, "fastnet") is None
