"""Two contexts on one device: what is made in one is closed before it, and both copy at once.

    python several_contexts.py

Most programs need only the primary context, which PyTorch uses too. A context of one's own keeps
the work of a plug-in apart: its memory and its errors end with it.
"""

import numpy as np

import cudriver as cu


def main():
    cu.use_driver("auto")
    data = np.arange(1 << 20, dtype=np.float32)
    own = cu.Context(0)
    with own:  # pushed on this thread's stack, and popped at the end
        inside = cu.to_device(data)
        stream = cu.Stream()
    outside = cu.to_device(data)
    assert inside.context is own
    assert outside.context.is_primary

    back = cu.pinned_empty_like(data)
    cu.copy_async(back, inside, stream).wait()  # its context need not be current
    assert np.array_equal(back, data)
    try:
        own.close()
    except cu.InvalidContextError as error:
        print(error)
    inside.close()
    stream.close()
    own.close()
    print(f"closed: {own.closed}; alive outside: {outside.to_numpy()[-1]:.0f}")


if __name__ == "__main__":
    main()
