"""Runs the corpus: installs, imports, checks, compares; writes docs/accuracy-tables.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from corpus import derived, document, proven
from corpus.one import examine
from corpus.plan import DeclarationError, Environment, read_all, read_notes, select
from corpus.workshop import InstallError, Workshop

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "corpus" / "results.jsonl"
CACHE = Path(os.environ.get("CUDRIVER_TEST_CACHE", "~/.cache/cudriver-tests")).expanduser()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make corpus", description=__doc__)
    add = parser.add_argument
    add("name", nargs="*", help="these environments; a name may end in * (default: all)")
    add("--again", action="store_true", help="also what is done and has not changed since")
    add("--wrong", action="store_true", help="only what is not done, or was not right")
    add("--ci", action="store_true", help="only those marked for CI; the document stays as it is")
    add("--check", default=str(Path(sys.executable).with_name("cudriver")), help="cudriver itself")
    add("--limit", type=float, default=24.0, help="gigabytes kept in the cache (24)")
    add("--uv-cache", type=Path, help="uv's cache, where several runs go on side by side")
    add("--keep-truth", action="store_true", help="take the imports' outcome of an earlier run")
    add("--others", action="store_true", help="also ask pip check and other tools of the faults")
    add("--no-faults", action="store_true", help="the environments as they are")
    add("--results", type=Path, default=RESULTS, help="the JSON lines to read and to add to")
    add("--document", type=Path, default=ROOT / "docs" / "accuracy-tables.md")
    add("--only-document", action="store_true", help="write the document from the results")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    try:
        every = read_all()
        named = every + proven.declared()
        chosen = select([e for e in every if e.ci] if given.ci else named, given.name)
    except DeclarationError as error:
        print(error, file=sys.stderr)
        return 2
    given.results.parent.mkdir(parents=True, exist_ok=True)
    done = read_results(given.results)
    if not given.only_document:
        try:
            shop = Workshop(CACHE / "corpus", int(given.limit * 1e9), given.uv_cache)
        except InstallError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 77
        shop.keeps_truth = given.keep_truth
        driver = simulated_driver(given.check, shop.folder)
        for number, wanted in enumerate(chosen, 1):
            version = fingerprint(given.check)  # it may be installed anew meanwhile
            if not given.again and is_done(done.get(wanted.name), wanted, version, given.wrong):
                continue
            if given.no_faults:
                wanted = Environment(**{**wanted.__dict__, "faults": ()})
            result = examine(wanted, shop, given.check, driver, given.others)
            result.update(check=version, date=time.strftime("%Y-%m-%d"))
            with open(given.results, "a") as file:
                file.write(json.dumps(result) + "\n")
            done[wanted.name] = result
            print(f"[{number}/{len(chosen)}] {document.one_line(result)}", flush=True)
            shop.remove(shop.prefix(wanted))
            shop.prune()
    if given.ci and all(done[e.name]["state"] == "not installed" for e in chosen):
        print(f"skipped: nothing can be installed: {done[chosen[0].name]['reason']}")
        return 77
    rows = [done[e.name] for e in chosen if e.name in done]
    if not given.ci and not given.name:
        kept = document.parts(given.document.read_text()) if given.document.exists() else {}
        page = document.write(every, done, read_notes())
        given.document.write_text(document.with_parts(page, kept))
    if not given.ci:
        proven.write(every, done)
        derived.main()
    print(document.Totals(rows).line())
    unknown = document.unexplained(rows, read_notes().get("cause", {}))
    for name in unknown:
        print(f"wrong, and notes.toml names no cause: {name}")
    return 1 if unknown else 0


def is_done(old: dict | None, wanted: Environment, version: str, only_wrong: bool) -> bool:
    """Whether an earlier result still holds; `only_wrong`: or is good enough to be kept."""
    if old is None or old["state"] != "done" or old["key"] != wanted.key():
        return False
    if only_wrong:
        return not document.unexplained([old], {})
    return bool(old["check"] == version)


def read_results(path: Path) -> dict[str, dict]:
    """The last line of each environment."""
    results: dict[str, dict] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            results[row["name"]] = row
    return results


def fingerprint(check: str) -> str:
    """A short hash of the check's own files: a result belongs to them."""
    python = Path(check).with_name("python")
    code = "import cudriver.stack, os; print(os.path.dirname(cudriver.stack.__file__))"
    folder = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256()
    for path in sorted(Path(folder.strip()).rglob("*")):
        if path.is_file() and path.suffix in (".py", ".json", ".toml"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def simulated_driver(check: str, folder: Path) -> Path | None:
    """A folder with the simulated driver under libcuda's name."""
    python = Path(check).with_name("python")
    code = "import cudriver, os; print(os.path.dirname(cudriver.__file__))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    library = Path(done.stdout.strip()) / "libcudriver_sim.so"
    if not library.exists():
        return None
    place = folder / "driver"
    place.mkdir(exist_ok=True)
    shutil.copy2(library, place / "libcuda.so.1")
    return place


if __name__ == "__main__":
    sys.exit(main())
