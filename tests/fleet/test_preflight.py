"""A preflight in torch.distributed, with real process groups, and in no group at all."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from enginekit import OTHER, run, start

from cudriver import fleet

RANK = """
import json, os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from cudriver import fleet, stack

dist.init_process_group("gloo", timeout=timedelta(seconds=100))
if sys.argv[1:] == ["killed"]:
    stack.inspect = lambda **options: os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1:] == ["hangs"]:
    time.sleep(300)
elif sys.argv[1:] == ["fails"]:
    stack.inspect = lambda **options: 1 / 0
for _ in range(1 if sys.argv[1:] else 2):  # a second call is as good as the first
    said = None
    try:
        fleet.preflight(timeout=30)
    except fleet.PreflightError as error:
        said = str(error)
print(json.dumps([said, torch.cuda.is_initialized()]))
"""


def port() -> str:
    """A free port, below those that the kernel hands out by itself."""
    while True:
        number = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return str(number)


def ranks(*pythons: Path, befalls: Sequence[str] = ()) -> list[list[object]]:
    """What the ranks say, each with its Python; `befalls` is what happens to the last ones."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    group = {"WORLD_SIZE": str(len(pythons)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    once = ["nothing"] if befalls else [""]
    words = [*once * (len(pythons) - len(befalls)), *befalls]
    started = [
        start([python, "-c", RANK, *filter(None, [word])], RANK=str(rank), **group)
        for rank, (python, word) in enumerate(zip(pythons, words, strict=True))
    ]
    end = time.monotonic() + 200
    said = []
    try:
        for process, word in zip(started, words, strict=True):
            if word in ("killed", "hangs"):
                continue
            out, err = process.communicate(timeout=end - time.monotonic())
            assert process.returncode == 0, err
            said.append(json.loads(out))
    finally:
        for process in started:
            process.kill()
            process.communicate()
    for process, word in zip(started, words, strict=True):
        assert word != "killed" or process.returncode == -signal.SIGKILL
    return said


def test_ranks_that_fit_go_on_and_cuda_is_not_initialised(pythons):
    assert ranks(pythons[0], pythons[0]) == [[None, False]] * 2


def test_all_ranks_raise_the_same_where_one_does_not_fit(pythons):
    said = ranks(pythons[0], pythons[1])
    assert len(said) == 2
    assert said[0] == said[1]
    assert "FL401" in said[0][0]
    assert OTHER in said[0][0]


def test_ranks_without_a_report_are_named_on_the_others(pythons):
    """The last has answered before the time of the others is over."""
    said = ranks(*[pythons[0]] * 5, befalls=["killed", "hangs", "fails"])
    assert len(said) == 3
    assert said[0] == said[1] == said[2]
    assert said[0][0].splitlines()[-3:] == [
        "rank 2: no answer within 30 s",
        "rank 3: no answer within 30 s",
        "rank 4: the check failed: ZeroDivisionError: division by zero",
    ]


def test_a_process_alone_answers_for_itself(pythons):
    assert run([pythons[0], "-c", "from cudriver import fleet; fleet.preflight()"]).returncode == 0


@pytest.mark.parametrize("count", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_one_of_several_without_a_group_is_refused(monkeypatch, count):
    monkeypatch.setenv(count, "8")
    with pytest.raises(RuntimeError, match=rf"one of 8 \({count}\), but no group"):
        fleet.preflight()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_that_is_none_is_refused(timeout):
    with pytest.raises(ValueError, match=f"timeout={timeout!r}"):
        fleet.preflight(timeout=timeout)


@pytest.mark.parametrize(
    ("call", "package", "extra"),
    [("mpi()", "mpi4py", "mpi"), ("dask(None)", "distributed", "dask"), ("ray()", "ray", "ray")],
)
def test_a_missing_engine_is_named_with_its_command(tmp_path, call, package, extra):
    program = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from cudriver import fleet
fleet.{call}
"""
    done = run([sys.executable, "-c", program])
    assert f"ImportError: cudriver.fleet.{extra}() needs the package {package}" in done.stderr
    assert done.stderr.rstrip().endswith(f"pip install {package}")
