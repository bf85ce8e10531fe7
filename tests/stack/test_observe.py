"""--observe: the child that imports a framework, and how its answers are compared."""

import os
import sys
import time

import pytest

from cudriver.stack.facts import Environment, Facts, Framework, Library, LoadFault
from cudriver.stack.load.observe import Observation, Row, observe
from cudriver.stack.record import but, put
from cudriver.stack.report import Report
from cudriver.stack.rules import judge


@pytest.fixture
def facts(tmp_path):
    """An environment whose `torch` is a module of ours, run by this very interpreter."""
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    environment = Environment(str(tmp_path), "venv", executable=sys.executable)
    return Facts(environment, frameworks=[Framework("torch", "1.0", cuda="12.8", variant="cpu")])


def torch(facts: Facts, source: str) -> dict[str, str]:
    """Writes the module; returns the child's variables."""
    site = os.path.join(facts.environment.prefix, "site")
    with open(os.path.join(site, "torch", "__init__.py"), "w") as file:
        file.write("import types\n__version__ = '1.0'\n" + source)
    return {**os.environ, "PYTHONPATH": site}


CUDA = "version = types.SimpleNamespace(cuda='{}')\n"
PRINTING = "print('{}' * 100000)\nimport sys; print('x', file=sys.stderr)\n"


@pytest.mark.parametrize(
    ("source", "imports", "versions"),
    [
        pytest.param(CUDA.format("12.8"), None, ["12.8"], id="a version that agrees"),
        pytest.param(CUDA.format("11.8"), None, ["11.8"], id="a version that differs"),
        pytest.param(PRINTING + CUDA.format("12.8"), None, ["12.8"], id="a module that prints"),
        pytest.param(
            "raise ImportError('libnccl.so.2: cannot open shared object file')",
            "ImportError: libnccl.so.2: cannot open shared object file", [],
            id="an import that fails",
        ),
        pytest.param("raise SystemExit(7)", "SystemExit: 7", [], id="an early exit"),
        pytest.param(
            "raise ImportError('x' * 1_000_000)", f"ImportError: {'x' * 1987}", [],
            id="an error without end",
        ),
    ],
)  # fmt: skip
def test_what_an_import_gives(facts, source, imports, versions):
    observation = observe(facts, environ=torch(facts, source))
    assert (observation.error, observation.imports) == (None, {"torch": imports})
    assert observation.rows == [Row("torch.version.cuda", "12.8", each) for each in versions]
    assert observation.differs is (versions != ["12.8"])


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os; os.abort()", "the interpreter crashed (SIGABRT)"),
        ("import os; os._exit(7)", "the interpreter ended with exit code 7"),
    ],
)
def test_an_import_that_ends_the_interpreter(facts, source, error):
    assert observe(facts, environ=torch(facts, source)).error == error


@pytest.mark.parametrize(
    ("agree", "summary"),
    [
        ([], "0 values, none differ"),
        ([True], "1 value, none differs"),
        ([False], "1 value, 1 differs"),
        ([True, True], "2 values, none differ"),
        ([True, False], "2 values, 1 differs"),
        ([False, False], "2 values, 2 differ"),
    ],
)
def test_counts_have_their_number(agree, summary):
    rows = [Row("x", "a", "a" if same else "b") for same in agree]
    assert Observation({}, rows).summary() == summary


def test_a_hanging_import_is_ended_with_its_children(facts, tmp_path):
    pids = tmp_path / "pids"
    source = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    environ = torch(facts, source)
    for seconds in (3, 30):  # a busy machine may come to the import late
        observation = observe(facts, environ=environ, timeout=seconds)
        assert observation.error == f"the interpreter gave no answer within {seconds} s"
        if pids.exists():
            break
    deadline = time.monotonic() + 20
    left = [int(pid) for pid in pids.read_text().split()]
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if alive(pid)]
        time.sleep(0.05)
    assert left == []


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("executable", "error"),
    [
        ("/no/such/interpreter", "does not start"),
        ("/no/such\0interpreter", "does not start"),
        (None, "no interpreter"),
    ],
)
def test_an_interpreter_that_cannot_be_started(facts, executable, error):
    put(facts.environment, executable=executable)
    assert error in (observe(facts).error or "")


