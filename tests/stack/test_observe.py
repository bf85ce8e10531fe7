"""--observe: the child that imports a framework, and how its answers are compared."""

import os
import sys
import time

import pytest

from cudriver.stack.model import Environment, Facts, Framework, Library
from cudriver.stack.observe import Observation, Row, cudnn, observe
from cudriver.stack.report import Report


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


def test_a_version_that_agrees(facts):
    environ = torch(facts, "version = types.SimpleNamespace(cuda='12.8')\n")
    observation = observe(facts, environ=environ)
    assert observation.error is None
    assert observation.imports == {"torch": None}
    assert not observation.differs
    assert Row("torch.version.cuda", "12.8", "12.8") in observation.rows


def test_a_version_that_differs(facts):
    environ = torch(facts, "version = types.SimpleNamespace(cuda='11.8')\n")
    observation = observe(facts, environ=environ)
    assert observation.differs
    assert [row.observed for row in observation.rows if not row.agrees] == ["11.8"]


def test_counts_have_their_number():
    def summary(*agree: bool) -> str:
        rows = [Row(str(i), "a", "a" if same else "b") for i, same in enumerate(agree)]
        return Observation({}, rows).summary()

    assert summary() == "0 values, none differ"
    assert summary(True) == "1 value, none differs"
    assert summary(False) == "1 value, 1 differs"
    assert summary(True, True) == "2 values, none differ"
    assert summary(True, False) == "2 values, 1 differs"
    assert summary(False, False) == "2 values, 2 differ"


def test_an_import_that_fails_is_shown_as_python_says_it(facts):
    environ = torch(facts, "raise ImportError('libnccl.so.2: cannot open shared object file')\n")
    observation = observe(facts, environ=environ)
    assert observation.imports["torch"] == (
        "ImportError: libnccl.so.2: cannot open shared object file"
    )
    assert observation.differs
    assert observation.rows == []


def test_printing_imports_do_not_disturb(facts):
    source = "print('{}' * 100000)\nimport sys; print('x', file=sys.stderr)\n"
    environ = torch(facts, source + "version = types.SimpleNamespace(cuda='12.8')\n")
    assert not observe(facts, environ=environ).differs


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
        assert observation.error == f"no answer within {seconds} s"
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


def test_a_crash_is_named(facts):
    observation = observe(facts, environ=torch(facts, "import os; os.abort()\n"))
    assert observation.error == "the interpreter died of SIGABRT"


def test_an_early_exit_is_an_import_that_fails(facts):
    observation = observe(facts, environ=torch(facts, "raise SystemExit(7)\n"))
    assert observation.imports == {"torch": "SystemExit: 7"}
    observation = observe(facts, environ=torch(facts, "import os; os._exit(7)\n"))
    assert observation.error == "the interpreter ended with status 7 and no answer"


def test_nothing_to_run(facts, tmp_path):
    facts.environment.executable = str(tmp_path / "nowhere")
    assert "does not start" in (observe(facts).error or "")
    facts.environment.executable = None
    assert "no interpreter" in (observe(facts).error or "")
    facts.environment.executable = sys.executable
    facts.frameworks = []
    assert observe(facts).error == "no framework to import"
    facts.root = "/mnt"
    with pytest.raises(ValueError, match="another root"):
        observe(facts)


def test_the_environment_is_not_written_to(facts):
    environ = torch(facts, "version = types.SimpleNamespace(cuda='12.8')\n")
    site = os.path.join(facts.environment.prefix, "site", "torch")
    observe(facts, environ=environ)
    assert os.listdir(site) == ["__init__.py"]


