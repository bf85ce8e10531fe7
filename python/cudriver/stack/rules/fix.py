"""Commands that fix an environment, for the installer that it was made with."""

from __future__ import annotations

import re

from cudriver.stack.model import Distribution, Driver, Environment, Facts
from cudriver.stack.tables import table
from cudriver.stack.text import quote
from cudriver.stack.versions import compare, cut, major, minor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONDA = ("conda", "mamba", "micromamba", "pixi")
INDEX = "https://download.pytorch.org/whl"


class Command(str):
    """A command, with what it does: see `after`."""

    installs: tuple[str, ...] = ()
    removes = ""  # a distribution
    sets: tuple[str, str | None] | None = None  # a variable; None: unsets it
    again = alone = upgrade = False
    source: str | None = None  # a package index

    @classmethod
    def of(cls, text: str, **does: Any) -> Command:
        made = cls(text)
        made.__dict__.update(does)
        return made


def installer(env: Environment, dist: Distribution | None) -> str:
    """Who installed a distribution; where that is not known, who makes this environment."""
    stated = (dist.installer or "").lower() if dist else ""
    if stated in ("conda", "pip", "uv"):
        if stated == "conda":
            return env.installer if env.kind == "conda" else "conda"
        if stated == "pip" and env.installer in ("uv", "pipx"):
            return env.installer
        return stated
    return env.installer


def install(
    env: Environment,
    *specifiers: str,
    by: str | None = None,
    index: str | None = None,
    again: bool = False,
    alone: bool = False,
    upgrade: bool = False,
) -> str:
    """One command that installs these. again: even where that version is there; alone: without
    what they require; upgrade: the newest. by: "pip", "uv", "conda", ...; default: the
    environment's own.
    """
    tool = by or env.installer
    does = {"installs": specifiers, "again": again, "alone": alone, "upgrade": upgrade}
    if tool in CONDA:
        text = _conda(env, tool, specifiers, again)
        return Command.of(text, **does) if again else text  # else which build, the solver tells
    words = [quote(s) for s in specifiers]
    if tool == "uv":
        command = ["uv", "pip", "install", "--python", quote(env.executable or env.prefix)]
        if again:
            names = [re.split(r"[\[=<>~! ]", s, maxsplit=1)[0] for s in specifiers]
            command += [word for name in names for word in ("--reinstall-package", quote(name))]
        command += _insist(env) + (["--no-deps"] if alone else [])
        command += ["--upgrade"] if upgrade else []
    elif tool == "pipx":
        name = env.prefix.rstrip("/").rpartition("/")[2]
        command = ["pipx", "runpip", quote(name), "install"]
        command += (["--force-reinstall"] if again else []) + (["--no-deps"] if alone else [])
        command += ["--upgrade"] if upgrade else []
    else:
        command = [quote(env.executable or f"{env.prefix}/bin/python"), "-m", "pip", "install"]
        command += _insist(env)
        command += (["--force-reinstall"] if again else []) + (["--no-deps"] if alone else [])
        command += ["--upgrade"] if upgrade else []
    command += words
    if index:
        command += ["--index-url", quote(index)]
    return Command.of(" ".join(command), source=index, **does)


def _conda(env: Environment, tool: str, specifiers: tuple[str, ...], again: bool) -> str:
    names = [re.sub(r"\Atorch(?![\w-])", "pytorch", s.replace("==", "=")) for s in specifiers]
    words = " ".join(map(quote, names))
    if tool == "pixi" and again:
        bare = (re.split(r"[\[=<>~! ]", name, maxsplit=1)[0] for name in names)
        return f"pixi reinstall {' '.join(map(quote, bare))}"
    if tool == "pixi":
        return f"pixi add {words}"
    return f"{tool} install -p {quote(env.prefix)} {'--force-reinstall ' if again else ''}{words}"


def _insist(env: Environment) -> list[str]:
    """What pip and uv want to hear before they change a system's own Python (PEP 668)."""
    return ["--break-system-packages"] if env.managed else []


