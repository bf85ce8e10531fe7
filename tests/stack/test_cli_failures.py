"""The command line where something fails: the check itself, its output, one environment of many.

Status 1 says "mismatch", so nothing that goes wrong in cudriver may end with it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time

import jsonschema
import pytest
from synth import Prefix
from test_cli import SOURCES, here, run
from test_report import strict_schema

from cudriver.stack import inspecting, planning, resolved  # noqa: F401 - before a test patches

NESTED = "(" * 500 + "python_version > '3'" + ")" * 500
# One environment's collection fails; the others are as they are.
BREAK_ONE = """
from cudriver.stack.environment import discover, interpreter  # discover keeps the whole one
describe = interpreter.describe
def broken(asked):
    if "broken" in asked.prefix:
        {failure}
    return describe(asked)
interpreter.describe = broken
"""
IDLE = "nothing here uses CUDA"  # the last line of a check that is well
RECURSE = "f = lambda: f(); f()"
SECOND_LINE = "raise RuntimeError('two\\nlines and \\x1b[31m')"
DIE = "import os; os.kill(os.getpid(), 11)"


def patched(source: str, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
    """A run of the command with some of the package replaced first."""
    script = f"{source}\nimport sys; from cudriver.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": SOURCES}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False, **more,
    )  # fmt: skip


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command line of the shell, in which $CUDRIVER runs the command."""
    environ = {**os.environ, "PYTHONPATH": SOURCES, "CUDRIVER": f"{sys.executable} -m cudriver"}
    return subprocess.run(
        ["bash", "-c", command], env={**environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path):
    for name in ("a", "broken", "c"):
        Prefix(tmp_path / f"opt/{name}", root=tmp_path).venv()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("module", "function", "words"),
    [
        ("collect", "collect_machine", ["check"]),
        ("collect", "collect_libraries", ["which"]),
        ("rulebook", "page", ["explain", "CU303"]),
    ],
)
@pytest.mark.parametrize(
    "failure",
    ["1 / 0", "raise MemoryError", "f = lambda: f(); f()", "raise ValueError('of ours')",
     "raise NotADirectoryError('of ours')", "''.encode('no such encoding')", SECOND_LINE],
)  # fmt: skip
def test_an_error_of_our_own_is_3_in_one_line(module, function, words, failure, monkeypatch):
    monkeypatch.setattr(f"cudriver.stack.{module}.{function}", lambda *_, **__: exec(failure, {}))
    done = here(*words)
    assert done.returncode == 3
    assert done.stdout == "" or words == ["check"]  # the report that says so
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr
    traced = here(*words, "-v")
    assert traced.returncode == 3
    assert "Traceback (most recent call last):" in traced.stderr
    assert "\x1b" not in traced.stderr


def test_a_module_that_cannot_be_imported_is_3():
    source = "import sys; sys.modules['cudriver.stack.report.text'] = None"
    done = patched(source, "check")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["packaging", "json", "rich", "numpy", "argparse"])
@pytest.mark.parametrize("where", ["PYTHONPATH", "the working folder"])
def test_a_module_in_front_of_our_own_stops_no_check(tmp_path, name, where):
    """Versions that are no plain numbers are left to packaging."""
    prefix = Prefix(tmp_path / "env").venv()
    prefix.dist("numpy", "2.3.0rc1", files={"numpy/__init__.py": b""})
    prefix.dist("torch", "2.8.0", ["numpy>=2.3.0rc1"], files={"torch/__init__.py": b""})
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / f"{name}.py").write_text("raise RuntimeError('mine')\n")
    added = {"PYTHONPATH": f"{folder}:{SOURCES}"} if where == "PYTHONPATH" else {}
    environ = {"PYTHONPATH": SOURCES, **added}
    words = [
        sys.executable,
        *["-P"] * bool(added),
        "-m",
        "cudriver",
        "check",
        "--json",
        prefix.inside,
    ]
    done = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stderr, len(json.loads(done.stdout)["frameworks"])) == ("", 1)


def test_an_interrupt_is_130():
    source = """
from cudriver.stack import collect
def broken(*_, **__): raise KeyboardInterrupt
collect.collect = broken
"""
    done = patched(source, "check")
    assert (done.returncode, done.stderr) == (130, "")


