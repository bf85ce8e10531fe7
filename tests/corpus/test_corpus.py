"""The corpus's own parts, without network."""

import json
import os
import sys
from pathlib import Path

import pytest

from corpus import ask, document, plan, workshop
from corpus.compare import Said, Truth, compare, is_cuda_library, same_version, states
from corpus.one import fixes
from cudriver.stack.rulebook import rule_names

EVERY = plan.read_all()


def said(*findings, libraries=(), frameworks=()):
    return Said(0, "consistent", list(findings), list(libraries), list(frameworks))


def finding(rule="CU303", severity="error", title="it breaks", predicts=None, fix=()):
    return {
        "rule": rule,
        "severity": severity,
        "title": title,
        "predicts": predicts,
        "fix": [{"command": line} for line in fix],
        "evidence": [],
    }


def failure(text, step="import torch", module="torch"):
    return {"module": module, "step": step, "text": text}


# --- declarations ------------------------------------------------------------------------------


def test_the_corpus_is_as_large_as_promised():
    assert len(EVERY) >= 60
    assert sum(len(environment.faults) for environment in EVERY) >= 40
    assert len({environment.name for environment in EVERY}) == len(EVERY)


@pytest.mark.parametrize("environment", EVERY, ids=lambda environment: environment.name)
def test_a_declaration_is_whole(environment):
    for package in environment.packages + environment.no_deps:
        assert "==" in package, f"{package} is not pinned"
    assert environment.modules
    assert environment.driver in ("none", "simulated")
    for fault in environment.faults:
        assert set(fault.expect) <= set(rule_names())
        changed = fault.__dict__.keys() - {"name", "about", "expect", "fix", "use"}
        assert any(fault.__dict__[name] for name in changed), f"{fault.name} changes nothing"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python = 3", "python = 3 is not a str"),
        ('pakages = ["numpy==1"]', "'pakages' is none of"),
        ('python = "3.12"', "packages"),
        ("python = ", "a.toml"),
        ('[[fault]]\nname = "x"\n[[fault]]\nname = "x"', "two faults have one name"),
    ],
)
def test_a_bad_declaration_is_refused(tmp_path, text, words):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(plan.DeclarationError, match=r"a\.toml") as caught:
        plan.read(path)
    assert words in str(caught.value)


def test_names_and_prefixes_select():
    names = [environment.name for environment in plan.select(EVERY, ["cpu-*", "none-numpy"])]
    assert "cpu-jax" in names
    assert names[-1] == "none-numpy"
    assert plan.select(EVERY, []) == EVERY
    with pytest.raises(plan.DeclarationError, match="no environment is named 'nope'"):
        plan.select(EVERY, ["nope"])


def test_the_key_follows_all_that_matters():
    one = plan.Environment("a", "3.12", ("numpy==2",), ("numpy",))
    other = plan.Environment("a", "3.12", ("numpy==1",), ("numpy",))
    assert one.key() != other.key()
    assert plan.truth_key(one, None) != plan.truth_key(other, None)
    told = plan.Environment("a", "3.12", ("numpy==2",), ("numpy",), about="a remark")
    assert plan.truth_key(one, None) == plan.truth_key(told, None)
    fault = plan.Fault("x", delete=("a",))
    assert plan.truth_key(one, fault) != plan.truth_key(one, None)


def test_a_fault_is_known_by_what_it_befalls():
    fault = plan.Fault(
        "x", uninstall=("nvidia-nccl-cu12",), install=("torch==2.8.0",), delete=("a/b/libx.so.*",)
    )
    assert fault.words == ("libx.so.", "nvidia-nccl-cu12", "torch")
    assert all(f.words or f.environ or f.check or f.cwd for e in EVERY for f in e.faults)


# --- planting ----------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """A site-packages whose file has a second name, as uv's cache gives it."""
    site = tmp_path / "site"
    (site / "nvidia").mkdir(parents=True)
    (tmp_path / "cached").write_bytes(b"0123456789")
    os.link(tmp_path / "cached", site / "nvidia" / "liba.so")
    (site / "a-1.dist-info").mkdir()
    (site / "a-1.dist-info" / "METADATA").write_text("Name: a\n")
    return site


