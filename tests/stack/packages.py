"""Packages and what they load, recipe_cases.txt: what lies in site-packages, in the words of
`Packages`, and what the frameworks there load and lack. casekit.py has the form; the first words of
a case are the severities.
"""

import json
import os
import re
from pathlib import Path

from synth import CU12
from test_collect_cases import Tree

import casekit
from cudriver.stack.collect import ask, collect
from cudriver.stack.load import frameworks
from cudriver.stack.loader.search import CANNOT_OPEN
from cudriver.stack.machine.driver import assumed
from cudriver.stack.report import Report
from cudriver.stack.rules import judge

PATH = Path(__file__).with_name("recipe_cases.txt")
HEAD, CASES = casekit.read(PATH)
ABI = ".cpython-311-x86_64-linux-gnu.so"


class Packages(Tree):
    """A tree in which recipes of ours may take the place of all others."""

    def __init__(self, top, monkeypatch):
        super().__init__(top)
        self.monkeypatch = monkeypatch
        self.recipes = []
        self.assumed = None

    def path(self, name):
        folder = f"env/lib/python{self.prefix().python}/site-packages"
        return super().path(name.replace("SITE", folder))

    def facts(self):
        inside = self.prefix().inside
        more = {"environ": self.variables, "probe": False, "assumed": self.assumed}
        return collect(ask(inside, root=str(self.top), **more))

    def machine(self, driver="580.95.05", *gpus):
        """What is assumed of the machine, of which all rules tell then."""
        self.assumed = assumed(driver, gpus or ["9.0"])

    def wheels(self, **more):
        """NVIDIA's, empty, in the versions that PyTorch pins but for these."""
        named = {f"nvidia-{name.replace('_', '-')}": version for name, version in more.items()}
        self.prefix().wheels({**CU12, **named})

    def cuda_link(self, version):
        """/usr/local/cuda, which leads to a toolkit beside it."""
        self.link("usr/local/cuda", f"cuda-{version}")

    def recipe(self, *steps, name="net", package=None, version="1.0", **fields):
        """A recipe of these steps, and where it has a version its package."""
        package = package or name
        made = {"name": name, "distributions": [package], "module": name, "source": "here"}
        self.recipes.append(json.loads(json.dumps({**made, "steps": steps, **fields})))
        self.monkeypatch.setattr(frameworks, "listed", lambda: self.recipes)
        if version:
            self.dist(package, version)

    def lib(self, name, *needs, path=None, rpath=None, symbol="x", source=None):
        """A library in site-packages. needs: those that it is linked to, one there or one that no
        process finds; path: its RUNPATH, rpath: its RPATH, from its own folder.
        """
        name = name.replace("{so}", ABI)
        flags = ["-nostdlib", "-Wl,--no-as-needed"]
        flags.append(f"-Wl,--{'disable' if rpath else 'enable'}-new-dtags")
        flags += [] if ".cpython-" in name else [f"-Wl,-soname,{os.path.basename(name)}"]
        flags += [f"-Wl,-rpath,$ORIGIN/{path or rpath}"] if path or rpath else []
        for need in needs:
            if "/" not in need:
                self.library(f"build/{need}", "int y;", "-nostdlib", f"-Wl,-soname,{need}")
            flags.append(str(self.path(f"SITE/{need}" if "/" in need else f"build/{need}")))
        self.library(f"SITE/{name}", source or f"int {symbol};", *flags)

    def owner(self, name, version, path):
        """A distribution whose RECORD has a file that is there."""
        self.dist(name, version, files={path: self.path(f"SITE/{path}")})

    def cores(self, sound):
        """Three builds, of which those with these numbers load."""
        for number in "456":
            name = f"libcublas.so.1{number}"
            if number in sound:
                self.lib(f"nvidia/lib/{name}")
                name = f"nvidia/lib/{name}"
            self.lib(f"net/core{number}.so", name, path="../nvidia/lib")

    def pathfinder(self, text, minor="13.0"):
        """CuPy, NVRTC's wheel, and cuda-pathfinder with this in its source."""
        folder, name = "nvidia/cu13/lib", f"libnvrtc-builtins.so.{minor}"
        self.lib(f"{folder}/libnvrtc.so.13")
        self.lib(f"{folder}/{name}")
        files = {
            f"{folder}/{each}": self.path(f"SITE/{folder}/{each}")
            for each in ("libnvrtc.so.13", name)
        }
        self.dist("nvidia-cuda-nvrtc", f"{minor}.88", files=files)
        file = "cuda/pathfinder/_dynamic_libs/load_dl_linux.py"
        self.dist("cuda-pathfinder", "1.3.3", files={file: text.encode()})
        self.lib("cupy/core.so", "libnvrtc.so.13")
        core = {"cupy/core.so": self.path("SITE/cupy/core.so")}
        self.dist("cupy-cuda13x", "14.2.0", "cuda-pathfinder", files=core)

    def debian(self, package, version, *paths):
        """A package of Debian's that is installed and lists these files."""
        said = f"Package: {package}\nStatus: install ok installed\nVersion: {version}\n"
        self.file("var/lib/dpkg/status", said)
        self.file(f"var/lib/dpkg/info/{package}:amd64.list", "".join(f"{p}\n" for p in paths))

    def onnxruntime(self, *needs):
        self.dist("onnxruntime-gpu", "1.22.0")
        folder, said = "onnxruntime/capi", "__version__ = '1.22.0'\ncuda_version = '12.8'\n"
        self.file(f"SITE/{folder}/build_and_package_info.py", said)
        self.lib(f"{folder}/onnxruntime_pybind11_state{{so}}")
        source = "extern int Provider_GetHost; int *at = &Provider_GetHost;"
        self.lib(f"{folder}/libonnxruntime_providers_cuda.so", *needs, source=source)

    def tensorflow(self, version, caller):
        self.dist("tensorflow", version)
        said = "build_info = {'cuda_version': '12.5.1', 'is_cuda_build': True}\n"
        self.file("SITE/tensorflow/python/platform/build_info.py", said)
        self.lib("nvidia/cusolver/lib/libcusolver.so.11")
        parts = [f"tensorflow/libtensorflow_{name}.so.2" for name in ("framework", "cc")]
        for part in parts:
            self.lib(part, path="../nvidia/cusolver/lib" if part.endswith(caller) else None)
        self.lib("tensorflow/python/_pywrap_tensorflow_internal.so", *parts, path="..")


