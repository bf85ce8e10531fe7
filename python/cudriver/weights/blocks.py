"""The arrays of one allocation: what is read into it, and how they are made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from cudriver._core import DeviceArray, Stream, _views, from_dlpack
from cudriver.weights.reading import Piece
from cudriver.weights.safetensors_format import TYPES, Tensor, numpy_type
from cudriver.weights.source import Source, shown

if TYPE_CHECKING:
    from cudriver.typing import StreamLike

    Kind = tuple[tuple[int, ...], str]  # a shape, and NumPy's or PyTorch's name of a dtype
    Views = Callable[[list[int], list[Kind]], list[Any]]  # at places of a memory, of kinds

ALIGNMENT = 256  # bytes: as the driver aligns what it allocates


class Block:
    """Tensors of a file that share an allocation, each at a multiple of ALIGNMENT.

    What lies in the allocation as in the file is read as one piece, whatever it has of tensors.
    """

    def __init__(self, source: Source, tensors: list[Tensor]) -> None:
        self.source = source
        self.tensors = tensors
        self.places: list[int] = []
        self.runs: list[list[int]] = []  # where in the file; where in the memory, and to where
        self.rows: list[tuple[Tensor, int]] = []  # cuts whose bytes lie apart
        end, shift = 0, None  # how far the bytes of the last run move
        for tensor in tensors:
            _, _, _, begin, nbytes, _, pitch = tensor
            self.places.append(end)
            if pitch:
                self.rows.append((tensor, end))
                shift = None
            elif begin - end == shift:
                self.runs[-1][2] = end + nbytes
            else:
                self.runs.append([begin, end, end + nbytes])
                shift = begin - end
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes: int = end

    def pieces(self, memory: DeviceArray) -> Iterator[Piece]:
        """What fills the memory, an array of bytes."""
        for begin, first, last in self.runs:
            yield Piece(self.source, begin, memory[first:last])
        for tensor, first in self.rows:
            target = memory[first : first + tensor.nbytes]
            yield Piece(self.source, tensor.begin, target, tensor.row, tensor.pitch)

    def arrays(self, views: Views) -> Iterator[tuple[str, Any]]:
        """The tensors by name."""
        made = views(self.places, [tensor.kind() for tensor in self.tensors])
        return zip([tensor.name for tensor in self.tensors], made, strict=True)


def dtypes_of(tensors: Iterable[Tensor]) -> set[str]:
    """The names of the arrays' dtypes."""
    return {TYPES[dtype][1] or "uint8" for dtype in {tensor.dtype for tensor in tensors}}


class NumpysTypes:
    """Makes DeviceArrays."""

    def __init__(self) -> None:
        self.types: dict[str, np.dtype[Any]] = {}

    def require(self, names: set[str]) -> None:
        """ImportError if a dtype is missing."""
        self.types.update({name: numpy_type(name) for name in names - self.types.keys()})

    def kind(self, tensor: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of a tensor's array."""
        shape, name = tensor.kind()
        return shape, self.types[name]

    def views(self, memory: DeviceArray) -> Views:
        types = self.types
        return lambda places, kinds: _views(
            memory, places, [(shape, types[name]) for shape, name in kinds]
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

    def follow(self, ordinal: int, stream: StreamLike) -> None:
        """Lets PyTorch's stream wait for what is queued."""
        Stream.from_handle(self.torch.cuda.current_stream(ordinal)).wait(stream)

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
