"""Links into NumPy's, PyTorch's and NVIDIA's documentation, for the names below.

They serve as inventories for intersphinx, so that types in signatures are links, and the first time
that a page names one of them as code it becomes a link. Nothing is fetched: the site builds without
a network.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

NUMPY = """array asarray dtype empty empty_like from_dlpack full load ndarray ndarray.transpose
    ndarray.view reshape save savez zeros"""
TORCH = """Tensor.pin_memory Tensor.copy_ Tensor.record_stream cuda.device_count cuda.is_available
    cuda.mem_get_info cuda.synchronize cuda.current_stream"""
# The driver API's functions by the page that has them, which is named after a group.
DRIVER = {
    "CTX": """cuCtxCreate cuCtxDestroy cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent
        cuCtxPushCurrent cuCtxSynchronize""",
    "DEVICE": "cuDeviceGet cuDeviceGetCount cuDeviceGetUuid",
    "ERROR": "cuGetErrorName cuGetErrorString",
    "EXEC": "cuLaunchKernel",
    "EVENT": "cuEventCreate cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord",
    "INITIALIZE": "cuInit",
    "MALLOC__ASYNC": "cuMemAllocFromPoolAsync cuMemFreeAsync",
    "MEM": """cuDeviceGetByPCIBusId cuMemAlloc cuMemFree cuMemGetInfo cuMemHostAlloc
        cuMemHostGetDevicePointer cuMemHostRegister cuMemHostUnregister cuMemcpyDtoH
        cuMemcpyDtoHAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyPeerAsync cuMemsetD8Async""",
    "MEMOP": "cuStreamWaitValue32",
    "PEER__ACCESS": "cuDeviceCanAccessPeer",
    "PRIMARY__CTX": """cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags""",
    "STREAM": """cuStreamCreateWithPriority cuStreamDestroy cuStreamGetCtx cuStreamGetPriority
        cuStreamIsCapturing cuStreamWaitEvent cuThreadExchangeStreamCaptureMode""",
    "UNIFIED": "cuPointerGetAttribute",
    "VERSION": "cuDriverGetVersion",
}
SITES = {
    "numpy": "https://numpy.org/doc/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "cuda": "https://docs.nvidia.com/cuda/cuda-driver-api/",
}


def pages() -> dict[str, dict[str, str]]:
    """For each project its names, and where below its site each is explained."""
    generated = "reference/generated/numpy.{0}.html#numpy.{0}"
    numpy = {f"numpy.{name}": generated.format(name) for name in NUMPY.split()}
    for name in ("ArrayLike", "DTypeLike", "NDArray"):
        numpy[f"numpy.typing.{name}"] = f"reference/typing.html#numpy.typing.{name}"
    generated = "generated/torch.{0}.html#torch.{0}"
    torch = {f"torch.{name}": generated.format(name) for name in TORCH.split()}
    torch["torch.device"] = "tensor_attributes.html#torch.device"
    torch["torch.distributed"] = "distributed.html"
    torch["torch.utils.data.DataLoader"] = "data.html#torch.utils.data.DataLoader"
    driver: dict[str, str] = {}
    for group, functions in DRIVER.items():
        driver |= dict.fromkeys(functions.split(), f"group__CUDA__{group}.html")
    return {"numpy": numpy, "torch": torch, "cuda": driver}


def inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes an inventory for each project; returns what intersphinx_mapping wants."""
    folder.mkdir(parents=True, exist_ok=True)
    for project, names in pages().items():
        kind = "c:function" if project == "cuda" else "py:obj"
        lines = "".join(f"{name} {kind} 1 {page} -\n" for name, page in sorted(names.items()))
        if project == "numpy":
            lines += lines.replace("py:obj", "py:class")
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        (folder / f"{project}.inv").write_bytes(head.encode() + zlib.compress(lines.encode()))
    return {name: (site, str(folder / f"{name}.inv")) for name, site in SITES.items()}


LINKS = {
    name: SITES[project] + page
    for project, names in pages().items()
    for name, page in names.items()
}


def link_first_names(_app: Sphinx, document: nodes.document) -> None:
    """Makes a link of the first piece of code on a page that is one of the names."""
    seen = set()
    for literal in list(document.findall(nodes.literal)):
        name = re.sub(r"^np\.", "numpy.", literal.astext().removesuffix("()"))
        inside = (nodes.reference, nodes.title, nodes.Referential)
        parent = literal.parent
        if name not in LINKS or name in seen or isinstance(parent, inside):
            continue
        seen.add(name)
        link = nodes.reference("", "", refuri=LINKS[name], internal=False)
        parent.replace(literal, link)
        link += literal


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", link_first_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