def test_interrupted_workers_are_quiet_and_leave_at_once(tmp_path):
    """Ctrl-C goes to the whole group of processes."""
    for number in range(12):
        Prefix(tmp_path / f"opt/{number}", root=tmp_path).venv()
    source = """
import os, time
from cudriver.stack.environment import interpreter
interpreter.describe = lambda *_: os.write(1, b"here\\n") and time.sleep(600)
"""
    script = f"{source}\nimport sys; from cudriver.cli import main; sys.exit(main())"
    child = subprocess.Popen(
        [sys.executable, "-c", script, "check", "--root", str(tmp_path), "--all"],
        env={**os.environ, "PYTHONPATH": SOURCES}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    started = time.monotonic()
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=500)
    assert child.returncode == 130
    assert said == ""
    assert time.monotonic() - started < 500  # a worker's sleep is 600 s


@pytest.mark.parametrize("failure", [RECURSE, SECOND_LINE, "raise ValueError('of ours')"])
def test_one_environment_that_breaks_the_check_leaves_the_others(root, failure):
    source = BREAK_ONE.format(failure=failure)
    words = ["check", "--root", root, "/opt/a", "/opt/broken", "/opt/c"]
    done = patched(source, *words)
    assert done.returncode == 3
    assert {IDLE, "could not tell"} & {*done.stdout.splitlines()}
    assert done.stdout.count(f"\n{IDLE}\n") == 2
    assert done.stdout.count("\ncould not tell\n") == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("cudriver: /opt/broken: ")
    assert "\x1b" not in done.stdout + done.stderr
    traced = patched(source, *words, "-v")
    assert "Traceback (most recent call last):" in traced.stderr


def test_its_place_in_the_json_says_so(root):
    words = ["check", "--root", root, "/opt/a", "/opt/broken", "/opt/c", "--json"]
    done = patched(BREAK_ONE.format(failure=RECURSE), *words)
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "unknown"
    for report in answer["reports"]:
        jsonschema.validate(report, strict_schema())
    assert [r["environment"]["prefix"] for r in answer["reports"]] == [
        "/opt/a", "/opt/broken", "/opt/c",
    ]  # fmt: skip
    assert [r["verdict"] for r in answer["reports"]] == ["consistent", "unknown", "consistent"]
    (problem,) = answer["reports"][1]["problems"]
    assert problem["file"] == "/opt/broken"
    assert "RecursionError" in problem["text"]


def test_a_report_that_cannot_be_written_leaves_the_others(root):
    source = """
from cudriver.stack.report import text as report_text
heading = report_text._heading
def broken(facts, style):
    if "broken" in facts.environment.prefix and facts.environment.kind != "unknown":
        1 / 0
    return heading(facts, style)
report_text._heading = broken
"""
    done = patched(source, "check", "--root", root, "/opt/a", "/opt/broken", "/opt/c")
    assert done.returncode == 3
    assert done.stdout.count(f"\n{IDLE}\n") == 2
    assert done.stdout.count("\ncould not tell\n") == 1


IN_PROCESSES = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the GIL, threads check, and a crash in one ends all",
)


@pytest.mark.parametrize("failure", [RECURSE, pytest.param(DIE, marks=IN_PROCESSES)])
def test_a_worker_that_fails_or_dies_leaves_the_others(tmp_path, failure):
    names = [*"abcdefghij", "broken"]
    for name in names:
        Prefix(tmp_path / f"opt/{name}", root=tmp_path).venv()
    source = BREAK_ONE.format(failure=failure)
    done = patched(source, "check", "--root", str(tmp_path), "--all", "--json")
    assert done.returncode == 3
    verdicts = {
        report["environment"]["prefix"]: report["verdict"]
        for report in json.loads(done.stdout)["reports"]
    }
    assert verdicts == {f"/opt/{n}": "unknown" if n == "broken" else "consistent" for n in names}


def test_an_environment_that_goes_away_meanwhile_leaves_the_others(root):
    source = """
from cudriver.stack.environment import discover
found = discover.find_environments
def more(*words):
    return [*found(*words), discover.Found("/opt/gone", "venv", "test")]
discover.find_environments = more
"""
    done = patched(source, "check", "--root", root, "--all", "--json")
    assert done.returncode == 3
    verdicts = [r["verdict"] for r in json.loads(done.stdout)["reports"]]
    assert verdicts == ["consistent"] * 3 + ["unknown"]


