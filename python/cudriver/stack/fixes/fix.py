"""Commands that fix an environment, for the installer that it was made with."""

from __future__ import annotations

import re
from functools import cmp_to_key

from cudriver.stack.command import Command
from cudriver.stack.environment.markers import normal
from cudriver.stack.facts import Distribution, Environment, Facts
from cudriver.stack.machine_facts import Device, Driver
from cudriver.stack.record import Any
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.text import quote
from cudriver.stack.versions import compare, cut, major, minor, satisfies

OF_SYSTEM = (
    "{} is the system's: put it in order with the system's package manager, or make a virtual "
    "environment and install what you need there."
)
DPKG = "/usr/lib/python3/dist-packages"  # Debian's packages, and nobody else's
# A folder that is some Python's, as no folder of pip's --target is.
_OF_PYTHON = re.compile(r"/lib\d*/python3[^/]*/(?:site|dist)-packages\Z")
CONDA = ("conda", "mamba", "micromamba", "pixi")
INDEX = "https://download.pytorch.org/whl"
KIN = ("torchvision", "torchaudio")  # they check that PyTorch is built for the same CUDA
HOSTED = ("torch", *KIN, "xformers")  # has builds for each CUDA on that index; others are on PyPI


def installer(env: Environment, dist: Distribution | None) -> str:
    """Who installed a distribution; where that is not known, who makes this environment."""
    if dist and dist.location == DPKG:
        return "dpkg"
    stated = (dist.installer or "").lower() if dist else ""
    if stated == "conda":
        return env.installer if env.kind == "conda" else "conda"
    own = stated not in ("pip", "uv") or (stated == "pip" and env.installer in ("uv", "pipx"))
    return env.installer if own else stated


def install(
    env: Environment,
    *specifiers: str,
    of: Distribution | None = None,
    by: str | None = None,
    index: str | None = None,
    again: bool = False,
    alone: bool = False,
    upgrade: bool = False,
    held: str | None = None,
) -> str:
    """One command that installs these. again: even where that version is there; alone: without
    what they require; upgrade: the newest; held: by a file of constraints. by: "pip", "uv",
    "conda", ...; default: who installed the distribution that it is about, else the environment's
    own. What lies in a folder of PYTHONPATH stays there, but for packages of another environment,
    which is not changed: the folder goes from the variable.
    """
    target = of.location if of and outside(env, of) else None
    if target and _OF_PYTHON.search(target):
        return setting("PYTHONPATH", [folder for folder in env.pythonpath if folder != target])
    tool = by or installer(env, of)
    does = {"installs": specifiers, "again": again, "alone": alone, "upgrade": upgrade}
    if tool == "dpkg":
        return OF_SYSTEM.format(bare(specifiers[0]))
    if tool in CONDA:
        text = _conda(env, tool, specifiers, again)
        return Command.of(text, **does) if again else text  # else which build, the solver tells
    command = _pip(env, tool, "install")
    if again and tool == "uv":
        command += [word for s in specifiers for word in ("--reinstall-package", quote(bare(s)))]
    elif again:
        command.append("--force-reinstall")
    if target and tool != "uv":  # pip keeps what is there, or leaves the old .dist-info beside it
        names = (re.sub("[-_.]+", "_", bare(s)) for s in specifiers)
        command[:0] = ["rm -rf", *(f"{quote(target)}/{name}-*.dist-info" for name in names), "&&"]
        upgrade = True
    command += ["--target", quote(target)] if target else []
    command += ["--constraint", quote(held)] if held else []
    command += ["--no-deps"] * alone + ["--upgrade"] * upgrade + [quote(s) for s in specifiers]
    own = all(bare(specifier) in HOSTED for specifier in specifiers)
    command += ["--index-url" if own else "--extra-index-url", quote(index)] if index else []
    return Command.of(" ".join(command), source=index, folder=target, **does)


def outside(env: Environment, dist: Distribution) -> bool:
    """Whether a package lies in a folder of PYTHONPATH that is none of the environment's own."""
    return dist.location in set(env.pythonpath) - set(env.sites)


def known_as(name: str) -> str:
    """The (normalised) name by which a package is known here: torch for conda's pytorch."""
    plain = normal(name)
    return str(table("packages")["aliases"].get(plain, plain))


def bare(specifier: str) -> str:
    """The name of what is asked for."""
    return re.split(r"[\[=<>~! ]", specifier, maxsplit=1)[0]


def _pip(env: Environment, tool: str, verb: str) -> list[str]:
    """pip's command, or that of who stands in for it."""
    if tool == "pipx":
        return ["pipx", "runpip", quote(env.prefix.rstrip("/").rpartition("/")[2]), verb]
    python = quote(env.executable or f"{env.prefix}/bin/python")
    first = [python, "-m", "ensurepip", "&&"] if env.lacks_pip else []
    start = [*first, python, "-m", "pip", verb]
    if tool == "uv":
        start = ["uv", "pip", verb, "--python", quote(env.executable or env.prefix)]
    # What both want to hear before they change a system's own Python (PEP 668).
    return start + ["--break-system-packages"] * env.managed


