"""What cannot be fixed in place: an environment of its own, as `cudriver plan` has it."""

from __future__ import annotations

from cudriver.stack.facts import Distribution, Facts
from cudriver.stack.fixes import fix
from cudriver.stack.text import quote
from cudriver.stack.versions import cut, major


def anew(facts: Facts, name: str) -> str:
    """The packages are those that `cudriver plan` names for this driver, its GPUs and Python."""
    env = facts.environment
    tool, made, named = env.installer, quote(f"{name}-env"), quote(name)
    if tool in ("conda", "mamba", "micromamba"):
        python = quote(f"python={cut(env.python, 2)}")
        return f"{tool} create -n {named} {python} {'pytorch' if name == 'torch' else named}"
    from cudriver.stack.planning.candidates import packages

    words = " ".join(map(quote, packages(facts, name)))
    if tool == "uv":
        return f"uv venv {made} && uv pip install --python {made} {words}"
    python = quote(f"{name}-env/bin/python")
    return f"python3 -m venv {made} && {python} -m pip install {words}"


def planned(facts: Facts, name: str) -> list[str]:
    """The same, where a plan has a build of that framework for this driver and these GPUs."""
    from cudriver.stack.planning.candidates import packages

    known = facts.environment.installer not in fix.CONDA and packages(facts, name) != [name]
    return [anew(facts, name)] if known else []


def release_for(facts: Facts, dist: Distribution, cuda: int | None) -> str | None:
    """The newest release of a distribution that is known to be built for a CUDA major, as it is
    asked for: "vllm==0.19.1".
    """
    from cudriver.stack.planning.candidates import known

    python = cut(facts.environment.python, 2)
    name = next((f.name for f in facts.frameworks if f.distribution == dist.name), dist.name)
    usable = [c for c in known([name]) if c.index is None and python in (None, *c.pythons)]
    named = [(c, p) for c in usable for p in c.packages if fix.bare(p) == dist.name]
    fitting = [(c.newness([name]), p) for c, p in named if major(c.cuda) == cuda]
    return max(fitting, default=(None, None))[1]


def built_for(name: str, version: str) -> str | None:
    """The CUDA that a known release of PyPI's is built for."""
    from cudriver.stack.planning.candidates import known

    named = (c for c in known([name]) if c.frameworks[name]["version"] == version)
    return next((c.cuda for c in named if c.index is None), None)


def has_wheels(facts: Facts, torch: str) -> bool:
    """Whether a PyTorch series has wheels for this Python; also where that is unknown."""
    from cudriver.stack.planning.candidates import known

    named = [c for c in known(["torch"]) if cut(c.frameworks["torch"]["version"], 2) == torch]
    pythons = {python for candidate in named for python in candidate.pythons}
    return not pythons or (cut(facts.environment.python, 2) or "") in {*pythons, ""}
