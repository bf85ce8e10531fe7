"""What one part of a program does to the others: small copies while a big one is in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import cudriver as cu
from benchmarks.bench import GIB, KIB, MIB, Bench, size_name
from benchmarks.measure import Part, Work, at_most
from benchmarks.peers.base import Peer

# Bytes of a page-locked array, and the seconds that its copy may take beside the big one.
BESIDE = {4 * KIB: 0.05e-3, 64 * KIB: 0.05e-3, MIB: 0.12e-3, 16 * MIB: 1.2e-3}


def beside(bench: Bench) -> list[Part]:
    """A copy on a stream of its own, until it is over. The big one was issued just before, is ours,
    and is waited for behind each sample."""
    whole = bench.host(bench.size(GIB), pinned=True)
    there, flown = cu.to_device(whole), cu.Stream()
    flights: list[cu.Transfer] = []

    def land() -> None:
        flights.pop().wait()

    def works(who: Peer, up: bool, nbytes: int) -> Work:
        host, stream = bench.host(nbytes, pinned=True), who.stream(0)
        if up:
            work = who.up(host, stream=stream)
        else:
            work = who.down(host, bench.out(nbytes, pinned=True), stream=stream)
        ends = (there, whole) if up else (whole, there)

        def take_off() -> None:
            flights.append(cu.copy_async(*ends, flown))

        return replace(work, before=take_off, after=land, keep=(*work.keep, there, np.copy(host)))

    parts: list[Part] = []
    for up in (True, False):
        for wanted, most in BESIDE.items():
            nbytes = bench.size(wanted)
            label = bench.label(f"{'up' if up else 'down'}, {size_name(wanted)}", wanted)
            part = Part(label, unit="ms", goals=[at_most(most)])
            parts += bench.offer(part, lambda who, u=up, n=nbytes: works(who, u, n))
    return parts
