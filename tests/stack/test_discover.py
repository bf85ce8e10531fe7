"""Environments found on a machine: each made here in a root of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import SOURCES

from cudriver.stack.environment.discover import (
    MAX_FOLDERS,
    Found,
    find_environments,
    prefix_of_python,
)
from cudriver.stack.environment.interpreter import PATH_MOST
from cudriver.stack.roots.rootfs import Root

ALONE = {"include-system-site-packages": "false"}


@pytest.fixture
def machine(tmp_path):
    """An empty file system with one home."""
    (tmp_path / "home/ana").mkdir(parents=True)
    return tmp_path


def venv(root: Path, prefix: str, version: str = "3.11.7", **settings: str) -> None:
    folder = root / prefix.lstrip("/")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("")
    lines = {"home": "/usr/bin", "version": version, **ALONE, **settings}
    (folder / "pyvenv.cfg").write_text("".join(f"{k} = {v}\n" for k, v in lines.items()))


def found(root: Path, **options) -> dict[str, Found]:
    listed = find_environments(str(root), **options)
    assert len({env.prefix for env in listed}) == len(listed)
    return {env.prefix: env for env in listed}


@pytest.mark.parametrize("program", ["/opt/env/bin/bash", "/opt/env/python3", "/opt/no/bin/python"])
def test_what_is_no_interpreter_of_an_environment(machine, program):
    venv(machine, "/opt/env")
    files = Root(str(machine))
    assert prefix_of_python(files, program) is None
    assert prefix_of_python(files, "/opt/env/bin/python3.11") == "/opt/env"


def test_what_cannot_be_described_is_listed_for_its_own_check(machine):
    venv(machine, "/home/ana/venvs/full")
    site = machine / "home/ana/venvs/full/lib/python3.11/site-packages"
    for number in range(PATH_MOST + 1):
        (site / f"{number}").mkdir(parents=True)
    (site / "many.pth").write_text("".join(f"{n}\n" for n in range(PATH_MOST + 1)))
    assert found(machine)["/home/ana/venvs/full"].kind == "unknown"


def test_links_do_not_lead_out_of_the_root(machine, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    venv(outside, "/env")
    (machine / "home/ana/venvs").mkdir()
    (machine / "home/ana/venvs/escape").symlink_to(outside / "env")
    (machine / "home/ana/venvs/loop").symlink_to("/home/ana/venvs/loop")
    assert found(machine) == {}


@pytest.mark.parametrize("gone", [False, True])
def test_the_working_folder_changes_nothing_and_may_be_gone(tmp_path, gone):
    """The command, so that the folder is its own. It lists the environment that runs it, too."""
    if gone and sys.version_info[:3] == (3, 13, 0):
        pytest.skip("CPython 3.13.0 itself cannot import socket in a folder that is gone")
    (tmp_path / "home").mkdir()
    (tmp_path / "there").mkdir()
    venv(tmp_path, "/home/near")
    venv(tmp_path, "/there/.venv")
    code = "import os, sys; os.chdir('there'); "
    code += gone * "import shutil; shutil.rmtree('../there'); "
    code += (
        "from cudriver.cli import main; sys.exit(main(['check', '--all', '--json', '--no-probe']))"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**clean, "HOME": str(tmp_path / "home"), "PYTHONPATH": SOURCES},
    )
    assert done.returncode in (0, 1, 3), done.stderr
    prefixes = [each["environment"]["prefix"] for each in json.loads(done.stdout)["reports"]]
    assert os.path.realpath(sys.prefix) in map(os.path.realpath, prefixes)
    assert str(tmp_path / "home/near") in prefixes
    assert str(tmp_path / "there/.venv") not in prefixes


def test_the_running_environment_is_listed_wherever_it_is(monkeypatch, tmp_path):
    """Even if nothing there tells which Python it is."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (first, *_) = find_environments(environ={}, home=str(tmp_path / "home"))
    assert (first.prefix, first.python) == (str(tmp_path), ".".join(map(str, sys.version_info[:3])))
    venv(tmp_path, "/active")
    active = {"VIRTUAL_ENV": f"{tmp_path}/active"}
    listed = find_environments(environ=active, home=str(tmp_path / "home"))
    assert [each.prefix for each in listed[:2]] == [f"{tmp_path}/active", str(tmp_path)]


def test_a_huge_home_ends(machine, monkeypatch):
    monkeypatch.setattr("cudriver.stack.environment.discover.MAX_FOLDERS", 50)
    assert MAX_FOLDERS > 50
    for number in range(200):
        (machine / f"home/ana/{number:03}/below").mkdir(parents=True)
    venv(machine, "/home/ana/zzz/below/.venv")
    venv(machine, "/home/ana/venvs/near")
    assert set(found(machine)) == {"/home/ana/venvs/near"}


def test_the_active_environment_comes_first():
    """The one place where the real machine is looked at."""
    active = find_environments(environ={**os.environ, "VIRTUAL_ENV": sys.prefix})
    assert os.path.realpath(active[0].prefix) == os.path.realpath(sys.prefix)
