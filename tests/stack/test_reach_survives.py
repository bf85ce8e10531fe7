"""Sources that go on without what they name: no error is told. The oracle is the real import."""

import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import real
from test_breakage_built import SUFFIX, Venv, pytestmark  # noqa: F401

import casekit
from cudriver.stack.collect import driver
from cudriver.stack.collect.modules import Modules
from cudriver.stack.collect.places import Place
from cudriver.stack.model import Environment, Evidence, FileFault
from cudriver.stack.rootfs import Root

_, CASES = casekit.read(Path(__file__).with_name("survives.txt"))
VERSION = "__version__ = '2.8.0'\ncuda = None\nhip = None\n"


def made(path, sources: dict[str, str], *requires: str) -> Venv:
    venv = Venv(path / "env")
    package = venv.site / "torch"
    package.mkdir(parents=True)
    for name, source in {**sources, "version.py": VERSION}.items():
        (package / name).write_text(source)
    files = [package / name for name in [*sources, "version.py"]]
    venv.distribution("torch", "2.8.0", *requires, files=files)
    return venv


@pytest.mark.parametrize("case", CASES)
def test_no_error_is_told(tmp_path, case):
    """survives.txt: torch's sources, of which part.py is gone or edited."""
    parts = re.split(r"^--- (.+)\n", CASES[case].words + "\n", flags=re.M)
    sources = dict(zip(parts[1::2], parts[2::2], strict=True))
    sources["__init__.py"] = "from .version import __version__\n" + sources["__init__.py"]
    part = made(tmp_path, sources).site / "torch/part.py"
    if CASES[case].told == "gone":
        part.unlink()
    else:
        part.write_text("# edited here\n" + sources["part.py"])
    survives(tmp_path)


def test_a_large_source_that_was_edited(tmp_path):
    init = "from .version import __version__\nfrom torch.part import x\n"
    venv = made(tmp_path, {"__init__.py": init, "part.py": "x = 1\n"})
    with open(venv.site / "torch/part.py", "a") as file:
        file.write("y = [\n" + "    'a',\n" * 300_000 + "]\n")
    survives(tmp_path)


def survives(path, **variables: str) -> None:
    """The import in the environment that was made there, and so no error is told."""
    assert real.import_error(path / "env", **variables) is None
    assert errors(path / "env", **variables) == []


def errors(venv, **variables: str) -> list[tuple[str, str | None]]:
    return told(venv, "error", **variables)


def told(venv, severity: str, **variables: str) -> list[tuple[str, str | None]]:
    report = real.check(venv, environ=real.clean_environ(**variables), probe_driver=False)
    machine = "CU1", "CU401"  # CU401 is an error where the machine has a GPU
    found = [f for f in real.findings(report) if f.severity == severity]
    return [(f.title, f.predicts) for f in found if not f.rule.startswith(machine)]


def test_a_required_distribution_of_which_python_has_the_module(tmp_path):
    init = "import dataclasses\nfrom .version import __version__\n"
    made(tmp_path, {"__init__.py": init}, "dataclasses")
    survives(tmp_path)


WHERE = ["a zip file", "a wheel", "a folder that code adds", "a compiled file", "a stated wheel"]


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("where", WHERE)
def test_a_required_distribution_whose_module_is_elsewhere(tmp_path, where, when):
    init = "import helper" if when == "at once" else "def later():\n    import helper"
    init += "\nfrom .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    given = {}
    source = tmp_path / "side/helper.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    if where == "a zip file":
        with zipfile.ZipFile(venv.site / "helper-1.0.egg", "w") as file:
            file.write(source, "helper.py")
        (venv.site / "easy-install.pth").write_text("./helper-1.0.egg\n")
    elif where.endswith("wheel"):
        with zipfile.ZipFile(tmp_path / "helper-1.0-py3-none-any.whl", "w") as file:
            file.write(source, "helper.py")
        if where == "a wheel":
            (venv.site / "more.pth").write_text(f"{file.filename}\n")
        else:
            given["PYTHONPATH"] = str(file.filename)
    elif where == "a folder that code adds":
        code = f"import sys; sys.path.append({str(source.parent)!r})\n"
        (venv.site / "helper.pth").write_text(code)
    else:
        py_compile.compile(str(source), str(venv.site / "helper.pyc"))
    survives(tmp_path, **given)
    assert told(venv.path, "warning", **given) == []


def test_a_project_with_a_folder_of_a_packages_name_and_the_environment(tmp_path, monkeypatch):
    """Python takes the package, whatever comes before it."""
    init = "from .version import __version__\nfrom . import part\n"
    venv = made(tmp_path, {"__init__.py": init, "part.py": "x = 1\n"})
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": "."}
    survives(tmp_path, **here)
    report = real.check(venv.path, environ=real.clean_environ(**here), probe_driver=False)
    assert [each.path for each in report.frameworks] == [str(venv.site / "torch")]
    (venv.site / "torch/part.py").unlink()
    assert "cannot import name 'part' from" in (real.import_error(venv.path, **here) or "")
    ((_, predicts),) = errors(venv.path, **here)
    assert predicts == "cannot import name 'part' from"


