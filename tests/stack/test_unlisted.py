"""Packages without a .dist-info: it was deleted, or they were built where they lie."""

import shutil
from pathlib import Path

import pytest
from synth import Prefix

from cudriver.stack import inspect
from elfkit import compile_c

ABI = ".cpython-311-x86_64-linux-gnu.so"
WITHOUT = "has no .dist-info: what it requires, and whether its files are whole, is not known"


@pytest.fixture
def venv(tmp_path: Path) -> Prefix:
    """PyTorch, what it requires, and packages that have nothing to do with CUDA."""
    made = Prefix(tmp_path / "env").venv()
    made.torch(libraries=True)
    made.wheels()
    for name in ("filelock", "numpy", "xgboost"):
        made.dist(name, "1.0", files={f"{name}/__init__.py": b"x = 1\n"})
    return made


def report(venv: Prefix):
    return inspect(venv.inside, environ={}, probe_driver=False, assume_driver="580.95.05")


def build(path: Path, needs: str) -> None:
    """A library that needs one, of this name, that is nowhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(needs)
    compile_c(other, "int x;", f"-Wl,-soname,{needs}")
    compile_c(path, "extern int x; int *use(void) { return &x; }", str(other))
    other.unlink()


def names(made) -> list[str]:
    return [framework.name for framework in made.frameworks]


def without(venv: Prefix, pattern: str) -> None:
    for folder in venv.site.glob(pattern):
        shutil.rmtree(folder)


@pytest.mark.parametrize("pattern", ["*.dist-info", "torch-*"])
def test_what_pytorch_requires_is_not_known(venv, pattern):
    assert report(venv).verdict == "consistent"
    without(venv, pattern)
    made = report(venv)
    assert made.verdict == "unknown"
    assert f"{venv.inside}/lib/python3.11/site-packages/torch: {WITHOUT}" in made.doubts
    assert [f for f in made.findings if f.severity != "note"] == []


def test_a_folder_of_a_project_with_a_framework_s_name_is_none(venv, tmp_path):
    (tmp_path / "project/xgboost").mkdir(parents=True)
    (tmp_path / "project/xgboost/__init__.py").touch()
    environ = {"PYTHONPATH": f"{tmp_path}/project"}
    made = inspect(venv.inside, environ=environ, probe_driver=False, assume_driver="580.95.05")
    assert (made.verdict, names(made)) == ("consistent", ["torch", "xgboost"])


def test_conda_knows_its_packages_without_one(tmp_path):
    made = Prefix(tmp_path / "env").conda()
    made.torch(libraries=True)
    made.wheels()
    made.conda_package("pytorch", "2.8.0", files=["lib/python3.11/site-packages/torch/version.py"])
    without(made, "torch-*")
    (made.site / "xgboost").mkdir()
    (made.site / "xgboost/__init__.py").touch()
    found = report(made)
    assert (found.verdict, names(found)) == ("consistent", ["torch"])


def test_of_others_nothing_depends(venv):
    without(venv, "numpy-*")
    assert report(venv).verdict == "consistent"


@pytest.mark.parametrize(
    ("file", "name"),
    [(f"own/inner/_C{ABI}", "own"), ("own/lib/libown.so", "own"), (f"own_cuda{ABI}", "own_cuda")],
)
def test_extension_modules_are_listed_and_checked(venv, file, name):
    build(venv.site / file, "libcudart.so.12")
    for folder in ("own", "own/inner"):
        if (venv.site / folder).is_dir():
            (venv.site / folder / "__init__.py").touch()
    made = report(venv)
    assert names(made) == ["torch", "xgboost", name]
    assert made.frameworks[-1].module == name  # what --observe imports
    (told,) = [f for f in made.findings if f.rule == "CU305"]
    assert (told.severity, told.subject) == ("note", name)
    assert "libcudart.so.12" in told.title
    assert f"? {name}" in made.to_text()
    assert "unknown version; not modelled" in made.to_text()


def test_an_egg(venv):
    egg = venv.site / "own-1.0-py3.11-linux-x86_64.egg"
    build(egg / f"own/_C{ABI}", "libcudart.so.12")
    (egg / "own/__init__.py").touch()
    (venv.site / "easy-install.pth").write_text(f"./{egg.name}\n")
    assert names(report(venv)) == ["torch", "xgboost", "own"]


@pytest.mark.parametrize(
    ("file", "needs"),
    [
        (f"own/_C{ABI}", "libz9.so.1"),  # no CUDA
        (f"data/x{ABI}", "libcudart.so.12"),  # no package
        ("lib/libx.so", "libcudart.so.12"),  # the same
        ("libcublas.so.12", "libcublasLt.so.12"),  # no extension module
        (f"numpy/_C{ABI}", "libcudart.so.12"),  # one that has a .dist-info
        (f"~wn/_C{ABI}", "libcudart.so.12"),  # what pip left of an uninstalled one
        (f"own-old/_C{ABI}", "libcudart.so.12"),  # a copy that nothing can import
    ],
)
def test_what_is_no_such_module(venv, file, needs):
    build(venv.site / file, needs)
    if file.startswith(("own", "~")):
        (venv.site / file).with_name("__init__.py").touch()
    assert names(report(venv)) == ["torch", "xgboost"]
