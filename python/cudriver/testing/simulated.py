"""`simulated_cuda`: the simulated driver, for a child process or for this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KNOBS = frozenset(
    {
        "profile",
        "devices",
        "memory",
        "driver_version",
        "latency_us",
        "late_us",
        "jitter_us",
        "bandwidth",
        "fail",
    }
)
HINT = "`CUDRIVER_LIBRARY=sim pytest` runs a session on the simulated driver"


class SimulatedCuda:
    """The simulated driver, as the fixture `simulated_cuda` gives it.

    A process has one driver, chosen before the first call that needs one. `run` therefore starts a
    process of its own, and works always. `use` takes the simulated driver for the tests' own
    process, where that takes no real one away from other tests.

    Examples
    --------
    >>> from cudriver.testing.simulated import SimulatedCuda
    >>> done = SimulatedCuda().run("import cudriver as cu; print(cu.device_count())", devices=4)
    >>> done.stdout
    '4\\n'
    """

    _used = False  # by `use`

    def run(
        self,
        source: str,
        *arguments: str,
        timeout: float = 60.0,
        environ: Mapping[str, str] | None = None,
        **knobs: object,
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on the simulated driver and return its outcome.

        Parameters
        ----------
        source : str
            The program. Indentation that all of its lines share is taken off.
        *arguments : str
            Its ``sys.argv[1:]``.
        timeout : float, optional
            Seconds until it is ended.
        environ : mapping of str to str, optional
            Environment variables beside those of this process.
        **knobs : object, optional
            The driver's settings: ``devices=4``, ``memory=1 << 30`` (bytes of each),
            ``fail="cuMemAlloc_v2:1:2"`` (the first call of that function returns error 2),
            ``latency_us``, ``late_us``, ``jitter_us``, ``bandwidth``, ``driver_version``,
            ``profile``.

        Returns
        -------
        subprocess.CompletedProcess
            With `returncode`, and `stdout` and `stderr` as text.

        Raises
        ------
        TypeError
            A setting is none of those.
        subprocess.TimeoutExpired
            The program did not end in time, and was ended.
        """
        unknown = sorted(set(knobs) - KNOBS)
        if unknown:
            raise TypeError(
                f"the simulated driver has no setting {unknown[0]!r}; it has "
                f"{', '.join(sorted(KNOBS))}"
            )
        variables = {k: v for k, v in os.environ.items() if not k.startswith("CUDRIVER_SIM_")}
        variables |= {f"CUDRIVER_SIM_{name.upper()}": str(value) for name, value in knobs.items()}
        variables |= {"CUDRIVER_LIBRARY": "sim", **(environ or {})}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def use(self) -> None:
        """Use the simulated driver in this process from here on, or skip the test.

        Where the real driver shows a device, it is left to the other tests, and the test that
        called is skipped. ``CUDRIVER_LIBRARY=sim pytest`` runs a whole session on the simulated
        driver, and skips nothing.
        """
        import cudriver as cu

        self._used = True
        if not os.environ.get("CUDRIVER_LIBRARY"):
            from cudriver.testing.devices import shown

            memories, reason = shown()
            if memories:
                pytest.skip(f"the real driver stays for the other tests: {reason}; {HINT}")
            with contextlib.suppress(cu.CudaError):  # a driver is in use already: which?
                cu.use_driver("sim")
        if not cu.driver_is_simulated():
            pytest.skip(f"this process uses {cu.driver_path()} already, and can have one; {HINT}")

    def _explain(self, error: BaseException) -> None:
        """Say in an error for want of a driver that the test did not call `use`."""
        from cudriver.errors import DriverNotFoundError, NotInitializedError, UnsupportedDriverError

        kinds = DriverNotFoundError, NotInitializedError, UnsupportedDriverError
        if isinstance(error, kinds) and not self._used:
            error.add_note(
                "the fixture simulated_cuda alone chooses no driver: call simulated_cuda.use() "
                "first, for the simulated driver in this process"
            )