def name_of(dist: Distribution, tool: str) -> str:
    """What that installer calls it: conda's pytorch is torch to everybody else."""
    return dist.conda_name or dist.name if tool in CONDA else dist.name


def uninstall(env: Environment, dist: Distribution) -> str:
    """The command that removes one distribution."""
    return Command.of(_uninstall(env, dist), removes=dist.name)


def _uninstall(env: Environment, dist: Distribution) -> str:
    tool = installer(env, dist)
    name = quote(name_of(dist, tool))
    if tool == "pixi":
        return f"pixi remove {name}"
    if tool in CONDA:
        return f"{tool} remove -p {quote(env.prefix)} {name}"
    python = quote(env.executable or f"{env.prefix}/bin/python")
    sure = "".join(f"{word} " for word in _insist(env))
    if tool == "uv":
        return f"uv pip uninstall --python {python} {sure}{name}"
    if tool == "pipx":
        return f"pipx runpip {quote(env.prefix.rstrip('/').rpartition('/')[2])} uninstall -y {name}"
    return f"{python} -m pip uninstall -y {sure}{name}"


def reinstall(facts: Facts, dist: Distribution) -> str:
    """Puts a distribution's own files back, in the version that is recorded."""
    env = facts.environment
    tool = installer(env, dist)
    version = dist.version
    index = None
    local = re.search(r"\+(cu\d+|cpu)\Z", version)
    if local and dist.name.startswith("torch"):
        index = f"{INDEX}/{local[1]}"
    wanted = f"{name_of(dist, tool)}=={version}"
    return install(env, wanted, by=tool, index=index, again=True, alone=True)


def tag(cuda: str) -> str:
    """ "cu128" for "12.8"."""
    return "cu" + (cut(cuda, 2) or "").replace(".", "")


def variants(torch: str) -> list[str]:
    """The CUDA variants of a PyTorch release on its wheel index, oldest first."""
    wanted = cut(torch, 2)
    for row in table("pytorch")["releases"]:
        if row["torch"] == wanted:
            return sorted(row["cuda"], key=lambda v: tuple(map(int, v.split("."))))
    return []


def usual_variant(torch: str) -> str | None:
    """The CUDA of PyPI's own wheels of a PyTorch release, else the newest variant."""
    wanted = cut(torch, 2)
    for row in table("pytorch")["releases"]:
        if row["torch"] == wanted and row["default"]:
            default: str = row["default"]
            return default
    every = variants(torch)
    return every[-1] if every else None


def torch_from(facts: Facts, cuda: str) -> str:
    """The command that puts the same PyTorch, built for another CUDA, in place of this one."""
    env = facts.environment
    torch = facts.framework("torch")
    dist = facts.distribution("torch")
    tool = installer(env, dist)
    release = cut(torch.version, 3) if torch else None
    if tool in CONDA:
        # Which releases a channel built for which CUDA is not known here: the newest that it has.
        same = torch is not None and major(torch.cuda) == major(cuda)
        build = (cut(cuda, 2 if same else 1) or "").replace(".", "")
        return install(env, f"pytorch=*=*cuda{build}*", by=tool)
    names = [f"torch=={release}" if release else "torch"]
    names += [n for n in ("torchvision", "torchaudio") if facts.distribution(n)]
    return install(env, *names, by=tool, index=f"{INDEX}/{tag(cuda)}", again=True)


KIN = ("torchvision", "torchaudio")


def kin(facts: Facts, name: str) -> str:
    """The command that installs the release of torchvision or torchaudio that goes with PyTorch.

    Both are pinned, since an installed one of another release would satisfy its bare name.
    """
    env, torch = facts.environment, facts.framework("torch")
    dist = facts.distribution(name)
    tool = installer(env, dist)
    if tool in CONDA:
        return install(env, name, by=tool, again=True)
    release = cut(torch.version, 3) if torch else None
    series = series_for(name, torch.version) if torch else None
    wanted = f"{name}=={series}.*" if series else name
    beside = [f"torch=={release}"] if release else []
    return install(env, *beside, wanted, by=tool, index=index_of(facts))