@pytest.mark.parametrize("extra", ["", "(x)"])  # beside parentheses, and in what is no marker
def test_a_marker_of_nested_parentheses_ends_no_check(tmp_path, extra):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    prefix.dist("torch", "2.8.0", [f"nvidia-x==1; {NESTED}{extra}"])
    done = run("check", "--root", str(tmp_path), "/env", "--json")
    problems = [problem["text"] for problem in json.loads(done.stdout)["problems"]]
    assert len(problems) == bool(extra)
    assert all("marker that cannot be read" in text for text in problems)
    assert done.stderr == ""
    assert done.returncode in (0, 3)


@pytest.mark.parametrize(
    "command",
    ["check", "check --json", "check --html -", "which", "explain CU303", "--help",
     "explain --help"],
)  # fmt: skip
@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written_is_3(root, command, target):
    where = f"--root {root}" if command.startswith(("check", "which")) else ""
    where += {"check": " /opt/a", "which": " --prefix /opt/a"}.get(command.split()[0], "")
    done = shell(f"$CUDRIVER {command} {where} {target}")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert re.match("cudriver: standard output: [A-Z]", done.stderr)


@pytest.mark.parametrize("target", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_other_streams_that_are_closed_or_full_change_nothing(root, target):
    done = shell(f"$CUDRIVER check --root {root} /opt/a {target}")
    assert done.returncode == 0
    assert done.stdout.endswith(f"\n{IDLE}\n")
    assert shell(f"$CUDRIVER check --no-such-option {target}").returncode == 2
    assert shell(f"$CUDRIVER check /no/such/folder {target}").returncode == 2
    assert shell(f"$CUDRIVER explain CU999 {target}").returncode == 2


def test_all_streams_closed_is_still_no_mismatch(root):
    assert shell(f"$CUDRIVER check --root {root} /opt/a <&- >&- 2>&-").returncode == 3


def test_a_pipe_that_is_closed_early_stays_quiet(root):
    everything = " ".join([f"--root {root}"] + ["/opt/a"] * 200)
    done = shell(f"$CUDRIVER check {everything} | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    for more in "", "--html -":
        gone = "| (exec <&-; sleep 1); exit ${PIPESTATUS[0]}"
        done = shell(f"$CUDRIVER check {everything} {more} {gone}")
        assert (done.returncode, done.stderr) == (141, "")
    done = shell("set -o pipefail; $CUDRIVER check --no-such-option 2>&1 | true; exit $?")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
     {"PYTHONIOENCODING": "ascii:strict"}],
)  # fmt: skip
def test_names_that_are_no_text_are_written_in_any_locale(tmp_path, locale):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    os.mkdir(os.fsencode(prefix.site) + b"/torch-\xff\xc3\xa9.dist-info")
    (tmp_path / "\udcff\u00e9\U0001f600").mkdir()
    for words in (["check", "/env"], ["check", "/env", "--json"], ["check", "/env", "--html", "-"],
                  ["check", "/\udcff\u00e9\U0001f600"], ["which", "--prefix", "/no\udcff\u00e9"],
                  ["check", "/no\udcff\u00e9"], ["explain", "CU\u00e9\udcff"]):  # fmt: skip
        more = [] if words[0] == "explain" else ["--root", str(tmp_path)]
        done = run(*words, *more, **locale)
        assert done.returncode in (0, 2, 3), (words, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "before", "shows"),
    [
        # Without the handlers of what is installed here.
        ([], "import atexit; atexit._clear()", [IDLE]),
        (
            [],
            "import atexit as a; a.register(print, 'called')",
            [IDLE, "returned", "called"],
        ),
        (["-m", "cProfile"], "", [IDLE, "returned", "function calls"]),
        (["-i"], "", [IDLE, "returned"]),
    ],
)
def test_the_command_ends_at_once_where_nobody_waits_for_the_interpreters_end(
    root, tmp_path, options, before, shows
):
    script = tmp_path / "program.py"
    script.write_text(f"{before}\nfrom cudriver.cli import program\nprogram()\nprint('returned')\n")
    done = subprocess.run(
        [sys.executable, *options, script, "check", "--root", root, "/opt/a"],
        env={**os.environ, "PYTHONPATH": SOURCES}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert [word for word in (IDLE, "returned", "called", "function calls")
            if word in done.stdout] == shows  # fmt: skip
    assert done.returncode == 0
