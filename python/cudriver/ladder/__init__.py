"""The memory ladder, measured: how fast bytes move on each rung, from pageable memory to shared.

    from cudriver import ladder
    report = ladder.measure(cu.Device(0), [512 << 20], rounds=10)

``cudriver bench`` prints and draws what comes of it. On the simulated driver everything runs and is
verified, and no rates are given: no GPU takes part.
"""

from __future__ import annotations

from cudriver.ladder.bench import measure

__all__ = ["measure"]
