"""Asks an environment itself: its own Python imports the framework, and what is mapped is read.

The import happens in a child process with a time limit and with the environment variables of the
report; this process never loads anything. The child writes no bytecode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from cudriver.stack.environment.records import RECORD_LIMIT, module_of
from cudriver.stack.facts import Facts
from cudriver.stack.load.file_version import decode
from cudriver.stack.machine.child import Child
from cudriver.stack.names import is_cuda_library
from cudriver.stack.record import Any, Record
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.say import say, translate

TIME_LIMIT = 120.0  # seconds; a first import of PyTorch from a slow disk takes long
NOTHING = "no framework to import"
OUTPUT_LIMIT = 8 << 20  # bytes of the child's answer
SHOWN = 200  # bytes of an answer that is none
ERROR_LIMIT = 2000  # characters of an import's error
DESCRIPTOR = 3  # of the child, for its answer: an import may print
# What is compared, and of which type: a framework of another kind may answer anything.
VALUES = {"torch.cuda": str, "torch.cudnn": int, "torch.nccl": list, "torch.archs": list}

# Runs in the inspected environment: no cudriver there, any Python from 3.6 on. What it finds goes
# to a descriptor of its own, since imports may print. After the import it makes the calls by which
# a framework loads the rest of its libraries; none of them needs a GPU.
CHILD = r"""
import os, sys
os.chdir(sys.argv[2])
import importlib, json
fd, names = int(sys.argv[1]), sys.argv[3:]
answer = {"imports": {}, "values": {}, "mapped": []}
def call(key, get):
    try:
        answer["values"][key] = get()
    except BaseException as error:
        answer["values"][key] = None
for name in names:
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        answer["imports"][name] = "%s: %s" % (type(error).__name__, error)
        continue
    answer["imports"][name] = None
    call(name + ".version", lambda: str(module.__version__))
    if name == "torch":
        call("torch.cuda", lambda: module.version.cuda)
        call("torch.cudnn", lambda: module.backends.cudnn.version())
        call("torch.nccl", lambda: list(module.cuda.nccl.version()))
        call("torch.archs", lambda: module._C._cuda_getArchFlags().split())
with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
    for line in maps:
        fields = line.rstrip("\n").split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/") and fields[5] not in answer["mapped"]:
            answer["mapped"].append(fields[5])
with os.fdopen(fd, "w") as out:
    json.dump(answer, out)