@pytest.mark.parametrize(
    ("how", "size"), [("half", 5), ("empty", 0), ("pointer", len(workshop.LFS_POINTER))]
)
def test_a_damaged_file_leaves_the_cache_whole(linked, how, size):
    workshop.plant(linked, plan.Fault("x", **{how: ("nvidia/lib*.so",)}))
    assert (linked / "nvidia" / "liba.so").stat().st_size == size
    assert (linked.parent / "cached").read_bytes() == b"0123456789"


def test_files_are_deleted_replaced_copied_and_linked(linked):
    workshop.plant(linked, plan.Fault("x", folder=("nvidia/liba.so",)))
    assert (linked / "nvidia" / "liba.so").is_dir()
    workshop.plant(linked, plan.Fault("x", copy={"a-1.dist-info": "a-2.dist-info"}))
    assert (linked / "a-2.dist-info" / "METADATA").exists()
    workshop.plant(linked, plan.Fault("x", link={"a-2.dist-info": "/nowhere"}))
    assert os.readlink(linked / "a-2.dist-info") == "/nowhere"
    workshop.plant(linked, plan.Fault("x", delete=("nvidia",)))
    assert not (linked / "nvidia").exists()
    with pytest.raises(workshop.InstallError, match=r"nothing matches gone\.so"):
        workshop.plant(linked, plan.Fault("x", half=("gone.so",)))


def test_a_file_with_two_names_counts_once(linked):
    both = workshop.used(linked.parent)
    (linked.parent / "cached").unlink()
    assert workshop.used(linked.parent) == both


def test_what_was_used_longest_ago_leaves_the_cache_first(tmp_path, monkeypatch):
    monkeypatch.setattr(workshop.shutil, "which", lambda *_, **__: "/usr/bin/uv")
    shop = workshop.Workshop(tmp_path, limit=100)
    names = {f"package-{number:03}": float(number) for number in range(100)}
    shop.recent.write_text(json.dumps(names))
    sizes = iter([150, 120, 70])
    monkeypatch.setattr(workshop, "used", lambda folder: next(sizes))
    cleaned = []
    monkeypatch.setattr(shop, "run", lambda *words: cleaned.extend(words[4:]))
    shop.prune()
    assert cleaned == sorted(names)[: 2 * workshop.BATCH]
    assert set(json.loads(shop.recent.read_text())) == set(names) - set(cleaned)


def test_a_cache_within_its_limit_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(workshop.shutil, "which", lambda *_, **__: "/usr/bin/uv")
    shop = workshop.Workshop(tmp_path, limit=10**9)
    monkeypatch.setattr(shop, "run", lambda *words: pytest.fail(f"runs {words}"))
    shop.cache.mkdir()
    shop.prune()


# --- asking ------------------------------------------------------------------------------------


