"""What the tables tell of packages that are installed together: which drivers and GPUs they take.

It goes into the data of the proven sets, and of the releases in releases.json, which nobody has
run: `python -m corpus.derived` writes derived.json from those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cudriver.stack.fixes import fix
from cudriver.stack.fixes.fix import torch_archs
from cudriver.stack.fixes.pairs import runs
from cudriver.stack.planning.candidates import number
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.versions import compare, cut, major

DATA = Path(__file__).parents[2] / "python" / "cudriver" / "stack" / "data"
RELEASES = Path(__file__).with_name("releases.json")
CUDNN, OLDEST = "9.11", "7.5"  # from this cuDNN on GPUs below that compute capability are left out


def needs(frameworks: Mapping[str, Any], toolkit: str, cudnn: str | None) -> dict[str, Any]:
    """The CUDA of frameworks (name: version, cuda, archs), their driver whatever the GPU, each
    driver's GPUs, and those of them that run PTX.
    """
    cuda = _newest(f["cuda"] for f in frameworks.values())
    floor = driver_floor(cuda) or "0"
    drivers: dict[str, list[str]] = {}
    compiled = []
    for row in table("driver")["architectures"]:
        capability = row["capability"]
        how = _serves(capability, [f["archs"] for f in frameworks.values()], toolkit, cudnn)
        floors = [floor, str(row["first_branch"] or 0)]
        for f in frameworks.values():
            if f["archs"] and runs(capability, f["archs"]) == "ptx":
                own = f["cuda"] if "." in f["cuda"] else toolkit
                floors.append(str(fix.driver_branch(cut(own, 2)) or 0))
        if how is not None:
            drivers.setdefault(_newest(floors), []).append(capability)
        if how == "ptx":
            compiled.append(capability)
    return {"cuda": cut(cuda, 2), "floor": floor, "drivers": drivers, "ptx": compiled}


def _serves(gpu: str, archs: list[list[str]], toolkit: str, cudnn: str | None) -> str | None:
    """How code runs on a GPU: "cubin", "ptx" (compiled by the driver), or None."""
    if cudnn is not None and compare(cudnn, CUDNN) >= 0 and compare(gpu, OLDEST) < 0:
        return None
    rows = [r for r in table("architectures")["toolkits"] if compare(r["toolkit"], toolkit) <= 0]
    libraries = [f"sm_{arch}" for arch in rows[-1]["archs"]] if rows else []
    hows = [runs(gpu, each) for each in [*filter(None, archs), libraries]]
    return None if None in hows else "ptx" if "ptx" in hows else "cubin"


def _newest(versions: Iterable[str]) -> str:
    return max(versions, key=number)


def of_set(made: Mapping[str, Any]) -> dict[str, Any]:
    """What a proven set needs: the versions that it has say which libraries it brings."""
    cuda = _newest(f["cuda"] for f in made["frameworks"].values())
    toolkit = brought(made["installed"], "cuda-runtime") or cuda
    own = {"pythons": [run["python"] for run in made["runs"]]}
    return own | needs(made["frameworks"], toolkit, brought(made["installed"], "cudnn"))


def brought(installed: Mapping[str, str], stem: str) -> str | None:
    """The version of NVIDIA's wheel of a library, for any CUDA; of several the newest."""
    names = (f"nvidia-{stem}", *(f"nvidia-{stem}-cu{cuda}" for cuda in (11, 12, 13)))
    there = [cut(installed[name], 2) or "" for name in names if name in installed]
    return _newest(there) if there else None