"""


class Row(Record):
    """One value, predicted and observed. None: not known on that side."""

    name: str
    predicted: str | None
    observed: str | None

    @property
    def agrees(self) -> bool:
        """True where both sides say the same, or one has nothing to say."""
        return self.predicted is None or self.observed is None or self.predicted == self.observed

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "agrees": self.agrees}


class Observation(Record):
    """What a child process saw."""

    imports: dict[str, str | None]  # module: None, or the error it raised
    rows: list[Row]
    error: str | None = None  # the child did not answer

    @property
    def differs(self) -> bool:
        """True where a prediction was wrong or an import failed."""
        failed = any(error is not None for error in self.imports.values())
        return failed or not all(row.agrees for row in self.rows)

    @property
    def unanswered(self) -> bool:
        """True where there was something to observe and nothing came of it."""
        return self.error is not None and self.error != NOTHING

    def summary(self) -> str:
        """One line."""
        if self.error:
            return translate(self.error, "observed")
        failed = {name: error for name, error in self.imports.items() if error}
        count, wrong = len(self.rows), sum(not row.agrees for row in self.rows)
        text = f"{count} value{'' if count == 1 else 's'}, {wrong or 'none'} "
        text += "differs" if 1 in (count, wrong) else "differ"
        text = translate(text, "observed")
        errors = (f"import {name}: {error}" for name, error in failed.items())
        return say("; ").join([text, *errors])


def observe(
    facts: Facts, *, environ: Mapping[str, str] | None = None, timeout: float = TIME_LIMIT
) -> Observation:
    """Runs the environment's interpreter and compares what it says with `facts`.

    environ: what the child gets (default: this process's). timeout: seconds. Raises ValueError
    for an environment inside another root: its programs are not this machine's to run.
    """
    if facts.root != "/":
        raise ValueError("an environment inside another root cannot be run here")
    executable = facts.environment.executable
    if executable is None:
        return Observation({}, [], f"no interpreter in {facts.environment.prefix}")
    modules = _modules(facts)
    if not modules:
        return Observation({}, [], NOTHING)
    answer, error = _ask(executable, modules, environ, timeout)
    if answer is None:
        return Observation({}, [], error)
    return Observation(answer["imports"], list(compare(facts, answer)))


def _modules(facts: Facts) -> list[str]:
    """What is imported: the frameworks, and the packages of which something may be lacking."""
    found = [f.module or f.name * f.modelled for f in facts.frameworks]
    names = [*(fault.distribution for fault in facts.file_faults), *(a.by for a in facts.unmet)]
    for dist in filter(None, map(facts.distribution, dict.fromkeys(names))):
        raw = Root().raw(f"{dist.path}/RECORD", RECORD_LIMIT)
        found.append(module_of(dist, raw))
    return list(dict.fromkeys(filter(None, found)))


def _ask(
    executable: str, modules: list[str], environ: Mapping[str, str] | None, timeout: float
) -> tuple[dict[str, Any] | None, str | None]:
    """(the child's answer, None) or (None, why there is none)."""
    import tempfile

    variables = dict(os.environ if environ is None else environ)
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="cudriver-", ignore_cleanup_errors=True) as folder:
        program = [executable, "-c", CHILD, str(DESCRIPTOR), folder, *modules]
        try:
            child = Child(program, variables, timeout, descriptor=DESCRIPTOR, most=OUTPUT_LIMIT + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return None, f"{executable} does not start: {reason}"
        raw, how = child.join()
    if len(raw) > OUTPUT_LIMIT:
        return None, f"the interpreter's answer is longer than {OUTPUT_LIMIT} bytes"
    answer = _understood(raw, modules)
    if answer is not None:
        return answer, None
    end = how or ("ended" if raw else "ended without an answer")
    shown = f" and answered {raw[:SHOWN]!r}{'...' * (len(raw) > SHOWN)}" if raw else ""
    return None, f"the interpreter {end}{shown}"


def _understood(raw: bytes, modules: list[str]) -> dict[str, Any] | None:
    """The answer, if it is one: a broken interpreter may write anything."""
    try:
        answer = json.loads(raw)
        errors, values = answer["imports"], answer["values"]
        said = {name: errors[name] and str(errors[name])[:ERROR_LIMIT] for name in modules}
        kept = {n: values[n] for n, kind in VALUES.items() if isinstance(values.get(n), kind)}
        return {"imports": said, "values": kept, "mapped": list(map(str, answer["mapped"]))}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def compare(facts: Facts, answer: dict[str, Any]) -> Iterable[Row]:
    values = answer["values"]
    torch = facts.framework("torch")
    if torch is not None and answer["imports"].get("torch", "") is None:
        yield Row("torch.version.cuda", torch.cuda, values.get("torch.cuda"))
        if torch.variant == "cuda":
            number = decode(values.get("torch.cudnn") or 0, "cudnn")
            yield Row("torch.backends.cudnn.version()", torch.cudnn, number)
            yield Row("torch.cuda.nccl.version()", torch.nccl, dotted(values.get("torch.nccl")))
            told = (
                sorted(map(str, archs or ())) for archs in (torch.archs, values.get("torch.archs"))
            )
            yield Row("arch list", *(" ".join(archs) or None for archs in told))
    if any(answer["imports"].values()):
        return  # half an import maps half of the libraries
    predicted = {library.real_path or library.path: library for library in facts.libraries}
    mapped = set(answer["mapped"])
    names = {library.soname: path for path, library in predicted.items()}
    for path, library in predicted.items():
        if path in mapped:
            yield Row(library.soname, path, path)
        else:
            # Not every library is loaded by an import; one that is, from elsewhere, differs.
            other = [p for p in mapped if p.rpartition("/")[2] == path.rpartition("/")[2]]
            if other:
                yield Row(library.soname, path, sorted(other)[0])
    driver = os.path.realpath(facts.driver.path) if facts.driver.path else None
    for path in sorted(mapped - set(predicted)):
        name = path.rpartition("/")[2]
        if name.startswith("libcuda.so") and driver is not None:
            yield Row("libcuda.so.1", driver, path)
        elif name.startswith("libnvidia-"):
            pass  # the driver's own parts come with the driver
        elif is_cuda_library(name) and name not in names:
            yield Row(name, "(not predicted)", path)


def dotted(parts: list[Any] | None) -> str | None:
    """[2, 27, 3] as "2.27.3"."""
    return ".".join(map(str, parts)) if parts else None