@pytest.mark.parametrize("folder", ["torch/doc", "torch/examples/more", "docs"])
def test_documentation_that_is_left_out(tmp_path, folder):
    """As tests are, to make an image smaller: nothing is told unless it is imported."""
    init = "from .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init})
    shutil.rmtree(venv.site / "torch-2.8.0.dist-info")
    inside = venv.site / folder
    inside.mkdir(parents=True)
    files = [venv.site / f"torch/{name}.py" for name in ("__init__", "version")]
    files += [inside / f"{name}.py" for name in ("__init__", "part")]
    for file in files[2:]:
        file.write_text("x = 1\n")
    venv.distribution("torch", "2.8.0", files=files)
    shutil.rmtree(venv.site / "/".join(folder.split("/")[:2]))
    survives(tmp_path)
    assert told(venv.path, "warning") == []
    if folder == "torch/doc":
        files[0].write_text(f"{init}import torch.doc.part\n")
        said = real.import_error(venv.path)
        assert [f"ModuleNotFoundError: {predicts}" for _, predicts in errors(venv.path)] == [said]


@pytest.mark.parametrize("stated", ["side", "./side/", "", ":", "~/side:side"])
def test_a_required_distribution_in_a_folder_that_is_stated_from_here(
    tmp_path, monkeypatch, stated
):
    """An empty entry of PYTHONPATH is the folder in which a program starts."""
    init = "import helper\nfrom .version import __version__\n"
    made(tmp_path, {"__init__.py": init}, "helper")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/helper.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path / ("side" if stated == ":" else ""))
    if stated:
        survives(tmp_path, PYTHONPATH=stated)
    else:
        said = real.import_error(tmp_path / "env", PYTHONPATH=stated) or ""
        ((_, predicts),) = errors(tmp_path / "env", PYTHONPATH=stated)
        assert predicts in said


# What the finders of setuptools and of editables, hatchling's, have in them.
FINDERS = {
    "setuptools": """MAPPING: dict[str, str] = {'NAME': 'FOLDER/NAME'}
class Finder:
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, f"{MAPPING[name]}.py") if name in MAPPING else None
def install():
    sys.meta_path.append(Finder)
""",
    "editables": """class F:
    known = {}
    def map_module(name, path):
        F.known[name] = path
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, F.known[name]) if name in F.known else None
def install():
    sys.meta_path.append(F)
F.map_module('NAME', 'FOLDER/NAME.py')
""",
}


@pytest.mark.parametrize("finds", ["helper", "another"])
@pytest.mark.parametrize("finder", FINDERS)
def test_a_required_distribution_beside_an_editable_install(tmp_path, finder, finds):
    """Its finder finds that one alone."""
    init = "import helper\nfrom .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    (tmp_path / f"{finds}.py").write_text("x = 1\n")
    text = FINDERS[finder].replace("NAME", finds).replace("FOLDER", str(tmp_path))
    imports = "import sys\nfrom importlib.util import spec_from_file_location\n"
    (venv.site / "__editable___x_finder.py").write_text(imports + text)
    code = "import __editable___x_finder; __editable___x_finder.install()"
    (venv.site / "__editable__.x.pth").write_text(code)
    if finds == "helper":
        survives(tmp_path)
    else:
        said = real.import_error(venv.path)
        assert [f"ModuleNotFoundError: {predicts}" for _, predicts in errors(venv.path)] == [said]


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.path += [__file__.replace('__init__.py', 'vendor')]\n",
        "import sys, types\nsys.modules['helper'] = types.ModuleType('helper')\n",
    ],
)
def test_a_required_distribution_whose_module_the_package_brings(tmp_path, code):
    init = f"from .version import __version__\n{code}import helper\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    (venv.site / "torch/vendor").mkdir()
    (venv.site / "torch/vendor/helper.py").write_text("x = 1\n")
    survives(tmp_path)


def test_a_folder_that_joins_those_of_the_same_name(tmp_path):
    init = "from .version import __version__\nfrom helper import a\nimport helper.a\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    joins = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    for folder in (tmp_path / "side/helper", venv.site / "helper"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(joins)
    (venv.site / "helper/a.py").write_text("x = 1\n")
    files = [venv.site / f"helper/{name}.py" for name in ("__init__", "a")]
    venv.distribution("helper", "1.0", files=files)
    side = {"PYTHONPATH": str(tmp_path / "side")}
    survives(tmp_path, **side)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("helper", True),
        ("sixhelper__init__", True),
        ("Uses helper, where it is there.", False),
        ("the 'helper' package", False),
    ],
)
def test_texts_of_an_extension_module(tmp_path, text, names):
    """What prose mentions is not imported."""
    init = "from torch import _x\nfrom .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    extension(venv, text)
    assert bool(errors(venv.path)) == names


