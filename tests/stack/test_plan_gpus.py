"""GPUs by the names that nvidia-smi, shops and clouds write."""

from __future__ import annotations

import re

import pytest

from cudriver.stack.planning.gpus import gpu, sold_for
from cudriver.stack.tables import table

# The capability as NVIDIA's list, or cudaGetDeviceProperties on such a card, has it.
USUAL = """
3.5 NVIDIA GeForce GTX 780 Ti | Tesla K40m
3.7 tesla-k80
5.2 GTX 980 | NVIDIA GeForce GTX TITAN X
5.3 Jetson Nano
6.0 Tesla P100-PCIE-16GB
6.1 GTX1080 | P4000 | NVIDIA TITAN X (Pascal) | NVIDIA TITAN Xp | Quadro P4000
7.0 volta | Tesla V100-SXM2-32GB | NVIDIA TITAN V | Quadro GV100
7.2 Jetson AGX Xavier
7.5 nvidia-tesla-t4 | T400 | Quadro RTX 6000 | NVIDIA GeForce GTX 1660 SUPER | T1000 8GB | T4G
8.0 A800 | NVIDIA A100-SXM4-80GB | A100-PCIE-40GB | A100 80GB PCIe | A30
8.6 RTX 3060 | 3080ti | RTXA6000 | A1000 | A10G | NVIDIA GeForce RTX 3050 Laptop GPU
8.6 RTX A2000 12GB
8.7 Jetson Orin | Jetson AGX Orin 64GB | Orin (nvgpu) | Jetson Orin Nano Super Developer Kit
8.9 4060 | RTX4090 | RTX 4070 Ti SUPER | RTX 6000 Ada | 6000 Ada | L4 | NVIDIA L40S-48Q
8.9 RTX 5000 Ada
8.9 ASUS TUF Gaming GeForce RTX 4070 Ti SUPER OC 16GB | NVIDIA RTX 4000 SFF Ada Generation
9.0 H100 | H800 | H20 | GH200 | NVIDIA GH200 480GB | nvidia-h100-80gb | H100_SXM | 8x H100
9.0 H100 NVL
9.0 NVIDIA H100 80GB HBM3 MIG 1g.10gb | DGX H100 | Hopper | sm_90 | 90 | NVIDIA-H200-141GB-HBM3e
10.0 GB200 | GB200 NVL72 | B200
10.3 GB300 | B300
11.0 Jetson Thor | NVIDIA Thor | Jetson T5000
12.0 RTX 5070 | MSI GeForce RTX 5060 Ti 16G | NVIDIA RTX PRO 6000 Blackwell Server Edition | 12.0
12.0 NVIDIA RTX PRO 4000 Blackwell SFF Edition
12.1 GB10 | DGX Spark | NVIDIA DGX Spark (GB10)
"""
NAMES = {
    name.strip(): line.split()[0]
    for line in USUAL.strip().splitlines()
    for name in line.partition(" ")[2].split("|")
}
ROWS = [
    (name, row["capability"], kind)
    for row in table("gpus")["gpus"]
    for kind in ("data centre", "workstation", "jetson")
    for name in row.get(kind, ())
]


def test_usual_names_have_their_capability():
    assert {name: gpu(name) for name in NAMES} == NAMES


def test_every_name_of_the_list_is_known_however_it_is_written():
    """A longer name of the list is never taken for the shorter one within it."""
    for name, capability, kind in ROWS:
        forms = [name, name.lower(), f"NVIDIA {name}", name.replace(" ", "-"), f"{name} 24GB"]
        assert {gpu(form) for form in forms} == {capability}, name
        assert sold_for(name)[0] == (kind == "data centre"), name


def test_every_capability_of_the_list_is_one_that_drivers_have():
    known = {row["capability"] for row in table("driver")["architectures"]}
    assert {capability for _, capability, _ in ROWS} <= known
    assert len(ROWS) > 250


@pytest.mark.parametrize(
    "name",
    ["H100;id", "H100 $(id)", "H100`id`", "H100\n", "H100|", "H1000", "L400", "RTX 9999", "MI300X",
     "a2-highgpu-1g", "t4g.small", "P", "", " ", "H100" * 40, "A" * 10_000, "\u0665090", "9.0;id"],
)  # fmt: skip
def test_what_is_no_name_of_a_gpu_is_refused(name):
    with pytest.raises(ValueError, match="no GPU"):
        gpu(name)
    assert sold_for(name) == (None, False)


def test_a_name_of_two_gpus_is_refused_with_both():
    for row in table("gpus")["ambiguous"]:
        with pytest.raises(ValueError, match=re.escape(", ".join(row["meant"]))):
            gpu(row["name"])
        for each in row["meant"]:
            assert re.fullmatch(r"\d+\.\d", each) or gpu(each)
    with pytest.raises(ValueError, match="may be h100, a100"):
        gpu("H100 A100")
