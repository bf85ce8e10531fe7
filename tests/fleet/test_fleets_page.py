"""docs/fleets.md: each recipe runs as it is written, on the engine itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from enginekit import run

from native_build import ROOT

PAGE = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
KUBERNETES = ROOT / "examples" / "kubernetes" / "cudriver-check.yaml"


def recipe(name: str, folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Runs a recipe's commands in a shell, with its programs in files; pip's are done already."""
    for program in re.findall(r"^```python\n(.*?)^```", RECIPES[name], re.M | re.S):
        file = re.match(r"# (\w+\.py)\n", program)
        assert file is not None
        (folder / file[1]).write_text(program)
    found = re.findall(r"^\$ (.*)$", RECIPES[name], re.M)
    script = [*(line for line in found if not line.startswith("pip ")), *lines]
    assert script
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return run(["bash", "-c", f"cd {folder}\n" + "\n".join(script)], timeout=200, PATH=path)


def test_dask(tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed")
    done = recipe("Five minutes with Dask, on a laptop", tmp_path)
    assert done.returncode == 0, done.stderr
    first, _, second = done.stdout.partition("LD_LIBRARY_PATH")
    assert "5 reports of 1 node" in first, done.stdout
    assert "FL501" in second, done.stdout


def test_ray(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    done = recipe("Ray", tmp_path, "python try_ray.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("group 1") == 2, done.stdout


def test_mpi(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    done = recipe("MPI", tmp_path)
    assert done.returncode in (0, 3), done.stderr  # 3: nothing here uses CUDA
    assert "8 reports of 1 node" in done.stdout


def test_images(tmp_path):
    for name, release in (("a", "12080"), ("b", "13000")):
        headers = tmp_path / "images" / name / "usr/local/cuda/include"
        headers.mkdir(parents=True)
        (headers / "cuda.h").write_text(f"#define CUDA_VERSION {release}\n")
    done = recipe("Images", tmp_path)
    assert done.stdout.startswith("2 nodes in 2 groups"), done.stderr
    assert "FL203" in done.stdout


def test_a_preflight_under_torchrun(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if shutil.which("torchrun", path=os.path.dirname(sys.executable)) is None:
        pytest.skip("torchrun is not beside this Python")
    done = recipe("Before a job starts", tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_pod_prints_the_report_and_stays(tmp_path):
    """The manifest is well formed, and what its container runs prints a line and goes on."""
    manifest = yaml.safe_load(KUBERNETES.read_text())
    pod = manifest["spec"]["template"]
    assert manifest["kind"] == "DaemonSet"
    assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert "app=" + pod["metadata"]["labels"]["app"] in RECIPES["Kubernetes"]
    (container,) = pod["spec"]["containers"]
    told = tmp_path / "told"
    script = container["args"][0].replace("/tmp/told", str(told))
    assert script != container["args"][0]
    assert container["readinessProbe"]["exec"]["command"][2] == "/tmp/told"
    command = [*container["command"], script.replace("sleep infinity", "true")]
    variables = {"NODE_NAME": "n7", "POD_NAME": "cudriver-check-x"}
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = run(command, PATH=path, **variables)
    assert set(variables) <= {each["name"] for each in container["env"]}
    assert told.exists()
    compared = subprocess.run(
        [sys.executable, "-c", "from cudriver.cli import main; main(['fleet', '--json'])"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"reports": 1' in compared.stdout