def extension(venv, text, data=""):
    """torch._x: an extension module that has this text, as one of Cython's."""
    source = f"""
#include <Python.h>
__attribute__((used)) static const char texts[] = "\\0cython_runtime\\0{text}";
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_x", texts, -1}};
{data}
PyMODINIT_FUNC PyInit__x(void) {{ return PyModule_Create(&module); }}
"""
    file = venv.path / "x.c"
    file.write_text(source)
    headers = f"-I{sysconfig.get_paths()['include']}"
    command = ["gcc", "-shared", "-fPIC", headers, str(file)]
    subprocess.run([*command, "-o", str(venv.site / f"torch/_x{SUFFIX}")], check=True)


def test_an_extension_module_without_what_no_loader_maps(tmp_path):
    """Cut behind its segments, of which the last ends in zeros, as many do."""
    init = "from torch import _x\nfrom .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init})
    extension(venv, "", '__attribute__((section(".data.last"))) int last[4096] = {1};')
    file = venv.site / f"torch/_x{SUFFIX}"
    shutil.rmtree(venv.site / "torch-2.8.0.dist-info")
    venv.distribution("torch", "2.8.0", files=[venv.site / "torch/__init__.py", file])
    loads = real.run("readelf", "-lW", file).stdout.split("LOAD")[1:]
    end = max(int(line.split()[0], 16) + int(line.split()[3], 16) for line in loads)
    assert not any(file.read_bytes()[end - 64 : end])
    file.write_bytes(file.read_bytes()[: end + 64])
    survives(tmp_path)


@pytest.mark.parametrize("name", ["helper", "another"])
def test_an_extension_module_that_names_what_it_imports_later(tmp_path, name):
    """Where that builds on its own package, an import there would go round; of what is required
    every part may be wanted later.
    """
    init = "from torch import _x\nfrom .version import __version__\n"
    venv = made(tmp_path, {"__init__.py": init}, "helper")
    back = "import torch\n" if name == "another" else ""
    sources = {"__init__": "from helper.base import x\n", "base": f"{back}x = 1\n"}
    (venv.site / "helper").mkdir()
    files = [venv.site / f"helper/{name}.py" for name in (*sources, "part")]
    for file in files:
        file.write_text(sources.get(file.stem, "x = 1\n"))
    venv.distribution(name, "1.0", files=files)
    extension(venv, "helper.part\\0")
    files[-1].unlink()
    survives(tmp_path)


@pytest.mark.parametrize(
    ("python", "text", "broken"),
    [
        (sys.version_info[:2], "x = 1\nx = $\n", True),
        (sys.version_info[:2], "x = $\nx = 1\n", True),
        ((3, 10), "x = 1\nx = $\n", True),
        ((3, 10), "x = $\nx = 1\n", False),
        ((3, 99), "x = 1\nx = $\n", False),
        ((3, 99), "x = [\n1", True),
        ((), "x = 1\nx = $\n", False),
    ],
)
def test_syntax_of_another_python(tmp_path, python, text, broken):
    """A newer one may know what this one does not; a text that ends too early is none of any."""
    file = tmp_path / "part.py"
    file.write_text(text)
    env = Environment(str(tmp_path), "venv", python=".".join(map(str, python)) or None)
    modules = Modules(Root("/"), env, ())
    assert (modules.broken(Place(str(file), [], None)) is not None) == broken


def test_a_package_has_the_name_of_what_is_gone(tmp_path):
    """In texts without ends only the names of a package tell where that of a module ends."""
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper/__init__.py").touch()
    gone = FileFault("helper", f"{tmp_path}/helper/part.py", "missing", Evidence("RECORD"))
    env = Environment(str(tmp_path), "venv", site_packages=[str(tmp_path)])
    assert Modules(Root("/"), env, [gone]).children("helper") == {"__init__", "part"}


def test_a_name_that_a_handler_gives_where_the_module_is_gone(tmp_path):
    """CuPy's thrust: another module takes it from the package, without a handler of its own."""
    init = "from .version import __version__\n"
    init += "try:\n    from torch import thrust\nexcept ImportError:\n    thrust = None\n"
    init += "from . import user\n"
    sources = {"__init__.py": init, "thrust.py": "x = 1\n", "user.py": "from torch import thrust\n"}
    venv = made(tmp_path, sources)
    (venv.site / "torch/thrust.py").unlink()
    survives(tmp_path)


def test_an_import_that_fails_is_told_before_a_build_without_cuda(tmp_path, monkeypatch):
    """One command takes both away, so that one of them is told beside the other."""
    monkeypatch.setattr(driver, "_pci", lambda root: ["10de:2335"])
    init = "from .version import __version__\nfrom torch.part import x\n"
    venv = made(tmp_path, {"__init__.py": init, "part.py": "x = 1\n"})
    (venv.site / "torch/part.py").unlink()
    report = real.check(venv.path, environ=real.clean_environ(), probe_driver=False)
    found = [f for f in report.findings if not f.rule.startswith("CU1")]
    assert [(f.rule, f.predicts, [g.rule for g in f.also]) for f in found] == [
        ("CU404", "No module named 'torch.part'", ["CU401"])
    ]
