"""The simulated driver against hardware: the same questions, the answers that an H200 gave.

tests/sim/facts.c asks; tests/sim/facts-*.txt has its lines from a real driver, by group, and
captures-*.txt those of captures.c as printed: calls while a stream is being captured. Left out
there: the groups `stale_*`, which end in a crash on hardware or answer this and
that (the simulator must answer with an error), and the values of the device's attributes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import native_build
from simkit import PROGRAMS, environment

pytestmark = native_build.marks

RECORDED = PROGRAMS / "facts-580.159.04-h200.txt"

# What the simulator answers otherwise, and why.
DIFFERENT = {
    "modules.syntax 0": "it reads the header and the entries of PTX, not the instructions",
    "limit_ranges.limit_1_after_18446744073709551615 2147483648": "hardware's sum runs over",
    "limit_ranges.limit_2_after_18446744073709551615 8589934592": "the same; its memory is smaller",
    "limit_ranges.limit_2_after_1125899906842624 8589934592": "its memory is smaller",
}
# The driver reads memory that it has freed, and may crash: the simulator always ends the process.
DEADLY = ("stale_push", "stale_set")
STALE = ("stale_destroy", "stale_id", "stale_event")
STALE_STREAM = ("stale_stream_query", "stale_stream_copy", "stale_stream_destroy")


def recorded() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, told in re.findall(r"(\w+):\n((?: +.*\n)+)", RECORDED.read_text()):
        groups[name] = [f"{name}.{fact}" for fact in " ".join(told.split()).split("; ")]
    return groups


GROUPS = recorded()
Ask = Callable[..., list[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("facts") / "facts"
    return native_build.compile_c(output, [PROGRAMS / "facts.c"], "-std=gnu11", "-O1")


@pytest.fixture(scope="module")
def ask(program: Path) -> Ask:
    library = native_build.simulator(program.parent)

    def run(group: str, patience: int = 300, dies: int = 0) -> list[str]:
        """The lines that it prints; what it says on stderr where it is to die of a signal."""
        env = environment() | {"FACTS_PATIENCE_MS": str(patience)}
        done = native_build.run(program, str(library), group, env=env)
        assert done.returncode == -dies, f"{group} ended with {done.returncode}: {done.stderr}"
        return (done.stderr if dies else done.stdout).splitlines()

    return run


def test_every_group_is_known(program: Path) -> None:
    printed = set(native_build.run(program).stdout.split())
    others = {*DEADLY, *STALE, *STALE_STREAM, "device_attributes"}
    assert printed == {*GROUPS} | others


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_answers_as_hardware_does(ask: Ask, group: str) -> None:
    expected = set(GROUPS[group])
    seen = {line for line in ask(group) if line not in DIFFERENT}
    if group == "waiting" and not seen <= expected:
        seen = set(ask(group, patience=4000))  # a busy machine: slowness looks like waiting
    assert seen - expected == set()
    assert {line.split()[0] for line in expected - seen} <= {d.split()[0] for d in DIFFERENT}


@pytest.mark.parametrize("group", [*STALE, *STALE_STREAM])
def test_stale_handles_give_errors(ask: Ask, group: str) -> None:
    answers = [int(line.split()[1]) for line in ask(group)]
    assert answers
    assert set(answers) <= {400, 709}


@pytest.mark.parametrize("group", DEADLY)
def test_a_destroyed_context_that_is_current_nowhere_is_deadly(ask: Ask, group: str) -> None:
    (said,) = ask(group, dies=signal.SIGABRT)
    assert said.startswith("cudriver_sim: use of a destroyed context: cuCtx")


def test_every_attribute_has_a_value(ask: Ask) -> None:
    lines = ask("device_attributes")
    values = [line for line in lines if ".value_" in line]
    assert len(values) == 147
    assert [line for line in lines if "refused" in line] == [
        f"device_attributes.refused_{i} 1" for i in (148, 149, 150)
    ]


# --- calls during a capture ---

CAPTURES = PROGRAMS / "captures-580.159.04-h200.txt"
#: Memory nodes are not modelled: NOT_SUPPORTED, and the capture goes on.
NO_NODES = {"c_alloc_on", "c_alloc_free_on"}


def test_answers_during_a_capture_as_hardware_does(tmp_path: Path) -> None:
    program = native_build.compile_c(
        tmp_path / "captures", [PROGRAMS / "captures.c"], "-std=gnu11", "-O1"
    )
    done = native_build.run(program, str(native_build.simulator(tmp_path)), env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    expected, seen = CAPTURES.read_text().splitlines(), done.stdout.splitlines()
    assert len(expected) > 90
    for wanted, answered in zip(expected, seen, strict=True):
        name, *answers = wanted.split()
        assert len(answers) == 24
        if name in NO_NODES:
            assert answered.split() == [name, *["801/1/0"] * 24]
        else:
            assert answered == wanted
