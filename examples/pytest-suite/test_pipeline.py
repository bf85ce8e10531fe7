"""A project's tests: those that need a GPU say so, the others run on the simulated driver.

pytest --cuda-stack=warn examples/pytest-suite
"""

import numpy as np
import pytest

import cudriver as cu


def normalise(images):
    """What the project does: to the device, and back into a page-locked array."""
    there = cu.to_device((images / 255).astype(np.float32))
    back = cu.pinned_empty(there.shape, there.dtype)
    cu.copy_async(back, there, cu.Stream()).wait()
    return back


@pytest.fixture(autouse=True)
def driver():
    """This process takes the simulated driver where there is no GPU."""
    cu.use_driver("auto")


def test_values_are_scaled(no_cuda_leaks):
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    np.testing.assert_allclose(normalise(images) * 255, images, rtol=1e-6)


def test_a_failed_allocation_is_reported(simulated_cuda):
    program = "import cudriver as cu; cu.device_empty(1 << 40)"
    done = simulated_cuda.run(program, memory=1 << 30)
    assert "OutOfMemoryError" in done.stderr


@pytest.mark.cuda(memory="1 GiB")
def test_a_large_batch():
    assert normalise(np.zeros((1024, 512, 512), np.uint8)).sum() == 0
