"""What is known about a machine and an environment (facts), and what follows from it (findings).

Every path is a path inside the inspected root, as a process living there would see it; rootfs
turns it into a real one. Versions are strings as found; `None` means that nothing said so.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from cudriver.stack.command import Command
from cudriver.stack.evidence import Evidence as Evidence
from cudriver.stack.machine_facts import Driver, HostCompiler, Lacking, NvccChoice, Toolkit
from cudriver.stack.record import Record, fresh

SCHEMA = 1

ERROR, WARNING, NOTE = "error", "warning", "note"
RANK = {ERROR: 0, WARNING: 1, NOTE: 2}
CONSISTENT, MISMATCH, UNKNOWN = "consistent", "mismatch", "unknown"

# Whether a framework that is here for CUDA can use it: of a Framework in a Report.
WORKS, CPU_ONLY, FAILS, NOT_KNOWN = "works", "CPU only", "fails", "not known"

# What a library that does not load puts an end to: the import, every use of the package, its use of
# the GPU (it goes on without), a part of it that was asked for, or nothing. SPARE: a part that was
# not asked for, since the package serves the CPU too. UNMODELLED: not known, since no recipe tells
# how the package loads its libraries.
IMPORT, USE, GPU, FEATURE, NOTHING = "import", "use", "gpu", "feature", "nothing"
SPARE, UNMODELLED = "spare", "unmodelled"

# What is wrong with a file. DAMAGED: empty, cut, no library, no source: whoever needs it fails.
# CHANGED: of other bytes, and nobody knows whether they serve. EDITED: changed, and sound. OWNERS:
# of two packages that disagree; SHARED: that agree. HIDDEN: by this one, which comes before it.
MISSING, DAMAGED, CHANGED, EDITED = "missing", "damaged", "changed", "edited"
# FOREIGN: of a wheel for another Python or another machine.
# LEFT: of another release, over which this one was installed.
OWNERS, SHARED, HIDDEN, FOREIGN, LEFT = "owners", "shared", "hidden", "foreign", "left"

# What keeps Python from the packages: the interpreter looks ELSEWHERE, some code ENDS it, a module
# stands before the one of the STDLIB, or where programs are STARTED before any, some code MOVES the
# folders of sys.path, the file system maps no code.
ELSEWHERE, ENDS, STDLIB, STARTED = "elsewhere", "ends", "stdlib", "started"
MOVES, NOEXEC = "moves", "noexec"

GONE = "gone"  # the rule of a Shadowed that a wheel brought and that is no longer there


class Finding(Record):
    """One thing a rule found.

    Attributes
    ----------
    rule, severity, title : str
        The rule's name, as ``"CU303"``; ``"error"``, ``"warning"`` or ``"note"``; one sentence.
    evidence : list of Evidence
        Where the facts were read, in the order of the proof.
    predicts : str or None
        The text of the error that the user will meet, where it is known.
    fix : list of Command
        What a shell takes as it stands: a `str` that says whether it `heals`, and how many bytes
        it `downloads`.
    advice : str
        What to do where no command does it; "" where there is none to give.
    also : list of Finding
        What follows from the same cause; the same fix takes it away.
    """

    rule: str
    severity: str
    title: str
    evidence: list[Evidence] = fresh(list)
    predicts: str | None = None
    fix: list[Command] = fresh(list)
    advice: str = ""
    subject: str = ""  # the framework, or else the file, that it is about
    because: str | None = None  # the file or package that caused it, where that is another
    crashed: bool = False  # the rule failed or gave up: its silence means nothing
    doubt: str = ""  # why nobody can tell without an import whether it does harm
    cpu: bool = False  # of an error: what it is about goes on without the GPU
    also: list[Finding] = fresh(list)  # follow from its cause; the same fix takes them away

    @property
    def proven(self) -> bool:
        """Whether one of its commands heals it."""
        return any(command.heals for command in self.fix)


def every(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, each before those that were folded into it."""
    for finding in findings:
        yield finding
        yield from finding.also


class Problem(Record, frozen=True):
    """A file that could not be read or understood, or a step that failed. Never an exception."""

    file: str
    text: str
    line: int | None = None


class Requirement(Record, frozen=True):
    """One requirement of a distribution that applies to this environment."""

    name: str  # normalised
    specifier: str  # "==12.8.4.1", "" for any
    evidence: Evidence
    extras: list[str] = fresh(list)  # asked of the required one: cuda-toolkit[cublas]
    extra: str = ""  # counts only where this extra of the requiring one is asked for
    by: str = ""  # of one that is not met: the distribution that makes it


