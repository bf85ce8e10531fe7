"""The cuDNN and NCCL that a framework gets at run time, and those compiled into PyTorch."""

from __future__ import annotations

from struct import unpack_from

from cudriver._elf import ElfFile
from cudriver.stack.elf.parts import local_symbol, opened
from cudriver.stack.facts import Evidence, Framework, Library
from cudriver.stack.loader.glibc import X86_64
from cudriver.stack.record import put
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.versions import cut, newer


def fill_runtime_versions(root: Root, framework: Framework, libraries: dict[str, Library]) -> None:
    """cuDNN and NCCL as the framework gets them."""
    if framework.variant not in ("cuda", "unknown") or framework.name in ("triton", "numba"):
        return
    used = [libraries[path] for path in framework.loads]
    # cudnnGetVersion is answered by libcudnn_graph in 9, by libcudnn_ops_infer in 8.
    cudnn = _first(used, "libcudnn_graph.so", "libcudnn_ops_infer.so", "libcudnn.so")
    put(framework, cudnn=cudnn, nccl=_first(used, "libnccl.so"))
    if framework.name == "torch" and framework.cudnn_by_pin:
        _compiled_cudnn(root, framework)


def _compiled_cudnn(root: Root, framework: Framework) -> None:
    """Where the cuDNN in use is older than the pin: what the code itself wants."""
    built, used = framework.cudnn_built or "0", framework.cudnn
    if used is None or not newer(built, used):
        return
    library = f"{framework.path}/lib/libtorch_python.so"
    version = compiled_against(root, library)
    if version is not None:
        put(framework, cudnn_built=version, cudnn_by_pin=False)
        text = f"compiled against cuDNN {version}"
        put(framework, cudnn_evidence=Evidence(library, None, text))


def _first(libraries: list[Library], *stems: str) -> str | None:
    """The version of the first library that has one, stem by stem."""
    for stem in stems:
        for library in libraries:
            if library.soname.startswith(stem) and library.version:
                return cut(library.version, 3)
    return None


# ---- the cuDNN that a PyTorch was compiled against, which can be older than its wheel's pin ----
#
# torch.backends.cudnn refuses a run-time version below that. The three numbers are constants in a
# function of libtorch_python.so; reading them takes a few milliseconds, so it is done only where
# the cuDNN in use is older than the pin.

FUNCTION = "_ZN12_GLOBAL__N_117getCompileVersionEv"
CODE_LIMIT = 96  # bytes

# std::tuple<size_t, size_t, size_t> lies in memory last element first: patch, minor, major.
_STORE_AT = {b"\x48\xc7\x07": 0, b"\x48\xc7\x47\x08": 1, b"\x48\xc7\x47\x10": 2}
_LOAD_PAIR = (b"\x66\x0f\x6f\x05", b"\x0f\x28\x05")  # movdqa, movaps from %rip + displacement


def compiled_against(root: Root, library: str) -> str | None:
    """ "9.8.0" for a libtorch_python.so; None where its code does not tell."""
    file = opened(root, library)
    found = local_symbol(file, FUNCTION, CODE_LIMIT) if file else None
    if file is None or found is None or file.machine != X86_64:
        return None
    patch, minor, major = _numbers(file, *found)
    if major is None or minor is None or patch is None:
        return None
    if not (5 <= major < 100 and minor < 1000 and patch < 1000):
        return None
    return f"{major}.{minor}.{patch}"


def _numbers(file: ElfFile, code: bytes, address: int) -> list[int | None]:
    """What the function stores at offsets 0, 8 and 16 of its result."""
    numbers: list[int | None] = [None, None, None]
    for start, slot in _STORE_AT.items():
        at = code.find(start)
        if at >= 0 and len(code) >= at + len(start) + 4:
            numbers[slot] = unpack_from("<i", code, at + len(start))[0]
    for start in _LOAD_PAIR:
        at = code.find(start)
        if at >= 0 and len(code) >= at + len(start) + 4:
            after = at + len(start) + 4
            (displacement,) = unpack_from("<i", code, at + len(start))
            pair = file.memory(address + after + displacement, 16)
            if pair is not None and len(pair) == 16:
                numbers[0], numbers[1] = unpack_from("<QQ", pair)
            break
    return numbers
