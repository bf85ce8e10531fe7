"""Requirements of which METADATA forbids the installed version: what pip says of the same."""

import os
import re
import subprocess
import sys

import pytest
from synth import Prefix

from cudriver.stack import inspect

PYTHON = f"3.{sys.version_info.minor}"
# What torch requires, the version that is installed (None: none), in nearly every way to say it.
ASKED = [
    ("==1.0", "1.0"), ("==1.0", "1.0.1"), ("==1.*", "1.9"), ("==1.*", "2.0"), (">=2", "1.9"),
    (">=2", "2.0rc1"), ("<2,>=1", "2"), ("(<2,>=1)", "1.5"), ("~=1.4", "1.9"), ("~=1.4.2", "1.5"),
    ("!=1.0", "1.0"), ("==1.0", "1.0+cu128"), (">1.0", "1.0.post1"), (">= 0.5.dev0, < 1", "0.4"),
    ("<1; python_version<'3'", "1.0"), ("<1; sys_platform=='linux'", "1.0"),
    ("<1; extra=='y'", "1.0"), ("[x]>=2", "1.0"), ("<=0.7.2,>=0.7.2", "0.6.2"), ("", "0.1"),
    ("===1.0", "1.0.0"), ("[x] (>=2)", "1.0"), ("[x] (>=2)", "2.0"), ("[x,y]<2,>=1", "1.5"),
    (">=1", None), (">=1; python_version<'3'", None), ("<2; platform_machine=='x86_64'", "3"),
]  # fmt: skip


def environment(path):
    home = os.path.dirname(os.path.realpath(sys.executable))
    return Prefix(path / "env", python=PYTHON).venv(home=home)


def unmet(prefix):
    report = inspect(prefix.inside, environ={}, assume_driver="580.95.05")
    return {(each.by, each.name) for each in report.facts.unmet}


