"""GPUs by their names: as nvidia-smi, makers, shops and clouds write them."""

from __future__ import annotations

import re
from functools import cache

from cudriver.stack.machine.driver import capability
from cudriver.stack.tables import table

CENTRE = "data centre"
Span = tuple[set[int], str]  # the places of words, and the name that they are


def gpu(name: str) -> str:
    """The compute capability of a GPU: "9.0", "H100", or as nvidia-smi names it."""
    if re.fullmatch(r"(sm_)?\d{1,2}\.?\d[af]?", name.strip(), re.ASCII):
        return capability(name)
    return _known()[_find(name)][0]


def sold_for(name: str) -> tuple[bool | None, bool]:
    """Whether a GPU is one for data centres, and whether it sits beside an Arm processor only.
    None, False of a bare capability, and of one that is not known.
    """
    try:
        found = _find(name)
    except ValueError:
        return None, False
    kind = _known()[found][1]
    return kind == CENTRE, kind == "jetson" or any(each in found for each in table("gpus")["arm"])


def _words(name: str) -> list[str]:
    text = re.sub("[®™]", " ", name).lower()
    for joined, apart in table("gpus")["joined"]:
        text = re.sub(joined, apart, text)
    return re.findall(r"[a-z0-9]+", text, re.ASCII)


@cache
def _known() -> dict[str, tuple[str, str]]:
    """The capability of each name, and the kind of GPU that it is."""
    found = {}
    for row in table("gpus")["gpus"]:
        for kind in (CENTRE, "workstation", "jetson"):
            for name in row.get(kind, ()):
                found[" ".join(_words(name))] = (str(row["capability"]), kind)
    return found


def _find(name: str) -> str:
    """The one known name that a text has. Raises ValueError."""
    unknown = f"no GPU {name!r} is known here; state its compute capability, as 9.0"
    if not name.strip() or re.search(r"[^\w ®™().,+/'\"-]", name) or len(name) > 120:
        raise ValueError(unknown)
    words, about = _words(name), table("gpus")
    meant = {" ".join(_words(row["name"])): row["meant"] for row in about["ambiguous"]}
    spans = _spans(words, [*_known(), *meant], about["series"])
    spans = [span for span in spans if not any(span[0] < other for other, _ in spans)]
    models = [span for span in spans if span[1] not in about["words"]] or spans[:1]
    found = list(dict.fromkeys(name for _, name in models))
    taken = {at for places, _ in spans for at in places}
    left = [word for at, word in enumerate(words) if at not in taken]
    series = {*about["series"]}.intersection(words)
    usual = (*about["words"], *filter(re.compile(about["make"]).fullmatch, left))
    odd = [word for word in left if word not in usual]
    if not found or (odd and not series):
        raise ValueError(unknown)
    either = [each for one in found for each in meant.get(one, ())]
    either = either or (found if len({_known()[one][0] for one in found}) > 1 else [])
    if either:
        names = ", ".join(either)
        raise ValueError(f"{name!r} may be {names}: state which, or the compute capability")
    return found[0]


def _spans(words: list[str], names: list[str], series: list[str]) -> list[Span]:
    """Where which names stand. A text may begin with a number: "4090" is an RTX 4090."""
    found = []
    for name in names:
        parts = name.split()
        for start in range(len(words)):
            if words[start : start + len(parts)] == parts:
                found.append(({*range(start, start + len(parts))}, name))
        short = parts[1:]
        if short and parts[0] in series and short[0].isdigit() and words[: len(short)] == short:
            found.append(({*range(len(short))}, name))
    return found
