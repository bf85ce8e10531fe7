"""What CUDA_VISIBLE_DEVICES chooses."""

import pytest
from facts import gpu

from cudriver.stack.machine.visible import hides_all, mark, select

DEVICES = [gpu(0), gpu(1), gpu(2, mig=True, instances=["MIG-11-22", "MIG-33-44"])]


@pytest.mark.parametrize(
    ("value", "ordinals", "stopped"),
    [
        ("0", [0], None),
        ("1,0", [1, 0], None),
        (" 1 , 0 ", [1, 0], None),
        ("", [], None),
        ("-1", [], "-1"),
        ("0,-1,1", [0], "-1"),
        ("0,8,1", [0], "8"),
        ("none", [], "none"),
        ("NoDevFiles", [], "NoDevFiles"),
        ("GPU-1aaa", [1], None),
        ("GPU-1", [1], None),
        ("GPU-", [], "GPU-"),
        ("GPU-zz", [], "GPU-zz"),
        ("MIG-11", [2], None),
        ("MIG-55", [], "MIG-55"),
        ("0,0", [], "0"),
        ("1, 0, 1, 2", [], "1"),
        ("MIG-11,MIG-11", [], "MIG-11"),
        ("MIG-11,MIG-33", [2], None),
        ("-0,1", [0, 1], None),
        ("1gpu,0", [1, 0], None),
        ("GPU-1,0", [1], "0"),
        ("1,GPU-0", [1], "GPU-0"),
        ("0,,1", [0], ""),
        ("99999999999999999999", [], "99999999999999999999"),
    ],
)
def test_select(value, ordinals, stopped):
    chosen = select(value, DEVICES)
    assert (chosen.ordinals, chosen.stopped_at) == (ordinals, stopped)


def test_the_beginning_of_a_mig_uuid_that_two_gpus_share_is_the_firsts():
    devices = [gpu(i, mig=True, instances=[f"MIG-11-{i}"]) for i in range(2)]
    assert select("MIG-11", devices).ordinals == [0]
    assert select("MIG-11-1", devices).ordinals == [1]


@pytest.mark.parametrize(
    ("value", "ordinals", "unread", "meant"),
    [
        ("0,7,1", [0], ["1"], [0]),
        ("0,0,1", [], [], [0]),
        ("7,0,1", [], ["0", "1"], []),
        ("1,0", [1, 0], [], [1, 0]),
    ],
)
def test_what_is_not_read_of_the_variable(value, ordinals, unread, meant):
    chosen = select(value, [gpu(0), gpu(1)])
    assert (chosen.ordinals, chosen.unread, chosen.meant) == (ordinals, unread, meant)


def test_an_index_between_two_devices_is_none():
    chosen = select("1,0", [gpu(0), gpu(5)])
    assert (chosen.ordinals, chosen.stopped_at) == ([], "1")
    assert select("5", [gpu(0), gpu(5)]).ordinals == [5]
    assert select("9" * 5000, [gpu(0)]).reason == "is not the index of a device"


@pytest.mark.parametrize(
    ("value", "seen"),
    [(None, [True, True, True]), ("1", [False, True, True]), ("", [False, False, True])],
)
def test_what_the_variable_leaves_visible(value, seen):
    """It is this machine's, and says nothing of an assumed device."""
    devices = [gpu(0), gpu(1), gpu(2, assumed=True)]
    mark(devices, value)
    assert [device.visible for device in devices] == seen


@pytest.mark.parametrize("value", ["", " ", "-1", "NoDevFiles", "none", "-1,0", ",0"])
def test_what_hides_every_gpu(value):
    assert hides_all(value)


@pytest.mark.parametrize("value", ["0", "7", "0,0", "0,-1", "GPU-1", "MIG-1", "+3"])
def test_what_leaves_a_gpu_of_some_machine(value):
    assert not hides_all(value)
