"""What a plan says before it names a package, and beside it: the driver's reach, and ages."""

from __future__ import annotations

import json
import time
from calendar import timegm

import pytest

from cudriver.cli import main
from cudriver.stack.planning import plan
from cudriver.stack.planning.candidates import known, number
from cudriver.stack.tables import table

DAY = 86400


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        ("390.157", "Driver 390.157 offers CUDA 9.1: it runs no builds for CUDA 11 or newer."),
        ("470.82.01", "Driver 470.82.01 offers CUDA 11.4: it runs builds for CUDA 11."),
        ("535.104.05", "Driver 535.104.05 offers CUDA 12.2: it runs builds for CUDA 11, 12."),
        ("580.95.05", "Driver 580.95.05 offers CUDA 13.0: it runs builds for CUDA 11, 12, 13."),
    ],
)
def test_the_driver_s_reach_is_said_first(driver, told):
    made = plan("torch", driver=driver, gpus=["A100"])
    assert made.says[0] == told
    assert json.loads(made.to_json())["says"][0] == told
    text = " ".join(made.to_text().split())
    assert text.index(told) < min(text.index(part.says[0][:30]) for part in made.parts)


def test_pytorch_s_indexes_are_those_of_the_driver_s_cuda():
    made = plan("torch", driver="535.104.05", gpus=["A100"])
    assert made.says[1] == "PyTorch's indexes for CUDA 12: cu121, cu124, cu126, cu128, cu129."
    assert not any("indexes" in line for line in plan("jax", driver="535.1").says)


@pytest.mark.parametrize(
    ("days", "told"),
    [(-5, None), (0, None), (89, None), (90, "90 days old"), (364, "364 days old"),
     (365, "newer releases are likely"), (4000, "newer releases are likely")],
)  # fmt: skip
@pytest.mark.parametrize("driver", ["580.95.05", "390.157"])  # an answer, and none
def test_the_clock_is_read(days, told, driver, monkeypatch):
    drawn = timegm(time.strptime(table("derived")["drawn"], "%Y-%m-%d"))
    monkeypatch.setattr(time, "time", lambda: float(drawn + days * DAY))
    made = plan("vllm", driver=driver, gpus=["A100"])
    said = [line for line in made.says if "days old" in line]
    assert len(said) == (told is not None)
    assert told is None or told in said[0]
    assert json.loads(made.to_json())["tables"] == table("derived")["drawn"]


def test_none_is_said_of_the_releases_that_are_known_with_their_date():
    date = table("derived")["drawn"]
    for words in (
        {"driver": "390.157", "gpus": ["K80"], "python": "3.12"},
        {"driver": "470.82.01", "gpus": ["K80"], "python": "3.12"},
        {"driver": "610.43.02", "gpus": ["V100"]},
        {"driver": "470.82.01", "gpus": ["3.5"]},
    ):
        (part,) = plan("torch", **words).parts
        assert part.status == "nothing"
        assert part.says[0].startswith(f"None of the releases of PyTorch known on {date}"), words


def test_what_needs_no_root_comes_before_the_driver():
    (part,) = plan("vllm", driver="535.104.05", gpus=["A100"]).parts
    (older,) = (at for at, line in enumerate(part.says) if line.startswith("vLLM 0.19.1"))
    (package,) = (at for at, line in enumerate(part.says) if "cuda-compat-13-0" in line)
    (driver,) = (at for at, line in enumerate(part.says) if "branch to install" in line)
    assert older < package < driver
    assert part.steps[-2].commands == ["uv pip install --python env/bin/python vllm==0.19.1"]


