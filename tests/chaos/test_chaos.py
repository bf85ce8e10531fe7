"""The parts of `make chaos`, without network: what it plants, what it counts."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos import __main__ as program
from chaos import document, faults
from chaos.score import HARMLESS, OTHER, RIGHT, SILENT, WEAK, score, summary
from corpus import others
from corpus.document import PASTED, RANDOM, WRONG, parts, with_parts

DISTRIBUTIONS = {"alpha": "1.0", "beta": "2.0"}


class Shop:
    """Runs what is a program here; installers are only written down."""

    uv = "uv"

    def __init__(self):
        self.asked = []

    def run(self, *words):
        self.asked.append(words)
        if words[0] != "uv":
            subprocess.run([str(word) for word in words], check=True)

    def install(self, prefix, packages):
        self.asked.append(("install", prefix, *packages))

    def remove(self, prefix):
        shutil.rmtree(prefix, ignore_errors=True)
        shutil.rmtree(f"{prefix}.side", ignore_errors=True)


@pytest.fixture
def healthy(tmp_path):
    """An environment of two small distributions, with a cache that shares its files."""
    prefix, cache = tmp_path / "healthy", tmp_path / "cache"
    site = prefix / "lib" / "python3.12" / "site-packages"
    cache.mkdir()
    for name, version in DISTRIBUTIONS.items():
        files = {
            f"{name}/__init__.py": b"import os\n" * 900,
            f"{name}/core.py": b"x = 1\n",
            f"{name}/fast.so": b"\x7fELF" + bytes(range(256)) * 64,
            f"{name}/data.json": b"{}",
            f"{name}-{version}.dist-info/METADATA": b"Requires-Dist: beta>1\n"
            b"Requires-Dist: alpha[x]; extra == 'all'\n\n",
            "../../../bin/" + name: b"#!/bin/sh\n",
        }
        record = f"{name}-{version}.dist-info/RECORD"
        files[record] = "\n".join(f"{path},," for path in [*files, record]).encode()
        for path, content in files.items():
            file = Path(os.path.normpath(site / path))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            os.link(file, cache / path.replace("/", "!"))
    opened = [str(p.relative_to(prefix)) for p in site.rglob("*") if p.is_file()]
    return prefix, cache, faults.survey(prefix, opened)


def contents(folder):
    """Every file below a folder: its bytes and its mode."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {p: (hashlib.sha256(p.read_bytes()).digest(), p.stat().st_mode) for p in files}


def test_a_seed_draws_one_fault_and_seeds_draw_every_kind(healthy):
    _, _, known = healthy
    drawn = [faults.draw("env", seed, known) for seed in range(600)]
    assert drawn == [faults.draw("env", seed, known) for seed in range(600)]
    assert drawn[0] != faults.draw("another", 0, known)
    kinds = {fault.kind for fault in drawn}
    assert kinds == {*faults.FILE, *faults.LIBRARY, *faults.DISTRIBUTION}


def test_what_only_an_extra_requires_is_not_uninstalled(healthy):
    _, _, known = healthy
    assert known.required == {"beta"}
    drawn = [faults.draw("env", seed, known) for seed in range(600)]
    assert {fault.target for fault in drawn if fault.kind == "uninstall"} == {"beta"}


def test_no_fault_reaches_the_environment_or_the_cache(healthy):
    prefix, cache, known = healthy
    before, shared = contents(prefix), contents(cache)
    met = Counter()
    for seed in range(250):
        fault = faults.draw("env", seed, known)
        if fault.kind in ("uninstall", "other version"):
            continue  # uv's
        planted = faults.plant(Shop(), prefix, known, fault)
        changed = {
            path.relative_to(planted.prefix): content
            for path, content in contents(planted.prefix).items()
        } != {path.relative_to(prefix): content for path, content in before.items()}
        trivial = fault.kind.startswith("zero") or fault.kind in ("truncate", "other machine")
        assert changed or planted.environ or trivial, fault
        met[fault.kind] += changed or bool(planted.environ)
        Shop().remove(planted.prefix)
    assert contents(prefix) == before
    assert contents(cache) == shared
    assert set(met) == {*faults.LIBRARY, *faults.DISTRIBUTION} - {"uninstall", "other version"}


