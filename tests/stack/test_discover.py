"""Environments found on a machine: each made here in a root of its own."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import SOURCES

from cudriver.stack.discover import MAX_FOLDERS, Found, find_environments, prefix_of_python
from cudriver.stack.rootfs import Root


@pytest.fixture
def machine(tmp_path):
    """An empty file system with one home."""
    (tmp_path / "home/ana").mkdir(parents=True)
    return tmp_path


def venv(root: Path, prefix: str, version: str = "3.11.7", **settings: str) -> None:
    folder = root / prefix.lstrip("/")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("")
    lines = {"home": "/usr/bin", "version": version, **settings}
    (folder / "pyvenv.cfg").write_text("".join(f"{k} = {v}\n" for k, v in lines.items()))


def conda(root: Path, prefix: str) -> None:
    (root / prefix.lstrip("/") / "conda-meta").mkdir(parents=True)


def found(root: Path, **options) -> dict[str, Found]:
    listed = find_environments(str(root), **options)
    assert len({env.prefix for env in listed}) == len(listed)
    return {env.prefix: env for env in listed}


def test_nothing_is_found_in_an_empty_machine(machine):
    assert found(machine) == {}


def test_conda_list_file_names_environments_anywhere(machine):
    conda(machine, "/scratch/odd place/env")
    (machine / "home/ana/.conda").mkdir()
    (machine / "home/ana/.conda/environments.txt").write_text(
        "/scratch/odd place/env\n/gone/env\n\nno path\n"
    )
    assert {p: e.kind for p, e in found(machine).items()} == {"/scratch/odd place/env": "conda"}


def test_conda_base_and_its_named_environments(machine):
    conda(machine, "/opt/conda")
    conda(machine, "/opt/conda/envs/train")
    conda(machine, "/home/ana/miniforge3/envs/eval")
    assert set(found(machine)) == {
        "/opt/conda",
        "/opt/conda/envs/train",
        "/home/ana/miniforge3/envs/eval",
    }


@pytest.mark.parametrize(
    "variable", ["MAMBA_ROOT_PREFIX", "CONDA_ROOT", "CONDA_EXE", "CONDA_ENVS_PATH"]
)
def test_a_variable_names_conda_s_folder(machine, variable):
    conda(machine, "/data/envs/train")
    conda(machine, "/data")
    below = {"CONDA_EXE": "/bin/conda", "CONDA_ENVS_PATH": "/envs"}.get(variable, "")
    base = {"/data"} if below != "/envs" else set()
    there = found(machine, environ={variable: f"/data{below}"})
    assert set(there) == {"/data/envs/train", *base}


def test_condarc_folders(machine):
    conda(machine, "/data/envs/a")
    conda(machine, "/home/ana/more/b")
    (machine / "home/ana/.condarc").write_text(
        "channels:\n  - conda-forge\nenvs_dirs:\n  - /data/envs  # big disk\n  - '~/more'\n"
        "auto_activate_base: false\n"
    )
    assert {"/data/envs/a", "/home/ana/more/b"} <= set(found(machine))


@pytest.mark.parametrize(
    ("prefix", "settings", "kind"),
    [
        ("/home/ana/.local/share/pipx/venvs/tool", {}, "pipx"),
        ("/home/ana/.local/share/uv/tools/ruff", {"uv": "0.5.1"}, "uv"),
        ("/home/ana/project/.venv", {"uv": "0.5.1", "version_info": "3.12.1"}, "uv"),
        ("/home/ana/project/venv", {}, "venv"),
        ("/home/ana/.virtualenvs/old", {}, "venv"),
        ("/srv/app/env", {}, "venv"),
    ],
)
def test_venvs_where_tools_and_people_put_them(machine, prefix, settings, kind):
    venv(machine, prefix, **settings)
    env = found(machine)[prefix]
    assert env.kind == kind
    assert env.python == settings.get("version_info", "3.11.7")


def test_pyenv_versions_and_the_system(machine):
    for prefix, version in (("/home/ana/.pyenv/versions/3.12.1", "3.12"), ("/usr", "3.11")):
        folder = machine / prefix.lstrip("/")
        (folder / "bin").mkdir(parents=True)
        (folder / f"bin/python{version}").write_text("")
        (folder / f"lib/python{version}/site-packages").mkdir(parents=True)
    result = found(machine)
    assert result["/home/ana/.pyenv/versions/3.12.1"].python == "3.12"
    assert result["/usr"].kind == "system"


def test_debian_keeps_packages_beside_the_library(machine):
    (machine / "usr/bin").mkdir(parents=True)
    (machine / "usr/bin/python3.11").write_text("")
    (machine / "usr/lib/python3/dist-packages").mkdir(parents=True)
    (machine / "usr/lib/python3.11").mkdir()
    assert found(machine)["/usr"].python == "3.11"


def test_jupyter_kernel_leads_to_its_environment(machine):
    venv(machine, "/far/away/env")
    spec = machine / "home/ana/.local/share/jupyter/kernels/far/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/far/away/env/bin/python", "-m", "ipykernel"]}))
    env = found(machine)["/far/away/env"]
    assert env.kind == "jupyter"
    assert env.source.endswith("far/kernel.json")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"argv": []}', '{"argv": [3]}', '{"argv": ["python"]}', "[" * 9000]
)
def test_damaged_kernelspec_is_passed_over(machine, content):
    spec = machine / "home/ana/.local/share/jupyter/kernels/bad/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(content)
    assert found(machine) == {}


def test_kernels_inside_an_environment(machine):
    venv(machine, "/home/ana/venvs/lab")
    venv(machine, "/hidden/env")
    spec = machine / "home/ana/venvs/lab/share/jupyter/kernels/x/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/hidden/env/bin/python3.11"]}))
    assert "/hidden/env" in found(machine)


@pytest.mark.parametrize("program", ["/opt/env/bin/bash", "/opt/env/python3", "/opt/no/bin/python"])
def test_what_is_no_interpreter_of_an_environment(machine, program):
    venv(machine, "/opt/env")
    files = Root(str(machine))
    assert prefix_of_python(files, program) is None
    assert prefix_of_python(files, "/opt/env/bin/python3.11") == "/opt/env"


def test_one_environment_by_two_names_is_listed_once(machine):
    venv(machine, "/home/ana/venvs/a")
    (machine / "home/ana/.virtualenvs").mkdir()
    (machine / "home/ana/.virtualenvs/b").symlink_to("/home/ana/venvs/a")
    assert len(found(machine)) == 1


def test_links_do_not_lead_out_of_the_root(machine, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    venv(outside, "/env")
    (machine / "home/ana/venvs").mkdir()
    (machine / "home/ana/venvs/escape").symlink_to(outside / "env")
    (machine / "home/ana/venvs/loop").symlink_to("/home/ana/venvs/loop")
    assert found(machine) == {}


def test_variables_count_only_when_given(machine):
    venv(machine, "/odd/active")
    venv(machine, "/odd/shelf/one")
    assert found(machine) == {}
    environ = {"VIRTUAL_ENV": "/odd/active", "WORKON_HOME": "/odd/shelf"}
    assert set(found(machine, environ=environ)) == {"/odd/active", "/odd/shelf/one"}


def test_hidden_folders_are_passed_over_but_for_two_names(machine):
    for name in (".venv", ".env", ".hidden", "plain"):
        venv(machine, f"/app/{name}")
    assert set(found(machine)) == {f"/app/{name}" for name in (".venv", ".env", "plain")}


@pytest.mark.parametrize("gone", [False, True])
def test_the_working_folder_changes_nothing_and_may_be_gone(tmp_path, gone):
    """The command, so that the folder is its own. It lists the environment that runs it, too."""
    if gone and sys.version_info[:3] == (3, 13, 0):
        pytest.skip("CPython 3.13.0 itself cannot import socket in a folder that is gone")
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    venv(tmp_path, "/home/near")
    venv(tmp_path, "/work/.venv")
    code = "import os, sys; os.chdir('work'); " + gone * "import shutil; shutil.rmtree('../work'); "
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
    assert str(tmp_path / "work/.venv") not in prefixes


def test_the_running_environment_is_listed_wherever_it_is(monkeypatch, tmp_path):
    """Even if nothing there tells which Python it is."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (first, *_) = find_environments(environ={}, home=str(tmp_path / "home"))
    assert (first.prefix, first.python) == (str(tmp_path), platform.python_version())
    venv(tmp_path, "/active")
    active = {"VIRTUAL_ENV": f"{tmp_path}/active"}
    listed = find_environments(environ=active, home=str(tmp_path / "home"))
    assert [each.prefix for each in listed[:2]] == [f"{tmp_path}/active", str(tmp_path)]


@pytest.mark.parametrize(("start", "levels"), [("/app", 1), ("/srv", 2), ("/home/ana", 3)])
def test_how_deep_projects_are_looked_for(machine, start, levels):
    for depth in range(1, 6):
        venv(machine, f"{start}/{depth}{'/below' * (depth - 1)}")
    near = {path for path in found(machine) if path.startswith(f"{start}/")}
    assert near == {f"{start}/{n}{'/below' * (n - 1)}" for n in range(1, levels + 1)}


def test_a_huge_home_ends(machine, monkeypatch):
    monkeypatch.setattr("cudriver.stack.discover.MAX_FOLDERS", 50)
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
