"""What could be installed: the proven sets, and what the tables allow; and what rules each out."""

from __future__ import annotations

from functools import cache

from cudriver.stack.model import Framework
from cudriver.stack.record import Record, fresh
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu1_releases import too_old
from cudriver.stack.rules.cu5 import archs_of, fits, out_of_range
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.versions import at_least, compare, cut, major, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cudriver.stack.plan.question import Question

CUDNN, OLDEST = "9.11", "7.5"  # from this cuDNN on GPUs below that compute capability are left out
DRIVER, GPU, PYTHON, CUDA = "driver", "gpu", "python", "cuda"


class Candidate(Record):
    """Packages that are installed together."""

    packages: list[str]
    builds: dict[str, Framework]
    pythons: list[str]
    toolkit: str  # the release that its CUDA libraries belong to: "12.8"
    cudnn: str | None = None
    index: str | None = None  # of the wheels; None: PyPI
    name: str = ""  # of a proven set
    dates: dict[str, str] = fresh(dict)  # of the proof, by Python; none: it is not proven
    installed: dict[str, dict[str, str]] = fresh(dict)  # every package, by Python

    @property
    def cuda(self) -> str:
        """The newest CUDA that a framework of it was built with."""
        return newest(build.cuda or "" for build in self.builds.values())

    def serves(self, capability: str) -> str | None:
        """How its code runs on a GPU: "cubin", "ptx" (compiled by the driver), or None."""
        if at_least(self.cudnn, CUDNN) and compare(capability, OLDEST) < 0:
            return None
        lists = [build.archs for build in self.builds.values() if build.archs]
        hows = [fits(capability, archs) for archs in [*lists, _libraries(self.toolkit)]]
        return None if None in hows else "ptx" if "ptx" in hows else "cubin"

    def floor(self, gpus: Sequence[str]) -> str:
        """The oldest driver: by CUDA major, by the GPUs, and where it must compile PTX."""
        floors = [driver_floor(self.cuda) or "0"]
        known = {r["capability"]: r["first_branch"] for r in table("driver")["architectures"]}
        for capability in gpus:
            floors.append(str(known.get(capability) or 0))
            for build in self.builds.values():
                if build.archs and fits(capability, build.archs) == "ptx":
                    cuda = build.cuda if "." in (build.cuda or "") else self.toolkit
                    floors.append(str(fix.driver_branch(cut(cuda, 2)) or 0))
        return newest(floors)

    def obstacles(self, question: Question) -> set[str]:
        """The kinds of what keeps it from what was asked for."""
        driver, floor = question.driver, self.floor(question.gpus)
        unknown = any(out_of_range(driver, device) for device in driver.devices)
        if driver.release is None and driver.cuda is None:
            unknown = branch_for(question.gpus, floor) is None
        found = {
            DRIVER: unknown or too_old(driver, self.cuda, floor),
            GPU: None in map(self.serves, question.gpus),
            PYTHON: question.python is not None and question.python not in self.pythons,
            CUDA: bool(question.majors) and major(self.cuda) not in question.majors,
        }
        return {kind for kind, there in found.items() if there}


def newest(versions: Iterable[str]) -> str:
    """The greatest of some versions."""
    return max(versions, key=number)


def number(version: str) -> tuple[int, ...]:
    """What versions are sorted by: PyTorch's local part does not count."""
    return plain(version.partition("+")[0]) or (0,)


def newness(candidate: Candidate, names: Sequence[str]) -> list[tuple[int, ...]]:
    """What is greater for the newer of two candidates: by these packages, then by CUDA."""
    return [number(candidate.builds[name].version) for name in names] + [number(candidate.cuda)]


def branch_for(gpus: Sequence[str], floor: str) -> int | None:
    """The branch of drivers to install: at least the floor, and one that knows every GPU. None:
    there is none.
    """
    known = [row for row in table("driver")["architectures"] if row["capability"] in gpus]
    least = max([major(floor) or 0, *(row["first_branch"] or 0 for row in known)])
    most = [row["last_branch"] for row in known if row["last_branch"]]
    if most:
        return min(most) if least <= min(most) else None
    lasting: int = table("plan")["lasting"]
    return max(least, lasting)


@cache
def _libraries(toolkit: str) -> list[str]:
    """The architectures that the CUDA libraries of a release were built for."""
    rows = [r for r in table("architectures")["toolkits"] if compare(r["toolkit"], toolkit) <= 0]
    return [f"sm_{arch}" for arch in rows[-1]["archs"]] if rows else []


@cache
def proven() -> list[Candidate]:
    """The sets that were installed and imported."""
    found = []
    for row in table("proven")["sets"]:
        made = Candidate(row["packages"], {}, [], "", name=row["name"])
        made.builds = {name: Framework(name, **told) for name, told in row["frameworks"].items()}
        made.dates = {run["python"]: run["date"] for run in row["runs"]}
        for run in row["runs"]:
            made.installed[run["python"]] = {**row["installed"], **run["installed"]}
        made.pythons = sorted(made.dates, key=number)
        made.toolkit = _wheel(row["installed"], "cuda-runtime") or made.cuda
        made.cudnn = _wheel(row["installed"], "cudnn")
        found.append(made)
    return found


def _wheel(installed: dict[str, str], stem: str) -> str | None:
    """The version of NVIDIA's wheel of a library, for any CUDA; of several the newest."""
    names = (f"nvidia-{stem}", *(f"nvidia-{stem}-cu{cuda}" for cuda in (11, 12, 13)))
    there = [cut(installed[name], 2) or "" for name in names if name in installed]
    return newest(there) if there else None


@cache
def derived() -> list[Candidate]:
    """One framework each, as the tables have it: nobody has run these."""
    known, found = table("plan"), []
    seen = {(n, b.version, major(b.cuda)): b.archs for e in proven() for n, b in e.builds.items()}
    for row in known["releases"]:
        builds = {}
        for name, version in row["frameworks"].items():
            archs = seen.get((name, version, major(row["cuda"])), [])
            builds[name] = Framework(name, version, row["cuda"], archs=archs)
        made = Candidate(row["packages"], builds, row["pythons"], row["toolkit"], row["cudnn"])
        found.append(made)
    patches = {row["torch"]: row for row in known["torch"]}
    pins = {row["torch"]: row["cudnn"] for row in table("pytorch")["releases"]}
    for build in table("architectures")["torch"]:
        row = patches.get(build["torch"])
        if row is None or "linux x86_64" not in build["platform"]:
            continue
        release, cuda = row["packages"][0].partition("==")[2], build["cuda"]
        made = Candidate(row["packages"], {}, row["pythons"], cuda, pins[build["torch"]].get(cuda))
        made.builds = {"torch": Framework("torch", release, cuda, archs=archs_of(build))}
        if cuda != fix.usual_variant(release):
            made.index = f"{fix.INDEX}/{fix.tag(cuda)}"
        found.append(made)
    return found
