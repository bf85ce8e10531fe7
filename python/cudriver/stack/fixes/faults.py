"""What a load fault means: which rule speaks of it, and what it puts an end to."""

from __future__ import annotations

import os

from cudriver.stack.facts import (
    GPU,
    IMPORT,
    MISSING,
    OWNERS,
    SHARED,
    USE,
    Evidence,
    Facts,
    FileFault,
    Framework,
    LoadFault,
)
from cudriver.stack.fixes.fix import KIN
from cudriver.stack.names import library_of, majors_of, row_of, split
from cudriver.stack.versions import cut

EXEC_STACK = "cannot enable executable stack"  # the loader's words; its package built it so


def caused_by(fault: LoadFault, file: FileFault) -> bool:
    """Whether what the loader says follows from what is wrong with a file."""
    if fault.kind == "not found" or file.what == MISSING:  # one of another machine is passed over
        names = os.path.basename(file.file), file.file
        return fault.kind == "not found" and fault.name in names
    named = file.file in (fault.library, os.path.normpath(fault.provider or ""))
    named = named or (file.what == OWNERS and should_have(file, fault))
    return fault.kind in ("symbol", "version") and named


def should_have(file: FileFault, fault: LoadFault) -> bool:
    """Whether a function that nothing has is one of that file's, by its name."""
    name = library_of(fault.name) if fault.kind == "symbol" and not fault.provider else None
    return name is not None and os.path.basename(file.file).startswith(name)


def told_elsewhere(facts: Facts, fault: LoadFault) -> bool:
    """Whether another rule than those of libraries speaks of a fault: CU403, CU404 or CU405."""
    if any(caused_by(fault, file) for file in facts.file_faults if file.what != SHARED):
        return True  # a file that is not as its package brought it
    missing = fault.kind == "not found" and other_major(facts, fault)
    return missing or other_build(facts, fault.framework)


def other_major(facts: Facts, fault: LoadFault) -> bool:
    """A missing library of another CUDA major than that of the PyTorch which its package is used
    with: CU403 speaks of it.
    """
    torch, framework = facts.framework("torch"), facts.framework(fault.framework)
    built, sonames = cut(torch.cuda, 1) if torch else None, row_of(fault.name).get("sonames", {})
    if framework is None or "torch" not in framework.after or built is None:
        return False
    majors = majors_of(fault.name)
    if sonames and all(cut(split(name)[1], 1) == major for major, name in sonames.items()):
        majors = [cut(split(fault.name)[1], 1) or built]  # CUDA's own number, of any release
    elif built not in sonames:
        return False
    return bool(majors) and built not in majors


def other_build(facts: Facts, name: str | None) -> bool:
    """Whether that is one of PyTorch's kin, built for another CUDA, and its import gets as far as
    comparing the two: CU405 speaks of it, and of what does not load for that reason.
    """
    torch, kin = facts.framework("torch"), facts.framework(name)
    if name not in KIN or torch is None or kin is None:
        return False
    if not {torch.variant, kin.variant} <= {"cuda", "cpu"}:
        return False
    ends = any(fault.framework == name and fault.means == IMPORT for fault in facts.load_faults)
    return not ends and cut(torch.cuda, 2) != cut(kin.cuda, 2)


def proof(facts: Facts, fault: LoadFault) -> list[Evidence]:
    """What the fault puts an end to, for whom, and which imports end with it."""
    framework = facts.framework(fault.framework)
    if framework is None or not framework.modelled:
        return []
    doubt = [fault.doubt] if fault.doubt is not None else []
    if fault.means == IMPORT:
        return ended(facts, framework) + doubt
    name = framework.imported
    purpose = fault.purpose or ("use CUDA" if fault.means in (USE, GPU) else "")
    end = Evidence(framework.path or name, None, f"{name} needs it to {purpose}")
    return [end] * bool(purpose) + doubt


def ended(facts: Facts, framework: Framework) -> list[Evidence]:
    """The import of a framework, and those that end with it."""
    name = framework.imported
    found = [Evidence(framework.path or name, None, f"import {name} fails")]
    kin = [f for f in facts.frameworks if framework.name in (f.blocked, *f.after)]
    return found + [Evidence(f.path or f.name, None, f"import {f.module} fails, too") for f in kin]
