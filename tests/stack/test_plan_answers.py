"""Sixty questions to `cudriver plan`, and their answers."""

from __future__ import annotations

import re

import pytest

from cudriver.stack import plan
from cudriver.stack.rules.fix import branch_for
from cudriver.stack.tables import driver_floor
from cudriver.stack.versions import major

# Packages, driver, GPU, Python: the environments. "proven": those versions were installed and
# imported, the data says when. "derived": PyPI has those wheels, and the tables allow them.
# "nothing" has, where another driver is all that is needed, what that would bring. Why, where it is
# not the major's floor (450, 525, 580) or the newest release with code for the GPU:
#   3.5: wheels begin at 3.7.  K80, P100: their last drivers are R470 and R580.
#   V100 and older: cuDNN from 9.11 on and CUDA 13 leave them out, PyTorch 2.10 has 7.0, 2.7 older.
#   PyTorch 2.5 for CUDA 11.8 has 5.0 to 9.0; its cuDNN 9 leaves Kepler out.
#   B200, RTX 5090: from CUDA 12.8 and R570 on.
#   TensorFlow has PTX for 9.0 and newer, which a driver of its CUDA must compile.
#   TensorFlow 2.21 and PyTorch 2.10 want different NCCLs: 2.20 and 2.8 go together.
ANSWERS = """
torch | 470.82.01 | 3.5 | any | nothing
torch | 470.82.01 | K80 | 3.10 | proven torch 2.0.1 cuda11
torch | 470.82.01 | K80 | 3.12 | nothing
torch | 390.157 | K80 | any | nothing, torch==2.0.1 torchvision==0.15.2 numpy==1.26.4 with R470
torch | 535.104.05 | K80 | any | nothing, torch==2.0.1 torchvision==0.15.2 numpy==1.26.4 with R470
torch | 535.104.05 | GTX 980 | any | proven torch 2.7.1 cuda12
torch | 580.95.05 | GTX 980 | 3.12 | proven torch 2.7.1 cuda12
jax | 535.104.05 | GTX 980 | any | proven jax 0.4.30 cuda12
torch | 535.104.05 | P100 | 3.12 | proven torch 2.7.1 cuda12
torch | 610.43.02 | P100 | any | nothing, torch==2.7.1 torchvision==0.22.1 with R580
tensorflow | 535.104.05 | P100 | 3.11 | proven tensorflow 2.17.1 cuda12
cupy | 580.95.05 | P100 | 3.12 | proven cupy 14.2.0 cuda12
torch | 535.104.05 | GTX 1080 | 3.12 | proven torch 2.7.1 cuda12
jax | 535.104.05 | GTX 1080 | 3.11 | proven jax 0.4.30 cuda12
torch | 535.104.05 | V100 | 3.12 | proven torch 2.10.0 cuda12
jax | 535.104.05 | V100 | 3.11 | proven jax 0.4.30 cuda12
jax | 535.104.05 | V100 | 3.12 | proven jax 0.10.2 torch 2.10.0 cuda12
tensorflow | 535.104.05 | V100 | 3.12 | proven tensorflow 2.20.0 torch 2.8.0 cuda12
torch cupy | 535.104.05 | V100 | 3.12 | proven cupy 14.2.0 torch 2.10.0 cuda12
torch | 450.80.02 | T4 | any | proven torch 2.0.1 cuda11
torch | 535.104.05 | T4 | 3.12 | proven torch 2.10.0 cuda12
torch | 580.95.05 | T4 | 3.12 | proven torch 2.15.0 cuda13
onnxruntime | 535.104.05 | T4 | 3.12 | proven onnxruntime 1.23.2 torch 2.10.0 cuda12
torch | 470.82.01 | A100 | 3.10 | proven torch 2.0.1 cuda11
torch | 470.82.01 | A100 | 3.12 | derived torch 2.5.1 cuda11
torch | 525.60.13 | A100 | 3.12 | proven torch 2.10.0 cuda12
torch | 580.95.05 | A100 | 3.12 | proven torch 2.15.0 cuda13
jax | 525.60.13 | A100 | 3.12 | proven jax 0.12.0.1 cuda12
jax | 580.95.05 | A100 | 3.12 | proven jax 0.12.0.1 cuda13
tensorflow | 525.60.13 | A100 | 3.12 | proven tensorflow 2.21.0 cuda12
torch jax | 535.104.05 | A100 | 3.12 | proven jax 0.10.2 torch 2.10.0 cuda12
torch tensorflow | 535.104.05 | A100 | 3.12 | proven tensorflow 2.20.0 torch 2.8.0 cuda12
jax tensorflow | 535.104.05 | A100 | 3.12 | proven jax 0.10.2 tensorflow 2.21.0 cuda12
torch | 535.104.05 | A10 | 3.12 | proven torch 2.10.0 cuda12
torch | 470.82.01 | RTX 3090 | 3.11 | proven torch 2.0.1 cuda11
vllm | 535.104.05 | RTX 3090 | 3.12 | nothing, vllm==0.32.0 with R580
vllm | 580.95.05 | RTX 3090 | 3.12 | derived vllm 0.32.0 cuda13
torch | 525.60.13 | L4 | 3.12 | proven torch 2.10.0 cuda12
torch | 470.82.01 | L4 | any | nothing, torch==2.15.0 torchvision==0.29.2 with R580
torch | 580.95.05 | RTX 4090 | 3.12 | proven torch 2.15.0 cuda13
torch cupy | 580.95.05 | RTX 4090 | 3.12 | proven cupy 14.2.0 torch 2.13.0 cuda13
torch | 535.104.05 | H100 | 3.12 | proven torch 2.10.0 cuda12
torch | 580.95.05 | H100 | 3.12 | proven torch 2.15.0 cuda13
torch | 580.95.05 | H100 | 3.9 | derived torch 2.8.0 cuda12
torch jax | 580.95.05 | H100 | 3.12 | proven jax 0.10.2 torch 2.13.0 cuda13
torch onnxruntime | 580.95.05 | H100 | 3.12 | proven onnxruntime 1.31.1 torch 2.13.0 cuda13
jax cupy | 580.95.05 | H100 | 3.12 | proven cupy 14.2.0 jax 0.10.2 cuda13
tensorflow cupy | 535.104.05 | H100 | 3.12 | nothing, tensorflow[and-cuda]==2.21.0 with R580; proven cupy 14.2.0 cuda12
cupy | 535.104.05 | H100 | 3.12 | proven cupy 14.2.0 cuda12
vllm | 580.95.05 | H100 | 3.12 | derived vllm 0.32.0 cuda13
torch | 520.61.05 | H100 | any | derived torch 2.5.1 cuda11
torch | 580.95.05 | H200 | 3.12 | proven torch 2.15.0 cuda13
torch | 570.86.15 | B200 | 3.12 | proven torch 2.10.0 cuda12
torch | 580.95.05 | B200 | 3.12 | proven torch 2.15.0 cuda13
torch | 535.104.05 | B200 | 3.12 | nothing, torch==2.15.0 torchvision==0.29.2 with R580
tensorflow | 580.95.05 | B200 | 3.12 | proven tensorflow 2.21.0 cuda12
jax | 570.86.15 | B200 | 3.12 | proven jax 0.12.0.1 cuda12
torch | 580.95.05 | B300 | 3.12 | proven torch 2.15.0 cuda13
torch | 580.95.05 | RTX 5090 | 3.12 | proven torch 2.15.0 cuda13
torch | 570.86.15 | RTX 5090 | 3.12 | proven torch 2.10.0 cuda12
torch tensorflow | 580.95.05 | RTX 5090 | 3.12 | proven tensorflow 2.20.0 torch 2.8.0 cuda12
jax | 580.95.05 | RTX 5090 | 3.13 | proven jax 0.12.0.1 cuda13
torch | 580.95.05 | 10.7 | 3.12 | nothing, torch==2.15.0 torchvision==0.29.2 with R615
torch | 615.31 | 11.0 | 3.12 | nothing
jax tensorflow | 580.95.05 | H100 | 3.12 | proven jax 0.10.2 tensorflow 2.21.0 cuda12
"""  # noqa: E501
ROWS = [[cell.strip() for cell in line.split("|")] for line in ANSWERS.strip().splitlines()]


