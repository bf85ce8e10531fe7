"""Where a report comes from: host, boot, job, rank, variables, and what the process has mapped."""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import cudriver.stack
from cudriver import cli
from cudriver.fleet.node import node
from program import output

SCHEMA = Path(cudriver.stack.__file__).parent / "data" / "report.schema.json"


def folder(path: Path) -> str:
    """An environment without packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    return str(path)


def test_a_compact_report_is_one_line_with_its_node(tmp_path, monkeypatch, capsys):
    one, other = folder(tmp_path / "one"), folder(tmp_path / "other\nline")
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_NODEID", "3")
    monkeypatch.setenv("NCCL_ALGO", "Ring\x1b[2J")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    assert cli.main(["check", "--json", "--compact", "--no-probe", one, other]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    reports = [json.loads(line) for line in lines]
    assert [report["environment"]["prefix"] for report in reports] == [one, other]
    told = reports[0]["node"]
    assert told["host"] == platform.node()
    assert told["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (told["job"], told["rank"], told["scheduler"]["SLURM_NODEID"]) == ("71", None, "3")
    assert told["variables"]["NCCL_ALGO"] == "Ring\x1b[2J"
    assert "secret" not in lines[0]
    for report in reports:
        jsonschema.validate(report, json.loads(SCHEMA.read_text()))


def test_another_root_has_none_of_this_process_s_variables(tmp_path, monkeypatch, capsys):
    (tmp_path / "usr").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    cli.main(["check", "--json", "--compact", "--root", str(tmp_path), "/usr"])
    assert json.loads(capsys.readouterr().out)["node"]["variables"] == {}


def test_compact_without_json_is_a_usage_error(capsys):
    assert cli.main(["check", "--compact"]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "known"),
    [
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "64", "SLURM_JOB_ID": "7"}, ("7", 5, 64)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "64"}, (None, 0, None)),  # a batch script
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "0"},
            (None, 3, 8),
        ),
        (
            {"RANK": "9", "WORLD_SIZE": "16", "SLURM_PROCID": "1", "TORCHELASTIC_RUN_ID": "none"},
            (None, 9, 16),
        ),
        ({"RANK": "9"}, (None, None, None)),
        ({"PMI_RANK": "x", "PMI_SIZE": "8"}, (None, None, None)),
        ({"SLURM_PROCID": "9" * 5000}, (None, None, None)),
    ],
)
def test_the_innermost_launcher_tells_the_rank(variables, known):
    told = node(variables)
    assert (told["job"], told["rank"], told["ranks"]) == known


def test_what_the_caller_knows_goes_first():
    told = node({"SLURM_JOB_ID": "7", "SLURM_PROCID": "5"}, rank=2, worker="tcp://[::1]:80")
    assert (told["job"], told["rank"]) == ("7", 2)
    assert told["scheduler"]["worker"] == "tcp://[::1]:80"
    assert "rank" not in told["scheduler"]


def test_a_pod_is_known_by_its_host_name():
    told = node({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert told["scheduler"] == {"POD_NAME": platform.node()}


def test_the_process_s_own_report_has_what_it_has_mapped(tmp_path):
    """The oracle is the loader: the file that dlopen has mapped."""
    name = ctypes.util.find_library("z") or ctypes.util.find_library("m")
    source = next(p for p in map(Path, ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64",
                                        "/usr/lib")) if (p / str(name)).exists())  # fmt: skip
    library = tmp_path / "libnccl.so.2.27.3"
    shutil.copy(source / str(name), library)
    program = """
        import ctypes, json, sys
        from cudriver.fleet import here
        ctypes.CDLL(sys.argv[1])
        report = here.report(probe_driver=False, worker="w1")
        print(json.dumps([report, "libcuda" in open("/proc/self/maps").read(), sys.prefix]))
    """
    report, has_cuda, prefix = json.loads(output(program, str(library)))
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert report["node"]["loaded"] == [
        {"soname": "libnccl.so.2.27.3", "version": "2.27.3", "path": os.path.realpath(library)}
    ]
    assert (report["environment"]["prefix"], has_cuda) == (prefix, False)
    assert report["node"]["scheduler"]["worker"] == "w1"
