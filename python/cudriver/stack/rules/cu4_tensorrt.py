"""CU406: TensorRT for another CUDA major, and the release of it that replaces this one."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.model import ERROR, NOTE, Evidence, Facts, Finding, Framework
from cudriver.stack.rules import fix
from cudriver.stack.tables import driver_floor
from cudriver.stack.versions import at_least, major

# The first and the last release of tensorrt-cu11, -cu12, ... on PyPI. Earlier ones of -cu13 require
# nvidia-cuda-runtime-cu13, which cannot be installed any more.
RELEASES = {11: ("10.0.1", "10.13.0.35"), 12: ("10.0.1", None), 13: ("10.13.3.9.post1", None)}


def cu406(facts: Facts) -> Iterator[Finding]:
    """TensorRT for another CUDA major: an error where the driver is too old for it. Beside a
    framework for another major it works, each with libraries of its own.
    """
    trt = facts.framework("tensorrt")
    built = major(trt.cuda) if trt else None
    if trt is None or built is None:
        return
    others = [
        f for f in facts.frameworks if f.name in ("torch", "onnxruntime") and f.variant == "cuda"
    ]
    offered = major(facts.driver.cuda)
    evidence = [trt.cuda_evidence] if trt.cuda_evidence else []
    if offered is not None and offered < built:
        agreed = any(major(other.cuda) == offered for other in others)
        swap = agreed or _release(trt.version, offered) == trt.version
        yield Finding(
            "CU406",
            ERROR,
            f"TensorRT {trt.version} is for CUDA {built}, the driver offers {facts.driver.cuda}",
            [*evidence, Evidence(facts.driver.path or "driver", None, facts.driver.release or "")],
            "CUDA initialization failure with error: 35",
            (swap and _swap(facts, trt, offered))
            or [fix.driver_package(facts.driver, driver_floor(trt.cuda))],
            "tensorrt",
        )
        return
    for other in others:
        wanted = major(other.cuda)
        if wanted is None or wanted == built:
            continue
        if other.cuda_evidence:
            evidence.append(other.cuda_evidence)
        yield Finding(
            "CU406",
            NOTE,
            f"TensorRT {trt.version} is for CUDA {built}, {other.name} for CUDA {wanted}",
            evidence,
            None,
            _swap(facts, trt, wanted) or [_newest(facts, other)],
            "tensorrt",
        )
        return


def _release(version: str, cuda: int) -> str | None:
    """The release nearest to this one that is for that CUDA major; None where there is none."""
    first, last = RELEASES.get(cuda, (None, None))
    if first is None or at_least(version, first) is False:
        return first
    return last if last and at_least(version, last) else version


def _swap(facts: Facts, trt: Framework, cuda: int) -> list[str]:
    """Removes what is installed of TensorRT, since both majors write one folder, and installs the
    release for another CUDA major. Nothing where there is none.
    """
    release = _release(trt.version, cuda)
    if release is None:
        return []
    env = facts.environment
    name = trt.distribution or "tensorrt"
    stem = name.removesuffix("-bindings")
    parts = {"tensorrt", name, stem, f"{stem}-bindings", f"{stem}-libs"}
    fixes = [fix.uninstall(env, dist) for dist in facts.distributions if dist.name in parts]
    tool = fix.installer(env, facts.distribution(name))
    return [*fixes, fix.install(env, f"tensorrt-cu{cuda}=={release}", by=tool)]


def _newest(facts: Facts, other: Framework) -> str:
    """Updates the framework whose CUDA major no TensorRT is for."""
    name = other.distribution or other.name
    tool = fix.installer(facts.environment, facts.distribution(name))
    return fix.install(facts.environment, name, by=tool, upgrade=True)