def here(tmp_path: Path) -> Path:
    """This interpreter as an environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def test_a_child_tells_what_failed_and_what_was_mapped(tmp_path):
    prefix = here(tmp_path)
    truth = ask.truth(prefix, ("json", "nosuchmodule"), dict(os.environ), tmp_path)
    shown = truth.failures[0].pop("shown")  # as a user reads it
    assert shown.startswith("Traceback")
    assert shown.strip().endswith("ModuleNotFoundError: No module named 'nosuchmodule'")
    assert truth.failures == [
        {
            "module": "nosuchmodule",
            "step": "import nosuchmodule",
            "text": "ModuleNotFoundError: No module named 'nosuchmodule'",
        }
    ]
    assert any("/libc.so" in path or "/libc-" in path for path in truth.mapped)


def test_a_child_that_dies_is_told_from_one_that_answers(tmp_path):
    code = ("import os; os.write(2, b'no such library\\n'); os.abort()",)
    truth = ask.truth(here(tmp_path), ("json",), dict(os.environ), tmp_path, code)
    assert [f["text"] for f in truth.failures] == ["died: SIGABRT"]
    assert truth.failures[0]["shown"] == "no such library\nAborted"
    assert truth.mapped == {}


def test_what_a_child_wrote_before_it_ended(tmp_path):
    """As the dynamic loader does, which knows no exception."""
    code = ("import os; os.write(2, b'Inconsistency detected by ld.so\\n'); os._exit(127)",)
    truth = ask.truth(here(tmp_path), ("json",), dict(os.environ), tmp_path, code)
    (failure,) = truth.failures
    assert failure["text"] == "died: status 127: Inconsistency detected by ld.so"


def test_what_breaks_a_submodule_alone_is_a_failure(tmp_path):
    """Public ones alone, each in turn, past one that its process dies of."""
    files = {
        "__init__": "",
        "sound": "",
        "lacking": "import nosuch",
        "dies": "import os; os.abort()",
    }
    files |= {"_own": "1/0", "tests/__init__": "1/0", "deep/__init__": "", "deep/zed": ""}
    for name, text in files.items():
        path = tmp_path / f"parts/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ, prefix = {**os.environ, "PYTHONPATH": str(tmp_path)}, here(tmp_path)
    healthy = ask.truth(prefix, ("parts",), environ, tmp_path, submodules=())
    assert healthy.submodules == {
        "parts.dies": "died",
        "parts.lacking": "ModuleNotFoundError: No module named 'nosuch'",
        **dict.fromkeys(["parts.deep", "parts.deep.zed", "parts.sound"]),
    }
    (tmp_path / "parts/deep/zed.py").unlink()
    truth = ask.truth(prefix, ("parts",), environ, tmp_path, submodules=healthy.submodules)
    text = "ModuleNotFoundError: No module named 'parts.deep.zed'"
    gone = {"module": "parts", "step": "submodule parts.deep.zed", "text": text}
    assert truth.broke(healthy) == [gone]
    truth.failures += truth.broke(healthy)
    assert compare(truth, said()).misses == [f"submodule parts.deep.zed: {text}"]
    warned = finding(severity="warning", title="parts/deep/zed.py, a file of parts, is gone")
    assert compare(truth, said(warned)).misses == []


def test_an_interpreter_that_is_gone_is_a_failure(tmp_path):
    truth = ask.truth(tmp_path, ("json",), dict(os.environ), tmp_path)
    assert [f["text"] for f in truth.failures] == ["python: No such file or directory"]


def test_a_check_that_prints_no_report_is_an_error_of_the_check(tmp_path):
    with pytest.raises(ask.CheckError, match="status 0, no output"):
        ask.said("true", tmp_path, dict(os.environ), tmp_path)


# --- comparing ---------------------------------------------------------------------------------

GONE = "libcudnn.so.9: cannot open shared object file: No such file or directory"


def test_an_error_that_carries_the_text_is_right():
    outcome = compare(
        Truth([failure(f"ImportError: {GONE}")]),
        said(finding(predicts=GONE)),
    )
    assert (outcome.right_errors, outcome.found, outcome.texts_right) == (1, 1, 1)
    assert outcome.false_alarms == outcome.misses == []


def test_a_text_that_an_exception_was_raised_from_is_read_too():
    told = failure("OSError: Could not load this library: /a/_torchaudio.abi3.so")
    assert compare(Truth([told]), said(finding(predicts=GONE))).false_alarms
    told["shown"] = f"OSError: {GONE}\n\nThe above exception was ...\n\n{told['text']}\n"
    outcome = compare(Truth([told]), said(finding(predicts=GONE)))
    assert (outcome.right_errors, outcome.found, outcome.texts_right) == (1, 1, 1)


def test_an_error_without_a_failure_is_a_false_alarm():
    outcome = compare(Truth(), said(finding(predicts=GONE), finding(severity="warning")))
    assert outcome.false_alarms == ["CU303 it breaks"]


def test_a_second_error_that_names_another_library_is_a_false_alarm():
    second = finding("CU305", title="libtorch.so is not found", predicts="libtorch.so: cannot open")
    outcome = compare(
        Truth([failure(f"ImportError: {GONE}")]), said(finding(predicts=GONE), second)
    )
    assert (outcome.right_errors, outcome.false_alarms) == (1, ["CU305 libtorch.so is not found"])


def test_a_failure_without_an_error_is_a_miss_and_a_warning_is_enough_for_a_part():
    warning = finding(severity="warning", predicts=GONE)
    whole = compare(Truth([failure(GONE)]), said(warning))
    part = compare(Truth([failure(GONE, "jax.devices()", "jax")]), said(warning))
    assert whole.misses == [f"import torch: {GONE}"]
    assert (part.found, part.misses) == (1, [])


def test_failures_that_are_nobodys_business_do_not_count():
    outcome = compare(Truth([failure("no FFmpeg here")]), said(), unrelated=("FFmpeg",))
    assert outcome.misses == []


def test_a_rule_that_is_expected_must_fire():
    assert compare(Truth(), said(), expect=("CU501",)).misses == ["CU501 is expected"]
    outcome = compare(Truth(), said(finding("CU501")), expect=("CU501",))
    assert (outcome.right_errors, outcome.found, outcome.false_alarms) == (1, 1, [])


def test_libraries_are_compared_by_file_and_version():
    truth = Truth(
        mapped={"/a/libnccl.so.2": "2.21.5", "/a/libcudart.so.12": "12.4", "/a/libc.so.6": ""}
    )
    rows = [
        {"soname": "libnccl.so.2", "path": "/a/libnccl.so.2", "version": "2.22.3"},
        {"soname": "libcudart.so.12", "path": "/b/libcudart.so.12", "version": "12.4.127"},
    ]
    outcome = compare(truth, said(libraries=rows))
    assert (outcome.libraries, outcome.libraries_right) == (2, 0)
    assert outcome.differences == [
        "libcudart.so.12: predicted /b/libcudart.so.12, mapped /a/libcudart.so.12",
        "libnccl.so.2: predicted version 2.22.3, it says 2.21.5",
    ]
    rows[0]["version"], rows[1]["path"] = "2.21.5", "/a/libcudart.so.12"
    assert compare(truth, said(libraries=rows)).libraries_right == 2
    assert compare(truth, said()).differences[0].endswith("not predicted: /a/libcudart.so.12")


def test_what_torch_says_of_itself_is_compared():
    truth = Truth(
        values={"torch.version.cuda": "12.4", "torch.backends.cudnn.version()": "90100"},
    )
    torch = {"name": "torch", "cuda": "12.4", "cudnn": "9.1.0", "nccl": None}
    assert compare(truth, said(frameworks=[torch])).differences == []
    truth.values["archs"], torch["archs"] = "sm_90 sm_80", ["sm_80", "sm_90"]
    assert compare(truth, said(frameworks=[torch])).differences == []
    truth.values["archs"] = "sm_80"
    assert compare(truth, said(frameworks=[torch])).differences == [
        "architectures: predicted ['sm_80', 'sm_90'], it says ['sm_80']"
    ]
    del truth.values["archs"]
    torch["cudnn"] = None
    assert compare(truth, said(frameworks=[torch])).differences == [
        "torch.backends.cudnn.version(): predicted None, it says 9.1.0"
    ]


def test_nccl_as_torch_states_it_counts_where_it_is_built_in():
    """Elsewhere that is what it was built against; the mapped library answers for itself."""
    truth = Truth(values={"torch.version.cuda": "11.7", "torch.cuda.nccl.version()": "2.14.3"})
    torch = {"name": "torch", "cuda": "11.7", "cudnn": None, "nccl": "2.14.2"}
    assert compare(truth, said(frameworks=[torch])).differences == [
        "torch.cuda.nccl.version(): predicted 2.14.2, it says 2.14.3"
    ]
    rows = [{"soname": "libnccl.so.2", "path": "/a/libnccl.so.2", "version": "2.14.2"}]
    assert compare(truth, said(frameworks=[torch], libraries=rows)).differences == []


def test_small_judgements():
    assert is_cuda_library("/x/libcudart-9335f6a2.so.12.2.140")
    assert not is_cuda_library("/x/libcuda.so.1")
    assert same_version("12.4", "12.4.127")
    assert not same_version("12.4", "12.8.90")


def test_fixes_are_those_of_the_errors_or_of_new_warnings():
    error = finding(fix=["a"])
    old = finding("CU402", "warning", "old", fix=["b"])
    new = finding("CU402", "warning", "new", fix=["c", "d"])
    known = {("CU402", "old")}
    assert fixes(said(error, old, new), known) == ["a"]
    assert fixes(said(old, new), known) == ["c", "d"]
    assert fixes(said(error, error), known) == ["a"]


def test_each_state_stands_beside_what_happened():
    """The first module of a group ends it; a use that fails is told from an import."""
    names = {"torch": "works", "jax": "CPU only", "cupy": "not known", "x": "works", "y": "fails"}
    told = said(frameworks=[{"name": name, "state": state} for name, state in names.items()])
    broken = [failure("no", "jax.devices()", "jax"), failure("no", "import y", "y")]
    truth = Truth([*broken, failure("ours", "import torch", "torch")])
    groups = ("torch", "jax", "y.core+x", "cupy")
    assert states(truth, told, groups, ("ours",)) == [
        ["torch", "works", "works"],
        ["jax", "CPU only", "a use fails"],
        ["cupy", "not known", "works"],
        ["y", "fails", "the import fails"],  # and x was not tried
    ]


# --- the document ------------------------------------------------------------------------------


def row(name="none-numpy", **fields):
    plain = {
        "name": name, "state": "done", "key": "k", "check": "c", "date": "2026-01-01",
        "failures": [], "findings": [], "right_errors": 0, "false_alarms": [], "found": 0,
        "misses": [], "texts_right": 0, "libraries": 0, "libraries_right": 0, "differences": [],
        "faults": [], "seconds": 1.0,
    }  # fmt: skip
    return {**plain, **fields}


def test_totals_are_sums_over_environments_and_faults():
    fault = row("x", right_errors=1, found=1, libraries=2, libraries_right=1)
    fault["fix"] = {"state": "failed", "commands": ["pip install x"], "reason": "left: CU303"}
    totals = document.Totals(
        [
            row(false_alarms=["CU305 a"], misses=["import b: c"], faults=[fault]),
            {"name": "y", "state": "not installed", "reason": "no wheel"},
        ]
    )
    assert (totals.environments, totals.faults, totals.not_installed) == (1, 1, 1)
    assert (totals.precision, totals.recall) == (0.5, 0.5)
    assert (totals.libraries_right, totals.libraries) == (1, 2)
    assert (totals.fixes_work, totals.fixes) == (0, 1)
    assert document.Totals([]).precision == 1.0


def test_the_document_lists_what_stays_wrong_with_its_cause():
    environments = [e for e in EVERY if e.name in ("none-numpy", "cpu-jax")]
    alarm = "CU305 /a/b/lib/python3.12/site-packages/x/libx.so is not found"
    done = {"none-numpy": row(false_alarms=[alarm])}
    notes = {"cause": {"none-numpy": "A reason."}, "unavailable": {"dgl": "no wheel"}}
    text = document.write(environments, done, notes)
    assert "- **none-numpy**: A reason.\n  - false alarm: CU305 x/libx.so is not found\n" in text
    assert "| cpu-jax | 3.12 | jax==0.12.0.1 | not run |" in text
    assert "| precision | 0.00 (0 right, 1 false) |" in text
    assert "- dgl: no wheel" in text
    assert "/a/b" not in text
    assert "Other tools" not in text
    told = {"pip check": {"named": True, "seconds": 1.0}}
    faults = [row("f", others=told, misses=["x"]), row("g")]
    for fault in faults:
        fault["fix"] = {"state": "none"}
    text = document.write(environments, {"none-numpy": row(faults=faults)}, notes)
    assert "| the check says | works" not in text  # rows of before have no states
    seen = [["a", "works", "works"], ["b", "works", "a use fails"], ["c", "fails", "works"]]
    counted = document.write(environments, {"none-numpy": row(states=seen)}, notes)
    assert "| works | 1 | 1 |  | 1 of 2 |" in counted
    assert "| fails | 1 |  |  | 0 of 1 |" in counted
    assert "| pip check | 1 | 1 of 1: 1.00" in text
    assert "| cudriver check | 1 | 0 of 1: 0.00" in text
    assert str(document.ROOT) not in document.write(
        environments, {"none-numpy": row(misses=[f"import x: in {document.ROOT}/tests"])}, notes
    )
