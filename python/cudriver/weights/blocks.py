"""The arrays of one allocation: what is read into it, and how they are made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver._core import DeviceArray, Stream, _views
from cudriver.memory.arrays import parts
from cudriver.memory.dlpack import from_dlpack
from cudriver.weights.reading import RUN
from cudriver.weights.safetensors_format import Tensor, numpy_type
from cudriver.weights.source import Source, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudriver.typing import StreamLike

    Kind = tuple[tuple[int, ...], str]  # a shape, and NumPy's or PyTorch's name of a dtype
    Views = Callable[[list[int], list[Kind]], list[Any]]  # at places of a memory, of kinds

ALIGNMENT = 256  # bytes: as the driver aligns what it allocates


class Block:
    """Tensors of a file that share an allocation, each at a multiple of ALIGNMENT.

    alone: each has an allocation of its own instead.
    """

    def __init__(self, source: Source, tensors: list[Tensor], alone: bool = False) -> None:
        self.source = source
        self.names: list[str] = [name for name, _, _ in tensors]
        self.kinds: list[tuple[tuple[int, ...], str]] = [kind.array for _, kind, _ in tensors]
        extents = [kind.extent for _, kind, _ in tensors]
        nbytes, row, pitch = np.array(extents, np.int64).reshape(-1, 3).T
        room = nbytes if alone else -(-nbytes // ALIGNMENT) * ALIGNMENT
        begin = room.cumsum() - room
        self.nbytes: int = int(room.sum())
        self.places: list[int] = begin.tolist()
        runs = np.zeros(len(tensors), RUN)
        runs["offset"] = [offset for _, _, offset in tensors]
        runs["begin"], runs["bytes"], runs["row"], runs["pitch"] = begin, nbytes, row, pitch
        if alone:
            runs["array"] = range(len(tensors))
        else:
            runs["device"] = begin
            runs = merged(runs)
        self.runs = runs

    def arrays(self, views: Views) -> Iterator[tuple[str, Any]]:
        """The tensors by name."""
        return zip(self.names, views(self.places, self.kinds), strict=True)


def merged(runs: NDArray[np.void]) -> NDArray[np.void]:
    """Makes one run of those that lie in the memory as in the file, whatever it has of tensors."""
    shift, apart = runs["offset"] - runs["begin"], runs["pitch"] > 0
    other = (shift[1:] != shift[:-1]) | apart[1:] | apart[:-1]
    first = np.flatnonzero(np.append(np.ones(min(runs.size, 1), bool), other))
    ends = runs["begin"] + runs["bytes"]
    found = runs[first]
    found["bytes"] = np.maximum.reduceat(ends, first) - found["begin"]
    return found


def dtypes_of(tensors: Iterable[Tensor]) -> set[str]:
    """The names of the arrays' dtypes."""
    return {name for _, name in {kind.array for _, kind, _ in tensors}}


class NumpysTypes:
    """Makes DeviceArrays."""

    def __init__(self) -> None:
        self.types: dict[str, np.dtype[Any]] = {}

    def require(self, names: set[str]) -> None:
        """ImportError if a dtype is missing."""
        self.types.update({name: numpy_type(name) for name in names - self.types.keys()})

    def views(self, memory: DeviceArray) -> Views:
        types = self.types
        return lambda places, kinds: _views(
            memory, parts, (places, [(shape, types[name]) for shape, name in kinds])
        )


class TorchsTypes:
    """Makes tensors of PyTorch's, whose dtypes have NumPy's names."""

    def __init__(self) -> None:
        try:
            import torch  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise ImportError("framework='torch' needs PyTorch, which is not installed") from None
        self.torch = torch
        self.strides: dict[tuple[int, ...], tuple[int, ...]] = {}

    def require(self, names: set[str]) -> None:
        """ImportError if a dtype is missing."""
        for name in sorted(names):
            if not hasattr(self.torch, name):
                raise ImportError(f"PyTorch {self.torch.__version__} has no {name}: update it")

    def memory(self, nbytes: int, ordinal: int, stream: StreamLike) -> tuple[DeviceArray, Views]:
        """Bytes of PyTorch's own allocator, for the stream to fill."""
        cuda = self.torch.cuda
        flat = self.torch.empty(nbytes, dtype=self.torch.uint8, device=f"cuda:{ordinal}")
        Stream.from_handle(stream).wait(cuda.current_stream(ordinal))  # it may be used there yet
        return from_dlpack(flat), self.views(flat)

    def views(self, flat: Any) -> Views:
        typed: dict[str, Any] = {}

        def made(place: int, shape: tuple[int, ...], name: str) -> Any:
            strides = self.strides.get(shape)
            if strides is None:
                strides = tuple(math.prod(shape[i:]) for i in range(1, len(shape) + 1))
                self.strides[shape] = strides
            if name not in typed:
                typed[name] = flat.view(getattr(self.torch, name))
            whole = typed[name]
            # .data: to autograd, a change of one tensor is no change of the others.
            return whole.as_strided(shape, strides, place // whole.itemsize).data

        return lambda places, kinds: [
            made(place, *kind) for place, kind in zip(places, kinds, strict=True)
        ]


def types_of(framework: str | None) -> NumpysTypes | TorchsTypes:
    if framework not in (None, "torch"):
        raise ValueError(f"framework is {shown(framework)}; it is None or 'torch'")
    return NumpysTypes() if framework is None else TorchsTypes()