def _conda(env: Environment, tool: str, specifiers: tuple[str, ...], again: bool) -> str:
    names = [re.sub(r"\Atorch(?![\w-])", "pytorch", s.replace("==", "=")) for s in specifiers]
    words = " ".join(map(quote, names))
    if tool == "pixi":
        plain = " ".join(quote(bare(name)) for name in names)
        return f"pixi reinstall {plain}" if again else f"pixi add {words}"
    return f"{tool} install -p {quote(env.prefix)} {'--force-reinstall ' if again else ''}{words}"


def venv_again(env: Environment) -> str:
    """Makes a virtual environment's interpreter anew; its packages stay."""
    short, prefix = cut(env.python, 2) or "3", quote(env.prefix)
    if "uv" in (env.kind, env.installer):
        return f"uv venv --allow-existing --python {short} {prefix}"
    old = " ".join(f"{prefix}/bin/{name}" for name in ("python", "python3", f"python{short}"))
    return f"python{short} -V && rm -f {old} && python{short} -m venv {prefix}"


def name_of(dist: Distribution, tool: str) -> str:
    """What that installer calls it: conda's pytorch is torch to everybody else."""
    return dist.conda_name or dist.name if tool in CONDA else dist.name


def uninstall(env: Environment, dist: Distribution) -> str:
    """The command that removes one distribution."""
    tool = installer(env, dist)
    if tool == "dpkg":
        return OF_SYSTEM.format(dist.name)
    if tool == "pixi":
        words = ["pixi", "remove"]
    elif tool in CONDA:
        words = [tool, "remove", "-p", quote(env.prefix)]
    else:
        words = _pip(env, tool, "uninstall" if tool == "uv" else "uninstall -y")
    return Command.of(" ".join([*words, quote(name_of(dist, tool))]), removes=dist.name)


def reinstall(facts: Facts, dist: Distribution, alone: bool = True) -> str:
    """Puts a distribution's own files back, in the version that is recorded."""
    local = re.search(r"\+(cu\d+|cpu)\Z", dist.version)
    index = f"{INDEX}/{local[1]}" if local and dist.name.startswith("torch") else None
    wanted = f"{name_of(dist, installer(facts.environment, dist))}=={dist.version}"
    return install(facts.environment, wanted, of=dist, index=index, again=True, alone=alone)


def tag(cuda: str) -> str:
    """ "cu128" for "12.8"."""
    return "cu" + (cut(cuda, 2) or "").replace(".", "")


def variants(torch: str) -> list[str]:
    """The CUDA variants of a PyTorch release on its wheel index, oldest first."""
    return sorted(_release(torch).get("cuda", ()), key=lambda v: tuple(map(int, v.split("."))))


def usual_variant(torch: str) -> str | None:
    """The CUDA of PyPI's own wheels of a PyTorch release, else the newest variant."""
    default: str | None = _release(torch).get("default")
    return default or next(reversed(variants(torch)), None)


def _release(torch: str) -> dict[str, Any]:
    """The row of a PyTorch release; {} for one that is not known."""
    rows = (row for row in table("pytorch")["releases"] if row["torch"] == cut(torch, 2))
    return next(rows, {})


def torch_archs(version: str, cuda: str | None, platform: str) -> list[str]:
    """What a build of PyTorch has code for, as its binary would tell it; [] where that is not
    known. platform: "x86_64", "aarch64".
    """
    for row in table("architectures")["torch"]:
        if (row["torch"], row["cuda"]) == (cut(version, 2), cuda) and platform in row["platform"]:
            numbers = row["archs"].replace("+PTX", "").replace(".", "").split(";")
            ptx = [f"compute_{numbers[-1]}"] * ("+PTX" in row["archs"])
            return [f"sm_{number}" for number in numbers] + ptx
    return []


def torch_from(facts: Facts, cuda: str) -> str:
    """The command that puts the same PyTorch, built for another CUDA, in place of this one."""
    env, torch, dist = facts.environment, facts.framework("torch"), facts.distribution("torch")
    if installer(env, dist) in CONDA:
        # Which releases a channel built for which CUDA is not known here: the newest that it has.
        same = torch is not None and major(torch.cuda) == major(cuda)
        build = (cut(cuda, 2 if same else 1) or "").replace(".", "")
        return install(env, f"pytorch=*=*cuda{build}*", of=dist)
    names = [same_torch(facts) or "torch", *(name for name in KIN if facts.distribution(name))]
    return install(env, *names, of=dist, index=f"{INDEX}/{tag(cuda)}", again=True)


def same_torch(facts: Facts) -> str | None:
    """The PyTorch that is there, as it is asked for."""
    torch = facts.framework("torch")
    release = cut(torch.version, 3) if torch else None
    return f"torch=={release}" if release else None


