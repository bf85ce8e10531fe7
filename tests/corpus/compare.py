"""What was predicted beside what happened. Pure functions of plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CUDA_STEMS = (
    "libcublas", "libcudart", "libcudnn", "libcudss", "libcufft", "libcufile", "libcupti",
    "libcurand", "libcusolver", "libcusparse", "libcustatevec", "libcutensor", "libnccl", "libnpp",
    "libnvfatbin", "libnvinfer", "libnvJitLink", "libnvjpeg", "libnvonnxparser", "libnvrtc",
    "libnvshmem", "libnvToolsExt", "libnvvm", "libnvcomp", "libnvimgcodec", "libcudensitymat",
)  # fmt: skip


@dataclass
class Truth:
    """What happened in the environment's own processes."""

    failures: list[dict[str, str]] = field(default_factory=list)  # module, step, text
    mapped: dict[str, str] = field(default_factory=dict)  # real path: version by itself, or ""
    values: dict[str, str | None] = field(default_factory=dict)  # as frameworks report them
    submodules: dict[str, str | None] = field(default_factory=dict)  # None, or what an import says

    def broke(self, healthy: Truth) -> list[dict[str, str]]:
        """The submodules that could be imported in a healthy environment and cannot here, one for
        each text.
        """
        texts = {}
        for name, text in self.submodules.items():
            if text is not None and healthy.submodules.get(name, "") is None:
                texts.setdefault(text, name)
        return [
            {"module": name.partition(".")[0], "step": f"submodule {name}", "text": text}
            for text, name in texts.items()
        ]


@dataclass
class Said:
    """What the check and `which` said."""

    status: int
    verdict: str
    findings: list[dict[str, Any]]
    libraries: list[dict[str, Any]]  # soname, real path, version
    frameworks: list[dict[str, Any]]
    missing: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """The outcome for one environment or one fault."""

    right_errors: int = 0
    false_alarms: list[str] = field(default_factory=list)
    found: int = 0  # failures that a finding stands for
    misses: list[str] = field(default_factory=list)
    texts_right: int = 0  # failures whose text was predicted
    libraries: int = 0
    libraries_right: int = 0
    differences: list[str] = field(default_factory=list)


def is_cuda_library(path: str) -> bool:
    """Whether a file is one of NVIDIA's libraries, by its name. The driver's own are not meant."""
    return path.rpartition("/")[2].startswith(CUDA_STEMS)


def compare(
    truth: Truth,
    said: Said,
    *,
    unrelated: tuple[str, ...] = (),
    expect: tuple[str, ...] = (),
) -> Comparison:
    """Errors against failures, libraries against the maps, versions against the frameworks' own.

    unrelated: texts of failures that are not the check's business. expect: rules that must fire
    although nothing fails here; an error of such a rule is right.
    """
    result = Comparison()
    failures = [f for f in truth.failures if not any(text in f["text"] for text in unrelated)]
    errors = [f for f in said.findings if f["severity"] == "error"]
    warnings = [f for f in said.findings if f["severity"] == "warning"]
    for finding in errors:
        if finding["rule"] in expect or any(stands_for(finding, f) for f in failures):
            result.right_errors += 1
        else:
            result.false_alarms.append(f"{finding['rule']} {finding['title']}")
    for failure in failures:
        # What stops an import is an error; what stops only the GPU part may be a warning.
        strong = failure["step"].startswith("import ")
        able = errors if strong else errors + warnings
        standing = [finding for finding in able if stands_for(finding, failure)]
        if not standing:
            result.misses.append(f"{failure['step']}: {failure['text']}")
            continue
        result.found += 1
        result.texts_right += any(predicts(finding, shown(failure)) for finding in standing)
    fired = {finding["rule"] for finding in said.findings}
    result.misses += [f"{rule} is expected" for rule in expect if rule not in fired]
    result.found += sum(rule in fired for rule in expect)
    _libraries(result, truth, said)
    _values(result, truth, said)
    return result


HAPPENS = ("works", "a use fails", "the import fails")
# A framework's states, and what happens where one is right. None: it is here without CUDA.
RIGHT = {
    "works": {"works"},
    "CPU only": {"a use fails"},
    "fails": {"a use fails", "the import fails"},
    "not known": {*HAPPENS},
    None: {"works"},
}


def states(
    truth: Truth, said: Said, modules: Iterable[str], unrelated: tuple[str, ...] = ()
) -> list[list[str | None]]:
    """Of each framework whose module was imported: name, the state that the check gives, and what
    happened. A framework that another's failure kept from its turn is left out.
    """
    failures = [f for f in truth.failures if not any(text in f["text"] for text in unrelated)]
    broken = {f["module"] for f in failures if f["step"].startswith("import ")}
    groups = [[name.partition(".")[0] for name in group.split("+")] for group in modules]
    # The first of a group ends it where it fails.
    whole = [group if group[0] not in broken else group[:1] for group in groups]
    tried = {name for group in whole for name in group}
    found = []
    for framework in said.frameworks:
        name = framework["name"].replace("-", "_")
        if name not in tried:
            continue
        uses = any(f["module"] == name for f in failures)
        happened = HAPPENS[2] if name in broken else HAPPENS[1] if uses else HAPPENS[0]
        found.append([framework["name"], framework.get("state"), happened])
    return found


