"""The version that a PyTorch was compiled against, read from a function compiled here."""

import os
import platform
import shutil

import pytest
from elftools.elf.elffile import ELFFile

from cudriver.stack.facts import Framework, Library
from cudriver.stack.load.runtime_versions import (
    _LOAD_PAIR,
    _STORE_AT,
    FUNCTION,
    _numbers,
    compiled_against,
    fill_runtime_versions,
)
from cudriver.stack.record import put
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c

# What the compiler makes of returning std::tuple<size_t, size_t, size_t>(MAJOR, MINOR, PATCH).
SOURCE = """
struct three {{ unsigned long patch, minor, major; }};
static struct three made(void) __asm__("{name}");
static __attribute__((noinline, used)) struct three made(void)
{{
    struct three it = {{ {patch}, {minor}, {major} }};
    return it;
}}
int keep(void) {{ return (int)made().major; }}
"""
pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64",
    reason="reads x86-64 code made by gcc",
)


@pytest.fixture
def library(tmp_path):
    def make(version, name=FUNCTION, *flags):
        major, minor, patch = version
        source = SOURCE.format(name=name, major=major, minor=minor, patch=patch)
        return str(compile_c(tmp_path / "libtorch_python.so", source, *flags))

    return make


@pytest.mark.parametrize("flags", [("-O1",), ("-O2",), ("-O3",), ("-O2", "-fno-tree-vectorize")])
@pytest.mark.parametrize("version", [(9, 8, 0), (8, 7, 0), (9, 10, 2)])
def test_the_numbers_in_the_code(library, version, flags):
    found = compiled_against(Root(), library(version, FUNCTION, *flags))
    assert found == ".".join(map(str, version))


def test_what_does_not_tell_is_none(library, tmp_path):
    assert compiled_against(Root(), library((9, 8, 0), "another_function")) is None
    assert compiled_against(Root(), library((9, 8, 0), FUNCTION, "-s")) is None
    assert compiled_against(Root(), library((9000, 8, 0))) is None
    assert compiled_against(Root(), str(tmp_path / "absent.so")) is None


def test_a_number_that_looks_like_the_symbol_s_name_is_passed_over(library):
    """In an entry before the symbol's own stands, out of place, what the own one begins with."""
    path = library((9, 8, 0))
    with open(path, "rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        at = next(n for n, s in enumerate(table.iter_symbols()) if s.name == FUNCTION)
        start = table["sh_offset"]
        file.seek(start + 24 * at)
        name = file.read(4)
    with open(path, "rb+") as file:
        file.seek(start + 24 + 8)
        file.write(name)
    assert at > 1
    assert compiled_against(Root(), path) == "9.8.0"


@pytest.mark.parametrize(
    ("there", "built", "by_pin"),
    [("9.9.0", "9.8.0", False), ("9.10.2", "9.10.2", True), ("9.11.0", "9.10.2", True)],
)
def test_an_older_cudnn_is_held_against_what_the_code_wants(
    library, tmp_path, there, built, by_pin
):
    """The pin is 9.10.2, the code's own number 9.8.0, which is read where the pin is not met."""
    code = library((9, 8, 0))
    (tmp_path / "lib").mkdir()
    os.rename(code, tmp_path / "lib/libtorch_python.so")
    torch = Framework("torch", "2.8.0", "12.8", variant="cuda", path=str(tmp_path))
    put(torch, cudnn_built="9.10.2", cudnn_by_pin=True, loads=["/libcudnn.so.9"])
    used = {"/libcudnn.so.9": Library("libcudnn.so.9", "/libcudnn.so.9", there)}
    fill_runtime_versions(Root(), torch, used)
    assert (torch.cudnn, torch.cudnn_built, torch.cudnn_by_pin) == (there, built, by_pin)
    if not by_pin:
        assert torch.cudnn_evidence.value == "compiled against cuDNN 9.8.0"


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("start", [*_STORE_AT, *_LOAD_PAIR])
def test_code_that_ends_within_an_instruction(start, size):
    assert _numbers(None, b"\x90" * 9 + start + bytes(size), 0) == [None] * 3


def test_a_library_without_the_function_leaves_the_pin(library, tmp_path):
    os.makedirs(tmp_path / "lib")
    os.rename(library((9, 8, 0), "other"), tmp_path / "lib/libtorch_python.so")
    torch = Framework("torch", "2.8.0", "12.8", variant="cuda", path=str(tmp_path))
    put(torch, cudnn_built="9.10.2", cudnn_by_pin=True, loads=["/libcudnn.so.9"])
    fill_runtime_versions(
        Root(), torch, {"/libcudnn.so.9": Library("libcudnn.so.9", "/l", "9.9.0")}
    )
    assert (torch.cudnn_built, torch.cudnn_by_pin) == ("9.10.2", True)


def test_damage_is_none_or_a_version(library):
    """Every cut and every flipped byte of the header and the tables' headers."""
    path = library((9, 8, 0))
    with open(path, "rb") as file:
        data = file.read()
    table = int.from_bytes(data[40:48], "little")
    for at in [*range(64), *range(table, len(data), 7)]:
        broken = bytearray(data)
        broken[at] ^= 0xFF
        with open(path, "wb") as file:
            file.write(broken)
        assert compiled_against(Root(), path) in (None, "9.8.0")
    for size in range(0, len(data), 997):
        with open(path, "wb") as file:
            file.write(data[:size])
        assert compiled_against(Root(), path) in (None, "9.8.0")