def test_nothing_to_import(facts):
    put(facts, frameworks=[])
    assert observe(facts).error == "no framework to import"
    put(facts, root="/mnt")
    with pytest.raises(ValueError, match="another root"):
        observe(facts)


def test_neither_the_environment_nor_this_process_changes(facts):
    environ = torch(facts, CUDA.format("12.8"))
    loaded = {*sys.modules}
    observe(facts, environ=environ)
    before = {*sys.modules}, len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        observe(facts, environ=environ)
    assert ({*sys.modules}, len(os.listdir("/proc/self/fd"))) == before
    assert "torch" not in {*sys.modules} - loaded
    assert os.listdir(os.path.join(facts.environment.prefix, "site/torch")) == ["__init__.py"]


@pytest.mark.parametrize(
    ("name", "predicted", "differs"),
    [
        ("libcudnn.so.9", "predicted/libcudnn.so.9", True),
        ("libcudnn.so.9", "mapped/libcudnn.so.9", False),
        ("libnvidia-ml.so.1", None, False),  # it comes with the driver
        ("libcublas.so.12", None, True),
    ],
)
def test_a_library_that_the_import_maps(facts, tmp_path, name, predicted, differs):
    """A real file named like a CUDA library, mapped by the child itself."""
    for folder in ("predicted", "mapped"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\0" * 8192)
    mapped = str(tmp_path / "mapped" / name)
    source = (
        f"import mmap\n_file = open({mapped!r}, 'rb')\n"
        "_map = mmap.mmap(_file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    if predicted:
        predicted = str(tmp_path / predicted)
        put(facts, libraries=[Library(name, predicted, real_path=predicted)])
    observation = observe(facts, environ=torch(facts, source + CUDA.format("12.8")))
    assert observation.error is None
    assert observation.differs is differs
    told = [(row.predicted, row.observed) for row in observation.rows if mapped in row.observed]
    shown = predicted or "(not predicted)"
    assert told == ([(shown, mapped)] if differs or predicted else [])


def test_one_unknown_side_is_no_difference():
    assert Row("x", None, "1").agrees
    assert Row("x", "1", None).agrees
    assert not Row("x", "1", "2").agrees
    assert not Observation({}, [], "no answer").differs
    assert Observation({}, [], "no answer").unanswered
    assert not Observation({}, [], "no framework to import").unanswered


def says(facts: Facts, script: str) -> Facts:
    """The environment's interpreter is a shell script; its third word is the descriptor."""
    program = os.path.join(facts.environment.prefix, "python")
    with open(program, "w") as file:
        file.write(f"#!/bin/bash\n{script}\n")
    os.chmod(program, 0o755)
    put(facts.environment, executable=program)
    return facts


GOOD = '{"imports": {"torch": null}, "values": {}, "mapped": []}'


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("null", "b'null'"),
        ("{}", "b'{}'"),
        ("[]", "b'[]'"),
        ("0", "b'0'"),
        ("not JSON \x1b[31m \udcff", r"b'not JSON \x1b[31m \xff'"),
        ("[" * 100_000, "b'[[[[[["),
        ("9" * 10_000, "b'99999"),
        ('{"imports": {}, "values": {}, "mapped": []}', "imports"),
        ('{"imports": {"torch": null}, "values": [], "mapped": []}', "imports"),
        ('{"imports": [], "values": {}, "mapped": []}', "imports"),
    ],
)
def test_an_answer_that_is_none_is_no_verdict_and_is_shown(facts, tmp_path, answer, shown):
    (tmp_path / "answer").write_bytes(os.fsencode(answer))
    observation = observe(says(facts, f"cat {tmp_path}/answer >&$3"))
    assert observation.unanswered
    assert not observation.differs
    assert observation.error is not None
    assert observation.error.startswith("the interpreter ended and answered b'")
    assert shown in observation.error
    assert len(observation.error) < 1000
    assert observation.error.isprintable()
    assert Report(facts, [], observation=observation).exit_code == 3


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("kill -36 $$", "the interpreter crashed (signal 36)"),
        (
            "echo half >&$3; kill -SEGV $$",
            r"the interpreter crashed (SIGSEGV) and answered b'half\n'",
        ),
        ("cat /dev/zero >&$3", f"the interpreter's answer is longer than {8 << 20} bytes"),
        ("sleep 20 & exit 5", "the interpreter ended with exit code 5"),
        ("exit 0", "the interpreter ended without an answer"),
    ],
)
def test_an_interpreter_that_dies_or_never_ends_its_answer(facts, script, error):
    started = time.monotonic()
    observation = observe(says(facts, script), timeout=300)
    assert observation.error == error
    assert time.monotonic() - started < 250