def told(found, judged):
    """What the frameworks load, what is missing, and what the check says of it. What is not found
    is among the missing, and the verdict is that of the worst finding, where nothing else is said.
    """
    for framework in found.frameworks:
        more = "" if framework.modelled else ", not modelled"
        more += f", after {' '.join(framework.after)}" if framework.after else ""
        more += f", blocked by {framework.blocked}" if framework.blocked else ""
        yield f"{framework.name}{more}: {' '.join(map(os.path.basename, framework.loads))}".rstrip()
    faulty = {fault.name for fault in found.load_faults if fault.kind == "not found"}
    yield from (f"missing {each.soname}" for each in found.missing if each.soname not in faulty)
    missing = {each.soname for each in found.missing}
    for fault in found.load_faults:
        more = [fault.means, fault.purpose] + [
            f"{word} {getattr(fault, word)}" for word in ("owner", "rescue") if getattr(fault, word)
        ]
        more += ["not among the missing"] * (fault.name in faulty - missing)
        yield f"{fault.kind} {fault.name} of {fault.library}: {', '.join(filter(None, more))}"
    for fault in found.file_faults[:3]:
        yield f"{fault.what} {fault.file}, line {fault.evidence.line}: {fault.evidence.value}"
    if len(found.file_faults) > 3:
        yield f"and {len(found.file_faults) - 3} more"
    for library in found.libraries:
        own = library.own_copy
        more = f", own copy {own.path} {own.version} by {own.rule}" if own else ""
        whose = f"{library.version or 'unknown'} of {library.provided_by or library.origin}"
        yield f"{library.path}: {whose}, by {library.found_by}{more}"
    yield from (f"problem {each.file} {each.text}" for each in found.problems)
    for finding in judged:
        if finding.severity == "note" and not finding.rule.startswith(("CU3", "CU4")):
            continue  # not about libraries and packages
        subject = f" of {finding.subject}" if finding.subject else ""
        yield f"{finding.rule} {finding.severity}{subject}: {finding.title}"
        missing = finding.rule == "CU305"  # which says what the loader does, unless told otherwise
        usual = f"{finding.title.partition(',')[0]}: {CANNOT_OPEN}: No such file or directory"
        if finding.predicts != usual if missing else finding.predicts:
            yield f"    says {finding.predicts}"
    errors = any(finding.severity == "error" for finding in judged)
    whole = Report(found, judged).verdict
    yield from [whole] * (whole != ("mismatch" if errors else "consistent"))


def check(tmp_path, monkeypatch, name):
    tree, case = Packages(tmp_path, monkeypatch), CASES[name]
    known = {each: getattr(tree, each) for each in dir(tree)}
    exec(HEAD, known)
    eval(f"({case.source},)", known)
    found = tree.facts()
    judged = judge(found)
    loud = [finding.severity for finding in judged if finding.severity != "note"]
    words = "\n".join(told(found, judged)).replace("/env/lib/python3.11/site-packages", "SITE")
    words = re.sub(r"sha256=[\w-]{43},\d+", "sha256=...", words)  # some are the compiler's
    casekit.check(PATH, case, " ".join(loud) or "silent", words.replace(ABI, "{so}"))