def rows(proven: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One framework each: the releases, with the code that the same build has in a proven set."""
    seen = {
        (name, number(f["version"])[:2], major(f["cuda"])): f["archs"]
        for made in proven
        for name, f in made["frameworks"].items()
    }
    for row in (each for told in releases() for each in (told, *_variants(told))):
        frameworks, cuda = {}, row["cuda"]
        for name, version in row["frameworks"].items():
            archs = _torch_archs(version, cuda) if name == "torch" else []
            archs = archs or _near(seen, name, version, major(cuda))
            frameworks[name] = {"version": version, "cuda": cuda, "archs": archs}
        if "torch" not in frameworks or frameworks["torch"]["archs"]:  # else nothing is known of it
            kept = ("packages", "pythons", "arm", "index", "source", "brings", "date")
            told = {name: row[name] for name in kept if name in row}
            needed = needs(frameworks, row["toolkit"], row["cudnn"])
            yield {**told, "frameworks": frameworks, **needed}


def releases() -> list[dict[str, Any]]:
    """What `make tables` drew."""
    return list(json.loads(RELEASES.read_text())["releases"])


def _near(seen: Mapping[Any, list[str]], name: str, version: str, cuda: int | None) -> list[str]:
    """The code of the same series; else what the series before and after it, where known, share."""
    own = number(version)[:2]
    known = sorted(series for each, series, of in seen if (each, of) == (name, cuda))
    if name == "torch" or own in known:
        return seen.get((name, own, cuda), [])
    around = [*[s for s in known if s < own][-1:], *[s for s in known if s > own][:1]]
    lists = [seen[name, series, cuda] for series in around]
    return [arch for arch in lists[0] if all(arch in each for each in lists)] if lists else []


def _torch_archs(version: str, cuda: str) -> list[str]:
    """The table's list, or the one that the releases before and after share for this CUDA."""
    own = torch_archs(version, cuda, "x86_64")
    first, second = map(int, version.split(".")[:2])
    around = [torch_archs(f"{first}.{second + step}", cuda, "x86_64") for step in (-1, 1)]
    return own or (around[0] if around[0] == around[1] else [])


def _variants(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A release of PyTorch for the other CUDAs that its own index has."""
    if [*row["frameworks"]] != ["torch"]:
        return
    version = row["frameworks"]["torch"]
    known = {row["torch"]: row for row in table("pytorch")["releases"]}.get(cut(version, 2), {})
    for cuda in known.get("cuda", ()):
        if cut(cuda, 2) != cut(row["cuda"], 2):
            told = {"cuda": cuda, "toolkit": cuda, "cudnn": known["cudnn"].get(cuda), "arm": None}
            yield {**row, **told, "index": f"{fix.INDEX}/{fix.tag(cuda)}"}


def save(path: Path, sets: list[dict[str, Any]], failed: list[dict[str, Any]]) -> None:
    """The file of the proven sets, a set a line."""
    about = (
        "Written by make corpus: sets of packages that were installed and imported cleanly, and "
        "when the commands of their plans were run."
    )
    lines, bad = (",\n".join(map(json.dumps, rows)) for rows in (sets, failed))
    text = f'{{"about": {json.dumps(about)}, "sets": [\n{lines}\n], "failed": [\n{bad}\n]}}\n'
    path.write_text(text)


def main() -> None:
    """Writes anew what the tables tell."""
    path = DATA / "proven.json"
    known = json.loads(path.read_text())
    drawn = {
        (name, cut(version, 3), major(row["cuda"])): row["arm"]
        for row in releases()
        for name, version in list(row["frameworks"].items())[:1]
    }
    for made in known["sets"]:
        made.update(of_set(made))
        asked = made["frameworks"].items()
        arm = [drawn.get((name, cut(f["version"], 3), major(f["cuda"]))) for name, f in asked]
        sure = None not in arm and "index" not in made
        made["arm"] = [p for p in made["pythons"] if all(p in a for a in arm)] if sure else None
    save(path, known["sets"], known["failed"])
    about = "Written by make tables from what the package index told, and the other tables."
    lines = ",\n".join(map(json.dumps, rows(known["sets"])))
    head = f'"about": {json.dumps(about)}, "drawn": "{json.loads(RELEASES.read_text())["drawn"]}"'
    text = f'{{{head}, "sets": [\n{lines}\n]}}\n'
    (DATA / "derived.json").write_text(text)


if __name__ == "__main__":
    main()
