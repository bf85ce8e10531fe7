"""Questions to `cudriver plan`, and their answers."""

from __future__ import annotations

import itertools
import re

import pytest

from cudriver.stack.facts import Finding
from cudriver.stack.fixes.fix import branch_for
from cudriver.stack.machine_facts import Driver
from cudriver.stack.planning import answer, plan
from cudriver.stack.planning.candidates import best
from cudriver.stack.record import but
from cudriver.stack.tables import driver_cuda, driver_floor, table
from cudriver.stack.versions import compare, major

# Packages, driver, GPU, Python: the environments. "proven": those versions were installed and
# imported, the data says when. "derived": the newest release whose METADATA, tags and the tables
# allow it; `python -m corpus.dry` asks uv the same. "nothing" has, where another driver is all that
# is needed, what that would bring. Why, where it is not the major's floor (450, 525, 580) or the
# newest release with code for the GPU:
#   3.5: wheels begin at 3.7.  K80, P100: their last drivers are R470 and R580.
#   V100 and older: cuDNN from 9.11 on and CUDA 13 leave them out; PyTorch's index cu126 has 5.0 on.
#   PyTorch 2.5 for CUDA 11.8 has 5.0 to 9.0; its cuDNN 9 leaves Kepler out.
#   B200, RTX 5090: from CUDA 12.8 and R570 on; PyTorch 2.11 is the last for CUDA 12.8.
#   TensorFlow has PTX for 9.0 and newer, which a driver of its CUDA must compile.
#   TensorFlow 2.21 and PyTorch 2.10 want different NCCLs: 2.20 and 2.8 go together.
#   vLLM 0.19, SGLang 0.5.10 and xFormers 0.0.35 are the last built for CUDA 12.
#   CuPy 13 is the last for CUDA 11.  A Jetson's builds come with JetPack.
ANSWERS = """
torch | 470.82.01 | 3.5 | any | nothing
torch | 470.82.01 | K80 | 3.10 | proven torch 2.0.1 cuda11
torch | 470.82.01 | K80 | 3.12 | nothing
torch | 390.157 | K80 | any | nothing, torch==2.0.1 torchvision==0.15.2 numpy==1.26.4 with R470
torch | 535.104.05 | K80 | any | nothing, torch==2.0.1 torchvision==0.15.2 numpy==1.26.4 with R470
torch | 535.104.05 | GTX 980 | any | derived torch 2.14.1 cuda12
torch | 580.95.05 | GTX 980 | 3.12 | derived torch 2.14.1 cuda12
jax | 535.104.05 | GTX 980 | any | proven jax 0.4.30 cuda12
torch | 535.104.05 | P100 | 3.12 | derived torch 2.14.1 cuda12
torch | 610.43.02 | P100 | any | nothing, torch==2.14.1 torchvision==0.29.2 with R580
tensorflow | 535.104.05 | P100 | 3.11 | derived tensorflow 2.19.1 cuda12
cupy | 580.95.05 | P100 | 3.12 | proven cupy 14.2.0 cuda12
torch | 535.104.05 | GTX 1080 | 3.12 | derived torch 2.14.1 cuda12
jax | 535.104.05 | GTX 1080 | 3.11 | proven jax 0.4.30 cuda12
torch | 535.104.05 | V100 | 3.12 | derived torch 2.14.1 cuda12
jax | 535.104.05 | V100 | 3.11 | proven jax 0.4.30 cuda12
jax | 535.104.05 | V100 | 3.12 | proven jax 0.10.2 torch 2.10.0 cuda12
tensorflow | 535.104.05 | V100 | 3.12 | derived tensorflow 2.19.1 cuda12
torch cupy | 535.104.05 | V100 | 3.12 | proven cupy 14.2.0 torch 2.10.0 cuda12
torch | 450.80.02 | T4 | any | derived torch 2.5.1 cuda11
torch | 535.104.05 | T4 | 3.12 | derived torch 2.14.1 cuda12
torch | 580.95.05 | T4 | 3.12 | proven torch 2.15.0 cuda13
onnxruntime | 535.104.05 | T4 | 3.12 | derived onnxruntime 1.26.0 cuda12
torch | 470.82.01 | A100 | 3.10 | derived torch 2.5.1 cuda11
torch | 470.82.01 | A100 | 3.12 | derived torch 2.5.1 cuda11
torch | 525.60.13 | A100 | 3.12 | derived torch 2.14.1 cuda12
torch | 580.95.05 | A100 | 3.12 | proven torch 2.15.0 cuda13
jax | 525.60.13 | A100 | 3.12 | proven jax 0.12.0.1 cuda12
jax | 580.95.05 | A100 | 3.12 | proven jax 0.12.0.1 cuda13
tensorflow | 525.60.13 | A100 | 3.12 | proven tensorflow 2.21.0 cuda12
torch jax | 535.104.05 | A100 | 3.12 | proven jax 0.10.2 torch 2.10.0 cuda12
torch tensorflow | 535.104.05 | A100 | 3.12 | proven tensorflow 2.20.0 torch 2.8.0 cuda12
jax tensorflow | 535.104.05 | A100 | 3.12 | proven jax 0.10.2 tensorflow 2.21.0 cuda12
torch | 535.104.05 | A10 | 3.12 | derived torch 2.14.1 cuda12
torch | 470.82.01 | RTX 3090 | 3.11 | derived torch 2.5.1 cuda11
vllm | 535.104.05 | RTX 3090 | 3.12 | derived torch 2.10.0 vllm 0.19.1 cuda12
vllm | 580.95.05 | RTX 3090 | 3.12 | derived torch 2.14.0 vllm 0.33.0 cuda13
torch | 525.60.13 | L4 | 3.12 | derived torch 2.14.1 cuda12
torch | 470.82.01 | L4 | any | nothing, torch==2.15.0 torchvision==0.29.2 with R580
torch | 580.95.05 | RTX 4090 | 3.12 | proven torch 2.15.0 cuda13
torch cupy | 580.95.05 | RTX 4090 | 3.12 | proven cupy 14.2.0 torch 2.13.0 cuda13
torch | 535.104.05 | H100 | 3.12 | derived torch 2.14.1 cuda12
torch | 580.95.05 | H100 | 3.12 | proven torch 2.15.0 cuda13
torch | 580.95.05 | H100 | 3.9 | derived torch 2.8.0 cuda12
torch jax | 580.95.05 | H100 | 3.12 | proven jax 0.10.2 torch 2.13.0 cuda13
torch onnxruntime | 580.95.05 | H100 | 3.12 | proven onnxruntime 1.31.1 torch 2.13.0 cuda13
jax cupy | 580.95.05 | H100 | 3.12 | proven cupy 14.2.0 jax 0.10.2 cuda13
tensorflow cupy | 535.104.05 | H100 | 3.12 | nothing, tensorflow[and-cuda]==2.21.0 with R580; proven cupy 14.2.0 cuda12
cupy | 535.104.05 | H100 | 3.12 | proven cupy 14.2.0 cuda12
vllm | 580.95.05 | H100 | 3.12 | derived torch 2.14.0 vllm 0.33.0 cuda13
torch | 520.61.05 | H100 | any | derived torch 2.5.1 cuda11
torch | 580.95.05 | H200 | 3.12 | proven torch 2.15.0 cuda13
torch | 570.86.15 | B200 | 3.12 | derived torch 2.11.0 cuda12
torch | 580.95.05 | B200 | 3.12 | proven torch 2.15.0 cuda13
torch | 535.104.05 | B200 | 3.12 | nothing, torch==2.15.0 torchvision==0.29.2 with R580
tensorflow | 580.95.05 | B200 | 3.12 | proven tensorflow 2.21.0 cuda12
jax | 570.86.15 | B200 | 3.12 | proven jax 0.12.0.1 cuda12
torch | 580.95.05 | B300 | 3.12 | proven torch 2.15.0 cuda13
torch | 580.95.05 | RTX 5090 | 3.12 | proven torch 2.15.0 cuda13
torch | 570.86.15 | RTX 5090 | 3.12 | derived torch 2.11.0 cuda12
torch tensorflow | 580.95.05 | RTX 5090 | 3.12 | proven tensorflow 2.20.0 torch 2.8.0 cuda12
jax | 580.95.05 | RTX 5090 | 3.13 | proven jax 0.12.0.1 cuda13
torch | 580.95.05 | 10.7 | 3.12 | nothing, torch==2.15.0 torchvision==0.29.2 with R615
torch | 615.31 | 11.0 | 3.12 | nothing
jax tensorflow | 580.95.05 | H100 | 3.12 | proven jax 0.10.2 tensorflow 2.21.0 cuda12
vllm | 535.104.05 | A100 | any | derived torch 2.10.0 vllm 0.19.1 cuda12
vllm | 560.35.03 | 8.0 | any | derived torch 2.10.0 vllm 0.19.1 cuda12
vllm torch | 535.104.05 | A100 | 3.12 | derived torch 2.10.0 vllm 0.19.1 cuda12
vllm | 580.95.05 | B200 | 3.13 | derived torch 2.14.0 vllm 0.33.0 cuda13
jax | 525.60.13 | 10.1 | any | nothing
torch | 580.95.05 | H100 | 3.14 | derived torch 2.15.0 cuda13
torch | 580.95.05 | H100 | 3.13t | derived torch 2.11.0 cuda13
torch | 580.95.05 | H100 | 3.14t | derived torch 2.15.0 cuda13
cupy | 460.32.03 | V100 | 3.12 | derived cupy 13.6.0 cuda11
cupy | 580.95.05 | H100 | 3.14t | derived cupy 14.2.0 cuda13
sglang | 535.104.05 | A100 | 3.12 | derived sglang 0.5.10.post1 torch 2.9.1 cuda12
sglang | 580.95.05 | H100 | 3.12 | derived sglang 0.5.23 torch 2.14.1 cuda13
sglang torch | 570.86.15 | B200 | 3.12 | derived sglang 0.5.10.post1 torch 2.9.1 cuda12
numba | 535.104.05 | L4 | 3.12 | derived numba-cuda 0.30.4 cuda12
numba-cuda | 580.95.05 | RTX 5090 | 3.14 | derived numba-cuda 0.30.4 cuda13
xformers | 535.104.05 | A100 | 3.12 | derived torch 2.10.0 xformers 0.0.35 cuda12
xformers | 580.95.05 | RTX 5070 | 3.13 | derived torch 2.10.0 xformers 0.0.35 cuda12
bitsandbytes | 535.104.05 | RTX 4090 | 3.12 | derived bitsandbytes 0.50.2 torch 2.10.0 cuda12
bitsandbytes torch | 580.95.05 | GB10 | 3.13 | derived bitsandbytes 0.50.2 torch 2.15.0 cuda13
flash-attn | 535.104.05 | A100 | 3.12 | derived flash-attn 2.8.3.post2 torch 2.10.0 cuda12
transformer-engine | 580.95.05 | H100 | 3.12 | derived torch 2.15.0 transformer-engine 2.20.2 cuda13
onnxruntime | 580.95.05 | RTX 4060 | 3.14 | derived onnxruntime 1.31.1 cuda13
tensorflow | 570.86.15 | RTX 5070 Ti | 3.13 | proven jax 0.10.2 tensorflow 2.21.0 cuda12
torch | 580.95.05 | Jetson Orin | 3.12 | nothing
jax | 535.104.05 | A100 | 3.14t | derived jax 0.12.0.1 cuda12
onnxruntime | 535.104.05 | H800 | 3.13 | derived onnxruntime 1.26.0 cuda12
torch xformers | 535.104.05 | A800 | 3.11 | derived torch 2.10.0 xformers 0.0.35 cuda12
cupy torch | 535.104.05 | RTX 3060 | 3.13 | proven cupy 14.2.0 cuda12; derived torch 2.14.1 cuda12
vllm | 470.82.01 | A100 | 3.10 | nothing, vllm==0.31.0 with R580
torch | 580.95.05 | RTX 6000 Ada | 3.15 | derived torch 2.15.0 cuda13
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
    made = plan(*packages.split(), driver=driver, gpus=[gpu], python=wanted)
    assert "; ".join(told(made)) == answer
    assert made.exit_code == ("nothing" in answer)
    for part in made.parts:
        if part.status != "nothing":
            assert major(driver) >= major(driver_floor(part.candidate.cuda))
            assert wanted is None or wanted in part.candidate.pythons


DRIVER = re.compile(r"from ([\d.]+) on one does|The branch to install is R(\d+)|must be R(\d+),")
PACKAGE = re.compile(r"cuda-compat-(\d+)-(\d+) has")


def test_what_is_named_as_enough_is_enough():
    """The driver, or the package that stands in for one: with it the same question has an answer,
    whatever else keeps a set away: another Python, a GPU that it has no code for.
    """
    named = []
    pythons, gpus = (None, "3.10", "3.12", "3.14t"), ("7.0", "8.0", "10.0", "12.0", "H100")
    for release, name in itertools.product(("418.40", "535.104.05"), table("plan")["frameworks"]):
        for gpu, python in itertools.product(gpus, pythons):
            made = plan(name, driver=release, gpus=[gpu], python=python)
            told, where = " ".join(str(made).split()), (name, release, gpu, python)
            for found in DRIVER.finditer(told):
                driver = found[1] or f"{found[2] or found[3]}.99"
                named.append("driver")
                assert plan(name, driver=driver, gpus=[gpu], python=python).exit_code == 0, where
            for first, second in PACKAGE.findall(told):
                named.append("package")
                brought = but(made.question.driver, kind="compat", cuda=f"{first}.{second}")
                chosen = best(but(made.question, driver=brought))
                wanted = best(but(made.question, driver=Driver(devices=brought.devices)))
                assert chosen.newness([name]) == wanted.newness([name]), where
                offered = driver_cuda(wanted.floor_for(made.question.gpus))  # for its PTX
                assert compare(f"{first}.{second}", offered) >= 0, where
    assert named.count("driver") > 150
    assert named.count("package") > 20


def test_the_questions_are_as_many_as_promised():
    columns = list(zip(*ROWS, strict=True))
    assert len(ROWS) >= 60
    assert len({*zip(columns[1], columns[2], strict=True)}) >= 20
    assert len({*columns[3]} - {"any"}) >= 3
    assert any(" " in packages for packages in columns[0])


def test_errors_are_counted_without_a_plural():
    says, _ = answer.checked("/e", [Finding("CU303", "error", "t")])
    assert says[0] == "The check of /e first. Errors: 1. Fix them before anything is added."
