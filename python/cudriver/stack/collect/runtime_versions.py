"""The cuDNN and NCCL that a framework gets at run time, and those compiled into PyTorch."""

from __future__ import annotations

from cudriver.stack.collect.file_version import own_version
from cudriver.stack.model import Evidence, Framework, Library
from cudriver.stack.rootfs import Root
from cudriver.stack.versions import at_least, cut


def fill_runtime_versions(root: Root, framework: Framework, libraries: dict[str, Library]) -> None:
    """cuDNN and NCCL as the framework gets them."""
    if framework.variant not in ("cuda", "unknown") or framework.name in ("triton", "numba"):
        return
    used = [libraries[path] for path in framework.loads]
    # cudnnGetVersion is answered by libcudnn_graph in 9, by libcudnn_ops_infer in 8.
    framework.cudnn = _first(used, "libcudnn_graph.so", "libcudnn_ops_infer.so", "libcudnn.so")
    framework.nccl = _first(used, "libnccl.so")
    if framework.name == "torch" and framework.nccl is None:
        framework.nccl = _built_in_nccl(root, framework)
    if framework.name == "torch" and framework.cudnn_by_pin:
        _compiled_cudnn(root, framework)


def _built_in_nccl(root: Root, framework: Framework) -> str | None:
    """The NCCL that is a part of PyTorch's own library: of wheels up to 1.13, of conda's."""
    for name in ("libtorch_cuda_cpp.so", "libtorch_cuda.so"):
        path = f"{framework.path}/lib/{name}"
        version, said = own_version(root, path, "libnccl.so.2", None)
        if version is not None and said and said.value.startswith("ncclGetVersion"):
            return version
    return None


def _compiled_cudnn(root: Root, framework: Framework) -> None:
    """Where the cuDNN in use is older than the pin: what the code itself wants."""
    if at_least(framework.cudnn, framework.cudnn_built or "0") is not False:
        return
    from cudriver.stack.collect.torch_cudnn import compiled_against

    library = f"{framework.path}/lib/libtorch_python.so"
    version = compiled_against(root, library)
    if version is not None:
        framework.cudnn_built, framework.cudnn_by_pin = version, False
        said = f"compiled against cuDNN {version}"
        framework.cudnn_evidence = Evidence(library, None, said)


def _first(libraries: list[Library], *stems: str) -> str | None:
    """The version of the first library that has one, stem by stem."""
    for stem in stems:
        for library in libraries:
            if library.soname.startswith(stem) and library.version:
                return cut(library.version, 3)
    return None
