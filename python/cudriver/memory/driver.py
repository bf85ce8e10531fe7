"""The driver library in use: which, how new, and whether it works."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, NoReturn

from cudriver import _core
from cudriver.errors import (
    CudaError,
    DriverNotFoundError,
    UnsupportedDriverError,
    simulated_driver_path,
)
from cudriver.memory.devices import device_count
from cudriver.memory.failures import NOT_FOUND, STUB_LIBRARY, failure
from cudriver.memory.named import public


@public
class DriverVersion(NamedTuple):
    """The newest CUDA version that the driver offers, as (major, minor): (13, 0) of CUDA 13.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def is_available() -> bool:
    """Return whether a driver loads, initialises and shows a device.

    Returns
    -------
    bool
        False if anything fails: this never raises.

    Notes
    -----
    Uses ``cuInit`` and ``cuDeviceGetCount``, and creates no context.

    Examples
    --------
    >>> cu.is_available()
    True
    """
    try:
        return device_count() > 0
    except Exception:  # KeyboardInterrupt and the like are not the driver's
        return False


def driver_version() -> DriverVersion:
    """Return the newest CUDA version that the driver offers.

    Returns
    -------
    DriverVersion
        A named tuple ``(major, minor)`` that prints as ``13.0``.

    Raises
    ------
    DriverNotFoundError
        No driver library could be opened.
    UnsupportedDriverError
        The driver is too old, or is the toolkit's stub library.

    Notes
    -----
    Uses ``cuDriverGetVersion``. The driver is not initialised.

    Examples
    --------
    >>> cu.driver_version() >= (11, 0)
    True
    """
    path, version, _ = _core._driver()
    if version == 0:
        raise failure(STUB_LIBRARY, "cuDriverGetVersion", path)
    return DriverVersion(version // 1000, version % 1000 // 10)


def driver_path() -> str:
    """Return the path of the driver library in use.

    Returns
    -------
    str
        The file that was opened.

    Raises
    ------
    DriverNotFoundError
        No driver library could be opened.

    Notes
    -----
    Calls no CUDA function: the library is opened, and not initialised.

    Examples
    --------
    >>> "libcud" in cu.driver_path()
    True
    """
    return _core._driver()[0]


def driver_is_simulated() -> bool:
    """Return whether the driver in use is the simulated one.

    Returns
    -------
    bool
        True if device memory is only host memory.

    Raises
    ------
    DriverNotFoundError
        No driver library could be opened.

    Notes
    -----
    Calls no CUDA function: the library is opened, and not initialised.

    Examples
    --------
    >>> cu.driver_is_simulated() == ("libcudriver_sim" in cu.driver_path())
    True
    """
    return _core._driver()[2]


_choice: str | bytes | None = None  # by use_driver()


def use_driver(choice: str | os.PathLike[str], /) -> None:
    """Choose the driver library, before one has been initialised.

    Parameters
    ----------
    choice : str or path-like
        ``"sim"`` for the simulated driver, ``"auto"`` for the system's, or the simulated one
        where that shows no device; or the path of a library.

    Raises
    ------
    CudaError
        Another driver has been initialised: a process has one.
    ValueError
        It is neither of these words nor a file's name.

    Notes
    -----
    Calls no CUDA function, but ``"auto"`` asks `is_available`. A driver that was loaded but
    finds no GPU can still be replaced. To choose the driver in use again changes nothing. The
    environment variable ``CUDRIVER_LIBRARY`` also chooses.

    Examples
    --------
    >>> cu.init()
    >>> cu.use_driver("/opt/other/libcuda.so.1")
    Traceback (most recent call last):
        ...
    cudriver.errors.CudaError: use_driver('/opt/other/libcuda.so.1'): the driver ... is in use...
    """
    global _choice
    path = os.fspath(choice)
    word = os.fsdecode(path)
    if word not in ("", "auto", "sim") and "/" not in word and ".so" not in word:
        raise ValueError(
            f"use_driver({choice!r}): expected 'sim', which is the simulated driver, 'auto', or a "
            "library's file"
        )
    if path == "auto":
        if is_available():
            return
        path = "sim"
    if not _core._drop_driver():
        wanted = simulated_driver_path() if path == "sim" else path
        if os.path.exists(wanted) and os.path.samefile(wanted, driver_path()):
            return
        raise CudaError(
            f"use_driver({choice!r}): the driver {driver_path()} is in use already, and a process "
            "has one; choose before the first call, or with CUDRIVER_LIBRARY"
        )
    _choice = path


def library() -> bytes | None:
    """The path of the library that was chosen; None: the system's own. For the core."""
    choice = os.environ.get("CUDRIVER_LIBRARY") or None if _choice is None else _choice
    if choice == "sim":
        choice = simulated_driver_path()
    if choice is None:
        return None
    path = os.fsencode(choice)
    if b"/" in path and (kind := _kind(path)):
        raise _not_found(f"{_CHOSEN} is not a library: {os.fsdecode(path)} is {kind}")
    return path


_CHOSEN = "what use_driver() or CUDRIVER_LIBRARY names"
_KINDS = {stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}


def _kind(path: bytes) -> str | None:
    """What is no file, as text: to open a FIFO or a device may never return."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a device")


def _not_found(why: str, chosen: bool = True) -> DriverNotFoundError:
    advice = (
        "Correct the path, or set CUDRIVER_LIBRARY=sim for the simulated driver"
        if chosen
        else "Install the NVIDIA driver, or set CUDRIVER_LIBRARY=sim for the simulated one"
    )
    return DriverNotFoundError(f"no CUDA driver library: {why}. {advice}")


def refuse(path: bytes, told: bytes, code: int, version: int) -> NoReturn:
    """Raise why no driver was loaded. For the core.

    path: the library that was opened; empty: none could be. told: the loader's words, or the
    functions that are missing. code: what cuDriverGetVersion returned; NOT_FOUND: there is none.
    """
    name, words = path.decode(errors="replace"), told.decode(errors="replace")
    chosen = library()
    if chosen == b"":  # by dlopen() the program itself
        raise _not_found(f"{_CHOSEN} is not a library: the path is empty")
    if not path and chosen is not None:
        raise _not_found(f"{_CHOSEN} could not be opened: {words}")
    if not path:
        paths = os.environ.get("LD_LIBRARY_PATH") or "unset"
        wsl = ", and /usr/lib/wsl/lib" if os.path.exists("/dev/dxg") else ""
        searched = f"LD_LIBRARY_PATH={paths}, /etc/ld.so.cache, the default folders{wsl}"
        raise _not_found(f"{words} (searched by the dynamic loader's rules: {searched})", False)
    if code == NOT_FOUND:
        raise UnsupportedDriverError(
            f"{name} is not a CUDA driver library: it exports no cuDriverGetVersion"
        )
    if code:
        raise UnsupportedDriverError(f"{name}: cuDriverGetVersion failed with error {code}")
    missing = words.split(", ") if words else []
    lacks = f"; it lacks {', '.join(missing[:8])}" if missing else ""
    if len(missing) > 8:
        lacks += f" and {len(missing) - 8} more"
    raise UnsupportedDriverError(
        f"{name} offers CUDA {version // 1000}.{version % 1000 // 10}; cudriver needs a driver for "
        f"CUDA 11.0 or newer{lacks}"
    )