def index_of(facts: Facts) -> str | None:
    """The index that this PyTorch came from; None for PyPI, whose builds have no local version."""
    torch, dist = facts.framework("torch"), facts.distribution("torch")
    if torch is None or (
        dist is not None and "+" not in dist.version and torch.cuda == usual_variant(torch.version)
    ):
        return None
    return f"{INDEX}/{tag(torch.cuda) if torch.cuda else 'cpu'}"


def series_for(name: str, torch: str) -> str | None:
    """The release series that goes with a PyTorch: torchvision 0.23 and torchaudio 2.8 with 2.8.
    None where that is not known: before PyTorch 2.
    """
    have = minor(torch)
    if have is None or have[0] != 2:
        return None
    return f"0.{have[1] + 15}" if name == "torchvision" else f"2.{have[1]}"


def torch_for_driver(facts: Facts) -> str | None:
    """The variant of this PyTorch that suits the driver best: the newest that is not newer than its
    CUDA, else the oldest of its major; None where there is none.
    """
    torch, offered = facts.framework("torch"), facts.driver.cuda
    if torch is None or offered is None:
        return None
    fitting = [v for v in variants(torch.version) if (major(v) or 0) <= (major(offered) or 0)]
    below = [v for v in fitting if compare(v, offered) <= 0]
    return below[-1] if below else fitting[0] if fitting else None


def driver_branch(cuda: str | None) -> int | None:
    """The first branch of drivers that offers a CUDA version, "12.8"."""
    from cudriver.stack.tables import table

    return next((r["branch"] for r in table("driver")["branches"] if r["cuda"] == cuda), None)


def modules(driver: Driver) -> str | None:
    """The kernel modules that its GPUs take: "open", "proprietary" or "either". None: no kind
    serves all of them.
    """
    since = {row["open"]: row["capability"] for row in table("plan")["modules"]}
    gpus = [device.compute_capability for device in driver.devices if device.compute_capability]
    old = any(compare(gpu, since["from"]) < 0 for gpu in gpus)
    new = any(compare(gpu, since["only"]) >= 0 for gpu in gpus)
    return (None if new else "proprietary") if old else "open" if new else "either"


def branch_for(driver: Driver, floor: str | int | None = None) -> int | None:
    """The branch to install: at least the floor, and it knows every GPU; None: there is none."""
    gpus = [device.compute_capability for device in driver.devices]
    known = [row for row in table("driver")["architectures"] if row["capability"] in gpus]
    least = max([major(str(floor)) or 0, *(row["first_branch"] or 0 for row in known)])
    most: int | None = min((r["last_branch"] for r in known if r["last_branch"]), default=None)
    if modules(driver) is None or (most is not None and least > most):
        return None
    lasting: int = table("plan")["lasting"]
    return most or max(least, lasting)


def driver_package(driver: Driver, floor: str | int | None = None) -> str:
    """How to get a driver from the distribution that is at least the floor and knows the GPUs."""
    branch, kind = branch_for(driver, floor), modules(driver)
    if branch is None:
        least = f" from R{major(str(floor))} on" if floor else ""
        return f"no driver{least} serves this machine's GPUs; use packages for an older CUDA."
    opened = kind == "open" or (kind == "either" and driver.kernel_open)
    newer = "" if branch_for(driver, branch + 1) is None else " or newer"
    return (
        f"sudo apt-get install nvidia-driver-{branch}{'-open' if opened else ''}  # or your "
        f"distribution's package of R{branch}{newer}, then reboot"
    )


def without(variable: str, value: str, unwanted: list[str]) -> str:
    """The variable set to its own value less some folders, or unset where nothing is left."""
    kept = [p for p in value.replace(" ", ":").split(":") if p and p.rstrip("/") not in unwanted]
    if not kept:
        return Command.of(f"unset {variable}", sets=(variable, None))
    left = ":".join(kept)
    return Command.of(f"export {variable}={quote(left)}", sets=(variable, left))
