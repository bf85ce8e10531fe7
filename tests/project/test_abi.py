"""Our lists of types, functions, codes and attributes against the official cuda.h, old and new."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from abi import compare, headers
from abi.declarations import read

import cudriver
import simkit
from native_build import CEXT

HEADERS = CEXT / "driver"
LISTS = (
    CEXT / "sim" / "cuda_errors.h",
    Path(cudriver.__file__).with_name("memory") / "attributes.py",
)

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(compare.compiler() is None, reason="no C compiler on this machine"),
    pytest.mark.skipif(not HEADERS.is_dir(), reason="no C sources beside the tests"),
]


def ours_in(folder: Path) -> Path:
    """The folder, with our lists in it."""
    for path in LISTS:
        shutil.copy(path, folder)
    (folder / "cuda_abi.h").write_text(types() + lists())
    return folder


END = "/* The oldest driver API"


def types() -> str:
    """Those of cuda_abi.h and of cuda_types.h."""
    own = (HEADERS / "cuda_abi.h").read_text().split(END, 1)[0]
    further = (CEXT / "sim" / "cuda_types.h").read_text()
    return own + further.split('#include "driver/cuda_abi.h"\n', 1)[1].rsplit("#endif", 1)[0]


def lists() -> str:
    return END + (HEADERS / "cuda_abi.h").read_text().split(END, 1)[1]


@pytest.fixture(scope="module")
def collected() -> tuple[list[compare.Official], list[str]]:
    found, missing = headers.collect()
    return [compare.Official(header) for header in found], missing


@pytest.fixture(scope="module")
def officials(collected: tuple[list[compare.Official], list[str]]) -> list[compare.Official]:
    """All of them: what one header lacks, another has, so a part of them proves nothing."""
    found, missing = collected
    if missing and os.environ.get("CI"):
        pytest.fail("; ".join(missing))
    if missing:
        pytest.skip("; ".join(missing))
    return found


def test_agrees_with_the_headers_at_hand(
    collected: tuple[list[compare.Official], list[str]], tmp_path: Path
) -> None:
    found, missing = collected
    if not found:
        pytest.skip("; ".join(missing))
    ours = read(ours_in(tmp_path))
    assert [d for official in found for d in compare.differences(tmp_path, ours, official)] == []


def test_agrees_with_every_official_header(
    officials: list[compare.Official], tmp_path: Path
) -> None:
    assert compare.check(ours_in(tmp_path), officials) == []


def test_since_covers_the_oldest_driver(officials: list[compare.Official], tmp_path: Path) -> None:
    """A function that the oldest driver must have is in the oldest header."""
    needed = [f.name for f in read(ours_in(tmp_path)).functions if f.since <= 11000]
    assert [name for name in needed if name not in officials[0].functions] == []


# --- the simulated driver's further functions ---

PROFILER = ("cuProfilerStart", "cuProfilerStop")  # of another header, cudaProfiler.h


def test_the_functions_for_other_libraries_agree(
    officials: list[compare.Official], tmp_path: Path
) -> None:
    """functions.h, read in the place of our own list."""
    ours_in(tmp_path)
    others = (CEXT / "sim" / "functions.h").read_text()
    others = others.split('#include "cuda_types.h"\n', 1)[1]
    own_types, lists = others.split("/* clang-format", 1)
    # It names an enumeration, which is another type when both stand side by side.
    callback = (
        "typedef void (*CUstreamCallback)(CUstream hStream, CUresult status, void *userData);"
    )
    assert callback in own_types
    own_types = own_types.replace(callback, "")
    lines = simkit.listed("sim/functions.h", "SIM_OTHERS")
    since = dict(re.findall(r"X\((cu\w+), \([^)]*\), (\d+)\)", lists))
    entries = [f"X({n}, ({a}), {since[n]})" for n, a in lines.items() if n not in PROFILER]
    text = f"{types()}{own_types}#define CUDRIVER_CALLED(X) {' '.join(entries)}\n"
    text += "#define CUDRIVER_FUNCTIONS(X) CUDRIVER_CALLED(X)\n#endif\n"
    (tmp_path / "cuda_abi.h").write_text(text)
    assert len(entries) > 30
    assert compare.check(tmp_path, officials) == []


def every_function(official: compare.Official) -> set[str]:
    """All that a driver exports: to its own build cuda.h shows old versions and variants."""
    include = ["-I", str(official.header.directory), "-D__CUDA_API_VERSION_INTERNAL"]
    done = compare.run(["-E", "-P", *include], "#include <cuda.h>\n")
    return set(re.findall(r"\bCUresult\s+(cu\w+)\s*\(", done.stdout))


def test_the_simulated_driver_has_every_function_of_cuda_13_0(
    officials: list[compare.Official],
) -> None:
    [cuda13] = [official for official in officials if official.header.version == 13000]
    real = {*simkit.functions(), *simkit.per_thread()} - {*PROFILER}
    assert every_function(cuda13) <= real | {*simkit.absent()}
    assert real & {*simkit.absent()} == set()


def test_variants_for_per_thread_streams_agree(officials: list[compare.Official]) -> None:
    [cuda13] = [official for official in officials if official.header.version == 13000]
    text = (CEXT / "sim" / "functions.h").read_text()
    since = dict(re.findall(r"X\((cu\w+_pt[sd][sz]), \([^)]*\), (\d+)\)", text))
    typedefs = cuda13.header.text("cudaTypedefs.h")
    known = set(re.findall(r"\*PFN_(cu\w+?)_v(\d+)_pt[sd][sz]\)", typedefs))
    assert len(since) > 40
    for name, parameters in simkit.per_thread().items():
        function = name.rsplit("_", 1)[0]
        assert parameters == simkit.functions()[function], name
        assert (function.partition("_v")[0], since[name]) in known, name
    # A variant is missing of no function that takes a stream and works.
    wanted = {name for name in every_function(cuda13) if name.endswith(("_ptsz", "_ptds"))}
    mine = {*simkit.functions()}
    assert {n for n in wanted if n.rsplit("_", 1)[0] in mine} == {*simkit.per_thread()}


MUTATIONS = {
    "a type": (
        "cuda_abi.h",
        "typedef unsigned long long CUdeviceptr;",
        "typedef unsigned int CUdeviceptr;",
        "CUdeviceptr: type",
    ),
    "a handle": (
        "cuda_abi.h",
        "typedef struct CUstream_st *CUstream;",
        "typedef struct CUstreams_st *CUstream;",
        "CUstream: type",
    ),
    "a constant of an enumeration": (
        "cuda_abi.h",
        "CU_LIMIT_PRINTF_FIFO_SIZE = 1",
        "CU_LIMIT_PRINTF_FIFO_SIZE = 2",
        "CU_LIMIT_PRINTF_FIFO_SIZE: value",
    ),
    "a constant's name": (
        "cuda_abi.h",
        "CU_LIMIT_PRINTF_FIFO_SIZE = 1",
        "CU_LIMIT_PRINTF_SIZE = 1",
        "CU_LIMIT_PRINTF_SIZE: in no official header",
    ),
    "a macro": (
        "cuda_abi.h",
        "CU_MEMHOSTREGISTER_READ_ONLY 0x08",
        "CU_MEMHOSTREGISTER_READ_ONLY 0x10",
        "CU_MEMHOSTREGISTER_READ_ONLY: value",
    ),
    "two members of one type exchanged": (
        "cuda_abi.h",
        "    size_t srcXInBytes;\n    size_t srcY;\n    size_t srcZ;",
        "    size_t srcY;\n    size_t srcXInBytes;\n    size_t srcZ;",
        "CUDA_MEMCPY3D.srcY: offset",
    ),
    "a member's type": (
        "cuda_abi.h",
        "    void *reserved0;",
        "    const void *reserved0;",
        "CUDA_MEMCPY3D.reserved0: type",
    ),
    "a member's length": (
        "cuda_abi.h",
        "unsigned char reserved[53];",
        "unsigned char reserved[52];",
        "CUmemPoolProps.reserved: type",
    ),
    "a structure's size": (
        "cuda_abi.h",
        "    size_t Height;\n    size_t Depth;\n",
        "    size_t Height;\n",
        "CUDA_MEMCPY3D: size",
    ),
    "a signature": (
        "cuda_abi.h",
        "X(cuStreamGetFlags, (CUstream stream, unsigned int *flags),",
        "X(cuStreamGetFlags, (CUstream stream, int *flags),",
        "cuStreamGetFlags: signature",
    ),
    "an argument left out": (
        "cuda_abi.h",
        "X(cuMemFreeAsync, (CUdeviceptr address, CUstream stream)",
        "X(cuMemFreeAsync, (CUdeviceptr address)",
        "cuMemFreeAsync: signature",
    ),
    "the name without the ABI in it": (
        "cuda_abi.h",
        "X(cuMemAlloc_v2,",
        "X(cuMemAlloc,",
        "cuMemAlloc: in no official header",
    ),
    "the version of a function": (
        "cuda_abi.h",
        "(CUcontext context, unsigned long long *id), 12000)",
        "(CUcontext context, unsigned long long *id), 11000)",
        "cuCtxGetId: since 12000, not 11000",
    ),
    "an attribute's value": (
        "attributes.py",
        '"warp_size": 10,',
        '"warp_size": 11,',
        "attribute WARP_SIZE: value",
    ),
    "an attribute left out": (
        "attributes.py",
        '    "warp_size": 10,\n',
        "",
        "attribute WARP_SIZE: missing in our list",
    ),
    "an error's code": (
        "cuda_errors.h",
        "X(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,",
        "X(713, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,",
        "error CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: value",
    ),
    "an error left out": (
        "cuda_errors.h",
        '    X(4, CUDA_ERROR_DEINITIALIZED, "driver is shutting down") \\\n',
        "",
        "error CUDA_ERROR_DEINITIALIZED: missing in our list",
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_mistake_is_found(what: str, officials: list[compare.Official], tmp_path: Path) -> None:
    name, right, wrong, expected = MUTATIONS[what]
    text = (ours_in(tmp_path) / name).read_text()
    assert text.count(right) == 1, "the line to spoil has changed"
    (tmp_path / name).write_text(text.replace(right, wrong))
    found = compare.check(tmp_path, officials)
    assert any(line.startswith(expected) for line in found), found
