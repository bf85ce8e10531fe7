"""What keeps Python from an environment's packages; the environment's own Python decides."""

import inspect as inspect_module
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from test_unmet import PYTHON, environment

from cudriver.stack import inspect
from cudriver.stack.facts import every
from cudriver.stack.integrity import astray

SITE = Path(sysconfig.get_path("purelib")).parent.name  # python3.13t of a free-threaded one
pytestmark = pytest.mark.skipif(SITE.endswith("t"), reason="the folder has another name")
#: Debian's Python has one, which is imported in place of an environment's.
OF_THE_LIBRARY = (Path(sysconfig.get_path("stdlib")) / "sitecustomize.py").is_file()
USES = b"import inspect, code, numpy, cuda.core\ninspect.signature(print)\n"


@pytest.fixture
def venv(tmp_path):
    prefix = environment(tmp_path)
    files = {"numpy/__init__.py": b"x = 1\n", "numpy/core/__init__.py": b""}
    prefix.dist("numpy", "2.3.0", files=files)
    prefix.dist("cuda-core", "1.2.2", files={"cuda/core/__init__.py": b""})
    prefix.dist("torch", "2.8.0", ["numpy"], files={"torch/__init__.py": USES})
    (prefix.site / "torch/version.py").write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    return prefix


def judged(prefix, module="torch", **environ):
    """Whether Python imports a module, and what the check says of the path."""
    words = [prefix.path / "bin/python", "-Bc", f"import {module}; {module}.x = 1; print('done')"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    report = inspect(prefix.inside, environ=environ, probe_driver=False)
    found = [f for f in report.findings if f.rule in ("CU404", "CU410")]
    for finding in found:
        if finding.severity == "error":
            assert (finding.predicts or "") in done.stderr
            assert finding.fix or finding.advice
    told = [(f.rule, f.severity) for one in found for f in (one, *one.also)]
    assert "done" in done.stdout or any(severity == "error" for _, severity in told), done.stderr
    assert "done" not in done.stdout or all(severity != "error" for _, severity in told)
    return sorted({*told})


def test_a_healthy_one(venv):
    assert judged(venv) == []


def test_without_its_pyvenv_cfg(venv):
    """The link leads Python to the folder that it was installed in; an empty file does not."""
    (venv.path / "pyvenv.cfg").write_text("")
    assert judged(venv) == []
    (venv.path / "pyvenv.cfg").unlink()
    assert judged(venv) == [("CU410", "error")]


@pytest.mark.parametrize("variable", ["", "PYTHONPATH"])
def test_where_python_looks_without_it(venv, tmp_path, variable):
    """On PYTHONPATH, or since the folder is that of the link's own Python."""
    (venv.path / "pyvenv.cfg").unlink()
    own = tmp_path / f"base/lib/python{PYTHON}/site-packages"
    if not variable:
        (tmp_path / "base/bin").mkdir(parents=True)
        shutil.copy(os.path.realpath(sys.executable), tmp_path / f"base/bin/python{PYTHON}")
        (venv.path / "bin/python").unlink()
        (venv.path / "bin/python").symlink_to(tmp_path / f"base/bin/python{PYTHON}")
        own.parent.mkdir(parents=True)
        own.symlink_to(venv.site)
    else:
        assert judged(venv, **{variable: str(venv.site)}) == []
    report = inspect(venv.inside, environ={variable or "A": str(venv.site)}, probe_driver=False)
    assert [f.rule for f in report.findings if f.rule == "CU410"] == []


def test_the_systems_python_below_usr_local(tmp_path):
    """Fedora's looks there, and is linked there by some."""
    files = ["bin/python3.11", "lib64/python3.11/os.py", "local/lib/python3.11/site-packages/a.pth"]
    for path in (tmp_path / "usr" / name for name in files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "usr/local/bin").mkdir()
    (tmp_path / "usr/local/bin/python3.11").symlink_to("/usr/bin/python3.11")
    report = inspect("/usr/local", root=str(tmp_path), environ={}, probe_driver=False)
    assert report.facts.environment.executable == "/usr/local/bin/python3.11"
    assert [f.rule for f in report.findings if f.rule == "CU410"] == []


def test_a_python_of_its_own_needs_none(venv):
    """As in an installation below a prefix of its own: its library lies beside it."""
    (venv.path / "pyvenv.cfg").unlink()
    (venv.path / f"lib/python{PYTHON}/os.py").touch()
    report = inspect(venv.inside, environ={}, probe_driver=False)
    assert [f.rule for f in report.findings if f.rule == "CU410"] == []


def test_a_link_to_another_python(venv, tmp_path):
    other = tmp_path / "python3.99"
    shutil.copy(os.path.realpath(sys.executable), other)
    (venv.path / "bin/python").unlink()
    (venv.path / "bin/python").symlink_to(other)
    report = inspect(venv.inside, environ={}, probe_driver=False)
    (finding,) = [f for f in report.findings if f.rule == "CU410"]
    assert finding.severity == "error"
    assert finding.title.endswith("site-packages: it is Python 3.99")
    assert finding.predicts == "No module named 'torch'"
    bin_ = f"{venv.path}/bin"  # python-config and others stay
    assert finding.fix[0].startswith(
        f"python{PYTHON} -V && rm -f {bin_}/python {bin_}/python3 {bin_}/python{PYTHON} &&"
    )


def test_a_python_that_was_upgraded_in_place(venv):
    """Python ignores the version in pyvenv.cfg."""
    text = (venv.path / "pyvenv.cfg").read_text().replace(PYTHON, "3.8")
    (venv.path / "pyvenv.cfg").write_text(text)
    (venv.path / "lib/python3.8/site-packages").mkdir(parents=True)
    report = inspect(venv.inside, environ={}, probe_driver=False)
    assert (report.facts.environment.python or "").startswith(PYTHON)
    assert [f.name for f in report.frameworks if f.name == "torch"] == ["torch"]
    assert judged(venv) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import sys; sys.exit(3)", [("CU410", "error")]),
        ("import os; os._exit(0)", [("CU410", "error")]),
        ("import sys; raise SystemExit", [("CU410", "error")]),
        ("import sys; sys.version_info < (3,) and sys.exit(3)", []),
        ("import sys; exit = sys.exit", []),
        ("import sys; exit(3)", []),  # it is not made yet: Python says so, and goes on
        ("import sys; quit()", []),
        ("# import sys; sys.exit(3)", []),
        ("import sys; 1 / 0; sys.exit(", []),  # Python says so, and goes on
    ],
)
def test_a_pth_file_that_ends_python(venv, line, told):
    (venv.site / "own.pth").write_text(line + "\n")
    assert judged(venv) == told
    for finding in inspect(venv.inside, environ={}, probe_driver=False).findings if told else ():
        if finding.rule == "CU410":
            python = [venv.path / "bin/python", "-c", ""]
            done = subprocess.run(python, env={}, capture_output=True, text=True, check=False)
            assert (finding.predicts is None) == (not done.stderr)
            assert (finding.predicts or "") in done.stderr