def test_a_library_mapped_from_elsewhere_differs(facts, tmp_path):
    """A real file named like a CUDA library, mapped by the child itself."""
    for folder in ("predicted", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libcudnn.so.9").write_bytes(b"\0" * 8192)
    source = (
        "import mmap\n"
        f"_file = open({str(tmp_path / 'other' / 'libcudnn.so.9')!r}, 'rb')\n"
        "_map = mmap.mmap(_file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "version = types.SimpleNamespace(cuda='12.8')\n"
    )
    predicted = str(tmp_path / "predicted" / "libcudnn.so.9")
    facts.libraries = [Library("libcudnn.so.9", predicted, real_path=predicted)]
    observation = observe(facts, environ=torch(facts, source))
    (row,) = [row for row in observation.rows if row.name == "libcudnn.so.9"]
    assert (row.predicted, row.observed) == (predicted, str(tmp_path / "other" / "libcudnn.so.9"))
    assert observation.differs


@pytest.mark.parametrize(
    ("name", "differs"), [("libnvidia-ml.so.1", False), ("libcublas.so.12", True)]
)
def test_a_mapped_library_that_was_not_predicted(facts, tmp_path, name, differs):
    """The driver's own parts come with the driver: whoever loads one shows no difference."""
    (tmp_path / name).write_bytes(b"\0" * 8192)
    source = (
        f"import mmap\n_file = open({str(tmp_path / name)!r}, 'rb')\n"
        "_map = mmap.mmap(_file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "version = types.SimpleNamespace(cuda='12.8')\n"
    )
    observation = observe(facts, environ=torch(facts, source))
    assert observation.error is None
    assert observation.differs is differs


def test_this_process_loads_nothing(facts):
    """Nothing of the inspected environment comes into the one that asks."""
    environ = torch(facts, "version = types.SimpleNamespace(cuda='12.8')\n")
    before = set(sys.modules)
    observe(facts, environ=environ)
    assert "torch" not in set(sys.modules) - before


@pytest.mark.parametrize(
    ("number", "text"), [(8907, "8.9.7"), (90300, "9.3.0"), (91002, "9.10.2"), (None, None)]
)
def test_cudnn_numbers(number, text):
    assert cudnn(number) == text


def test_one_unknown_side_is_no_difference():
    assert Row("x", None, "1").agrees
    assert Row("x", "1", None).agrees
    assert not Row("x", "1", "2").agrees
    assert not Observation({}, [], "no answer").differs
    assert Observation({}, [], "no answer").unanswered
    assert not Observation({}, [], "no framework to import").unanswered


def test_nothing_stays_open(facts):
    environ = torch(facts, "version = types.SimpleNamespace(cuda='12.8')\n")
    observe(facts, environ=environ)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        observe(facts, environ=environ)
    assert len(os.listdir("/proc/self/fd")) == before


def says(facts: Facts, script: str) -> Facts:
    """The environment's interpreter is a shell script; its third word is the descriptor."""
    program = os.path.join(facts.environment.prefix, "python")
    with open(program, "w") as file:
        file.write(f"#!/bin/bash\n{script}\n")
    os.chmod(program, 0o755)
    facts.environment.executable = program
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
        ('{"imports": {"torch": 1}, "values": {}, "mapped": []}', "imports"),
        ('{"imports": {"torch": null}, "values": {}, "mapped": [1]}', "imports"),
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
    assert observation.error.startswith("the interpreter ended with status 0 and answered b'")
    assert shown in observation.error
    assert len(observation.error) < 1000
    assert observation.error.isprintable()
    assert Report(facts, [], observation=observation).exit_code == 3


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("kill -36 $$", "the interpreter died of signal 36"),
        (
            "echo half >&$3; kill -SEGV $$",
            r"the interpreter died of SIGSEGV and answered b'half\n'",
        ),
        ("cat /dev/zero >&$3", f"the interpreter's answer is longer than {8 << 20} bytes"),
        ("sleep 20 & exit 5", "the interpreter ended with status 5 and no answer"),
        ("exit 0", "the interpreter ended with status 0 and no answer"),
    ],
)
def test_an_interpreter_that_dies_or_never_ends_its_answer(facts, script, error):
    started = time.monotonic()
    observation = observe(says(facts, script), timeout=300)
    assert observation.error == error
    assert time.monotonic() - started < 250


def test_values_of_another_type_are_not_known(facts):
    values = '{"torch.cuda": [], "torch.cudnn": "x", "torch.nccl": 1, "torch.archs": {"a": 1}}'
    facts.frameworks[0].variant = "cuda"
    facts.frameworks[0].nccl = "2.27.3"
    observation = observe(says(facts, f"echo '{GOOD.replace('{}', values)}' >&$3"))
    assert observation.error is None
    assert [row.observed for row in observation.rows] == [None] * 4
    values = values.replace('"torch.nccl": 1', '"torch.nccl": [2, 27, 3]')
    observation = observe(says(facts, f"echo '{GOOD.replace('{}', values)}' >&$3"))
    assert "2.27.3" in [row.observed for row in observation.rows]


def test_an_import_error_without_end_is_cut(facts):
    environ = torch(facts, "raise ImportError('x' * 1_000_000)\n")
    (error,) = observe(facts, environ=environ).imports.values()
    assert error is not None
    assert len(error) == 2000


def test_an_interpreter_that_cannot_be_started(facts):
    facts.environment.executable = "/no/such\0interpreter"
    error = observe(facts).error
    assert error is not None
    assert "does not start" in error
