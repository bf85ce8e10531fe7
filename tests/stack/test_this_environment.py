"""The environment that runs the tests against its own PyTorch and the driver's own answers.

On a machine with a GPU this compares what is mapped after work on the device; without one, what
PyTorch says there is compared still.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cudriver import stack
from cudriver.stack.load.observe import observe
from cudriver.stack.machine.visible import select
from cudriver.stack.machine_facts import Device

ASK = r"""
import json, os, sys
import torch
answer = {"cuda": torch.version.cuda, "version": torch.__version__}
if torch.version.cuda:
    answer["cudnn"] = torch.backends.cudnn.version()
    answer["nccl"] = list(torch.cuda.nccl.version())
    answer["archs"] = torch._C._cuda_getArchFlags().split()
if torch.cuda.is_available():
    x = torch.randn(64, 64, device="cuda")
    y = torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]).sum()
    (x @ x + torch.fft.fft(x).real + y).sum().item()
    torch.linalg.solve(x, x).sum().item()
    answer["devices"] = [
        [p.name, f"{p.major}.{p.minor}", p.total_memory]
        for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
with open("/proc/self/maps") as maps:
    rows = (line.rstrip("\n").split(None, 5) for line in maps)
    answer["mapped"] = sorted({row[5] for row in rows if len(row) == 6 and ".so" in row[5]})
print(json.dumps(answer))
"""


def ask(code: str, **variables: str) -> Any:
    """What a program prints as JSON, on the machine's own driver."""
    environment = {k: v for k, v in os.environ.items() if k != "CUDRIVER_LIBRARY"} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def said() -> Any:
    """What PyTorch says here."""
    pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
    return ask(ASK)


@pytest.fixture(scope="module")
def report() -> Any:
    return stack.inspect(sys.prefix)


def test_versions_are_pytorchs_own(said: Any, report: Any) -> None:
    torch = report.facts.framework("torch")
    assert torch.version == said["version"]
    assert torch.cuda == said["cuda"]
    if said["cuda"] is None:
        pytest.skip(f"torch {said['version']} is built without CUDA; its version was compared")
    major, rest = divmod(said["cudnn"], 10000)
    assert torch.cudnn == f"{major}.{rest // 100}.{rest % 100}"
    assert torch.nccl == ".".join(map(str, said["nccl"]))
    assert sorted(torch.archs) == sorted(said["archs"])


def test_mapped_libraries_are_the_predicted_files(said: Any, report: Any) -> None:
    """Of what PyTorch loads; another framework here may find another file of the same name."""
    if said["cuda"] is None:
        pytest.skip(f"torch {said['version']} is built without CUDA: it maps no CUDA library")
    predicted = {os.path.realpath(path) for path in report.facts.framework("torch").loads}
    names = {os.path.basename(path) for path in predicted}
    mapped = {path for path in said["mapped"] if os.path.basename(path) in names}
    assert len(mapped) > 10
    assert mapped <= predicted


def test_observation_agrees_with_the_prediction(said: Any, report: Any) -> None:
    observation = observe(report.facts)
    assert observation.error is None
    assert [row for row in observation.rows if not row.agrees] == []


def test_the_driver_is_the_drivers_own_answer(said: Any, report: Any) -> None:
    if "devices" not in said:
        pytest.skip("PyTorch shows no GPU here")
    ours = [[d.name, d.compute_capability] for d in report.driver.devices]
    assert ours == [device[:2] for device in said["devices"]]
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if smi.returncode == 0:
        rows = [line.split(", ") for line in smi.stdout.strip().splitlines()]
        assert report.driver.release == rows[0][0]
        assert [device.name for device in report.driver.devices] == [row[1] for row in rows]


def test_a_working_environment_has_no_error(said: Any, report: Any) -> None:
    """PyTorch was imported and, where there is a GPU, worked on it: nothing can be an error."""
    faults = [f for f in report.findings if f.severity == "error" and "torch" in f.title.lower()]
    assert faults == []


VISIBLE = r"""
import json, os
from torch.cuda import _parse_visible_devices
answer = {}
for value in json.loads(os.environ["VALUES"]):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    answer[value] = _parse_visible_devices()
print(json.dumps(answer))
"""


def test_cuda_visible_devices_is_read_as_pytorch_reads_it() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
    values = [
        *("", " ", "0", "1,0", " 2 , 1 ", "-1", "0,-1,1", "0, 1, 2, -1, 3", "2, +3, -0, 5", "none"),
        *("0,0", "0, 1, 2, 1", "1gpu2,2ampere", "one,two,3,4", "4,3,two,one", "0,,1", "0x1", "1.5"),
        *("GPU-1", "GPU-1,2", "0,GPU-1", "GPU-0,GPU-3", "GPU-1,GPU-1", "GPU-1,none"),
    ]
    said = ask(VISIBLE, VALUES=json.dumps(values))
    devices = [Device(number, uuid=f"GPU-{number}") for number in range(8)]
    for value, theirs in said.items():
        ours = select(value, devices).ordinals
        assert ours == [int(str(name).removeprefix("GPU-")) for name in theirs], value