HARMLESS = [
    # What setuptools, its editable installs, its namespaces and its eggs write, and coverage.
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == "
    "'local'; enabled and __import__('_distutils_hack')",
    "import __editable___own_1_0_finder; __editable___own_1_0_finder.install()",
    "import sys, types, os; p = os.path.join(sys._getframe(1).f_locals['sitedir'], 'google')",
    "import sys; sys.__plen = len(sys.path)",
    "import sys; new=sys.path[sys.__plen:]; del sys.path[sys.__plen:]; p=getattr(sys,'__egginsert',"
    "0); sys.path[p:p]=new; sys.__egginsert = p+len(new)",
    "import sys; exec('try: import coverage\\nexcept ImportError: pass')",
    "import sys; sys.path.append('{side}/more')",
    "import sys; '{side}' in sys.path or sys.path.insert(len(sys.path), '{side}/more')",
    "import sys; sys.path.insert(0, '{side}/none')",
]
INSERTS = "import sys; sys.path.insert(0, '{side}')"


@pytest.mark.parametrize(
    ("line", "name", "told"),
    [
        *((line, "train.py", []) for line in [*HARMLESS, INSERTS]),
        (INSERTS, "numpy.py", [("CU404", "error")]),
        (INSERTS.replace("0, ", "0,"), "numpy.py", [("CU404", "error")]),
        (INSERTS, "inspect.py", [("CU410", "error")]),
        (INSERTS.replace("insert(0, ", "append("), "inspect.py", []),
        (INSERTS.replace("'{", "f'{"), "train.py", [("CU410", "warning")]),
        ("import sys; sys.path[:0] = ['{side}']", "train.py", [("CU410", "warning")]),
    ],
)  # fmt: skip
def test_a_pth_file_that_changes_the_path(venv, tmp_path, line, name, told):
    (tmp_path / "side/more").mkdir(parents=True)
    (tmp_path / "side" / name).write_text("x = 1\n")
    (venv.site / "__editable___own_1_0_finder.py").write_text("def install(): pass\n")
    (venv.site / "own.pth").write_text(line.replace("{side}", f"{tmp_path}/side") + "\n")
    assert judged(venv, "numpy.core" if name == "numpy.py" else "torch") == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sys.path.insert(0, '/x')", 1),
        ("# sys.path.insert", 0),
        ("sys.path.append('/x')", 0),
        ('"""Leaves sys.path alone."""\nif "/x" in sys.path: sys.path.remove("/x")', 0),
    ],
)
def test_a_module_that_changes_the_path(venv, text, told):
    (venv.site / "sitecustomize.py").write_text(f"import sys\n{text}\n")
    assert judged(venv) == [("CU410", "warning")] * told * (not OF_THE_LIBRARY)


