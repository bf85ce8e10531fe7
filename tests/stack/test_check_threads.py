"""Several checks at once, one a thread: what they share is only read, and needs no GIL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cudriver import stack
from cudriver.stack import tables
from cudriver.stack.load import recipes
from cudriver.stack.planning import plan
from model_machine import EVAL, TRAIN, make

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

TESTS = Path(__file__).parents[1]
# In a process of its own, so that the threads meet at the first use of everything.
AT_ONCE = """
import json, sys
from parallel import together
from cudriver import stack

def told(prefix):
    return stack.inspect(prefix, root=sys.argv[1]).to_dict()

json.dump(together(*[lambda prefix=prefix: told(prefix) for prefix in sys.argv[2:]]), sys.stdout)
"""
CHECK = "import sys\nfrom cudriver.cli import main\nmain(['check', *sys.argv[1:]])\n"
GIL_AFTERWARDS = "\nassert not sys._is_gil_enabled(), sorted(sys.modules)\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine")
    make(folder)
    return folder


def run(program: str, *words: object) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env={**kept, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_threads_find_what_one_finds_alone(root: Path) -> None:
    prefixes = [TRAIN, EVAL] * 3
    alone = {prefix: stack.inspect(prefix, root=str(root)).to_dict() for prefix in prefixes}
    assert (alone[TRAIN]["verdict"], alone[EVAL]["verdict"]) == ("mismatch", "consistent")
    assert json.loads(run(AT_ONCE, root, *prefixes)) == [alone[prefix] for prefix in prefixes]


def test_many_environments_at_once_are_told_as_alone(root: Path, tmp_path: Path) -> None:
    """By `check --all`: in processes."""
    shutil.copytree(root, tmp_path, symlinks=True, dirs_exist_ok=True)
    for number in range(12):
        for prefix in (TRAIN, EVAL):
            folder = tmp_path / f"srv/{Path(prefix).name}{number}"
            shutil.copytree(tmp_path / prefix.lstrip("/"), folder, symlinks=True)
    told = json.loads(run(CHECK, "--all", "--json", "--root", tmp_path))["reports"]
    prefixes = [report["environment"]["prefix"] for report in told]
    assert len(prefixes) >= 24
    assert told == [stack.inspect(prefix, root=str(tmp_path)).to_dict() for prefix in prefixes]


def test_what_is_kept_between_checks_is_not_changed(root: Path) -> None:
    for prefix in (TRAIN, EVAL):
        stack.inspect(prefix, root=str(root))
    plan("torch", "jax", driver="580.95.05", gpus=["9.0"])
    data = Path(tables.FOLDER)
    for file in data.glob("*.json"):
        assert tables.table(file.stem) == json.loads(file.read_text("utf-8"))
    loaded = {recipe["name"]: recipe for recipe in recipes.listed()}
    for file in (data / "loading").glob("*.json"):
        recipe = json.loads(file.read_text("utf-8"))
        assert loaded[recipe["name"]] == recipe


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython is not free-threaded"
)
def test_the_gil_stays_off(root: Path) -> None:
    run("import sys\nfrom cudriver import _elf, cli, stack" + GIL_AFTERWARDS)
    run(AT_ONCE + GIL_AFTERWARDS, root, TRAIN, EVAL)
