"""Lines as `srun --label` prints them: cut after 1,024 bytes, and mixed with other tasks'."""

from __future__ import annotations

import io
import json
import random

from cudriver.fleet.read import Broken, Told, lines


def report(task: int) -> str:
    """A report of many pieces, some of which end in a brace."""
    rows = [{"soname": f"lib{task}", "path": "x" * (number % 97)} for number in range(400)]
    return json.dumps({"schema": 1, "task": task, "libraries": rows}, separators=(",", ":"))


def labelled(task: int, text: str) -> list[str]:
    cut = range(0, len(text), 1024)
    return [f"{task}: {text[start : start + 1024]}\n" for start in cut]


def mixed(*queues: list[str]) -> str:
    """The pieces of each in their order, those of several in any."""
    turns = [number for number, queue in enumerate(queues) for _ in queue]
    random.Random(5).shuffle(turns)
    return "".join(queues[number].pop(0) for number in turns)


def test_pieces_of_several_tasks_become_their_reports():
    said = mixed(*(labelled(task, report(task)) for task in range(4)), ["srun: job 3 queued\n"] * 3)
    told = [item for item in lines(io.BytesIO(said.encode()), "-") if isinstance(item, Told)]
    assert {item.name: item.value for item in told} == {
        str(task): json.loads(report(task)) for task in range(4)
    }


def test_a_report_without_its_end_is_told_beside_the_others():
    said = mixed(labelled(0, report(0)), labelled(1, report(1))[:-1], labelled(2, report(2)))
    found = list(lines(io.BytesIO(said.encode()), "-"))
    assert sorted(item.name for item in found if isinstance(item, Told)) == ["0", "2"]
    assert len([item for item in found if isinstance(item, Broken)]) == 1
    # The same task's next report does not begin in the middle of it.
    again = said + "".join(labelled(1, report(1)))
    found = list(lines(io.BytesIO(again.encode()), "-"))
    assert sorted(item.name for item in found if isinstance(item, Told)) == ["0", "1", "2"]
    assert len([item for item in found if isinstance(item, Broken)]) == 1