def test_what_code_puts_in_front(venv, tmp_path):
    """Another release, as on PYTHONPATH."""
    venv.dist("torch", "2.7.0", files={"torch/__init__.py": b"x = 2\n"}, site=tmp_path / "side")
    (venv.site / "own.pth").write_text(INSERTS.replace("{side}", f"{tmp_path}/side"))
    report = inspect(venv.inside, environ={}, probe_driver=False)
    (told,) = [f for f in report.findings if f.rule == "CU410"]
    assert told.title == f"torch 2.7.0 in {tmp_path}/side hides 2.8.0 in {venv.site}"


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_a_module_that_ends_python(venv, name):
    file = venv.site / f"{name}.py"
    file.write_text(
        "import sys\nif sys.argv == 7:\n    sys.exit(1)\ntry:\n    exit_ = 1\nfinally:\n    pass\n"
    )
    assert judged(venv) == []
    file.write_text("import sys\nsys.exit('by hand')\n")
    home, config = {"HOME": str(venv.path.parent)}, (venv.path / "pyvenv.cfg").read_text()
    config = config.replace("include-system-site-packages = false\n", "")
    for line, more, both in (
        ("include-system-site-packages = false\n", {}, False),
        ("include-system-site-packages =\n", {}, False),
        ("include-system-site-packages = TRUE\n", {}, True),
        ("", {}, True),
        ("", {"PYTHONNOUSERSITE": "1"}, False),
    ):
        text = config + line
        (venv.path / "pyvenv.cfg").write_text(text)
        ended = both or name == "sitecustomize"  # the other is the user's own
        ended = ended and not (OF_THE_LIBRARY and name == "sitecustomize")
        assert judged(venv, **home, **more) == [("CU410", "error")] * ended


