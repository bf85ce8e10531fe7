"""`cudriver fleet`: inputs, options, exit status, what a terminal shows, and real environments."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import made
import pytest
from made import fleet_of, lines, report

import program as programs
from cudriver import cli
from cudriver.stack.text import columns
from native_build import ROOT


def run(
    *words: object, text: str = "", command: str = "fleet", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cudriver", command, *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables},
    )


def told(*words: object, text: str = "") -> dict:
    answer: dict = json.loads(run(*words, "--json", text=text).stdout)
    return answer


def nccl(each: made.Report) -> None:
    each["frameworks"][0]["nccl"] = "2.26.2"
    made.library(each, "libnccl.so.2")["version"] = "2.26.2"


SAME = [report(f"d{number}") for number in range(4)]
MIXED = fleet_of(4, nccl, at=2)


@pytest.mark.parametrize(
    ("text", "words", "status"),
    [
        (lines(SAME), (), 0),
        (lines(MIXED), (), 1),
        (lines(SAME), ("--expect", "5"), 3),
        (lines(SAME), ("--nodes", "d[0-3]", "--expect", "4"), 0),
        (lines(SAME) + lines(SAME)[:500], (), 3),
        (lines(MIXED)[:-400], (), 1),
        ("", (), 3),
        ("no report\n", (), 3),
        (lines(SAME), ("--nodes", "d[0-"), 2),
        (lines(SAME), ("--expect", "x"), 2),
        ("", (f"{__file__}/reports",), 2),
        ("", ("--roots", "/", "x.jsonl", "--", "y"), 2),
        (lines(SAME), ("--prefix", "/opt"), 2),
        (lines(SAME), ("--baseline", __file__), 2),
        (lines(SAME), ("--html", f"{__file__}/x.html"), 2),
    ],
)
def test_exit_status(text, words, status):
    done = run(*words, text=text)
    assert done.returncode == status, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (status == 2)


def test_files_folders_and_standard_input_are_read_together(tmp_path):
    (tmp_path / "more/below").mkdir(parents=True)
    (tmp_path / "one.jsonl").write_text("".join(f"{n}: {line}" for n, line in enumerate(
        lines(SAME[:2]).splitlines(keepends=True))))  # fmt: skip
    (tmp_path / "more/below/d2.json").write_text(json.dumps(SAME[2], indent=2))
    (tmp_path / "more/.hidden").write_text("{")
    (tmp_path / "more/slurm.log").write_text("srun: job 71 has been allocated resources\n")
    found = told(tmp_path / "one.jsonl", tmp_path / "more", "-", text=lines(SAME[3:]))
    assert (found["status"], found["groups"][0]["nodes"]) == ("consistent", "d[0-3]")
    assert found["counts"]["other"] == 1


def test_a_list_of_reports_may_fill_many_lines():
    """As `jq -s . *.json` prints it."""
    found = told(text=json.dumps([{"reports": SAME[:2]}, *SAME[2:]], indent=2))
    assert found["counts"]["reports"] == 4
    assert told(text=json.dumps({"reports": SAME}, indent=2))["counts"]["reports"] == 4


@pytest.mark.parametrize("words", [["--html", "-"], ["--json"], []])
def test_a_pipe_that_is_closed_ends_it_quietly(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "cudriver", "fleet", *words],
                              input=lines(SAME).encode(), stdout=writer, stderr=subprocess.PIPE,
                              check=False)  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_cannot_be_read_in_a_folder_is_named_and_the_rest_is_compared(tmp_path):
    (tmp_path / "all.jsonl").write_text(lines(SAME))
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "memory.json").symlink_to("/proc/self/mem")  # a regular file; reading it fails
    os.mkfifo(tmp_path / "pipe")
    found = told(tmp_path)
    assert (found["counts"]["reports"], found["counts"]["broken"]) == (4, 2)
    (lost,) = (each for each in found["findings"] if each["rule"] == "FL604")
    assert {share["nodes"]: share["value"] for share in lost["evidence"]} == {
        str(tmp_path / "gone.json"): "No such file or directory",
        str(tmp_path / "memory.json"): "Input/output error",
    }


@pytest.mark.parametrize("text", ["", "\n", "{", "Traceback (most recent call last):\n"])
def test_a_file_that_should_be_a_report_and_has_none_is_named(tmp_path, text):
    """A node whose check ended before it printed: what the others say is not all."""
    (tmp_path / "all.jsonl").write_text(f"a line\n{lines(SAME)}and another\n")
    (tmp_path / "node9.json").write_text(text)
    (tmp_path / "node9.err").write_text(text)
    found = told(tmp_path)
    assert (found["status"], found["counts"]["reports"]) == ("unknown", 4)
    (lost,) = (each for each in found["findings"] if each["rule"] == "FL604")
    named = {share["nodes"]: share["value"] for share in lost["evidence"]}
    assert named == {str(tmp_path / "node9.json"): "no report in it"}


def test_a_fifo_that_is_named_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"cat > {pipe}"], stdin=subprocess.PIPE)
    try:
        assert writer.stdin is not None
        writer.stdin.write(lines(SAME).encode())
        writer.stdin.close()
        assert told(pipe)["counts"]["reports"] == 4
    finally:
        writer.kill()
        writer.wait()


def test_reports_without_a_node_are_named_after_their_files(tmp_path):
    """As `check --json` writes them, one a machine."""
    for name in ("d0", "d1"):
        plain = report()
        del plain["node"]
        (tmp_path / f"{name}.json").write_text(json.dumps(plain, indent=2))
    assert [group["nodes"] for group in told(tmp_path)["groups"]] == ["d[0-1]"]


def test_a_baseline_is_saved_and_compared_with(tmp_path):
    golden = tmp_path / "golden.json"
    assert run("--save-baseline", golden, text=lines(SAME)).returncode == 0
    assert run("--baseline", golden, text=lines(SAME)).returncode == 0
    found = told("--baseline", golden, text=lines(MIXED))
    assert {each["rule"] for each in found["findings"]} == {"FL301", "FL606"}
    assert run("--save-baseline", golden, text="").returncode == 2


@pytest.mark.parametrize(
    "words",
    [("fleet", "--html"), ("fleet", "--save-baseline"),
     ("plan", "torch", "--driver", "580.65.06", "--gpu", "9.0", "--html"), ("check", "--html")],
)  # fmt: skip
def test_a_full_disk_is_said_of_the_file_that_was_to_be_written(words):
    """docs/reference/exit-codes.md: 2 where the file could not be written."""
    done = run(*words[1:], "/dev/full", text=lines(SAME), command=words[0])
    assert done.returncode == 2
    assert done.stderr == "cudriver: /dev/full: No space left on device\n"


@pytest.mark.parametrize("words", [("/proc/self/mem",), ("--baseline", "/proc/self/mem")])
def test_what_fails_while_it_is_read_is_named(words):
    """The start of this process's memory can be opened, not read: as a file on a lost disk."""
    done = run(*words, text=lines(SAME))
    assert done.returncode == 2
    assert done.stderr == "cudriver: /proc/self/mem: Input/output error\n"


