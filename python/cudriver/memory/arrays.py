"""What a DeviceArray tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cudriver.memory.named import public

if TYPE_CHECKING:
    from numpy.typing import NDArray


@public
class ArrayFlags(NamedTuple):
    """How a DeviceArray lies in memory; see DeviceArray.flags.

    Attributes
    ----------
    c_contiguous, f_contiguous : bool
        Whether the items are dense, the last or the first index running fastest.
    owndata : bool
        Whether the array owns its memory; False for a view, or if another library lends it.
    writeable : bool
        Whether the items can be changed; False if another library lends them so.
    """

    c_contiguous: bool
    f_contiguous: bool
    owndata: bool
    writeable: bool


def array_flags(geometry: NDArray[Any], owndata: bool) -> ArrayFlags:
    """The flags of a DeviceArray, for the core, by the ndarray that has its geometry."""
    flags = geometry.flags
    return ArrayFlags(flags.c_contiguous, flags.f_contiguous, owndata, flags.writeable)
