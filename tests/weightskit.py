"""Files of weights, as bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

# It has no wheel for the newest Pythons without a GIL: whoever imports this is skipped there.
safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
pytest.importorskip("safetensors.numpy")


def raw(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file; the header as an object or as it stands."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    """A tensor in the header of a safetensors file."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(header)) + header + data


def same(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    """The device's arrays are these."""
    assert {*found} == {*wanted}
    for name, array in wanted.items():
        there = found[name].to_numpy()
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert there.tobytes() == array.tobytes()


def same_in_order(found: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    assert [*found] == [*wanted]
    same(found, wanted)