class Distribution(Record, frozen=True):
    """An installed package: a wheel's .dist-info, an .egg-info, or a conda-meta record."""

    name: str  # normalised: lower case, runs of -_. become one -
    version: str
    kind: str  # "wheel", "egg", "conda"
    path: str  # the .dist-info folder, or the conda-meta file
    location: str  # the site-packages folder, or the conda prefix
    line: int | None = None  # of its version in METADATA
    build: str | None = None  # conda's build string
    installer: str | None = None  # what INSTALLER says: pip, uv, conda
    requires: list[Requirement] = fresh(list)
    conda_name: str | None = None  # of the conda package that brought a wheel: "pytorch"
    # Every Requires-Dist: the (normalised) name, extras and versions as they stand, the marker.
    asks: list[tuple[str, str, str]] = fresh(list)
    hides: list[str] = fresh(list)  # .dist-info of the same in later folders of sys.path
    beside: list[str] = fresh(list)  # and in its own folder
    size: int | None = None  # bytes of its shared libraries, by its RECORD; None: not read

    def active(self, extras: Collection[str]) -> list[Requirement]:
        """The requirements that count when it is asked for with these extras."""
        return [r for r in self.requires if not r.extra or r.extra in extras]

    @property
    def evidence(self) -> Evidence:
        """The file that says that it is installed."""
        file = {"wheel": "/METADATA", "egg": "/PKG-INFO", "conda": ""}[self.kind]
        return Evidence(self.path + file, self.line, f"{self.name} {self.version}")


class Environment(Record, frozen=True):
    """The environment under inspection."""

    prefix: str
    kind: str  # "venv", "uv", "conda", "pipx", "system", "unknown"
    python: str | None = None  # version, "3.12.1"
    executable: str | None = None  # its interpreter
    site_packages: list[str] = fresh(list)  # in the order of sys.path
    installer: str = "pip"  # "pip", "uv", "conda", "mamba": which command fixes it
    base_prefix: str | None = None  # of a venv: where its interpreter lives
    platform: str = "x86_64"  # machine of its interpreter
    libc: str | None = None  # the C library of that: "gnu", "musl"; None: it cannot be read
    variables: dict[str, str] = fresh(dict)  # the environment variables that matter
    lacks_pip: bool = False
    managed: bool = False  # by the system (PEP 668): pip refuses to change it unless told to
    gone: Evidence | None = None  # bin/python, a link to an interpreter that is no longer there
    near: str | None = None  # what was probably meant, where this is none
    zip_files: list[str] = fresh(list)  # on its path: wheels, eggs; any file
    by_code: list[str] = fresh(list)  # modules that code of .pth files finds; "*": may be any
    inserted: list[Evidence] = fresh(list)  # by code of .pth files, before all others: a folder
    sites: list[str] = fresh(list)  # of site_packages those that `site` adds, with .pth files
    by: str = ""  # how it came to be meant, where nobody named it: "by VIRTUAL_ENV"

    @property
    def in_front(self) -> list[str]:
        """The folders of its path that come before the standard library."""
        return [*(each.value or "" for each in self.inserted), *self.pythonpath]

    @property
    def pythonpath(self) -> list[str]:
        """What PYTHONPATH has."""
        return list(filter(None, self.variables.get("PYTHONPATH", "").split(":")))

    @property
    def user_base(self) -> str:
        """The folder below which the user's own packages lie; "" where Python is not to look."""
        if self.variables.get("PYTHONNOUSERSITE"):
            return ""
        home = self.variables.get("HOME")
        return self.variables.get("PYTHONUSERBASE") or (f"{home}/.local" if home else "")

    def inside(self, folder: str) -> list[str]:
        """Its prefix and the folders of its path that lie inside a folder, such as a project's."""
        start = folder.rstrip("/") + "/"
        return [path for path in (self.prefix, *self.site_packages) if path.startswith(start)]

    @property
    def minor(self) -> int:
        """Of its Python's version: 12 of "3.12.1"; 0 where that is not known."""
        part = (self.python or "").split(".")[1:2]
        return int(part[0]) if part and part[0].isdecimal() else 0

    @property
    def abi(self) -> str:
        """What its extension modules are named for: "313", "313t" of a free-threaded Python."""
        short = ".".join((self.python or "").split(".")[:2])
        threaded = any(f"/python{short}t/" in folder for folder in self.site_packages)
        return short.replace(".", "") + ("t" if threaded else "")

    @property
    def extensions(self) -> tuple[str, ...]:
        """What the names of extension modules end in, in the order in which it looks for them. Some
        Pythons take no stable ABI of a machine, or none without the GIL.
        """
        machine = f"{self.platform}-linux-{self.libc or 'gnu'}"
        rests = ("", f"-{machine}") if self.minor < 15 else (f"-{machine}", "")
        stable = (f"{abi}{rest}.so" for abi in (".abi3", ".abi3t") for rest in rests)
        return f".cpython-{self.abi}-{machine}.so", *stable, ".so"

    @property
    def modules(self) -> tuple[str, ...]:
        """What the names of all modules end in, in the order in which it looks for them."""
        return *self.extensions, ".py", ".pyc"


