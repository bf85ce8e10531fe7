"""The command line: exit codes, streams, options. Processes of their own, as a script sees them."""

import contextlib
import fcntl
import html
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import warnings
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest
from test_report import strict_schema

import cudriver
from cudriver import cli
from cudriver.cli import check, fleet, terminal
from cudriver.stack.report import formats, outcome
from program import Terminal

# A folder with nothing but the package, for PYTHONPATH: what lies beside it would count as
# installed in whatever is checked.
_FOLDER = tempfile.TemporaryDirectory(prefix="cudriver-test-")
SOURCES = _FOLDER.name
Path(SOURCES, "cudriver").symlink_to(Path(cudriver.__file__).parent)


def run(*words: str, text: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LD_", "CUDA", "CONDA", "VIRTUAL_ENV", "NO_COLOR", "COLUMNS"))
    }
    return subprocess.run(
        [sys.executable, "-m", "cudriver", *words],
        env={**environ, "PYTHONPATH": SOURCES, **variables},
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def here(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what depends on nothing of a process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def on_terminal(*words: str, **variables: str) -> str:
    """Standard output of a run whose output is a terminal."""
    with Terminal() as shown:
        subprocess.run(
            [sys.executable, "-m", "cudriver", *words],
            env={**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm", **variables},
            stdin=subprocess.DEVNULL, stdout=shown.slave, stderr=subprocess.DEVNULL,
            timeout=120, check=False,
        )  # fmt: skip
    return shown.shown()


@pytest.fixture
def root(tmp_path):
    """Another machine: a file system with a healthy, CUDA-free venv in it and no driver."""
    venv = tmp_path / "envs/plain"
    (venv / "lib/python3.11/site-packages").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3").write_bytes(b"\x7fELF")
    (venv / "pyvenv.cfg").write_text(
        "home = /usr/bin\nversion = 3.11.7\ninclude-system-site-packages = false\n"
    )
    return tmp_path


@pytest.fixture
def cpu_torch(root):
    """The same with a PyTorch that has no CUDA."""
    package = root / "envs/plain/lib/python3.11/site-packages/torch"
    package.mkdir()
    (package / "version.py").write_text(
        "__version__ = '2.8.0+cpu'\ndebug = False\ncuda = None\nhip = None\n"
    )
    return root


def test_version_imports_next_to_nothing():
    script = (
        "import sys; from cudriver.cli import main; main(['--version']); "
        "print(*sorted({'argparse', 'numpy', 'rich', 'json', 'inspect'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[1] == ""


def test_a_check_imports_no_heavy_module(cpu_torch):
    """Beside what argparse itself imports: in CPython 3.14 dataclasses, for its colours."""
    heavy = {"numpy", "rich", "importlib.metadata", "email", "dataclasses", "inspect", "asyncio"}
    script = (
        "import argparse, sys; argparse.ArgumentParser().add_argument('any'); "
        "before = set(sys.modules); from cudriver.cli import main; "
        f"main(['check', '--root', {str(cpu_torch)!r}, '/envs/plain', '--json']); "
        f"print('heavy:', *sorted({heavy!r} & set(sys.modules) - before), "
        "'cudriver._core' if 'cudriver._core' in sys.modules else '')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].split() == ["heavy:"]


@pytest.mark.parametrize("name", ["", *sorted(cli.COMMANDS)])
@pytest.mark.parametrize("width", [60, 80])
def test_help_fits_the_terminal(name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    done = here(*[name] * bool(name), "--help")
    assert [line for line in done.stdout.splitlines() if len(line) > width] == []
    monkeypatch.setenv("COLUMNS", "100")
    whole = here(*[name] * bool(name), "--help")
    assert sorted(done.stdout.split()) == sorted(whole.stdout.split())
    example = rf"^( +)cudriver (?:{'|'.join(cli.COMMANDS)})\b"
    assert {*re.findall(example, done.stdout, re.MULTILINE)} <= {"  "}


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_in_help_explains_itself(name):
    assert name in cli._available()
    done = here(name, "--help")
    assert done.returncode == 0
    assert f"cudriver {name}" in done.stdout


ROOTED = ["check", "--root", "ROOT", "/envs/plain"]
# Words, and what is said of them. A slip in a script must not end in exit status 0.
USAGE = [
    (["chekc"], "'check'"),
    (["check", "--no-such-option"], "usage: "),
    (["check", "--jsn"], "; did you mean --json?\n"),
    (["check", "--asume-driver=470.1"], "; did you mean --assume-driver?\n"),
    (["explain", "x", "--lst"], "; did you mean --list?\n"),
    (["plan", "torch", "--assume-gpu", "9.0"], "; did you mean --gpu?\n"),
    (["check", "--gpu", "9.0"], "; did you mean --assume-gpu?\n"),
    (["which", "libcudart", "--quux"], "usage: "),
    (["check", "/nowhere/at/all"], "/nowhere/at/all"),
    (["check", ""], ""),  # not the working folder
    (["check", "--all", "/usr"], ""),
    *(
        ([*ROOTED, option, rule], "is neither a rule")
        for option in ("--select", "--ignore")
        for rule in ("CU399", "CU9", "CU", "FOO", "CU3011", "CU401,CU7")
    ),
    ([*ROOTED, "--match-level", "exact"], "add --match system"),
    (["check", "--match", "nothing"], "nothing"),
    (["check", "--assume-driver", "new"], "new"),
    (["check", "--assume-gpu", "H200"], "H200"),
    (["check", "--assume-gpu", "999"], "99.9"),
    (["check", "--assume-gpu", "9.1"], "9.1"),
    (["check", "--root", "/nowhere/at/all"], "/nowhere/at/all"),
    (["check", "--root", "/etc", "--observe"], "--observe"),
    (["which", "--prefix", "/nowhere/at/all"], "/nowhere/at/all"),
    (["explain", "CU999"], "CU999"),
    (["explain", "999"], "999"),
]


@pytest.mark.parametrize(("words", "said"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_usage_errors_are_2_and_go_to_standard_error(cpu_torch, words, said):
    done = here(*(str(cpu_torch) if word == "ROOT" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(("cudriver", "usage:"))
    assert said in done.stderr
    assert ("did you mean" in done.stderr) is ("did you mean" in said or words == ["chekc"])
    assert "usage" not in done.stderr or "did you mean" not in said
    assert "Traceback" not in done.stderr


def test_a_level_with_a_match_is_taken(cpu_torch):
    words = [*ROOTED, "--match-level", "exact", "--match", "system"]
    assert run(*(str(cpu_torch) if word == "ROOT" else word for word in words)).returncode != 2


def test_json_of_one_environment(cpu_torch):
    done = run("check", "--root", str(cpu_torch), "/envs/plain", "--json")
    data = json.loads(done.stdout)
    jsonschema.validate(data, strict_schema())
    assert data["environment"]["prefix"] == "/envs/plain"
    assert data["frameworks"][0]["cuda"] is None
    assert done.returncode == {"consistent": 0, "mismatch": 1, "unknown": 3}[data["verdict"]]
    assert done.stderr == ""


def test_json_of_several(cpu_torch):
    done = run("check", "--root", str(cpu_torch), "/envs/plain", "/envs/plain", "--json")
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    assert len(data["reports"]) == 2
    for report in data["reports"]:
        jsonschema.validate(report, strict_schema())


def test_json_of_all_is_a_list_even_of_one(cpu_torch):
    (cpu_torch / "envs").rename(cpu_torch / "srv")
    data = json.loads(run("check", "--root", str(cpu_torch), "--all", "--json").stdout)
    assert [each["environment"]["prefix"] for each in data["reports"]] == ["/srv/plain"]


def test_all_lists_each_environment_in_a_line(cpu_torch):
    conda = cpu_torch / "opt/conda/conda-meta"
    conda.mkdir(parents=True)
    (cpu_torch / "envs").rename(cpu_torch / "srv")
    done = run("check", "--root", str(cpu_torch), "--all")
    lines = done.stdout.splitlines()
    assert any("/opt/conda " in line for line in lines)
    assert any("/srv/plain " in line and "2.8.0+cpu" in line for line in lines)
    assert lines[-1].startswith("2 environments")


def test_all_marks_warnings_and_fits_the_terminal(cpu_torch):
    """A note leaves the tick; a warning, and a name that is too long, do not."""
    long = "-".join(["a-project-with-quite-a-long-name"] * 3)
    site = cpu_torch / "srv" / long / "lib/python3.11/site-packages"
    site.parent.parent.parent.parent.mkdir(parents=True)
    (cpu_torch / "envs/plain").rename(site.parent.parent.parent)
    words = ["check", "--root", str(cpu_torch), "--all", "--ignore", "CU1"]
    assert run(*words).stdout.splitlines()[0] == f"- /srv/{long}  torch 2.8.0+cpu (without CUDA)"
    pinned = "Requires-Dist: nvidia-nccl-cu12==2.27.3\n"
    for name, version, more in ("torch", "2.8.0", pinned), ("nvidia-nccl-cu12", "2.20.5", ""):
        dist = site / f"{name.replace('-', '_')}-{version}.dist-info"
        dist.mkdir()
        (dist / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        )
    done = run(*words, COLUMNS="80")
    first, uses, rules, last = done.stdout.splitlines()
    assert (done.returncode, last) == (0, "1 environment, none with a mismatch, 1 with warnings")
    assert (first, uses) == (f"! /srv/{long}", "    torch 2.8.0+cpu (without CUDA)")
    assert rules.startswith("    CU40")
    assert f"/srv/{long}  " in run(*words, COLUMNS="200").stdout
    assert f"/srv/{long}  " in run(*words).stdout
    assert "✗" in run(*words, "--strict", COLUMNS="80").stdout


def test_many_environments_are_checked_side_by_side(cpu_torch):
    """From several processes, and still in the order in which they were found."""
    for number in range(12):
        (cpu_torch / f"srv/e{number:02}/conda-meta").mkdir(parents=True)
    done = run("check", "--root", str(cpu_torch), "--all", "--json")
    prefixes = [r["environment"]["prefix"] for r in json.loads(done.stdout)["reports"]]
    assert [p for p in prefixes if p.startswith("/srv/e")] == [f"/srv/e{n:02}" for n in range(12)]
    assert done.stderr == ""


def test_an_interpreter_stands_for_its_environment(cpu_torch):
    done = run("check", "--root", str(cpu_torch), "/envs/plain/bin/python", "--json")
    assert json.loads(done.stdout)["environment"]["prefix"] == "/envs/plain"


def test_html_file(cpu_torch, tmp_path):
    target = tmp_path / "report.html"
    done = run("check", "--root", str(cpu_torch), "/envs/plain", "--html", str(target))
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert "/envs/plain" in done.stdout
    (made,) = re.findall(r'<p class="soft">(cudriver [^<]*)<code>(.*?)</code>', target.read_text())
    words = f"cudriver check --root {cpu_torch} /envs/plain --html {target}"
    assert html.unescape(made[1]) == words
    version, host, time, _ = made[0].split(" · ")
    assert (version, host) == (f"cudriver {cudriver.__version__}", os.uname().nodename)
    assert abs(datetime.fromisoformat(time).timestamp() - target.stat().st_mtime) < 60
    done = run("check", "--root", str(cpu_torch), "/envs/plain", "--html", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    done = run("check", "--root", str(cpu_torch), "/envs/plain", "--html", "/nowhere/x.html")
    assert done.returncode == 2


def test_colour_only_on_a_terminal(cpu_torch):
    words = ["check", "--root", str(cpu_torch), "/envs/plain"]
    assert "\x1b" not in run(*words).stdout
    assert "\x1b[" in on_terminal(*words)
    assert "\x1b" not in on_terminal(*words, NO_COLOR="1")
    assert "\x1b[" in on_terminal(*words, NO_COLOR="")  # https://no-color.org: when not empty
    assert "\x1b" not in on_terminal(*words, TERM="dumb")
    assert "\x1b" not in on_terminal(*words, "--color", "never", FORCE_COLOR="1")


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_colour_can_be_forced(cpu_torch, name):
    words = ["check", "--root", str(cpu_torch), "/envs/plain"]
    assert "\x1b[" in run(*words, **{name: "1"}).stdout
    assert "\x1b[" in run(*words, **{name: "1", "TERM": "dumb"}).stdout
    assert "\x1b" not in run(*words, **{name: "0"}).stdout
    assert "\x1b" not in run(*words, **{name: "1", "NO_COLOR": "1"}).stdout
    assert "\x1b[" in run(*words, "--color=always", NO_COLOR="1").stdout
    assert "\x1b" not in run(*words, "--color=auto", **{name: "1"}).stdout


def test_explain_takes_a_rules_number():
    assert run("explain", "303").stdout == run("explain", "CU303").stdout != ""


def test_terminal_width_is_respected(cpu_torch):
    text = on_terminal("check", "--root", str(cpu_torch), "/envs/plain", COLUMNS="60", NO_COLOR="1")
    assert [
        line for line in text.splitlines() if len(line) > 60 and str(cpu_torch) not in line
    ] == []


def test_a_plain_locale_gets_plain_signs(cpu_torch):
    words = ["check", "--root", str(cpu_torch), "/envs/plain"]
    done = run(
        *words, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii"
    )
    assert done.stdout.isascii()
    assert "driver" in done.stdout
    assert done.stderr == ""


def test_select_and_ignore(cpu_torch):
    words = ["check", "--root", str(cpu_torch), "/envs/plain", "--json"]
    every = {f["rule"] for f in json.loads(run(*words).stdout)["findings"]}
    assert "CU401" in every
    only = json.loads(run(*words, "--select", "cu401").stdout)["findings"]
    assert {f["rule"] for f in only} == {"CU401"}
    rest = json.loads(run(*words, "--ignore", "CU4").stdout)["findings"]
    assert {f["rule"] for f in rest} == {rule for rule in every if not rule.startswith("CU4")}


def test_explain_without_text_says_how_to_give_one():
    for text in None, "", "\n \n":
        done = run("explain", text=text)
        assert (done.returncode, done.stdout) == (3, "")
        assert "cudriver explain < traceback.txt" in done.stderr


@pytest.mark.parametrize("text", ["", "\n", "all is well\n"])
def test_explain_of_nothing_is_json_too(text):
    done = run("explain", "--json", text=text)
    assert (done.returncode, json.loads(done.stdout)) == (
        3,
        {"schema": 1, "matches": [], "rules": []},
    )
    assert done.stderr.startswith("cudriver: no ")
    known = json.loads(run("explain", "--json", text="libcuda.so.1: cannot open\n").stdout)
    assert known.keys() == {"schema", "matches", "rules"}
    assert run("explain", "all is well").stdout == ""


def test_verbose_leaves_no_hole_where_no_library_is(cpu_torch):
    done = run("check", "-v", "--root", str(cpu_torch), "/envs/plain")
    assert "no CUDA libraries" in done.stdout
    assert "\n\n\n" not in done.stdout


def test_all_counts_what_could_not_be_told(cpu_torch):
    (cpu_torch / "opt").mkdir()
    (cpu_torch / "envs").rename(cpu_torch / "opt/envs")
    site = cpu_torch / "opt/envs/plain/lib/python3.11/site-packages"
    (site / "torch-2.8.0+cpu.dist-info").mkdir()
    (site / "torch-2.8.0+cpu.dist-info/METADATA").write_text("Name: torch\nVersion: 2.8.0+cpu\n")
    version = site / "torch/version.py"
    last = run("check", "--root", str(cpu_torch), "--all").stdout.splitlines()[-1]
    assert last == "1 environment, none with a mismatch"
    version.unlink()
    version.mkdir()
    done = run("check", "--root", str(cpu_torch), "--all")
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (
        3, "1 environment, none with a mismatch, 1 unknown",
    )  # fmt: skip


def test_no_answer_to_observe_is_3(cpu_torch):
    """The interpreter of the environment ends without a word."""
    prefix = cpu_torch / "envs/plain"
    (prefix / "bin/python").unlink()
    (prefix / "bin/python").write_text("#!/bin/sh\nexit 4\n")
    (prefix / "bin/python").chmod(0o755)
    machine = "--ignore", "CU1,CU401"  # its driver and its GPUs are not the matter
    assert run("check", str(prefix), *machine).returncode == 0
    done = run("check", str(prefix), *machine, "--observe")
    assert done.returncode == 3
    assert "the interpreter ended with exit code 4" in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "could not tell",
        "  the environment's Python gave --observe no answer",
    ]


def test_which_asks_no_driver(cpu_torch, monkeypatch):
    """Not even in the machine's own root, where `check` does."""
    from cudriver.stack.machine import driver

    asked = []
    monkeypatch.setattr(driver, "worth_asking", lambda *_: asked.append(1))
    prefix = str(cpu_torch / "envs/plain")
    assert cli.main(["which", "--prefix", prefix]) == 3
    assert asked == []
    cli.main(["check", prefix, "--json"])
    assert asked == [1]


def test_match_reaches_the_rules(cpu_torch, capsys):
    """A PyTorch of CUDA 12.8 beside a toolkit of 12.4: a match by the major number alone."""
    version = cpu_torch / "envs/plain/lib/python3.11/site-packages/torch/version.py"
    version.write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    (cpu_torch / "usr/local/cuda").mkdir(parents=True)
    stated = '{"cuda": {"version": "12.4.1"}}'
    (cpu_torch / "usr/local/cuda/version.json").write_text(stated)
    words = ["check", "--root", str(cpu_torch), "/envs/plain", "--json"]
    told = []
    for more in ([], ["--match", "system"], ["--match", "system", "--match-level", "major"]):
        cli.main([*words, *more])
        found = json.loads(capsys.readouterr().out)["findings"]
        told.append([f["severity"] for f in found if f["rule"] == "CU201"])
    assert told == [["note"], ["error"], []]


def test_which_says_that_it_could_not_tell(cpu_torch):
    site = cpu_torch / "envs/plain/lib/python3.11/site-packages"
    (site / "torch/version.py").write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    (site / "torch/lib").mkdir()
    (site / "torch/lib/libtorch_cuda.so").write_bytes(b"")
    done = run("which", "--root", str(cpu_torch), "--prefix", "/envs/plain")
    assert done.returncode == 3
    assert "could not tell: torch: its libraries could not be resolved" in done.stdout
    assert "no CUDA library is in use" not in done.stdout


def test_a_closed_pipe_is_no_traceback(cpu_torch):
    command = (
        f"{sys.executable} -m cudriver check --root {cpu_torch} /envs/plain --json | head -c 1"
    )
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{"
    assert done.stderr == ""


def test_assumed_machine(cpu_torch):
    words = ["check", "--root", str(cpu_torch), "/envs/plain", "--json"]
    done = run(
        *words, "--assume-driver", "535.104.05", "--assume-gpu", "9.0", "--assume-gpu", "7.5"
    )
    driver = json.loads(done.stdout)["driver"]
    assert driver["release"] == "535.104.05"
    assert driver["cuda"] == "12.2"
    assert [(d["compute_capability"], d["assumed"]) for d in driver["devices"]] == [
        ("9.0", True),
        ("7.5", True),
    ]


def test_which_without_libraries_says_so(cpu_torch):
    done = run("which", "--root", str(cpu_torch), "--prefix", "/envs/plain")
    assert done.returncode == 3
    assert "no CUDA library" in done.stdout
    done = run("which", "--root", str(cpu_torch), "--prefix", "/envs/plain", "cudnn", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "schema": 1,
        "libraries": [],
        "missing": [],
        "unknown": ["cudnn"],
    }


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_usage_error_fits_the_terminal(option):
    words = ["check", option, "nonsense"]
    told = "cudriver check: error: argument {}: 'NONSENSE' is neither a rule (CU303) nor the start"
    assert told.format(option) + " of one (CU3)" in run(*words).stderr.splitlines()
    done = run(*words, COLUMNS="60")
    assert (done.returncode, done.stdout) == (2, "")
    assert max(map(len, done.stderr.splitlines())) <= 60
    assert told.format(option) in " ".join(done.stderr.split())


def test_columns_are_those_of_the_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    master, slave = pty.openpty()
    with open(slave, "w") as stream, open(os.devnull, "w") as none:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 71, 0, 0))
        assert (terminal.columns(stream), terminal.width(stream)) == (71, 71)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 300, 0, 0))
        assert (terminal.columns(stream), terminal.width(stream)) == (300, terminal.WIDE)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 0, 0, 0, 0))
        assert (terminal.columns(stream), terminal.width(stream)) == (None, 80)
        assert (terminal.columns(none), terminal.width(none)) == (None, 80)
        monkeypatch.setenv("COLUMNS", "55")
        assert (terminal.columns(none), terminal.width(none)) == (55, 55)
    os.close(master)


def test_text_is_broken_at_blanks_for_a_terminal_only(monkeypatch):
    path = "/a/path-that-is/quite_long/" * 3 + "libcuda.so"
    text = f"no driver in {path}: no such file, and nothing else that would do"
    with open(os.devnull, "w") as stream:
        monkeypatch.delenv("COLUMNS", raising=False)
        assert terminal.fit(text, stream, 4) == text
        assert terminal.beside("driver", path, stream, 8) == f"driver  {path}"
        monkeypatch.setenv("COLUMNS", "50")
        assert terminal.fit(text, stream, 4).splitlines() == [
            "no driver in", f"    {path}:", "    no such file, and nothing else that would do",
        ]  # fmt: skip
        assert terminal.fit("a\nb", stream) == "a\nb"
        assert terminal.beside("driver", path, stream, 8) == f"driver\n        {path}"
        assert terminal.beside("driver", "/a", stream, 8) == "driver  /a"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--needs", "torch,,jax"], "'' is not the name of a package"),
        (["--needs", "torch>=2"], "'torch>=2' is not the name of a package"),
        (["--expect", "torch"], "'torch' is not a requirement"),
        (["--expect", "torch==2.8.0 ; python_version>'3'"], "is not a requirement"),
        (["--expect", "torch[x]==2"], "is not a requirement"),
        (["--expect", "torch=2"], "is not a requirement"),
    ],
)
def test_what_is_no_name_and_no_requirement_is_a_usage_error(words, why):
    done = run("check", *words)
    assert done.returncode == 2
    assert why in done.stderr


def test_what_is_asked_of_an_environment(cpu_torch):
    words = ["check", "--root", str(cpu_torch), "/envs/plain"]
    assert run(*words).returncode == 0
    needs = run(*words, "--needs", "Torch", PYTHONUTF8="1")
    assert needs.returncode == 1
    assert "✗ torch         CPU only, 2.8.0+cpu, built without CUDA" in needs.stdout
    expect = run(*words, "--expect", "torch==2.8.0+cu128")
    assert expect.returncode == 1
    assert "error CU602" in expect.stdout
    assert "torch is of version 2.8.0+cpu" in " ".join(expect.stdout.split())
    assert run(*words, "--expect", "torch==2.8.0", "--expect", "torch<3").returncode == 0
    assert run(*words, "--expect", "PyTorch==2.8.0").returncode == 0
    assert check.parser().parse_args(["--needs", "PyTorch,tensorflow-gpu"]).needs == [
        "torch",
        "tensorflow",
    ]
    absent = run(*words, "--needs", "tensorflow-gpu", PYTHONUTF8="1").stdout
    assert "tensorflow[and-cuda]" in absent
    assert "tensorflow-gpu" not in absent


def test_a_new_format_is_a_row_and_a_module(cpu_torch, tmp_path, monkeypatch):
    """Its option, its help and what it writes come from the row."""
    (tmp_path / "mine.py").write_text(
        "def page(reports, how):\n    return f'{len(reports)} of us'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = (formats.Format("mine", "as I like it", file=True, module="mine"), *formats.FORMATS)
    monkeypatch.setattr(check, "FORMATS", rows)
    assert "--mine FILE" in check.parser().format_help()
    words = ["check", "--root", str(cpu_torch), "/envs/plain", "--mine"]
    assert here(*words, str(tmp_path / "out")).stdout.startswith("/envs/plain")
    assert (tmp_path / "out").read_text() == "1 of us"
    assert here(*words, "-").stdout == "1 of us"


def test_exit_code_is_the_worst():
    class Fake:
        def __init__(self, code):
            self.exit_code = code

    def worst(*codes):
        return outcome.exit_code([Fake(code) for code in codes])

    assert worst() == 0
    assert worst(0, 0) == 0
    assert worst(0, 3) == 3
    assert worst(3, 1, 0) == 1


def test_progress_yields_every_item_where_there_is_no_terminal(capsys):
    assert list(terminal.progress([1, 2, 3], 3, "x")) == [1, 2, 3]
    assert capsys.readouterr().err == ""


def test_progress_shows_on_a_terminal_once_it_takes_long(monkeypatch):
    """The bar goes to standard error and every item still comes, in order."""
    script = (
        "import time; from cudriver.cli import terminal; terminal.PATIENCE = 0.0\n"
        "print([time.sleep(0.02) or i for i in terminal.progress(range(9), 9, 'checking')])"
    )
    with Terminal() as shown:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": SOURCES, "TERM": "xterm"},
            stdout=subprocess.PIPE, stderr=shown.slave, text=True, check=True,
        )  # fmt: skip
    assert done.stdout.strip() == str(list(range(9)))
    assert "checking" in shown.shown()


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, True),
        ({"JPY_PARENT_PID": "1"}, False),
        ({"PAGER": "cat", "GIT_PAGER": "cat"}, False),
        ({"PAGER": "cat", "GIT_PAGER": "less"}, True),
    ],
)
def test_a_notebook_s_terminal_gets_no_progress(environ, shown):
    script = (
        "from cudriver.cli import terminal; terminal.PATIENCE = -1.0\n"
        "list(terminal.progress(range(9), 9, 'checking'))\n"
        "with terminal.busy('importing'): pass"
    )
    usual = {k: v for k, v in os.environ.items() if k not in ("PAGER", "GIT_PAGER")}
    with Terminal() as drawn:
        subprocess.run(
            [sys.executable, "-c", script],
            env={**usual, "PYTHONPATH": SOURCES, "TERM": "xterm", **environ},
            stderr=drawn.slave, check=True,
        )  # fmt: skip
    assert all(word in drawn.shown() for word in ("checking", "importing")) is shown
    assert (drawn.shown() == "") is not shown