def test_standard_input_that_cannot_be_read_is_named(tmp_path):
    with open(tmp_path / "out", "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "cudriver", "fleet"],
            stdin=file, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "cudriver: standard input: Bad file descriptor\n"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_terminal_of_any_width_is_kept_to(width, monkeypatch, capsys):
    reports = [*MIXED, *(report(f"rack{n * 7}-node-with-a-long-name") for n in range(90))]
    reports[9]["driver"]["release"] = "570.86.15"
    reports[9]["node"]["variables"]["LD_LIBRARY_PATH"] = ":".join(["/usr/local/lib"] * 40)
    text = lines(reports) + lines(reports)[:300]
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], ["-v"]):
        stream = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stream)
        assert cli.main(["fleet", *words]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert [line for line in shown if columns(line) > width] == []
    assert cli.main(["fleet", "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > width] == []


def test_a_pipe_that_knows_only_ascii_loses_nothing():
    odd = report("d\u00e90")
    odd["driver"]["release"] = "\u2713"
    done = run(text=lines([odd, report("d1")]), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\\u2713" in done.stdout


def test_real_environments_that_differ(tmp_path):
    """Checked as on three nodes: two venvs, one of them with another package, and a variable."""
    for name in ("same", "other"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / name], check=True)
    site = next((tmp_path / "other").glob("lib/python3*/site-packages"))
    info = site / "nvidia_nccl_cu12-2.27.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.27.3\n"
    )
    (info / "RECORD").write_text("nvidia/nccl/lib/libnccl.so.2,sha256=x,3\n")
    gathered = ""
    for rank, (prefix, path) in enumerate([("same", ""), ("same", "/opt/x"), ("other", "")]):
        done = subprocess.run(
            [sys.executable, "-m", "cudriver", "check", "--json", "--compact", "--no-probe",
             str(tmp_path / prefix)],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_PROCID": str(rank),
                 "SLURM_STEP_NUM_TASKS": "4", "LD_LIBRARY_PATH": path},
        )  # fmt: skip
        gathered += f"{rank}: {done.stdout}"
    found = told(text=gathered)
    rules = {each["rule"]: each for each in found["findings"]}
    assert {"FL404", "FL501", "FL603"} <= {*rules}
    assert found["missing"] == "rank 3 of job 7"
    assert len(found["groups"]) == 3
    assert {each["component"] for each in found["differences"]} >= {"$LD_LIBRARY_PATH"}
    seen = {share["value"]: share["nodes"] for share in rules["FL501"]["evidence"]}
    assert seen["/opt/x"].endswith(" rank 1")


def test_images_are_compared_by_their_roots(tmp_path):
    for name, number in (("a", 12080), ("b", 12080), ("c", 13000)):
        home = tmp_path / name / "usr/local/cuda"
        (home / "include").mkdir(parents=True)
        (home / "include/cuda.h").write_text(f"#define CUDA_VERSION {number}\n")
    a, b, c = (tmp_path / name for name in "abc")
    found = told("--roots", a, b, c)
    assert [group["nodes"] for group in found["groups"]] == [f"{a},{b}", str(c)]
    assert "FL203" in [each["rule"] for each in found["findings"]]
    assert run("--roots", tmp_path / "nowhere").returncode == 2


@pytest.mark.parametrize(
    ("befalls", "told", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process that checked it died", ""),
        ("raise ValueError('odd')", "the check failed: ValueError: odd", "/b: ValueError: odd: "),
    ],
)
def test_an_image_whose_check_dies_is_a_line_and_the_others_are_checked(
    tmp_path, befalls, told, said
):
    roots = [str(tmp_path / name) for name in "abcd"]
    for root in roots:
        Path(root, "usr").mkdir(parents=True)
    program = f"""
        import os, signal, sys
        from cudriver import cli, stack
        inspect = stack.inspect
        def dies_in_b(prefix, *, root, **options):
            if root == sys.argv[-3]:
                {befalls}
            return inspect(prefix, root=root, **options)
        stack.inspect = dies_in_b
        cli.main(["fleet", "--json", "--roots", *sys.argv[1:]])
    """
    done = programs.run(program, *roots)
    assert (said in done.stderr, bool(done.stderr)) == (True, bool(said))
    found = json.loads(done.stdout)
    assert (found["counts"]["reports"], found["counts"]["broken"]) == (3, 1)
    (lost,) = (each for each in found["findings"] if each["rule"] == "FL604")
    assert lost["evidence"] == [{"value": told, "count": 1, "nodes": roots[1]}]


def test_what_is_planted_among_many_is_found_and_memory_does_not_grow():
    """Ten times the nodes take no ten times the memory: reports are not kept."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fleet.many", "--nodes", "200,4000"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["wrong"] for row in rows] == [[], []]
    assert rows[1]["bytes"] > 30e6
    assert rows[1]["peak_mb"] - rows[0]["peak_mb"] < 20