def plain(text: str) -> str:
    """A text without what differs from process to process: spaces, and the folders of paths."""
    text = re.sub(r"[^\s:'\"]*/", "", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


def shown(failure: dict[str, str]) -> str:
    """All that a user reads: of an exception, what it was raised from stands above it."""
    return failure.get("shown", failure["text"])


def predicts(finding: dict[str, Any], text: str) -> bool:
    """Whether a finding carries the text of this failure."""
    said = plain(finding.get("predicts") or "")
    return bool(said) and said in plain(text)


def stands_for(finding: dict[str, Any], failure: dict[str, str]) -> bool:
    """Whether a finding explains a failure: by its text, or else by what it is about."""
    if predicts(finding, shown(failure)):
        return True
    if failure["text"].startswith("died"):
        return finding["rule"].startswith(("CU3", "CU4"))  # there is no text to compare
    if finding.get("predicts") and failure["step"].startswith("import "):
        # It promises another text.
        return bool(names(finding["predicts"]) & names(failure["text"]))
    subject = finding.get("subject") or ""
    about = " ".join([finding["title"], subject, *(e["value"] for e in finding["evidence"])])
    words = set(re.findall(r"[\w.-]+", about.lower()))
    return failure["module"].lower() in words or bool(names(about) & names(failure["text"]))


def names(text: str) -> set[str]:
    """The libraries and modules that a text names: "cusparse" for libcusparse.so.12, cuSPARSE."""
    found = {name.lower() for name in re.findall(r"lib([\w+-]+)\.so", text)}
    found |= {name.lower() for name in re.findall(r"\b(?:cu|nv)[A-Za-z]{3,}\b", text)}
    return found | set(re.findall(r"'([\w.]+)'", text))


def _libraries(result: Comparison, truth: Truth, said: Said) -> None:
    predicted = {row["path"]: row for row in said.libraries}
    for path, version in sorted(truth.mapped.items()):
        if not is_cuda_library(path):
            continue
        result.libraries += 1
        name = path.rpartition("/")[2]
        row = predicted.get(path)
        if row is None:
            stem = name.partition(".so")[0]
            others = [r["path"] for r in said.libraries if r["soname"].startswith(stem + ".so")]
            what = f"predicted {others[0]}, mapped {path}" if others else f"not predicted: {path}"
            result.differences.append(f"{name}: {what}")
        elif name.startswith("libcudnn.so"):
            result.libraries_right += 1  # what it answers is the version of its parts
        elif version and row["version"] and not same_version(version, row["version"]):
            text = f"{name}: predicted version {row['version']}, it says {version}"
            result.differences.append(text)
        else:
            result.libraries_right += 1


def same_version(first: str, second: str) -> bool:
    """Equal as far as both go: 12.4 and 12.4.127."""
    pairs = zip(first.split("."), second.split("."), strict=False)
    return all(a == b for a, b in pairs)


def _values(result: Comparison, truth: Truth, said: Said) -> None:
    """What torch says of itself against its row in the report."""
    torch = next((f for f in said.frameworks if f["name"] == "torch"), None)
    if torch is None or "torch.version.cuda" not in truth.values:
        return
    values = truth.values
    pairs = [("torch.version.cuda", torch["cuda"], values["torch.version.cuda"])]
    number = values.get("torch.backends.cudnn.version()")
    if number and number.isdigit():
        pairs.append(("torch.backends.cudnn.version()", torch["cudnn"], cudnn(int(number))))
    nccl = values.get("torch.cuda.nccl.version()")
    # It tells what was built in or built against; a mapped NCCL tells its version by itself.
    shared = any(row["soname"].startswith("libnccl.so") for row in said.libraries)
    if nccl and torch["cuda"] and not shared:
        pairs.append(("torch.cuda.nccl.version()", torch["nccl"], nccl))
    archs = sorted((values.get("archs") or "").split())
    if archs and archs != sorted(torch["archs"]):
        result.differences.append(f"architectures: predicted {torch['archs']}, it says {archs}")
    for name, ours, theirs in pairs:
        if (ours is None) != (theirs is None) or (
            ours is not None and theirs is not None and not same_version(ours, theirs)
        ):
            result.differences.append(f"{name}: predicted {ours}, it says {theirs}")


def cudnn(number: int) -> str:
    """cuDNN's number as text: 8907 is 8.9.7, 91002 is 9.10.2."""
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"