def test_the_librarys_own_sitecustomize_comes_before(venv, tmp_path, monkeypatch):
    (venv.site / "sitecustomize.py").write_text("import sys\nsys.exit('by hand')\n")
    (tmp_path / "library").mkdir()
    monkeypatch.setattr(astray._Look, "library", lambda self: str(tmp_path / "library"))
    ended = [f.rule for f in inspect(venv.inside, probe_driver=False).findings if f.rule == "CU410"]
    (tmp_path / "library/sitecustomize.py").write_text("x = 1\n")
    found = [f.rule for f in inspect(venv.inside, probe_driver=False).findings if f.rule == "CU410"]
    assert (ended, found) == (["CU410"], [])


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"numpy.py": "x = 1"}, [("CU404", "error")]),
        ({"cuda.py": "x = 1"}, [("CU404", "error")]),
        ({"inspect.py": "x = 1"}, [("CU410", "error")]),
        ({"inspect/__init__.py": "x = 1"}, [("CU410", "error")]),
        ({"inspect/notes.py": "x = 1"}, []),
        ({"code.py": "x = 1"}, [("CU410", "warning")]),
        ({"train.py": "x = 1", "numpy.txt": "", "os.py": "x = 1"}, []),
    ],
)
@pytest.mark.parametrize("form", ["{}", "{}/", ":{}"])
def test_a_module_on_pythonpath(venv, tmp_path, files, told, form):
    module = "numpy.core" if "numpy.py" in files else "torch"
    for name, text in files.items():
        path = tmp_path / "side" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert judged(venv, module, PYTHONPATH=form.format(tmp_path / "side")) == told


@pytest.mark.parametrize(
    ("name", "text", "severity"),
    [
        ("random", "x = 1", "error"),
        ("random", "class Random: pass", "warning"),
        ("signal", "x = 1", "error"),
        ("signal", "SIGINT = 2", "warning"),
        ("csv", "x = 1", "warning"),
    ],
)
def test_what_a_framework_wants_of_a_module(tmp_path, name, text, severity):
    """NumPy does without; of what else such a module lacks nobody knows whether it is missed."""
    prefix, side = environment(tmp_path), tmp_path / "side"
    uses = b"import csv, random, signal\nfrom random import Random\nsignal.SIGINT\n"
    prefix.dist("torch", "2.13.0", files={"torch/__init__.py": uses})
    (prefix.site / "torch/version.py").write_text("__version__ = '2.13.0'\ncuda = '13.0'\n")
    side.mkdir()
    (side / f"{name}.py").write_text(text)
    assert judged(prefix, PYTHONPATH=str(side)) == [("CU410", severity)]
    (prefix.site / "torch").rename(prefix.site / "numpy")
    shutil.rmtree(prefix.site / "torch-2.13.0.dist-info")
    report = inspect(prefix.inside, environ={"PYTHONPATH": str(side)}, probe_driver=False)
    assert all(f.severity != "error" for f in report.findings)


HAS = f"""
import importlib.util, sys
_spec = importlib.util.spec_from_file_location("_theirs", {inspect_module.__file__!r})
_theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_theirs)
"""
NAMES = re.findall(r"(?m)^(?:def|class) (\w+)", Path(inspect_module.__file__).read_text())


@pytest.mark.parametrize(
    "text",
    [
        f"{HAS}globals().update(vars(_theirs))",
        f"{HAS}sys.modules[__name__] = _theirs",
        HAS + "".join(f"{name} = _theirs.{name}\n" for name in NAMES),
        f"{HAS}sys.modules['_theirs'] = _theirs\nif True:\n    from _theirs import *",
        f"exec(open({inspect_module.__file__!r}).read())",
    ],
)
def test_a_module_that_hands_on_the_librarys(venv, tmp_path, text):
    (tmp_path / "side").mkdir()
    (tmp_path / "side/inspect.py").write_text(text)
    assert judged(venv, PYTHONPATH=str(tmp_path / "side")) == [("CU410", "warning")]