def test_some_faults_are_in_what_nothing_opens(healthy):
    prefix, _, known = healthy
    known = faults.survey(prefix, [path for path in known.opened if "core" not in path])
    drawn = [faults.draw("env", seed, known) for seed in range(200)]
    idle = sum("core.py" in fault.target for fault in drawn)
    assert 10 < idle < 60


def test_a_distribution_is_known_by_its_libraries():
    fault = faults.Fault(1, "uninstall", "beta", "", 0, ("fast.so",))
    assert set(fault.words) == {"beta", "fast.so"}


def test_other_versions_are_asked_without_what_they_require(healthy):
    prefix, _, known = healthy
    shop = Shop()
    faults.plant(shop, prefix, known, faults.Fault(1, "other version", "beta", "", 0))
    assert shop.asked[-1] == ("install", prefix.with_name("healthy@1"), "beta<2.0")
    faults.plant(shop, prefix, known, faults.Fault(1, "uninstall", "beta", "", 0))
    assert shop.asked[-1][-1] == "beta"


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("empty", 7, b""),
        ("truncate", 5003, b"a" * 5003),
        ("zero head", 0, bytes(4096) + b"a" * 5904),
        ("zero tail", 9000, b"a" * 9000 + bytes(1000)),
        ("zero page", 9000, b"a" * 8192 + bytes(1808)),
        ("zero page", 5000, b"a" * 4096 + bytes(4096) + b"a" * 1808),
        ("other machine", 0, b"a" * 18 + b"\xb7\0" + b"a" * 9980),
    ],
)
def test_damage_keeps_what_it_says(kind, number, expected):
    assert faults.damaged(faults.Fault(0, kind, "x", "", number), b"a" * 10000) == expected


# --- the score ---------------------------------------------------------------------------------

WORDS = ("_core.so", "cupy-cuda12x")
IMPORT = {"module": "cupy", "step": "import cupy", "text": "ImportError: _core.so: file too short"}
USE = {**IMPORT, "step": "cupy.show_config()"}


def finding(severity, title="_core.so is empty", predicts="file too short"):
    rule = {"rule": "CU404", "severity": severity, "title": title, "predicts": predicts}
    return {**rule, "subject": "cupy", "evidence": [], "fix": []}


@pytest.mark.parametrize(
    ("failures", "findings", "outcome"),
    [
        ([IMPORT], [finding("error")], RIGHT),
        ([IMPORT], [finding("warning")], WEAK),
        ([IMPORT], [finding("note")], SILENT),
        ([IMPORT], [], SILENT),
        ([IMPORT], [finding("error", predicts="another text")], RIGHT),
        ([IMPORT], [finding("error", "libcudart is missing", "file too short")], OTHER),
        ([IMPORT], [finding("error", "libcudart is missing", "'nothing'")], SILENT),
        ([USE], [finding("warning")], RIGHT),
        ([], [], HARMLESS),
    ],
)
def test_an_outcome_is_by_severity_and_cause(failures, findings, outcome):
    assert score(WORDS, failures, findings).outcome == outcome


def test_what_is_said_besides_counts():
    false = score(WORDS, [], [finding("error")])
    assert false.outcome == HARMLESS
    assert false.false_errors == ["CU404 _core.so is empty"]
    told = score(WORDS, [], [finding("warning")])
    assert not told.false_warnings  # it is so, though nothing needs the file
    other = score(WORDS, [], [finding("warning", "libcudart is missing", None)])
    assert other.false_warnings == ["CU404 libcudart is missing"]


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),  # SciPy: binomtest(right, of).proportion_ci(method="wilson")
    [(24, 34, 0.53831, 0.83165), (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0)],
)
def test_intervals_are_those_of_scipy(right, of, low, high):
    assert others.wilson(right, of) == pytest.approx((low, high), abs=1e-4)


def test_a_run_takes_a_seed_of_each_environment_before_the_next_seed(monkeypatch, tmp_path):
    class Healthy:
        def __init__(self, wanted, *_):
            self.name = wanted.name

        def examine(self, seed, run_commands):
            assert run_commands
            return {"environment": self.name, "seed": seed}

    for name in ("simulated_driver", "fingerprint", "one_line"):
        monkeypatch.setattr(program, name, lambda *_: "x")
    monkeypatch.setattr(program, "Healthy", Healthy)
    given = SimpleNamespace(
        check="", others=False, run_commands=True, jobs=1, results=tmp_path / "results.jsonl"
    )
    chosen = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    rows = program.run(given, chosen, range(3, 5), SimpleNamespace(folder=""), {("b", 3)})
    expected = [("a", 3), ("a", 4), ("b", 4)]
    assert [(row["environment"], row["seed"]) for row in rows] == expected
    kept = [json.loads(line) for line in given.results.read_text().splitlines()]
    assert [(row["environment"], row["seed"]) for row in kept] == expected


