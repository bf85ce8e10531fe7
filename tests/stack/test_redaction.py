"""What can be shown to others: nothing of a report says whose machine it was made on."""

import json
import os
import random
import re
from types import SimpleNamespace

import pytest
import samples
from test_cli import here, root  # noqa: F401 - a fixture

from cudriver.fleet.node import node
from cudriver.stack.command import Command
from cudriver.stack.facts import Evidence, Finding, Problem
from cudriver.stack.load.observe import Observation, Row
from cudriver.stack.record import put
from cudriver.stack.report import Report
from cudriver.stack.report.html import signed
from cudriver.stack.report.redaction import redacted


@pytest.fixture(autouse=True)
def ana(monkeypatch):
    """The machine of a user whose home, name and host are known."""
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setenv("LOGNAME", "ana")
    uname = os.uname()
    told = SimpleNamespace(nodename="gpu17.lab.example", machine=uname.machine, sysname="Linux")
    monkeypatch.setattr(os, "uname", lambda: told)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ana/envs/train/bin/python -m pip", "~/envs/train/bin/python -m pip"),
        ("/home/ana: not a folder", "~: not a folder"),
        ("/home/ana2/x:/home/bob", "/home/user/x:/home/user"),
        ("/image/home/ana/x", "/image/home/user/x"),
        ("/scratch/ana/envs/ana-train", "/scratch/user/envs/user-train"),
        ("/tmp/pip-ana_1/x /nfs/gpu17/x", "/tmp/pip-user_1/x /nfs/host/x"),
        ("ana@gpu17.lab.example: no", "user@host: no"),
        ("see gpu17, ana", None),
        ("by ana@gpu17.lab.example:/x /net/gpu17.lab.example/x", "by user@host:/x /net/host/x"),
        ("/home/ana-2/x", "/home/user/x"),
        ("/nfs/home/bob /Users/bob/x", "/nfs/home/user /Users/user/x"),
        ("/home/a b/env/bin: no", "/home/user/env/bin: no"),
        ("/opt:/home/a b:/home/c d/x", "/opt:/home/user:/home/user/x"),
        ("/home/bob is gone", "/home/user is gone"),
        ("/mnt/c/Users/Ana B C", "/mnt/c/Users/user"),
        ("/home/bob Permission denied", "/home/user Permission denied"),
        ("needs /home/bob CUDA 12", "needs /home/user CUDA 12"),
        ("found by HOME=/home/a b", "found by HOME=/home/user"),
        ("see ~ana/x, ~bob", "see ~user/x, ~bob"),
        ("https://bob:tok@host/x https://tok@host", "https://user@host/x https://user@host"),
        ("LOGNAME=ana HOSTNAME=gpu17", "LOGNAME=user HOSTNAME=host"),
        ("/data/root-of-sudo/alice and /data/berta/x", "/data/root-of-sudo/user and /data/user/x"),
        ("/usr/lib/ana/x.so /lib/ana-linux-gnu/libc.so.6 /etc/ana", None),
        ("an analysis of banana in /opt/banana/analysis", None),
        ("onnxruntime-gpu17==1.2", None),
        ("/opt/env/lib/python3.12/site-packages/ana/core.py:3", None),
        ("~/lib/site-packages/ana:/home/ana/x", "~/lib/site-packages/ana:~/x"),
    ],
)
def test_text(text, shown, monkeypatch):
    monkeypatch.setenv("USER", "berta")
    monkeypatch.setenv("SUDO_USER", "alice")
    assert redacted(text) == (shown or text)


@pytest.mark.parametrize("home", ["/home/ana", "/home/a b", "/srv/ana k", "/usr/people/ana"])
@pytest.mark.parametrize("seed", range(4))
def test_no_folder_of_a_path_keeps_a_name(home, seed, monkeypatch):
    """Whatever stands between paths, and whatever beside a name in its folder."""
    monkeypatch.setenv("HOME", home)
    draw = random.Random(f"{home}{seed}")
    folders = ["ana", "gpu17", "ana-1", "x_ana", "my+ana", "(ana)", "ana,b", "gpu17.lab.example"]
    folders += ["x@ana", "my ana", "ana k", "of ana and me"]
    starts = [home, "/home/bob", "/home//bob", "/home/./bob", "/home/bob and carl", "/Users/bob"]
    starts += ["/etc/../home/bob", "/proc/self/root/home/bob", "/scratch", "/usr/lib/..", "/a b"]
    names = re.compile(r"(?<![A-Za-z0-9])(ana|gpu17|bob|carl)(?![A-Za-z0-9])")
    for _ in range(300):
        paths = ["/usr/lib", "/opt"]
        for _ in range(draw.randrange(1, 4)):
            paths.append("/".join([draw.choice(starts), *draw.choices(folders, k=2), "x"]))
        draw.shuffle(paths)
        text = paths[0] + "".join(draw.choice(":;, |=\n\t'\"") + path for path in paths[1:])
        for told in (text, f"'{text}'", f"PATH={text}: no"):
            shown = redacted(told)
            assert home not in shown, told
            assert not names.search(shown), told


@pytest.mark.parametrize(("home", "user"), [("/", "root"), ("", "nvidia"), ("/root", "root")])
def test_names_that_are_nobodys_stay(home, user, monkeypatch):
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("LOGNAME", user)
    text = f"/opt/{user}/lib {user}@x"
    assert redacted(text) == text
    assert redacted("/root/x") == ("~/x" if home == "/root" else "/root/x")