@pytest.mark.parametrize(
    ("driver", "gpu", "told"),
    [
        ("535.104.05", "A100", "Without root"),
        ("535.104.05", "8.0", "If this is a data-centre GPU"),
        ("535.104.05", "RTX 4090", None),  # error 804
        ("560.35.03", "A100", None),  # R560 is no branch that the package is made for
        ("535.104.05", "B200", None),  # the kernel module knows no B200
        ("525.60.13", "A100", None),
    ],
)
def test_forward_compatibility_is_offered_where_nvidia_has_it(driver, gpu, told):
    (part,) = plan("vllm", driver=driver, gpus=[gpu]).parts
    said = [line for line in part.says if "cuda-compat" in line]
    assert len(said) == (told is not None)
    assert told is None or said[0].startswith(told)


def test_no_command_restarts_a_machine():
    first = plan("torch", driver="390.157", gpus=["A100"]).parts[0].steps[0]
    assert not any("reboot" in line or "shutdown" in line for line in first.commands)
    assert "and restart" in first.title


@pytest.mark.parametrize(("gpu", "arm"), [("GH200", True), ("GB10", True), ("H200", False)])
def test_nothing_was_run_beside_an_arm_processor(gpu, arm):
    made = plan("torch", driver="580.95.05", gpus=[gpu], python="3.13")
    assert any("Arm processor" in line for line in made.parts[0].says) == arm
    assert made.status == ("derived" if arm else "proven")
    assert any(step.ran for part in made.parts for step in part.steps) != arm


@pytest.mark.parametrize("gpu", ["Jetson Orin", "Jetson Thor", "10.1", "8.7"])
def test_a_jetson_s_driver_is_numbered_apart(gpu):
    made = plan("jax", driver="525.60.13", gpus=[gpu])
    assert (made.status, made.exit_code) == ("nothing", 1)
    assert "JetPack" in made.parts[0].says[0]


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("uv", "uv venv --python 3.14t env"),
        ("pip", "python3.14t -m venv env"),
        ("conda", "conda create -y -p ./env -c conda-forge python=3.14 python-freethreading pip"),
    ],
)
def test_a_free_threaded_python_is_made_by_its_name(tool, command):
    made = plan("torch", driver="580.1", gpus=["H100"], python="3.14t", installer=tool)
    assert made.parts[0].steps[0].commands == [command]
    assert not plan("torch", driver="580.1", gpus=["H100"]).parts[0].candidate.newest.endswith("t")


def test_what_is_compiled_at_installation_comes_last_and_says_what_it_takes():
    (part,) = plan("flash-attn", driver="535.1", gpus=["A100"], python="3.12").parts
    first, second = part.steps[1].commands
    assert first.endswith("torch==2.10.0")
    assert "--no-build-isolation flash-attn==" in second
    assert any("nvcc of CUDA 12" in line for line in part.says)


def test_an_environment_is_checked_before_anything_is_added(tmp_path, capsys):
    """The folder has no interpreter, or is the one that runs this."""
    import sys

    code = main(["plan", "numba", "--at", sys.prefix, "--driver", "580.95.05", "--gpu", "9.0"])
    text = capsys.readouterr().out
    assert code in (0, 1)
    assert f"The check of {sys.prefix} first: " in " ".join(text.split())


@pytest.mark.parametrize(
    ("package", "oldest"),
    # As the index had them: PyTorch's wheels have CUDA from 2.11 on, ONNX Runtime's from 1.29.
    [("torch", (2, 11)), ("vllm", (0, 20)), ("onnxruntime", (1, 29)), ("tensorflow", None)],
)
def test_what_fits_beside_an_arm_processor_has_wheels_for_it(package, oldest):
    found = [c for c in known([package], arm=True) if c.arm is not None]
    versions = [number(c.frameworks[package]["version"])[:2] for c in found]
    assert min(versions, default=None) == oldest
    assert all(c.pythons == c.arm for c in found)
    assert {c.index is None for c in known([package], arm=True) if c.arm is None} <= {False}


def test_that_no_release_has_wheels_for_an_arm_processor_is_said():
    made = plan("tensorflow", gpus=["GH200"])
    assert made.status == "nothing"
    assert any("has wheels of CUDA for aarch64" in line for line in made.parts[0].says)