def test_the_summary_counts_what_breaks(healthy):
    _, _, known = healthy
    rows = []
    for seed, severity in enumerate(["error", "error", "warning", None]):
        told = score(WORDS, [IMPORT], [finding(severity)] if severity else [])
        fault = faults.draw("env", seed, known).__dict__
        rows.append({"environment": "env", "seed": seed, "state": "done", "fault": fault})
        rows[-1]["score"] = told.__dict__
    rows[0]["fix"] = {"state": "works"}
    lines = summary(rows).splitlines()
    assert lines[0].startswith("4 faults in 1 environments, 4 of them break")
    assert "2 of 4: 0.50 (0.15 to 0.85)" in lines[1]
    assert "3 of 4: 0.75" in lines[2]  # a warning names it
    assert "1 of 1" in lines[4]


def test_learning_writes_down_what_an_import_opens(tmp_path):
    """In this Python: what it opens lies in its own prefix."""
    learn = Path(__file__).with_name("learn.py")
    out, answer = tmp_path / "opened.json", tmp_path / "answer.json"
    subprocess.run([sys.executable, learn, out, answer, "numpy"], check=True, timeout=120)
    text = out.read_text()
    assert "numpy/__init__.py" in text
    assert "_multiarray_umath" in text
    assert '"/' not in text


@pytest.mark.parametrize(
    ("after", "found"),
    [("torch 2.8\n", False), ("torch 2.8\nNo module named alpha_core\n", True), ("", False)],
)
def test_another_tool_names_a_cause_where_it_says_so_only_now(after, found):
    before = "alpha-core is fine\ntorch 2.8\n"
    assert others.named(before, after, ("Alpha-Core",)) == found


def test_other_tools_are_asked_the_same(healthy, tmp_path):
    prefix, _, _ = healthy
    (prefix / "bin").mkdir(exist_ok=True)
    (prefix / "bin" / "python").write_text('#!/bin/sh\nls "$(dirname "$0")"/../lib/*/*/alpha\n')
    (prefix / "bin" / "python").chmod(0o755)
    shop = Shop()
    shop.folder = tmp_path
    asked = others.Others(shop, prefix, os.environ)
    assert [words[-1] for words in shop.asked] == ["cuda-doctor==0.2.0", "env-doctor==0.3.5"]
    site = prefix / "lib" / "python3.12" / "site-packages"
    (site / "alpha" / "core.py").rename(site / "alpha" / "soul.py")
    told = asked.ask(prefix, os.environ, ("soul.py",))
    assert len(told) == 3
    assert all(each["named"] for each in told.values())
    lines = others.table([(told, True), ({}, False), (told, False)])
    assert any(line.startswith("| pip check | 2 | 2 of 2: 1.00") for line in lines)
    assert lines[-1].startswith("| cudriver check | 2 | 1 of 2: 0.50")
    assert others.table([({}, True)]) == []


PAGE = "# A\n\n- **fixes**: b\n\n## What stays wrong\n\nNothing.\n\n## Environments\n\nc\n"


def test_a_page_keeps_what_a_run_wrote():
    """The corpus writes the page anew, and leaves these two parts as they are."""
    new = {RANDOM: f"{RANDOM}\n\n| a |", WRONG: f"{WRONG}\n\n- b\n  - c"}
    page = with_parts(PAGE, new)
    order = [page.index(text) for text in (RANDOM, "| a |", "## What stays", WRONG, "## Env")]
    assert order == sorted(order)
    assert parts(page) == new
    assert with_parts(page, new) == page
    assert with_parts(page, {}) == PAGE
    assert with_parts(PAGE, parts(page)) == page