class Framework(Record, frozen=True):
    """A package whose libraries use CUDA."""

    name: str
    version: str
    cuda: str | None = None  # what it was built with; None: CPU only or unknown
    cudnn: str | None = None  # what it will get at run time
    nccl: str | None = None
    archs: list[str] = fresh(list)  # "sm_90", "compute_120"
    path: str = ""  # its package folder
    variant: str = "cuda"  # "cuda", "cpu", "rocm", "xpu", "unknown"
    cudnn_built: str | None = None
    cudnn_by_pin: bool = False  # that is the version its package pins; the code may want less
    cuda_evidence: Evidence | None = None
    archs_evidence: Evidence | None = None
    cudnn_evidence: Evidence | None = None
    distribution: str | None = None
    libraries: list[str] = fresh(list)  # its own shared libraries, the roots of the resolution
    loads: list[str] = fresh(list)  # the CUDA libraries in its process, by path
    finds_wheels: bool = False  # loads the environment's own libraries first, by cuda-pathfinder
    modelled: bool = True  # False: no recipe tells what it loads; what is known of it are facts
    module: str = ""  # what a program imports
    after: list[str] = fresh(list)  # frameworks that its import imports first
    extra: str = ""  # the extra of its package that brings its CUDA libraries: "and-cuda"
    required: bool = False  # by another installed package; looked up where a step is `alone`
    fails: bool = False  # its import does, by a fault in load_faults
    blocked: str | None = None  # the framework that its import needs, and that fails itself
    state: str | None = None  # in a Report: WORKS, ...; None: it is here without CUDA

    @property
    def names(self) -> tuple[str | None, ...]:
        """What a caller may call it: its own, its package's and its module's name."""
        return self.name, self.distribution, self.module

    @property
    def package(self) -> str:
        """The distribution that it is of, as far as that is known."""
        return self.distribution or self.name

    @property
    def imported(self) -> str:
        """What a program imports."""
        return self.module or self.name

    @property
    def without_cuda(self) -> bool:
        """Whether it is built without CUDA."""
        return self.variant in ("cpu", "rocm", "xpu")


class Shadowed(Record, frozen=True):
    """A file that the loader would have taken had an earlier rule not found another."""

    path: str
    rule: str
    version: str | None = None


class Missing(Record, frozen=True):
    """A CUDA library that something needs, and that the loader does not find."""

    soname: str
    needed_by: str  # the file that asks
    searched: list[str] = fresh(list)


class Library(Record, frozen=True):
    """A CUDA library as this environment gets it."""

    soname: str
    path: str  # as found
    version: str | None = None  # its own, "9.19.0"
    provided_by: str | None = None  # "nvidia-cudnn-cu12 9.19.0.56", "libcudnn9-cuda-12 9.14.0.64-1"
    found_by: str = ""  # the loader's rule
    shadowed: list[Shadowed] = fresh(list)
    family: str = ""  # "cublas", "cudnn", ...
    cuda: str | None = None  # CUDA release it belongs to: "12.8" or "12"
    real_path: str = ""  # links followed
    needed_by: list[str] = fresh(list)
    origin: str = "environment"  # "environment", "system", "framework"
    version_evidence: Evidence | None = None
    own_copy: Shadowed | None = None  # the environment's, where this one comes from outside

    @property
    def owner(self) -> str:
        """The distribution that provides it: "nvidia-cudnn-cu12"; "" where that is not known."""
        return (self.provided_by or "").partition(" ")[0]