def test_a_warning_reads_as_a_complaint(capsys):
    with terminal.plain_warnings():
        warnings.warn("the clock\x1b is slow", stacklevel=1)
    assert capsys.readouterr().err == "cudriver: the clock\\x1b is slow\n"


def test_main_takes_arguments_and_returns_a_code(capsys):
    assert cli.main(["--version"]) == 0
    assert cli.main(["nonsense"]) == 2
    assert capsys.readouterr().out.startswith("cudriver ")


@pytest.mark.parametrize("words", [[], ["/envs/train"], ["/envs/train", "relative"]])
def test_words_without_options_mean_what_the_parser_makes_of_them(words):
    assert vars(check.without_options(words)) == vars(check.parser().parse_args(words))


def test_an_option_that_stands_twice_counts_twice():
    parse = check.parser().parse_args
    given = parse(["--needs", "torch", "--needs", "jax,cupy", "--ignore", "CU1", "--ignore", "CU2"])
    assert (given.needs, given.ignore) == (["torch", "jax", "cupy"], ["CU1", "CU2"])
    assert parse(["--select", "CU1", "--select", "CU2"]).select == ["CU1", "CU2"]
    assert parse([]).needs == []
    words = ["--allow", "driver", "--allow", "python,cuda"]
    assert fleet.parser().parse_args(words).allow == ["driver", "python", "cuda"]


def test_the_usual_call_needs_no_argparse():
    code = (
        "import sys; from cudriver.cli import main; sys.argv = ['cudriver', 'check']; main(); "
        "sys.exit('argparse' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONNOUSERSITE": "1"}
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0


def test_what_if_in_another_root_takes_nothing_of_this_machine(monkeypatch):
    """`which --root DIR --ld-library-path X`: LD_PRELOAD here says nothing there."""
    from types import SimpleNamespace

    from cudriver.cli import which

    seen = []
    monkeypatch.setattr(which.target, "asked", lambda *given: seen.append(given[-1]) or [None])
    monkeypatch.setattr("cudriver.stack.collect.collect_libraries", lambda asked: None)
    monkeypatch.setenv("LD_PRELOAD", "/here/libx.so")
    for root in ("/image", "/"):
        which._what_if("/env", SimpleNamespace(root=root, ld_library_path="/x"))
    there, here = seen
    assert there == {"LD_LIBRARY_PATH": "/x"}
    assert here["LD_PRELOAD"] == "/here/libx.so"
    assert here["LD_LIBRARY_PATH"] == "/x"