@pytest.mark.parametrize("name", ["jax", "torch", "error", "venv", "local", "x86", "tmp"])
@pytest.mark.parametrize("of", ["user", "host"])
def test_a_name_that_means_something_else_leaves_the_facts(name, of, monkeypatch):
    """What is a package's, a rule's or the system's is the same in the redacted report."""
    if of == "user":
        monkeypatch.setenv("LOGNAME", name)
    else:
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=name, sysname="Linux"))
    original = Report(samples.healthy(), samples.broken_findings())
    shown = original.redacted()
    assert shown.to_html()
    assert shown.to_json() == original.to_json().replace("/home/ana", "~")
    for path in ("/usr/local/cuda-13.0", "/lib/x86_64-linux-gnu/libc.so.6", "/tmp", "jax==0.4"):
        assert redacted(path) == path


def test_a_command_stays_one():
    """What it does besides its text, as healing is tried by, is kept."""
    command = Command.of("/home/ana/e/bin/pip install x", installs=("x",))
    told = redacted([command])[0]
    assert (told, type(told), told.installs) == ("~/e/bin/pip install x", Command, ("x",))


def test_a_shell_still_knows_a_home_with_a_space(monkeypatch):
    """A quoted tilde is none."""
    monkeypatch.setenv("HOME", "/home/a b")
    fixed = Command.of("'/home/a b/e/bin/python' -m pip; ls '/home/a b'; X='/home/a b/y' z")
    assert redacted([fixed]) == ["~/'e/bin/python' -m pip; ls ~; X=~/'y' z"]
    assert redacted("'/home/a b/x' is gone") == "'~/x' is gone"
    facts = samples.healthy()
    put(facts.environment, prefix="/home/a b/my own", executable="/home/a b/my own/bin/python")
    doubtful = Finding("CU402", "warning", "of torch", doubt="nobody knows")
    shown = Report(facts, [doubtful]).redacted()
    assert "cudriver check --observe ~/'my own'" in "".join(shown.doubts)
    page = signed("</section>", ["check", "/home/a b/x"], redact=True)
    assert "cudriver check ~/x<" in page


def report() -> Report:
    """One that holds them everywhere."""
    facts = samples.healthy()
    put(facts.environment, variables={"LD_LIBRARY_PATH": "/opt/x:/home/ana/lib"})
    problems = [Problem("/home/ana/broken", "Permission denied: /data/ana")]
    put(facts, problems=problems, unsure=["/home/ana/x: cannot be read"])
    wrong = Evidence("/home/ana/x.so", None, "by ana@gpu17")
    also = Finding("CU401", "warning", "of /home/ana", evidence=[wrong])
    rows = [Row("libnccl.so.2", "/home/ana/a", "/home/ana/b")]
    findings = [*samples.broken_findings(), Finding("CU303", "error", "in ~ana", also=[also])]
    return Report(facts, findings, observation=Observation({"torch": "in /home/ana"}, rows))


def test_no_form_of_a_redacted_report_names_anybody():
    original = report()
    shown = original.redacted()
    forms = [shown.to_json(), shown.to_html(), shown.to_text(verbose=True), str(shown)]
    for form in [*forms, original.to_markdown()]:
        for name in ("/home/ana", "gpu17", "ana@"):
            assert name not in form
    assert "~/envs/train" in shown.prefix
    assert "/home/ana" in original.to_json()  # it is as it was
    assert shown.verdict == original.verdict
    states = [[f.state for f in each.frameworks] for each in (shown, original)]
    assert states[0] == states[1]


def test_the_command_redacts_each_form(root, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HOME", str(tmp_path))
    page, words = tmp_path / "a.html", ["check", "--root", str(root), "/envs/plain", "--redact"]
    data = json.loads(here(*words, "--json", "--html", str(page)).stdout)
    assert data["environment"]["root"].startswith("~")
    line = here(*words, "--json", "--compact").stdout
    told = json.loads(line)["node"]
    assert (told["host"], told["boot_id"]) == ("host", None)
    shown = here(*words).stdout
    for text in (page.read_text(), line, shown):
        assert str(tmp_path) not in text
        assert "gpu17" not in text
    open_page = here(*words[:-1], "--html", "-").stdout
    assert "gpu17" in open_page  # without --redact it says where it was made


def test_the_names_of_the_node_are_hidden(root, monkeypatch):  # noqa: F811
    made = node({"SLURMD_NODENAME": "gpu17", "NODE_NAME": "vm-3", "SLURM_NODEID": "7"})
    monkeypatch.setattr("cudriver.fleet.node.node", lambda *_: made)
    words = ["check", "--root", str(root), "/envs/plain", "--redact", "--json", "--compact"]
    told = json.loads(here(*words).stdout)["node"]["scheduler"]
    assert told == {"SLURMD_NODENAME": "host", "NODE_NAME": "host", "SLURM_NODEID": "7"}


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--json", "--html", "-"],
        ["check", "--json", "--compact", "--markdown", "-"],
        ["check", "--html", "-", "--markdown", "-"],
        ["plan", "torch", "--json", "--html", "-"],
        ["fleet", "x.json", "--json", "--html", "-"],
    ],
)
def test_two_reports_on_one_standard_output_are_an_error(words):
    done = here(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "both write to standard output: give one of them a file" in done.stderr


@pytest.mark.parametrize("words", [["check"], ["plan", "torch"], ["fleet", "x.json"]])
def test_a_file_without_a_name_is_an_error(words):
    done = here(*words, "--html", "")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--html needs the name of a file" in done.stderr
