"""The official headers: from NVIDIA's own wheels, and from toolkits found on the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

# The oldest and the newest of each generation. cuCtxCreate_v2 is declared up to 12.9 only, and
# CUmemPoolProps grew in 12.x. The last one is the newest there was; `make check-newest` asks for
# the newest there is.
WHEELS = [
    "nvidia-cuda-runtime-cu11==11.7.99",
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-runtime-cu12==12.0.107",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-runtime==13.0.48",
    "nvidia-cuda-runtime==13.5.37",
]
NEEDED = ("cuda.h", "cudaTypedefs.h")


@dataclass(frozen=True)
class Header:
    version: int  # CUDA_VERSION: 1000 * major + 10 * minor
    directory: Path
    origin: str

    def __str__(self) -> str:
        return f"cuda.h {self.version // 1000}.{self.version % 1000 // 10} ({self.origin})"

    def text(self, name: str) -> str:
        return (self.directory / name).read_text(encoding="utf-8", errors="replace")


def cache() -> Path:
    chosen = os.environ.get("CUDRIVER_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "cudriver-tests"


def open_directory(directory: Path, origin: str) -> Header | None:
    if not all((directory / name).is_file() for name in NEEDED):
        return None
    text = (directory / "cuda.h").read_text(encoding="utf-8", errors="replace")
    match = re.search(r"^#define CUDA_VERSION (\d+)", text, re.M)
    return Header(int(match[1]), directory, origin) if match else None


def from_wheel(requirement: str) -> Header | str:
    """The header of a wheel, downloaded once; or the reason why there is none."""
    pinned = "==" in requirement
    directory = cache() / "cuda-headers" / requirement.replace("==", "-")
    header = open_directory(directory, requirement) if pinned else None
    if header is not None:
        return header
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.whl"):
        old.unlink()
    # The headers of all platforms are the same; x86-64 has a wheel for every version.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", "manylinux2014_x86_64"]
    command += ["--platform", "manylinux1_x86_64", "--dest", str(directory), requirement]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"{requirement} could not be downloaded: {last}"
    with zipfile.ZipFile(wheels[0]) as wheel:
        for name in wheel.namelist():
            base = name.rsplit("/", 1)[-1]
            if name.endswith(f"/include/{base}") and base in NEEDED:
                part = directory / f"{base}.{os.getpid()}"  # another test run may do the same
                part.write_bytes(wheel.read(name))
                part.replace(directory / base)
    wheels[0].unlink()
    return open_directory(directory, requirement) or f"{requirement} has no cuda.h in it"


def on_this_machine() -> list[Header]:
    """Toolkits in their usual place, and NVIDIA's wheels in this environment."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    for entry in sys.path:
        places += sorted(Path(entry or ".").glob("nvidia/*/include"))
    found: dict[int, Header] = {}
    for place in places:
        header = open_directory(place, str(place))
        if header is not None:
            found.setdefault(header.version, header)
    return list(found.values())


def collect() -> tuple[list[Header], list[str]]:
    """Every header there is, oldest first, and what could not be had."""
    missing, found = [], []
    for requirement in WHEELS:
        header = from_wheel(requirement)
        if isinstance(header, Header):
            found.append(header)
        else:
            missing.append(header)
    versions = {header.version for header in found}
    found += [header for header in on_this_machine() if header.version not in versions]
    return sorted(found, key=lambda header: header.version), missing