def test_values_of_another_type_are_not_known(facts):
    values = '{"torch.cuda": [], "torch.cudnn": "x", "torch.nccl": 1, "torch.archs": {"a": 1}}'
    put(facts.frameworks[0], variant="cuda", nccl="2.27.3")
    observation = observe(says(facts, f"echo '{GOOD.replace('{}', values)}' >&$3"))
    assert observation.error is None
    assert [row.observed for row in observation.rows] == [None] * 4
    values = values.replace('"torch.nccl": 1', '"torch.nccl": [2, 27, 3]')
    observation = observe(says(facts, f"echo '{GOOD.replace('{}', values)}' >&$3"))
    assert "2.27.3" in [row.observed for row in observation.rows]


class TestWhatTheImportsSay:
    """They count before what was predicted."""

    def judged(self, imports, *more):
        frameworks = [Framework("torch", "2.8.0", module="torch", distribution="torch")]
        ended = LoadFault("not found", "/s/torch/a.so", "liba.so: cannot open", "liba.so")
        faults = [but(ended, framework="torch")] * ("fault" in more)
        environment = Environment("/e", "venv")
        of = Facts(environment, frameworks=frameworks, load_faults=faults, imports=imports)
        found = [f for f in judge(of) if f.severity != "note"]
        return [(f.rule, f.severity, f.predicts) for f in found]

    def test_an_import_that_works_is_no_error(self):
        predicted = ("CU305", "error", "liba.so: cannot open")
        assert self.judged({}, "fault") == [predicted]
        assert self.judged({"torch": None}, "fault") == [("CU305", "warning", None)]
        assert self.judged({"numpy": None}, "fault") == [predicted]

    def test_its_error_in_another_finding_is_told_once(self):
        says = ("CU305", "error", "liba.so: cannot open")
        assert self.judged({"numpy": "OSError: liba.so: cannot open: No such"}, "fault") == [says]
        assert len(self.judged({"numpy": "ImportError: x"}, "fault")) == 2

    def test_one_that_works_has_no_evidence_that_it_fails(self):
        frameworks = [Framework("torch", "2.8.0", module="torch", distribution="torch")]
        ended = LoadFault("not found", "/s/torch/a.so", "liba.so: cannot open", "liba.so")
        of = Facts(Environment("/e", "venv"), frameworks=frameworks, imports={"torch": None},
                   load_faults=[but(ended, framework="torch")])  # fmt: skip
        (found,) = [f for f in judge(of) if f.rule == "CU305"]
        told = [e.value for e in found.evidence if e.value.startswith("import torch")]
        assert told == ["import torch works"]

    def test_one_that_fails_is_an_error_with_its_text_and_once(self):
        assert self.judged({"torch": "ImportError: x"}) == [("CU603", "error", "ImportError: x")]
        assert self.judged({"torch": "x"}, "fault") == [("CU305", "error", "liba.so: cannot open")]
        assert self.judged({"numpy": "x"}) == [("CU603", "error", "x")]
