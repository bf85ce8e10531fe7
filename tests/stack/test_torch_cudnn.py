"""The version that a PyTorch was compiled against, read from a function compiled here."""

import platform
import shutil

import pytest

from cudriver.stack.collect.torch_cudnn import FUNCTION, compiled_against
from cudriver.stack.rootfs import Root
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
