"""`cudriver demo --stack`: what it shows is what the check and the loader say."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys

import pytest

from cudriver.cli import demo_stack, main


@pytest.fixture
def led_elsewhere(tmp_path, monkeypatch):
    """What this user has besides: a home with a broken xgboost, variables with the library."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = tmp_path / "home/.local/lib" / version / "site-packages"
    for at in (site, tmp_path / "more"):
        demo_stack.install(at, "xgboost", "3.0.0", ["nvidia-nccl-cu12"], {"xgboost/a.py": b""})
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / demo_stack.LIBRARY).write_bytes(demo_stack.library(demo_stack.LIBRARY))
    variables = {"HOME": "home", "PYTHONPATH": "more", "LD_LIBRARY_PATH": "libs"}
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(tmp_path / folder))


@pytest.mark.usefixtures("led_elsewhere")
def test_what_the_loader_says_goes_with_what_is_missing(capfd, tmp_path, monkeypatch):
    (folder := tmp_path / "it's here").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert main(["demo", "--stack"]) == 0
    assert os.environ["LD_LIBRARY_PATH"] == str(tmp_path / "libs")
    told = capfd.readouterr().out
    assert "xgboost" not in told
    before, after = told.split("Now cuSPARSELt is put there")
    assert "error CU305" in before
    assert "nvidia-cusparselt-cu12==0.7.1" in before
    loader = "cannot open shared object file: No such file or directory"
    assert before.rstrip().endswith(f"OSError: {demo_stack.LIBRARY}: {loader}")  # of the import
    assert "error CU" not in after
    assert after.rstrip().endswith("(imported)")
    assert "\nconsistent" in after  # and warnings of this machine's toolkit, where it has one
    typed = [shlex.split(line) for line in told.splitlines() if line.startswith("$ cudriver")]
    assert {os.path.dirname(os.path.dirname(words[3])) for words in typed} == {str(folder)}
    assert list(folder.iterdir()) == []


def test_it_is_shown_in_the_language_that_was_asked_for(capfd):
    assert main(["demo", "--stack", "--lang", "zh"]) == 0
    told = capfd.readouterr().out
    assert "修复" in told
    assert "consistent" not in told
    assert "libraries" not in told


@pytest.mark.parametrize("other", [["--json"], ["--size", "1M"]])
def test_it_has_no_arrays(other, capfd):
    assert main(["demo", "--stack", *other]) == 2
    assert "--size" in capfd.readouterr().err


def test_a_mend_that_mends_nothing_is_noticed(monkeypatch, capfd):
    install = demo_stack.install
    monkeypatch.setattr(
        demo_stack, "install", lambda *of: of[1] == demo_stack.WHEEL or install(*of)
    )
    assert main(["demo", "--stack"]) == 1


def test_the_loader_takes_the_libraries(tmp_path):
    for name, needs in (("libb.so", ()), ("liba.so", ("libb.so",))):
        (tmp_path / name).write_bytes(demo_stack.library(name, needs, "$ORIGIN"))
    ctypes.CDLL(str(tmp_path / "liba.so"))
    shown = ["readelf", "-d", tmp_path / "liba.so"]
    told = subprocess.run(shown, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert all(f"[{text}]" in told for text in ("liba.so", "libb.so", "$ORIGIN"))