def test_pip_check_says_the_same(tmp_path):
    prefix = environment(tmp_path)
    requires = []
    for number, (specifier, version) in enumerate(ASKED):
        requires.append(f"part-{number}{specifier}")
        if version is not None:
            prefix.dist(f"part-{number}", version, [f"leaf{'>=2' if number % 2 else ''}"])
    prefix.dist("leaf", "1.0")
    prefix.dist("torch", "2.8.0", requires)
    words = [sys.executable, "-m", "pip", "--python", str(prefix.path / "bin/python"), "check"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    told = r"(?m)^(\S+) \S+ (?:has requirement|requires) ([\w-]+)"
    theirs = set(re.findall(told, said))
    assert ("torch", "part-1") in theirs
    assert unmet(prefix) == theirs


COMPARES = """
import re, importlib.metadata as metadata
least = re.search(r">=([\\d.]+)", str(metadata.requires({by!r}))).group(1)
have = metadata.version({name!r})
def numbers(version):
    return tuple(map(int, re.match("[0-9]+([.][0-9]+)*", version)[0].split(".")))
if numbers(have) < numbers(least):
    raise ImportError(f{says!r})
"""


@pytest.mark.parametrize(
    ("by", "name", "specifier", "have", "says", "severity"),
    [
        ("jax", "jaxlib", "<=0.7.2,>=0.7.2", "0.6.2", "jaxlib is version {have}, but this version "
         "of jax requires version >= {least}.", "error"),
        ("jax", "jaxlib", "<=0.7.2,>=0.7.2", "0.7.2", "", None),
        # Of a version only its numbers are compared, of a build of one's own, too.
        ("jax", "jaxlib", "<=0.7.2,>=0.7.2", "0.7.2.dev20250807+own", "never", "warning"),
        ("jax", "jaxlib", "<=0.7.2,>=0.7.2", "0.7.2.post1", "never", "warning"),
        ("numba", "llvmlite", "<0.45,>=0.44.0", "0.44.0.dev0+12.gabc", "never", "warning"),
        ("jax", "jaxlib", "<=0.7.2,>=0.7.2", "0.7.1.dev1", "jaxlib is version {have}, but this "
         "version of jax requires version >= {least}.", "error"),
        ("numba", "llvmlite", "<0.51,>=0.50.0", "0.44.0", "Numba requires at least version "
         "{least} of llvmlite.\nInstalled version is {have}.\nPlease update llvmlite.", "error"),
        ("numba", "llvmlite", "<0.51,>=0.50.0", "0.51.0", "never", "warning"),
        ("transformers", "tokenizers", "<0.24.0,>=0.23.1", "0.15.0",
         "tokenizers>=0.23.1,<0.24.0 is required for a normal functioning of this module, but "
         "found tokenizers=={have}.", "error"),
        ("torch", "sympy", ">=1.13.3", "1.12", "", "warning"),
    ],
)  # fmt: skip
def test_the_text_is_that_of_the_import(tmp_path, by, name, specifier, have, says, severity):
    """A stub compares as the real package does."""
    prefix = environment(tmp_path)
    source = COMPARES.format(by=by, name=name, says=says) if says else ""
    prefix.dist(by, "1.0", [f"{name}{specifier}"], {f"{by}/__init__.py": source.encode()})
    prefix.dist(name, have)
    python = prefix.path / "bin/python"
    done = subprocess.run(
        [python, "-B", "-c", f"import {by}"], env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == (severity == "error"), done.stderr
    report = inspect(prefix.inside, environ={}, assume_driver="580.95.05")
    found = [f for f in report.findings if f.rule == "CU402"]
    assert [f.severity for f in found] == ([severity] if severity else [])
    for finding in found:
        assert f"{by} requires {name}{specifier} (installed: {have})" in finding.title
        assert (finding.predicts or "") in done.stderr
        assert finding.proven


@pytest.mark.parametrize(
    ("specifier", "have", "known"),
    [(">=1.13.3", "1.12", False), (">=1.13.3", "1.13.1", True), ("<1.28,>=1.21", "2.3.5", False),
     ("<2.4,>=1.22", "2.4.6", True), ("<2", "2.1", False), ("<2.6,>=2", "1.26.4", False),
     ("==1.13.1", "1.14.0", True), ("~=1.13.0", "1.14.2", True), ("<1.14,>=1.13", "1.14", True)],
)  # fmt: skip
def test_a_version_that_is_far_from_what_is_asked_for(tmp_path, specifier, have, known):
    """NumPy of another major ends SciPy's import, and so XGBoost's; 2.4.6 for <2.4 may serve."""
    prefix = environment(tmp_path)
    prefix.dist("xgboost", "3.2.0", ["scipy"])
    prefix.dist("scipy", "1.11.4", [f"numpy{specifier}"])
    prefix.dist("numpy", have)
    report = inspect(prefix.inside, environ={}, assume_driver="580.95.05")
    assert [f.severity for f in report.findings] == ["warning"]
    assert ({f.state for f in report.frameworks}, report.exit_code) == (
        ({"works"}, 0) if known else ({"not known"}, 3)
    )


@pytest.mark.parametrize(
    ("wanted", "here", "lacks"),
    [
        ("opencv-python-headless>=4.11", "opencv-python", False),
        ("pillow!=8.3.*,>=5.3.0", "Pillow_SIMD", False),
        ("cupy-cuda12x>=12.0.0", "cupy", False),
        ("onnxruntime>=1.20", "onnxruntime-gpu", False),
        ("onnxruntime>=1.20", "onnxruntime-extensions", True),
        ("pillow>=5.3.0", "opencv-python", True),
    ],
)
def test_another_build_of_a_package_stands_in_for_it(tmp_path, wanted, here, lacks):
    """Whose modules are the same; METADATA names one of them."""
    prefix = environment(tmp_path)
    prefix.dist("torch", "2.8.0", [wanted])
    prefix.dist(here, "9.0")
    assert bool(unmet(prefix)) == lacks


def test_what_a_zip_on_the_path_may_bring_is_not_missed(tmp_path):
    prefix = environment(tmp_path)
    prefix.dist("torch", "2.8.0", ["filelock"])
    assert unmet(prefix) == {("torch", "filelock")}
    (prefix.site / "more.zip").write_bytes(b"PK")
    (prefix.site / "more.pth").write_text("more.zip\n")
    assert unmet(prefix) == set()