def test_names_that_are_only_imported(venv, tmp_path):
    """A module beside it has them."""
    (tmp_path / "side").mkdir()
    shutil.copy(inspect_module.__file__, tmp_path / "side/theirs.py")
    (tmp_path / "side/inspect.py").write_text(f"from theirs import {', '.join(NAMES)}\n")
    assert judged(venv, PYTHONPATH=str(tmp_path / "side")) == [("CU410", "warning")]


@pytest.mark.parametrize("linked", [False, True])
def test_the_standard_library_on_pythonpath(venv, tmp_path, linked):
    """It hides nothing."""
    folder = tmp_path / "side"
    folder.symlink_to(os.path.dirname(os.__file__))
    path = folder if linked else os.path.dirname(os.__file__)
    assert judged(venv, PYTHONPATH=str(path)) == []


def test_a_whole_copy_of_the_librarys_module(venv, tmp_path):
    (tmp_path / "side").mkdir()
    shutil.copy(Path(sysconfig.get_path("stdlib")) / "inspect.py", tmp_path / "side")
    assert judged(venv, PYTHONPATH=str(tmp_path / "side")) == [("CU410", "warning")]


NEEDED = ["numpy.py", "cuda/__init__.py", f"numpy{EXTENSION_SUFFIXES[0]}", "random.py", "ast.py"]


@pytest.mark.parametrize("name", [*NEEDED, "cuda/x.py", "os.py", "numpy.txt", "test.py", "mine.py"])
def test_a_module_where_programs_are_started(venv, tmp_path, monkeypatch, name):
    file, module = tmp_path / "work" / name, name.partition(".")[0].partition("/")[0]
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    monkeypatch.chdir(tmp_path / "work")
    code = f"import importlib.util as u; print(u.find_spec({module!r}))"
    for environ in ({}, {"PYTHONSAFEPATH": "1"}):
        words = [venv.path / "bin/python", "-Bc", code]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
        taken = f"{tmp_path}/work" in done.stdout and "namespace" not in done.stdout.lower()
        report = inspect(venv.inside, environ=environ, probe_driver=False)
        told = [f for f in every(report.findings) if f.rule == "CU410"]
        assert len(told) == (taken and name in NEEDED)
        assert all(f.severity == "warning" and name.split("/")[0] in f.title for f in told)
        assert report.exit_code == 0
    monkeypatch.chdir(venv.site)
    assert judged(venv) == []


@pytest.mark.parametrize(("name", "state"), [("csv", "not known"), ("sched", "works")])
def test_a_module_that_somebody_may_need(venv, tmp_path, name, state):
    """PyTorch imports `csv`; no framework imports `sched`."""
    (tmp_path / "side").mkdir()
    (tmp_path / f"side/{name}.py").write_text("x = 1\n")
    report = inspect(venv.inside, environ={"PYTHONPATH": f"{tmp_path}/side"}, probe_driver=False)
    told = [f.severity for f in report.findings if f.rule == "CU410"]
    assert (told, {f.state for f in report.frameworks}) == (["warning"], {state})


def test_a_module_beside_its_package(venv):
    """A package with a first file comes before a module; one without comes after it."""
    (venv.site / "numpy.py").write_text("y = 1\n")
    assert judged(venv, "numpy") == []
    (venv.site / "cuda.py").write_text("y = 1\n")
    assert judged(venv) == [("CU404", "error")]


def test_a_copy_in_front_hides_what_it_lacks(venv, tmp_path):
    """Modules, and not what Python itself has written beside them."""
    shutil.copytree(venv.site / "numpy", tmp_path / "side" / "numpy")
    for folder in ("numpy", "numpy/core"):
        (venv.site / folder / "__pycache__").mkdir()
    environ = {"PYTHONPATH": str(tmp_path / "side")}
    assert judged(venv, "numpy", **environ) == []
    shutil.rmtree(tmp_path / "side" / "numpy" / "core")
    assert judged(venv, "numpy", **environ) == [("CU404", "warning")]


