"""What commands print with --json is as commands.schema.json says, member by member."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import cudriver as cu
from cudriver import cli, fleet
from cudriver.cli import demo_stack, devices
from fleet.made import report
from schemas import strict

SCHEMA = strict(Path(cli.__file__).with_name("commands.schema.json"))
PARTS = {"driver", "share", "status", "step"}  # what several of them have


def validated(definition: str, document: Any) -> Any:
    """The document, held against one definition of the schema."""
    jsonschema.validate(document, {**SCHEMA, "$ref": f"#/$defs/{definition}"})
    return document


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PyTorch that needs cuSPARSELt, which is there, and another one, which is not."""
    made: Path = tmp_path_factory.mktemp("json") / "env"
    site = demo_stack.broken(made)
    library = demo_stack.library
    needs = (demo_stack.LIBRARY, "libcufft.so.11")
    (site / "torch/lib/libtorch_cuda.so").write_bytes(
        library("libtorch_cuda.so", needs, "$ORIGIN/../../nvidia/cusparselt/lib")
    )
    files = {f"nvidia/cusparselt/lib/{demo_stack.LIBRARY}": library(demo_stack.LIBRARY)}
    demo_stack.install(site, demo_stack.WHEEL, demo_stack.RELEASE, [], files)
    (made / "other").mkdir()
    (made / "other" / demo_stack.LIBRARY).write_bytes(library(demo_stack.LIBRARY))
    return made


COMMANDS = {
    "bench": ["bench --size 64K --rounds 1"],
    "bench-numa": ["bench --numa --size 64K --rounds 1"],
    "bench-neighbours": ["bench --neighbours --size 64K --rounds 1"],
    "demo": ["demo --size 1"],
    "devices": ["devices"],
    "explain": ["explain undefined symbol: cudnnCreate, version libcudnn.so.9", "explain CU303"],
    "plan": [
        "plan torch jax --driver 580.95.05 --gpu H100 --python 3.12",  # proven, or derived
        "plan torch --driver 390.157 --gpu H100",  # nothing
        "plan torch --at PREFIX --driver 580.95.05 --gpu 9.0",
    ],
    "which": [
        "which cusparseLt cufft nothing --prefix PREFIX",
        "which --prefix PREFIX --ld-library-path PREFIX/other",
    ],
    "which-pid": ["which --pid PID --prefix PREFIX"],
}


@pytest.mark.parametrize(
    ("definition", "command"), [(name, words) for name in COMMANDS for words in COMMANDS[name]]
)
def test_a_command_prints_what_the_schema_says(
    prefix: Path, capsys: pytest.CaptureFixture[str], definition: str, command: str
) -> None:
    ctypes.CDLL(str(prefix / "other" / demo_stack.LIBRARY))  # what --pid tells
    line = command.replace("PREFIX", str(prefix)).replace("PID", str(os.getpid()))
    cli.main([*line.split(), "--json"])
    told = validated(definition, json.loads(capsys.readouterr().out))
    if definition == "which":
        (row,) = told["libraries"]
        assert ("instead_of" in row) == ("--ld-library-path" in command)
        assert [each["soname"] for each in told["missing"]] == ["libcufft.so.11"]
    if definition == "which-pid":
        assert [row["is"] for row in told["libraries"]].count("another") == 1


def test_a_driver_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise cu.CudaError("no driver")

    monkeypatch.setattr(cu, "devices", refuse)
    assert cli.main(["devices", "--json"]) == devices.FAILED
    assert validated("devices", json.loads(capsys.readouterr().out))["error"] == "no driver"
    monkeypatch.setattr(cu, "Device", refuse)
    assert cli.main(["demo", "--json"]) == 1
    assert validated("demo", json.loads(capsys.readouterr().out))["error"] == "no driver"


def test_nodes_compared() -> None:
    nodes = [report(f"d{number}") for number in range(3)]
    nodes[1]["driver"]["release"] = nodes[1]["driver"]["kernel_release"] = "535.104.05"
    nodes[2]["libraries"][2]["version"] = "9.1.0"
    told = validated("fleet", fleet.compare(nodes, expect=4).to_dict())
    assert [*map(len, (told["groups"], told["findings"]))] > [1, 0]
    assert any(each["evidence"] for each in told["findings"])
    assert any(group["differs"] for group in told["groups"])


def test_every_command_with_json_has_a_definition_that_is_tried() -> None:
    assert {*SCHEMA["$defs"]} == {*COMMANDS, "fleet", *PARTS}