def told(made):
    """The environments of a plan, each in a few words."""
    for part in made.parts:
        chosen = part.candidate
        if part.status == "nothing" and chosen is None:
            yield "nothing"
        elif part.status == "nothing":
            branch = branch_for(made.question.driver, chosen.floor_for(made.question.gpus))
            yield f"nothing, {' '.join(chosen.packages)} with R{branch}"
        else:
            versions = {
                n: told["version"].partition("+")[0] for n, told in chosen.frameworks.items()
            }
            named = " ".join(f"{name} {versions[name]}" for name in sorted(versions))
            yield f"{part.status} {named} cuda{major(chosen.cuda)}"


@pytest.mark.parametrize(("packages", "driver", "gpu", "python", "answer"), ROWS)
def test_a_question_has_its_answer(packages, driver, gpu, python, answer):
    wanted = None if python == "any" else python
    made = plan.make(*packages.split(), driver=driver, gpus=[gpu], python=wanted)
    assert "; ".join(told(made)) == answer
    assert made.exit_code == ("nothing" in answer)
    for part in made.parts:
        if part.status != "nothing":
            assert major(driver) >= major(driver_floor(part.candidate.cuda))
            assert wanted is None or wanted in part.candidate.pythons


ENOUGH = re.compile(r"from ([\d.]+) on there is one")


def test_the_driver_that_is_named_as_enough_is_enough():
    """Whatever else keeps a set away: another Python, a GPU that it has no code for."""
    named = 0
    for packages in ("torch", "jax", "tensorflow", "cupy"):
        for gpu in ("7.0", "8.0", "9.0", "10.0", "12.0"):
            for python in (None, "3.10", "3.12", "3.13", "3.14"):
                made = plan.make(packages, driver="418.40", gpus=[gpu], python=python)
                for floor in ENOUGH.findall(str(made)):
                    named += 1
                    better = plan.make(packages, driver=floor, gpus=[gpu], python=python)
                    assert better.exit_code == 0, (packages, gpu, python, floor)
    assert named > 40


def test_the_questions_are_as_many_as_promised():
    columns = list(zip(*ROWS, strict=True))
    assert len(ROWS) >= 60
    assert len({*zip(columns[1], columns[2], strict=True)}) >= 20
    assert len({*columns[3]} - {"any"}) >= 3
    assert any(" " in packages for packages in columns[0])
