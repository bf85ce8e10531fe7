"""What the tables tell of packages that are installed together: which drivers and GPUs they take.

It goes into the data of the proven sets, and of the releases in releases.json, which nobody has
run: `python -m corpus.derived` writes derived.json from those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cudriver.stack.plan.candidates import number
from cudriver.stack.rules import fix
from cudriver.stack.rules.cu5 import fits, torch_archs
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
            if f["archs"] and fits(capability, f["archs"]) == "ptx":
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
    hows = [fits(gpu, each) for each in [*filter(None, archs), libraries]]
    return None if None in hows else "ptx" if "ptx" in hows else "cubin"


def _newest(versions: Iterable[str]) -> str:
    return max(versions, key=number)


def of_set(made: Mapping[str, Any]) -> dict[str, Any]:
    """What a proven set needs: the versions that it has say which libraries it brings."""
    cuda = _newest(f["cuda"] for f in made["frameworks"].values())
    toolkit = _wheel(made["installed"], "cuda-runtime") or cuda
    own = {"pythons": [run["python"] for run in made["runs"]]}
    return own | needs(made["frameworks"], toolkit, _wheel(made["installed"], "cudnn"))


def _wheel(installed: Mapping[str, str], stem: str) -> str | None:
    """The version of NVIDIA's wheel of a library, for any CUDA; of several the newest."""
    names = (f"nvidia-{stem}", *(f"nvidia-{stem}-cu{cuda}" for cuda in (11, 12, 13)))
    there = [cut(installed[name], 2) or "" for name in names if name in installed]
    return _newest(there) if there else None


def rows(proven: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One framework each: the releases, with the code that the same build has in a proven set."""
    seen = {
        (name, f["version"], major(f["cuda"])): f["archs"]
        for made in proven
        for name, f in made["frameworks"].items()
    }
    known = json.loads(RELEASES.read_text())
    for row in (*known["releases"], *_torch(known["torch"])):
        frameworks, cuda = {}, row["cuda"]
        for name, version in row["frameworks"].items():
            archs = torch_archs(version, cuda, "x86_64") if name == "torch" else []
            archs = archs or seen.get((name, version, major(cuda)), [])
            frameworks[name] = {"version": version, "cuda": cuda, "archs": archs}
        told = {name: row[name] for name in ("packages", "pythons", "index") if name in row}
        yield {**told, "frameworks": frameworks, **needs(frameworks, row["toolkit"], row["cudnn"])}


def _torch(releases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """PyTorch for each CUDA that its releases were built for, where their code is known."""
    known = {row["torch"]: row for row in table("pytorch")["releases"]}
    for row in releases:
        version = row["packages"][0].partition("==")[2]
        for cuda in fix.variants(version):
            told = {"frameworks": {"torch": version}, "cuda": cuda, "toolkit": cuda}
            if cuda != fix.usual_variant(version):
                told["index"] = f"{fix.INDEX}/{fix.tag(cuda)}"
            if torch_archs(version, cuda, "x86_64"):
                yield {**row, **told, "cudnn": known[row["torch"]]["cudnn"].get(cuda)}


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
    for made in known["sets"]:
        made.update(of_set(made))
    save(path, known["sets"], known["failed"])
    about = (
        "Written by make corpus from tests/corpus/releases.json and the tables: nobody ran these."
    )
    lines = ",\n".join(map(json.dumps, rows(known["sets"])))
    text = f'{{"about": {json.dumps(about)}, "sets": [\n{lines}\n]}}\n'
    (DATA / "derived.json").write_text(text)


if __name__ == "__main__":
    main()