class LoadFault(Record, frozen=True):
    """Why the loader refuses a library: what an import or a dlopen ends with."""

    # A library is "not found", lacks a "version" or a "symbol"; the file is "rejected" (no ELF, too
    # short, a program), or "damaged": the loader may not notice, but its tables are broken.
    kind: str
    library: str  # the file that wants it
    message: str  # what the loader says, and so the ImportError
    name: str = ""  # the library, version or symbol that is missing
    provider: str | None = None  # the file that should have had it
    lazy: bool = False  # met at the first call, not at load
    framework: str | None = None  # whose import meets it
    means: str = IMPORT  # what it puts an end to
    says: str = ""  # what the framework itself says then
    purpose: str = ""  # what the framework needs it to do: "compile a kernel"; default: use CUDA
    owner: str | None = None  # of a "rejected" or "damaged" file: the distribution that brought it
    rescue: str | None = None  # what a program can do before, so that it does not happen
    doubt: Evidence | None = None  # what could not be looked at, so that this is not proof

    @property
    def file(self) -> str:
        """The file that is rejected or damaged. The loader names it, links and ".." left in."""
        stated = self.message.partition(": ")[0]
        return os.path.normpath(stated if stated.startswith("/") else self.library)

    @property
    def severity(self) -> str:
        """An error where it is proved to end an import, or every use of the package."""
        if self.rescue is not None or self.means in (SPARE, UNMODELLED):
            return NOTE
        proved = not self.lazy and self.doubt is None
        return ERROR if self.means in (IMPORT, USE, GPU) and proved else WARNING

    @property
    def text(self) -> str:
        """What the user gets to read."""
        return self.says or self.message


class FileFault(Record, frozen=True):
    """A file that RECORD or conda-meta lists and the disk contradicts."""

    distribution: str
    file: str
    what: str  # MISSING, ...
    evidence: Evidence
    owners: list[str] = fresh(list)
    why: str = ""  # of one that is DAMAGED: "is empty"; HIDDEN: what it hides
    says: str = ""  # what an import says that meets it
    proven: bool = False  # of one that is MISSING: an import of its package ends there
    package: str = ""  # of the system's package manager: it owns the file


class Astray(Record, frozen=True):
    """What keeps Python from the packages of an environment, or from the standard library."""

    what: str  # ELSEWHERE, ...
    file: str
    evidence: Evidence
    why: str = ""  # ELSEWHERE: in words; ENDS: by which call; STDLIB: a name that this one lacks


class Facts(Record, frozen=True):
    """Everything that the rules may look at."""

    environment: Environment
    root: str = "/"
    driver: Driver = fresh(Driver)
    toolkits: list[Toolkit] = fresh(list)
    nvcc: NvccChoice = fresh(NvccChoice)
    compiler: HostCompiler | None = None
    lacking: list[Lacking] = fresh(list)  # of the tools of what is compiled when it starts
    ptxas: list[Evidence] = fresh(list)  # Triton's own, each with its release
    distributions: list[Distribution] = fresh(list)
    frameworks: list[Framework] = fresh(list)
    libraries: list[Library] = fresh(list)
    missing: list[Missing] = fresh(list)
    load_faults: list[LoadFault] = fresh(list)
    file_faults: list[FileFault] = fresh(list)
    unmet: list[Requirement] = fresh(list)
    astray: list[Astray] = fresh(list)
    problems: list[Problem] = fresh(list)
    unsure: list[str] = fresh(list)  # steps that failed, so that silence about them means nothing
    verified: bool = False  # --verify: the content of all files was compared
    # What was asked for, as an Asked has it.
    match: str | None = None
    match_level: str = "minor"
    needs: list[str] = fresh(list)
    imports: dict[str, str | None] = fresh(dict)  # made by --observe: the module, and its error
    expects: list[str] = fresh(list)

    @property
    def conda_cuda(self) -> str | None:
        """The version of `__cuda` that conda and pixi find here; None: they find none."""
        stated = self.environment.variables.get("CONDA_OVERRIDE_CUDA")
        if stated is not None:
            return stated.strip() or None
        return self.driver.cuda if self.driver.init_code in (None, 0) else None

    def needed(self, framework: Framework) -> str | None:
        """The name by which --needs asks for a framework; None where it does not."""
        return next((name for name in self.needs if name in framework.names), None)

    def distribution(self, name: str | None) -> Distribution | None:
        """The installed distribution of this (normalised) name, or None."""
        return next((d for d in self.distributions if d.name == name), None)

    def module_of(self, dist: Distribution) -> str | None:
        """What a program imports of a distribution, where that is a framework."""
        mine = (f.imported for f in self.frameworks if f.distribution == dist.name)
        return next(mine, None)

    def framework(self, name: str | None) -> Framework | None:
        """The framework of this name, or None."""
        return next((f for f in self.frameworks if f.name == name), None)