def test_the_users_own_copy_is_in_front(venv, tmp_path):
    """Which one is used, which one it hides, and where each is."""
    base = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    (venv.path / "pyvenv.cfg").write_text(
        f"home = {base}/bin\nversion = {PYTHON}.0\ninclude-system-site-packages = true\n"
    )
    side = tmp_path / "side"
    side.mkdir()
    venv.dist("torch", "2.7.0", files={"torch/__init__.py": b"x = 2\n"}, site=side)
    report = inspect(venv.inside, environ={"PYTHONPATH": str(side)}, probe_driver=False)
    told = [f for f in report.findings if f.rule == "CU410"]
    assert [(f.severity, f.title) for f in told] == [
        ("warning", f"torch 2.7.0 in {side} hides 2.8.0 in {venv.site}")
    ]
    assert told[0].fix == ["unset PYTHONPATH"]


def test_a_copy_in_the_users_folder_is_in_front(venv, tmp_path):
    """A base Python looks there first."""
    (venv.path / "pyvenv.cfg").unlink()
    (venv.path / f"lib/python{PYTHON}/os.py").touch()
    (venv.site / f"numba-0.56.4-py{PYTHON}.egg-info").mkdir()
    (venv.site / f"numba-0.56.4-py{PYTHON}.egg-info/PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: numba\nVersion: 0.56.4\n"
    )
    side = tmp_path / f".local/lib/python{PYTHON}/site-packages"
    for name, version in (("torch", "2.7.0"), ("numba", "0.61.2"), ("cuda-core", "1.2.2")):
        venv.dist(name, version, files={f"{name}/__init__.py": b"x = 2\n"}, site=side)
    report = inspect(venv.inside, environ={"HOME": str(tmp_path)}, probe_driver=False)
    told = [f for f in every(report.findings) if f.rule == "CU410"]
    assert sorted((f.severity, f.title) for f in told) == [
        ("warning", f"numba 0.61.2 in {side} hides 0.56.4 in {venv.site}"),
        ("warning", f"torch 2.7.0 in {side} hides 2.8.0 in {venv.site}"),
    ]
    assert all(f.fix == ["export PYTHONNOUSERSITE=1"] for f in told)
    venv.dist("sympy", "1.14.0", site=side)
    report = inspect(venv.inside, environ={"HOME": str(tmp_path)}, probe_driver=False)
    told = [f.advice for f in every(report.findings) if f.rule == "CU410"]
    assert set(told) == {f"take one of the two away: {side} has other packages, too."}
    environ = {"HOME": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    report = inspect(venv.inside, environ=environ, probe_driver=False)
    assert [f.rule for f in report.findings if f.rule == "CU410"] == []


def test_pathfinder_does_not_look_on_pythonpath(tmp_path):
    """cuda-pathfinder asks `site` for its folders."""
    prefix = environment(tmp_path)
    side = tmp_path / "side"
    file = prefix.site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    report = inspect(prefix.inside, environ={"PYTHONPATH": str(side)}, probe_driver=False)
    assert str(file.parents[3]) in report.facts.environment.sites
    assert str(side) not in report.facts.environment.sites


@pytest.mark.parametrize(("flag", "told"), [(os.ST_NOEXEC, ["error"]), (os.ST_RDONLY, [])])
def test_a_file_system_that_maps_no_code(venv, monkeypatch, flag, told):
    """Seen on a tmpfs mounted with noexec: "failed to map segment from shared object"."""
    statvfs = os.statvfs
    flags = {str(venv.site): flag}

    def stat(path):
        found = [*statvfs(path)]
        return os.statvfs_result([*found[:8], flags.get(path, 0), *found[9:]])

    monkeypatch.setattr(os, "statvfs", stat)
    report = inspect(venv.inside, environ={}, probe_driver=False)
    found = [f for f in report.findings if f.rule == "CU410"]
    assert [f.severity for f in found] == told
    assert all(str(venv.site) in f.title and str(venv.site) in f.fix[0] for f in found)
