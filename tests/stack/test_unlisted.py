"""Frameworks whose .dist-info was deleted."""

import shutil
from pathlib import Path

import pytest
from synth import Prefix

from cudriver.stack import inspect

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
