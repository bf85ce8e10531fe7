"""Feeds a PyTorch model with NumPy arrays: the next batch is copied while the model computes.

    python feed_model.py [--batches 8]

Needs a GPU and PyTorch. Without them the batches are copied back on the simulated driver, which
shows that every byte arrives, and nothing about speed.
"""

import argparse

import numpy as np

import cudriver as cu


def batches(count):
    rng = np.random.default_rng(0)
    return [rng.random((2048, 1024), np.float32) for _ in range(count)]


def feed(arrays, compute, targets, use):
    """Calls use(number) in the stream `compute` when targets[number % 2] holds arrays[number]."""
    stream = cu.Stream()
    read = [cu.Event().record(compute) for _ in targets]
    for number, array in enumerate(arrays):
        turn = number % 2
        stream.wait(read[turn])  # the batch before last has been used
        cu.copy_async(targets[turn], array, stream)  # returns at once
        stream.record().wait(compute)
        use(number)
        read[turn].record(compute)


def with_model(torch, arrays):
    model = torch.nn.Linear(1024, 10).cuda().eval()
    slots = [torch.empty(arrays[0].shape, device="cuda") for _ in range(2)]
    outputs = []
    with torch.no_grad():
        compute = torch.cuda.current_stream()
        targets = [cu.from_dlpack(slot) for slot in slots]  # the same memory
        feed(arrays, compute, targets, lambda number: outputs.append(model(slots[number % 2])))
        expected = [model(torch.from_numpy(array).cuda()) for array in arrays]
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(outputs, expected, strict=True))
    print(f"{len(outputs)} batches went through the model")


def without_model(arrays):
    compute = cu.Stream()
    targets = [cu.device_empty(arrays[0].shape, np.float32) for _ in range(2)]
    back = [cu.pinned_empty_like(array) for array in arrays]
    feed(arrays, compute, targets, lambda n: cu.copy_async(back[n], targets[n % 2], compute))
    compute.synchronize()
    assert all(np.array_equal(a, b) for a, b in zip(back, arrays, strict=True))
    print(f"{len(back)} batches arrived and came back")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=8)
    arrays = batches(parser.parse_args().batches)
    cu.use_driver("auto")
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available() and not cu.driver_is_simulated():
        with_model(torch, arrays)
    else:
        without_model(arrays)


if __name__ == "__main__":
    main()
