"""Plots how fast plain and page-locked arrays of each size travel to the device.

    python plot_bandwidth.py [bandwidth.png] [--largest 256]

Needs matplotlib. The rates of the simulated driver mean nothing; the plot says so.
"""

import argparse
import time

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np

import cudriver as cu


def rate(target, source, repeats=5):
    """GB/s: the median of some copies, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        cu.copy(target, source)
        times.append(time.perf_counter() - start)
    return source.nbytes / np.median(times[1:]) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default="bandwidth.png")
    parser.add_argument("--largest", type=int, default=256, help="the largest array, in MiB")
    given = parser.parse_args()
    cu.use_driver("auto")
    sizes = [1 << power for power in range(12, (given.largest << 20).bit_length())]
    rates: dict[str, list[float]] = {"plain": [], "page-locked": []}
    for size in sizes:
        target = cu.device_empty(size, np.uint8)
        rates["plain"].append(rate(target, np.ones(size, np.uint8)))
        rates["page-locked"].append(rate(target, cu.pinned_full(size, 1, np.uint8)))
    figure, axes = plt.subplots(layout="constrained")
    for label, values in rates.items():
        axes.plot(np.array(sizes) / 2**20, values, marker=".", label=label)
    axes.set(xscale="log", xlabel="size of the array (MiB)", ylabel="rate (GB/s)", ylim=(0, None))
    simulated = " (simulated: no rates of a GPU)" if cu.driver_is_simulated() else ""
    axes.set_title(f"To {cu.Device(0).name}{simulated}")
    axes.legend()
    figure.savefig(given.path)
    print(f"{given.path}: {len(sizes)} sizes up to {given.largest} MiB")


if __name__ == "__main__":
    main()