def kin(facts: Facts, name: str) -> str:
    """The command that installs the release of torchvision or torchaudio that goes with PyTorch,
    or of what names its PyTorch in METADATA: the resolver picks the one that fits.

    Kin are pinned, since an installed one of another release would satisfy its bare name.
    """
    env, torch = facts.environment, facts.framework("torch")
    dist = facts.distribution(name) or facts.distribution("torch")
    if installer(env, dist) in CONDA:
        return install(env, name, of=dist, again=True)
    series, beside = series_for(name, torch.version) if torch else None, same_torch(facts)
    here = facts.framework(name)
    asks = [r for r in dist.requires if r.name == "torch"] if dist and torch else []
    fits = all(satisfies(torch.version, r.specifier) is not False for r in asks if torch)
    if series and here and fits and cut(here.version, 2) == series:  # of another build
        wanted = f"{name}=={cut(here.version, 3)}"
        return install(env, wanted, of=dist, index=index_of(facts), again=True, alone=True)
    names = [*([beside] if beside else []), f"{name}=={series}.*" if series else name]
    return install(env, *names, of=dist, index=index_of(facts))


def index_of(facts: Facts) -> str | None:
    """The index that this PyTorch came from; None for PyPI, whose builds have no local version."""
    torch, dist = facts.framework("torch"), facts.distribution("torch")
    plain = dist is not None and "+" not in dist.version
    if torch is None or (plain and torch.cuda == usual_variant(torch.version)):
        return None
    return f"{INDEX}/{tag(torch.cuda) if torch.cuda else 'cpu'}"


def series_for(name: str, torch: str) -> str | None:
    """The release series that goes with a PyTorch: torchvision 0.23 and torchaudio 2.8 with 2.8.
    None where that is not known: before PyTorch 2.
    """
    have = minor(torch)
    if have is None or have[0] != 2 or name not in KIN:
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


def driver_package(facts: Facts, least: str | int | None = None) -> str:
    """How to get a driver from the distribution that is at least that one, knows the GPUs and
    serves all frameworks.
    """
    driver = facts.driver
    floors = (driver_floor(f.cuda) for f in facts.frameworks if f.variant == "cuda")
    floor = max((str(least or 0), *filter(None, floors)), key=cmp_to_key(compare))
    branch, kind = branch_for(driver, floor), modules(driver)
    if branch is None:
        since = f" from R{major(floor)} on" if major(floor) else ""
        return f"no driver{since} serves this machine's GPUs; use packages for an older CUDA."
    opened = kind == "open" or (kind == "either" and driver.kernel_open)
    newer = "" if branch_for(driver, branch + 1) is None else " or newer"
    return (
        f"sudo apt-get install nvidia-driver-{branch}{'-open' if opened else ''}  # or your "
        f"distribution's package of R{branch}{newer}, then reboot"
    )


def too_old(driver: Driver, cuda: str, floor: str) -> bool:
    """By release where that is a Linux driver's; by CUDA major for WSL, Tegra and compat."""
    if driver.kind == "native" and driver.release and not driver.wsl:
        return compare(driver.release, floor) < 0
    offered, wanted = major(driver.cuda), major(cuda)
    return offered is not None and wanted is not None and offered < wanted


def out_of_range(driver: Driver, device: Device) -> tuple[int, str] | None:
    """The "first" or the "last" branch of drivers that knows a GPU which this driver's does not."""
    branch = major(driver.release)
    rows = table("driver")["architectures"]
    row = next((r for r in rows if r["capability"] == device.compute_capability), None)
    if branch is None or row is None or not device.assumed or driver.kind == "tegra":
        return None
    first, last = row["first_branch"], row["last_branch"]
    if last is not None and branch > last:
        return last, "last"
    return (first, "first") if first is not None and branch < first else None


def entries(variable: str, value: str) -> list[str]:
    """The folders of a variable, or the files of LD_PRELOAD, which spaces part as well."""
    parts = value.replace(" ", ":") if variable == "LD_PRELOAD" else value
    return [part for part in parts.split(":") if part]


def without(variable: str, value: str, unwanted: list[str]) -> str:
    """The variable set to its own value less some folders."""
    left = [path for path in entries(variable, value) if path.rstrip("/") not in unwanted]
    return setting(variable, left)


def setting(variable: str, kept: list[str]) -> Command:
    """The variable set to some folders, or unset where there are none."""
    if not kept:
        return Command.of(f"unset {variable}", sets=(variable, None))
    left = ":".join(kept)
    return Command.of(f"export {variable}={quote(left)}", sets=(variable, left))


def apart(facts: Facts, name: str) -> str:
    """What cannot be fixed in place: an environment of its own, as a plan has it."""
    name = next((f.name for f in facts.frameworks if name in f.names), name)
    known = name in table("plan")["frameworks"]
    plan = f": `cudriver plan {name}` has the commands" * known
    return f"make an environment of its own for {name}{plan}."
