"""Which environment is meant: the active one, or the one that conda or Jupyter has under a name."""

import json
import sys

import pytest
from synth import Prefix
from test_cli import here, run

from cudriver.cli import target


@pytest.fixture
def venv(tmp_path):
    return Prefix(tmp_path / "work").venv()


def first_line(done):
    """A long path leaves no room for the rest beside it."""
    return " ".join(done.stdout.partition("\n\n")[0].split())


def test_the_active_one(tmp_path, venv):
    """As pip and uv take it; and the first line says so."""
    conda = Prefix(tmp_path / "conda").conda()
    both = {"VIRTUAL_ENV": str(venv.path), "CONDA_PREFIX": str(conda.path)}
    told = first_line(run("check", "--no-probe", **both))
    assert told.startswith(f"{venv.path} (venv, Python ")
    assert "by VIRTUAL_ENV" in told
    told = first_line(run("check", "--no-probe", CONDA_PREFIX=str(conda.path)))
    assert told.startswith(f"{conda.path} (conda, ")
    assert "by CONDA_PREFIX" in told
    done = run("which", "cudart", "--no-probe", **both)
    assert str(venv.path) in done.stdout + done.stderr


def test_condas_base_is_active_in_every_shell(tmp_path, monkeypatch):
    """uv passes it over too; a tool that has an environment of its own has no other to look at."""
    conda = str(Prefix(tmp_path / "conda").conda().path)
    base = {"CONDA_PREFIX": conda, "CONDA_DEFAULT_ENV": "base"}
    assert target._active(base) == (None, "")
    assert target._active({**base, "CONDA_DEFAULT_ENV": "root"}) == (None, "")  # of old conda
    assert target._active({**base, "CONDA_DEFAULT_ENV": "train"}) == (conda, "by CONDA_PREFIX")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "uv-receipt.toml").write_text("")
    assert target._active(base) == (conda, "by CONDA_PREFIX")


def test_one_that_was_deleted_is_not_passed_over_in_silence(tmp_path):
    gone = {"VIRTUAL_ENV": "/nowhere/work"}
    told = first_line(run("check", "--no-probe", **gone))
    assert told.startswith(f"{sys.prefix} (")
    assert "the folder of VIRTUAL_ENV is gone" in told
    assert "VIRTUAL_ENV 指向的目录已不存在" in first_line(
        run("check", "--no-probe", "--lang", "zh", **gone, PYTHONUTF8="1")
    )
    conda = Prefix(tmp_path / "conda").conda()
    told = first_line(run("check", "--no-probe", **gone, CONDA_PREFIX=str(conda.path)))
    assert told.startswith(f"{conda.path} (conda, ")
    assert "the folder of VIRTUAL_ENV is gone" in told
    assert "VIRTUAL_ENV" not in first_line(run("check", "--no-probe", str(conda.path), **gone))


@pytest.mark.parametrize("value", ["", "work", sys.prefix])
def test_cudrivers_own_where_none_is_active(value):
    told = first_line(run("check", "--no-probe", VIRTUAL_ENV=value))
    assert told.startswith(f"{sys.prefix} (")
    assert "VIRTUAL_ENV" not in told


def test_what_is_named_counts(tmp_path, venv, monkeypatch):
    other = Prefix(tmp_path / "other").venv()
    monkeypatch.setenv("VIRTUAL_ENV", str(venv.path))
    told = first_line(here("check", "--no-probe", str(other.path)))
    assert told.startswith(f"{other.path} (")
    assert "VIRTUAL_ENV" not in told


class TestNames:
    @pytest.fixture
    def home(self, tmp_path, monkeypatch):
        home = tmp_path / "home"
        (home / ".local/share/jupyter/kernels").mkdir(parents=True)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.chdir(tmp_path)
        base = Prefix(home / "miniconda3").conda()
        (base.path / "envs").mkdir()
        Prefix(base.path / "envs/train").conda()
        return home

    def kernel(self, home, name, prefix):
        folder = home / f".local/share/jupyter/kernels/{name}"
        folder.mkdir()
        (folder / "kernel.json").write_text(json.dumps({"argv": [f"{prefix}/bin/python", "-m"]}))

    def test_of_conda(self, home):
        for name, folder in (("train", "miniconda3/envs/train"), ("base", "miniconda3")):
            told = first_line(here("check", "--no-probe", name))
            assert told.startswith(f"{home}/{folder} (conda, ")

    def test_of_a_kernel(self, home, venv):
        self.kernel(home, "gpu", venv.path)
        self.kernel(home, "same", f"{home}/miniconda3/envs/train")
        assert first_line(here("check", "--no-probe", "gpu")).startswith(f"{venv.path} (venv, ")
        told = first_line(here("check", "--no-probe", "same"))
        assert told.startswith(f"{home}/miniconda3/envs/train (conda, ")

    def test_of_several(self, home, venv):
        self.kernel(home, "train", venv.path)
        done = here("check", "--no-probe", "train")
        assert done.returncode == 2
        assert "train is the name of 2 environments: " in done.stderr
        assert str(venv.path) in done.stderr
        assert "有 2 个环境都叫 train：" in here("check", "--lang", "zh", "train").stderr

    def test_a_folder_comes_first(self, home, tmp_path):
        other = Prefix(tmp_path / "train").venv()
        assert first_line(here("check", "--no-probe", "train")).startswith(f"{other.path} (venv, ")

    def test_of_nobody(self, home):
        done = here("check", "--no-probe", "trian")
        assert (done.returncode, done.stdout) == (2, "")
        nowhere = "is not a folder, and conda and Jupyter have no environment of that name"
        assert f"trian {nowhere}; the nearest name is train\n" in done.stderr
        assert f"zzz {nowhere}\n" in here("check", "--no-probe", "zzz").stderr
        told = here("check", "--no-probe", "--lang", "zh", "trian").stderr
        assert "最接近的名字是 train" in told

    def test_of_a_folder_in_another_root(self, home, tmp_path):
        """There a name without a slash is a path."""
        Prefix(tmp_path / "image/venv").venv()
        done = here("check", "--no-probe", "--root", str(tmp_path / "image"), "venv")
        assert first_line(done).startswith("/venv (venv, ")
