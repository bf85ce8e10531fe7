"""Which releases go with what is there, of those that `cudriver plan` knows."""

from __future__ import annotations

from cudriver.stack.facts import Distribution, Facts
from cudriver.stack.fixes import fix
from cudriver.stack.tables import table
from cudriver.stack.versions import cut, major


def apart(facts: Facts, name: str) -> str:
    """What cannot be fixed in place: an environment of its own, as a plan has it."""
    name = next((f.name for f in facts.frameworks if name in f.names), name)
    told = (
        f": `cudriver plan {name}` has the commands" if name in table("plan")["frameworks"] else ""
    )
    return f"make an environment of its own for {name}{told}."


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
