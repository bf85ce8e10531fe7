"""The golden files themselves."""

from pathlib import Path

import golden
import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("stem", ["report", "facts"])
def test_every_file_has_blocks_and_every_block_a_test(stem):
    assert golden.blocks(stem), "make golden"
    for key in golden.blocks(stem):
        file, _, name = key.partition("::")
        function = name.rpartition("::")[2].partition("[")[0].partition(" ")[0]
        assert f"def {function}(" in (TESTS / file).read_text(), f"{key}: make golden"


@pytest.mark.parametrize("run", [1, 2])
def test_a_test_counts_its_blocks_from_one(run):
    assert not golden.seen
    golden.seen["report", "a block of this run"] += 1


def test_no_other_files_are_there():
    assert {path.stem for path in golden.FOLDER.iterdir()} == {"report", "facts"}
