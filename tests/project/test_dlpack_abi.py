"""dlpack_abi.h against DLPack's own header, which a wheel on PyPI ships."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from abi import compare
from abi.headers import cache

from cudriver.memory import dlpack
from native_build import CEXT

OURS = CEXT / "python" / "dlpack_abi.h"
WHEEL = "apache-tvm-ffi==0.1.15.post2"
INSIDE = "tvm_ffi/include/dlpack/dlpack.h"

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(compare.compiler() is None, reason="no C compiler on this machine"),
    pytest.mark.skipif(not OURS.is_file(), reason="no C sources beside the tests"),
]

STRUCTS = {
    "cudriver_dl_version": ("DLPackVersion", {"major": "major", "minor": "minor"}),
    "cudriver_dl_device": ("DLDevice", {"type": "device_type", "id": "device_id"}),
    "cudriver_dl_type": ("DLDataType", {"code": "code", "bits": "bits", "lanes": "lanes"}),
    "cudriver_dl_tensor": (
        "DLTensor",
        {
            name: name
            for name in ("data", "device", "ndim", "dtype", "shape", "strides", "byte_offset")
        },
    ),
    "cudriver_dl_old": (
        "DLManagedTensor",
        {"tensor": "dl_tensor", "manager": "manager_ctx", "deleter": "deleter"},
    ),
    "cudriver_dl_managed": (
        "DLManagedTensorVersioned",
        {
            "version": "version", "manager": "manager_ctx", "deleter": "deleter",
            "flags": "flags", "tensor": "dl_tensor",
        },
    ),
    "cudriver_dl_exchange": (
        "DLPackExchangeAPI",
        {
            "version": "header.version", "older": "header.prev_api",
            "allocate": "managed_tensor_allocator",
            "from_object": "managed_tensor_from_py_object_no_sync",
            "to_object": "managed_tensor_to_py_object_no_sync",
            "borrow": "dltensor_from_py_object_no_sync",
            "current_stream": "current_work_stream",
        },
    ),
}  # fmt: skip
NUMBERS = {
    "MAJOR": "DLPACK_MAJOR_VERSION", "MINOR": "DLPACK_MINOR_VERSION",
    "CPU": "kDLCPU", "CUDA": "kDLCUDA", "CUDA_HOST": "kDLCUDAHost",
    "CUDA_MANAGED": "kDLCUDAManaged",
    "FLOAT": "kDLFloat", "COMPLEX": "kDLComplex",
    "READ_ONLY": "DLPACK_FLAG_BITMASK_READ_ONLY", "IS_COPIED": "DLPACK_FLAG_BITMASK_IS_COPIED",
    "PADDED": "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED",
}  # fmt: skip
# What memory/dlpack.py repeats.
NUMBERS_OF_PYTHON = {
    "DLPACK_MAJOR_VERSION": dlpack.VERSION[0], "DLPACK_MINOR_VERSION": dlpack.VERSION[1],
    "kDLCPU": dlpack.CPU, "kDLCUDA": dlpack.CUDA, "kDLCUDAManaged": dlpack.MANAGED,
}  # fmt: skip


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of DLPack's header, downloaded once."""
    header = cache() / "dlpack-headers" / WHEEL.replace("==", "-") / "dlpack.h"
    if header.is_file():
        return header.parent
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--python-version", "3.11"]
    command += ["--platform", "manylinux_2_28_x86_64", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{WHEEL}: {reason}")
    header.parent.mkdir(parents=True, exist_ok=True)
    part = header.parent / f"dlpack.h.{os.getpid()}"  # another test run may do the same
    with zipfile.ZipFile(wheels[0]) as wheel:
        part.write_bytes(wheel.read(INSIDE))
    part.replace(header)
    return header.parent


def kind(name: str) -> str:
    """The header's name for a kind of number: that of bfloat16 is kDLBfloat."""
    short = name if "_" in name else name.rstrip("0123456789")
    return "kDL" + short.capitalize().replace("Uint", "UInt")


def assertions() -> str:
    lines = []
    for ours, (theirs, members) in STRUCTS.items():
        lines.append(f'_Static_assert(sizeof(struct {ours}) == sizeof({theirs}), "{ours}");')
        for mine, other in members.items():
            lines += [
                f"_Static_assert(offsetof(struct {ours}, {mine}) == offsetof({theirs}, {other}), "
                f'"{ours}.{mine}");',
                f"_Static_assert(sizeof(((struct {ours} *)0)->{mine}) == "
                f'sizeof((({theirs} *)0)->{other}), "{ours}.{mine}: size");',
            ]
    lines += [
        f'_Static_assert(CUDRIVER_DL_{ours} == {theirs}, "{ours}");'
        for ours, theirs in NUMBERS.items()
    ]
    lines += [
        f'_Static_assert({ours} == {theirs}, "{theirs}");'
        for theirs, ours in NUMBERS_OF_PYTHON.items()
    ]
    lines += [
        f'_Static_assert({code} == {kind(name)}, "{name}");'
        for (code, _), name in {**dlpack.TYPES, **dlpack.ML_TYPES}.items()
    ]
    return "\n".join(lines)


def complaints(folder: Path, ours: str) -> str:
    source = f"#include <stddef.h>\n#include <dlpack.h>\n{ours}\n{assertions()}\n"
    done = compare.run(["-fsyntax-only", "-I", str(folder)], source)
    return done.stderr


def test_agrees_with_the_official_header(official: Path) -> None:
    assert complaints(official, OURS.read_text()) == ""


def test_every_declaration_is_compared() -> None:
    text = OURS.read_text()
    assert set(re.findall(r"^struct (\w+) \{", text, re.M)) == {*STRUCTS}
    assert set(re.findall(r"\bCUDRIVER_DL_(\w+)(?: \d+$| = )", text, re.M)) == {*NUMBERS}
    for name, (_, members) in STRUCTS.items():
        body = re.search(rf"^struct {name} \{{(.*?)^\}};", text, re.M | re.S)
        assert body is not None
        plain = re.sub(r"/\*.*?\*/|\([^()]*(\([^()]*\)[^()]*)*\)(?=;)", "", body[1], flags=re.S)
        declared = re.findall(r"(?:\(\*|[ *,])(\w+)\)?(?=[,;])", plain)
        assert declared == [*members]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("uint8_t code, bits;", "uint8_t bits, code;", "cudriver_dl_type.code"),
        ("int32_t ndim;", "int64_t ndim;", "cudriver_dl_tensor.ndim: size"),
        ("CUDRIVER_DL_COMPLEX = 5", "CUDRIVER_DL_COMPLEX = 4", "COMPLEX"),
        ("    uint64_t flags;\n", "", "flags"),
    ],
)
def test_a_mistake_is_seen(official: Path, old: str, new: str, says: str) -> None:
    text = OURS.read_text()
    assert text.count(old) == 1
    assert says in complaints(official, text.replace(old, new))


def test_a_mistake_in_python_is_seen(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dlpack.ML_TYPES, (3, 16), "bfloat16")
    assert "bfloat16" in complaints(official, OURS.read_text())
