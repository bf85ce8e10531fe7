"""What a load fault means: which rule speaks of it, and what it puts an end to."""

from __future__ import annotations

import os

from cudriver.stack.model import IMPORT, USE, Evidence, Facts, FileFault, LoadFault
from cudriver.stack.versions import cut

_OF_A_MAJOR = ("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink", "libcupti")


def caused_by(fault: LoadFault, file: FileFault) -> bool:
    """Whether what the loader says follows from what is wrong with a file."""
    if file.what == "missing":
        return fault.kind == "not found" and fault.name == os.path.basename(file.file)
    return fault.kind in ("symbol", "version", "abort") and file.file in (
        fault.library,
        os.path.normpath(fault.provider or ""),
    )


def told_by_record(facts: Facts, fault: LoadFault) -> bool:
    """Whether a file that is not as its package brought it is the cause: CU404 speaks of it."""
    return any(caused_by(fault, file) for file in facts.file_faults if file.what != "shared")


def other_major(facts: Facts, fault: LoadFault) -> bool:
    """A missing library of another CUDA major than that of the PyTorch which its package is used
    with: CU403 speaks of it.
    """
    torch = facts.framework("torch")
    framework = facts.framework(fault.framework) if fault.framework else None
    wanted = _cuda_major(fault.name)
    built = cut(torch.cuda, 1) if torch and torch.cuda else None
    if framework is None or "torch" not in framework.after:
        return False
    return wanted is not None and built is not None and wanted != built


def _cuda_major(soname: str) -> str | None:
    """ "12" for libcudart.so.12; None where the SONAME does not tell."""
    stem, _, number = soname.partition(".so.")
    major = number.partition(".")[0]
    return major if stem in _OF_A_MAJOR and major.isdecimal() else None


def proof(facts: Facts, fault: LoadFault) -> list[Evidence]:
    """What the fault puts an end to, for whom, and which imports end with it."""
    framework = facts.framework(fault.framework) if fault.framework else None
    if framework is None or not framework.modelled:
        return []
    name = framework.module or framework.name
    purpose = fault.purpose or ("use CUDA" if fault.means == USE else "")
    end = f"import {name} ends here" if fault.means == IMPORT else f"{name} needs it to {purpose}"
    where = framework.path or name
    found = [Evidence(where, None, end)] if fault.means == IMPORT or purpose else []
    if fault.means == IMPORT:
        blocked = [f for f in facts.frameworks if f.blocked == framework.name]
        found += [
            Evidence(f.path or f.name, None, f"import {f.module} ends with it") for f in blocked
        ]
    return found
