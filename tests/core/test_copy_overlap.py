"""What many copies in one call may not do: write what another of them writes or reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import cudriver as cu
from cudriver.memory import rows

pytestmark = pytest.mark.usefixtures("no_leaks")


def bytes_of(array: Any, whole: Any) -> set[int]:
    """Which bytes of `whole` an array has, one by one."""
    numbers = np.arange(whole.size, dtype=np.int64).reshape(whole.shape)
    offset = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = tuple(8 * stride for stride in (*array.strides, 1))
    seen = np.lib.stride_tricks.as_strided(
        numbers.ravel()[offset:], (*array.shape, array.itemsize), strides
    )
    return set(seen.ravel().tolist())


def part(rng: random.Random, whole: Any) -> Any:
    """Some of its items: rows, columns, tiles, steps of either sign."""
    array = whole.view(rng.choice(("u1", "u2", "u4")))
    cuts = []
    for length in array.shape:
        at = rng.randrange(length)
        size, step = rng.randint(1, 6), rng.choice((1, 1, 2, 3))
        cuts.append(slice(at, min(at + size * step, length), step))
    array = array[tuple(cuts)]
    return array[::-1] if rng.random() < 0.3 else array


@pytest.mark.parametrize("seed", range(60))
def test_it_is_refused_where_a_byte_is_shared_and_nowhere_else(seed: int) -> None:
    """Against sets of all bytes."""
    rng = random.Random(seed)
    whole = np.zeros((rng.choice((4, 9)), rng.choice((32, 48))), np.uint8)
    to = [part(rng, whole) for _ in range(rng.randint(1, 6))]
    of = [part(rng, whole) if rng.random() < 0.4 else np.zeros_like(array) for array in to]
    table = np.array(
        [[*np.lib.array_utils.byte_bounds(a), *np.lib.array_utils.byte_bounds(b)]
         for a, b in zip(to, of, strict=True)], np.uint64,
    )  # fmt: skip
    written = [bytes_of(array, whole) for array in to]
    read = [bytes_of(array, whole) if np.shares_memory(array, whole) else set() for array in of]
    count = range(len(to))
    bad = any(written[i] & written[k] for i in count for k in range(i))
    bad |= any(written[i] & read[k] for i in count for k in count)
    if not bad:
        rows.refuse_overlap(table.tobytes(), tuple(to), tuple(of))
        return
    with pytest.raises(ValueError, match="overlaps"):
        rows.refuse_overlap(table.tobytes(), tuple(to), tuple(of))


WAYS: dict[str, Any] = {
    "columns": lambda d, n: [d[:, i] for i in range(n)],
    "columns from the last on": lambda d, n: [d[::-1, i] for i in reversed(range(n))],
    "tiles": lambda d, n: [d[i % 8 * 4 : i % 8 * 4 + 4, i // 8] for i in range(n)],
    "pairs of columns": lambda d, n: [d[:, 2 * i : 2 * i + 2] for i in range(n // 2)],
    "steps": lambda d, n: [d.reshape(-1)[i::n] for i in range(n)],
}


@pytest.mark.parametrize("way", WAYS)
def test_columns_are_not_compared_each_with_each(way: str, monkeypatch: Any) -> None:
    """Their spans all meet, and no byte is shared."""
    count, looked = 96, []
    real = rows._share
    monkeypatch.setattr(rows, "_share", lambda a, b: looked.append(0) or real(a, b))
    there = cu.device_zeros((32, count), np.float32)
    to = WAYS[way](there, count)
    of = [np.full(array.shape, k, np.float32) for k, array in enumerate(to)]
    cu.copy_many(to, of)
    wanted = np.zeros(there.shape, np.float32)
    for k, array in enumerate(WAYS[way](wanted, count)):
        array[...] = k
    assert np.array_equal(there.to_numpy(), wanted)
    assert not looked
    with pytest.raises(ValueError, match="what pairs 0 and 1 write overlaps"):
        cu.copy_many([to[0], to[0]], of[:2])


def test_columns_of_one_matrix_into_others_of_it() -> None:
    there = cu.to_device(np.arange(320, dtype=np.float32).reshape(8, 40))
    wanted = there.to_numpy()
    cu.copy_many([there[:, i] for i in range(20)], [there[:, 20 + i] for i in range(20)])
    wanted[:, :20] = wanted[:, 20:]
    assert np.array_equal(there.to_numpy(), wanted)
    with pytest.raises(ValueError, match="what pair 3 writes overlaps what pair 0 reads"):
        cu.copy_many([there[:, i] for i in range(4)], [there[:, 3 + i] for i in range(4)])
