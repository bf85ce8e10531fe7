"""`cudriver demo --stack`: what it shows is what the check and the loader say."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

from cudriver.cli import demo_stack, main


def test_what_the_loader_says_goes_with_what_is_missing(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo", "--stack"]) == 0
    before, after = capfd.readouterr().out.split("Now NCCL is put there")
    assert "error CU305" in before
    assert "nvidia-nccl-cu12==2.27.3" in before
    told = "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"
    assert before.rstrip().endswith(told)  # of the import itself
    assert "error CU" not in after
    assert after.rstrip().endswith("(imported)")
    assert "\nconsistent\n" in after
    assert list(tmp_path.iterdir()) == []


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