def test_what_is_written_by_hand_stays_on_the_page():
    by_hand = f"{PASTED}\n\n| a |\n\nb"
    page = with_parts(PAGE, {PASTED: by_hand})
    for new in ({}, {RANDOM: f"{RANDOM}\n\nc", WRONG: f"{WRONG}\n\nd"}):
        page = with_parts(page, new)
        assert parts(page) == {PASTED: by_hand, **new}
        assert with_parts(PAGE, parts(page)) == page


def test_all_that_is_wrong_stands_on_the_page():
    fault = asdict(faults.Fault(7, "delete", "lib/python3.12/site-packages/a/b.py", "a", 0))
    failures = [{"step": "import a", "module": "a", "text": "ImportError: no"}]
    rows = []
    for number, outcome in enumerate((RIGHT, WEAK, OTHER, SILENT, HARMLESS)):
        told = {"outcome": outcome, "text": outcome == RIGHT, "false_warnings": []}
        told["false_errors"] = ["CU404 of x"] * (outcome == HARMLESS)
        row = {"environment": "e", "seed": number, "fault": fault, "state": "done", "check": "c"}
        rows.append({**row, "failures": failures, "score": told})
    rows[3]["verified"] = [finding("warning", "b.py is not as it was"), finding("error", "of y")]
    rows[0]["fix"] = {"state": "failed", "reason": "left: /home/me/environments/e@0/a"}
    rows.append({"environment": "e", "seed": 9, "fault": fault, "state": "failed", "reason": "x"})
    figures, text = document.figures(rows, "commit 1"), document.wrong(rows)
    assert "| e | 5 | 4 | 1 of 4: 0.25 (0.05 to 0.70) | 3 of 4: 0.75 (0.30 to 0.95) |" in figures
    assert text.count("`--verify` does not name it either") == 0
    assert "false, with `--verify`: CU404 of y" in text
    assert "commit 1, check c" in figures
    assert "seeds 0 to 4" in figures
    assert "commands run for 1 of" in figures
    assert document.BESIDE not in figures
    assert "of check" not in figures
    rows[1].update(check="d", seed=7)
    assert "seeds 0 to 0, 2 to 4, 7 to 7;" in document.figures(rows, "commit 1")
    assert "| of check d | 1 | " in document.figures(rows, "commit 1")
    rows[1].update(check="c", seed=1)
    before = f"{RANDOM}\n\n| old | 1 |\n\n{document.BESIDE}\n\n| pip check | 0 |"
    again = document.figures(rows, "commit 1", before)
    assert again == f"{figures}\n\n{document.BESIDE}\n\n| pip check | 0 |"
    assert text.count("`a/b.py`") == 6
    assert "left: e@0/a" in text
    assert "false error: CU404 of x" in text
    assert "only a warning; what happens: ImportError: no" in text
    assert "only its text is not what the user reads" not in text
    rows[0]["score"]["text"] = False
    assert "only its text is not what the user reads: ImportError: no" in document.wrong(rows)
    assert document.wrong(rows[1:1]).endswith("Nothing.")


def test_what_an_error_says_of_other_imports_is_tried(monkeypatch, tmp_path):
    from chaos import __main__ as run
    from corpus.compare import Truth
    from corpus.plan import Environment

    made = object.__new__(run.Healthy)
    made.wanted = Environment("name", "3.12", ("own",), ("own",))
    made.prefix, made.driver, made.kept = tmp_path / "healthy", None, lambda *what: None
    asked = []

    def truth(prefix, modules, environ, cwd, code=(), kept=None):
        asked.append((prefix.name, *modules, *code))
        sick = prefix.name == "broken" or modules == ("always",)
        return Truth(failures=[{"step": f"import {modules[0]}"}] if sick else [])

    monkeypatch.setattr(run.ask, "truth", truth)
    values = ["import own fails", "import other fails, too", "import always fails", None]
    values += ["torch needs it to compute linear algebra on the GPU", "triton needs it to use CUDA"]
    evidence = [{"value": value} for value in values]
    said = [{"severity": s, "evidence": evidence} for s in ("error", "warning")]
    said[0]["predicts"] = "module 'bare' has no attribute"
    fault = faults.Fault(1, "delete", "file", "own", 1)
    found = made.claimed(tmp_path / "broken", {}, fault, said)
    names = ("bare", "other", "torch", "triton")
    assert [each["step"] for each in found] == [f"import {name}" for name in names]
    assert ("broken", "torch", run.USES["compute linear algebra on the GPU"]) in asked
