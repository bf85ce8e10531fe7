"""Whatever a file, a name or a variable says, no command's output steers a terminal or a page."""

import json
import os
import re
import subprocess
import sys
import unicodedata

import pytest
from samples import hostile
from synth import Prefix
from test_cli import SOURCES

from cudriver.cli import terminal, which
from cudriver.stack.facts import Missing
from cudriver.stack.load.observe import Observation, Row
from cudriver.stack.record import put
from cudriver.stack.report import Report
from cudriver.stack.report.list import one_line
from cudriver.stack.report.text import Style
from cudriver.stack.resolved import Resolved

# An escape, C1's own (CSI), text that turns round, a zero width space, a line that is forged.
BAD = "\x1b]0;x\x07\x9b31m\u202e\u2066\u200b\ufeff\rforged"
NAME = f"a{BAD}<b>&b"


def steering(text: str) -> list[str]:
    """The characters that a terminal or a browser acts upon."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]


@pytest.fixture
def root(tmp_path):
    prefix = Prefix(tmp_path / NAME, root=tmp_path).venv(version=f"3.11.7{BAD}")
    prefix.torch(f"2.8.0+cu128{BAD}", f"12.8{BAD}")
    prefix.dist("nvidia-x", "1.0", [f"nvidia-{BAD}==1.0", f"nvidia-y==1{BAD}", f"z; {BAD}"])
    (prefix.path / "lib" / f"libcudart.so.12{BAD}").write_bytes(b"\x7fELF" + BAD.encode())
    return tmp_path


def outputs(*words: str, text: str = "", **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "cudriver", *words],
        env={**os.environ, "PYTHONPATH": SOURCES, "PYTHONUTF8": "1", "NO_COLOR": "1", **variables},
        input=text.encode(), capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--root", "ROOT", f"/{NAME}"],
        ["check", "--root", "ROOT", f"/{NAME}", "-v"],
        ["check", "--root", "ROOT", f"/{NAME}", "--json"],
        ["check", "--root", "ROOT", f"/{NAME}", "--html", "-"],
        ["check", "--root", "ROOT", "--all"],
        ["check", f"/no/{NAME}"],
        ["check", "--root", f"/no/{NAME}"],
        ["check", "--select", NAME],
        ["check", "--assume-driver", NAME],
        ["check", "--assume-gpu", NAME],
        ["check", "--html", f"/no/{NAME}", "--root", "ROOT", f"/{NAME}"],
        ["check", f"--{NAME}"],
        ["check", "--timeout", NAME],
        ["which", "--root", "ROOT", "--prefix", f"/{NAME}"],
        ["which", "--root", "ROOT", "--prefix", f"/{NAME}", NAME],
        ["which", "--root", "ROOT", "--prefix", f"/{NAME}", NAME, "--json"],
        ["which", "--prefix", f"/no/{NAME}"],
        ["which", f"--{NAME}"],
        ["explain", NAME],
        ["explain", f"CU9{NAME}"],
        ["explain"],
        ["explain", f"--{NAME}"],
        ["devices", f"--{NAME}"],
        ["demo", f"--{NAME}"],
        ["demo", "--size", NAME],
        ["bench", f"--{NAME}"],
        ["bench", "--device", NAME],
        [NAME],
    ],
)
def test_every_command(root, words):
    words = [word.replace("ROOT", str(root)) for word in words]
    pasted = f"ImportError: libcudnn.so.9{BAD}: cannot open shared object file: No such file\n"
    variables = {"CUDA_VISIBLE_DEVICES": NAME, "CUDA_HOME": f"/{NAME}", "LD_LIBRARY_PATH": NAME}
    done = outputs(*words, text=pasted, **variables)
    for stream in (done.stdout, done.stderr):
        assert steering(stream.decode()) == []
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 3)
    if "--json" in words:
        json.loads(done.stdout)


def test_the_page_and_the_notebook_hold_no_markup_of_others():
    facts, findings = hostile()
    put(facts.environment, prefix=facts.environment.prefix + BAD)
    findings[0].title += BAD
    report = Report(facts, findings)
    for text in (report.to_html(), report._repr_html_()):
        assert steering(text) == []
        assert "<script" not in text
        assert re.search(r"\\u202e", text)
        text.encode()
    assert steering(report.to_text()) == []
    assert steering(repr(report)) == []


def test_the_lines_that_no_command_above_shows(capsys):
    """What stands in few reports: a crowd of prefixes, an observation, what is left or nowhere."""
    facts, findings = hostile()
    put(facts.environment, prefix=facts.environment.prefix + BAD)
    put(facts, unsure=[BAD])
    (library,) = facts.libraries
    report = Report(facts, findings)
    report.observation = Observation({}, [Row(BAD, BAD, None), Row("x", "y", BAD)], BAD)
    missing = Missing(BAD, BAD, [BAD])
    found = Resolved(facts, [library], [missing], [BAD])
    which._print_text(found, {library.soname: library})
    lines = [one_line(report, Style(width=1000)), report.to_text(verbose=True)]
    lines += [capsys.readouterr().out, terminal.busy(BAD).label]
    for text in lines:
        assert text
        assert steering(text) == []
