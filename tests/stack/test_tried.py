"""Fixes are tried on a copy of the facts: what cannot heal is not told."""

import re

import cases
import pytest
from facts import (
    SITE,
    environment,
    facts,
    fault,
    kin,
    library,
    torch,
    wheel,
)
from synth import Prefix

from cudriver.stack import inspect
from cudriver.stack.command import Command
from cudriver.stack.facts import Evidence, FileFault, Shadowed, every
from cudriver.stack.fixes import after, tried
from cudriver.stack.fixes.fix import install, uninstall
from cudriver.stack.fixes.library_fixes import leak
from cudriver.stack.record import but, put
from cudriver.stack.report import Report
from cudriver.stack.rules import judge, registry
from cudriver.stack.rules.finding import finding

CUDNN = f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"


def fixes(of, rule, recollect=None):
    """The fixes of a rule's only error or warning, and whether they are proven."""
    told = [f for f in every(judge(of, None, recollect)) if f.severity != "note"]
    (found,) = [f for f in told if f.rule == rule]
    return found.fix, found.proven


@pytest.mark.parametrize("name", cases.tried()[1])
def test_a_case(name):
    cases.check_fixes(name)


def test_a_fix_heals_the_cause_that_it_takes_away():
    """Two of one rule and subject: what installs the one does not heal the other."""
    of = facts(distributions=[wheel("torch", "2.8.0")])

    def lacking(of):
        for name in ("sympy", "networkx"):
            if of.distribution(name) is None:
                fix = [install(of.environment, name)]
                yield finding("error", f"no {name}", (), None, fix, "torch", name)

    first, second = judge(of, {"CU402": lacking})
    assert [each.fix[0].split()[-1] for each in (first, second)] == ["sympy", "networkx"]
    assert first.proven
    assert second.proven


def test_a_fix_is_tried_without_the_imports_that_failed_and_were_told():
    """They failed before it; one that no rule explains goes on failing, whatever is tried."""

    def lacking(of):
        if of.distribution("sympy") is None:
            fix, fails = [install(of.environment, "sympy")], Evidence("x", None, "import x fails")
            found = finding("error", "no sympy", [fails], "old", fix, "x", "sympy")
            yield but(found, rule="CU402")

    rules = {"CU402": lacking, "CU603": registry()["CU603"]}
    for imports in ({"x": "old"}, {"x": "old", "y": "?"}):
        found = judge(facts(imports=imports), rules)
        assert [f.proven for f in found if f.rule == "CU402"] == [True]
        assert [f.proven for f in found if f.rule == "CU603"] == [False] * ("y" in imports)


def sized(**sizes):
    return facts(distributions=[wheel(name, "1.0", size=size) for name, size in sizes.items()])


def test_what_a_command_downloads_is_not_known_where_one_size_is_not():
    command = install(environment(), "a", "b", again=True)
    assert after.downloads(sized(a=10, b=20), command) == 30
    assert after.downloads(sized(a=10, b=None), command) is None


@pytest.mark.parametrize(("a", "b", "cheaper"), [(10, 20, "a"), (20, 10, "b")])
def test_of_two_fixes_the_cheaper_is_told(a, b, cheaper):
    """What has no fix of its own gets one of those that take as much away."""

    def lacking(of):
        old = [name for name in "ab" if of.distribution(name).version == "1.0"]
        for name in old:
            fix = [install(of.environment, f"{name}==2.0")]
            yield finding("error", f"old {name}", (), None, fix, "torch", name)
        if len(old) == 2:
            yield finding("error", "both are old", (), None, ["Ask."], "torch", "c")

    told = judge(sized(a=a, b=b), {"CU402": lacking})
    (with_more,) = [each for each in told if each.also]
    assert [each.title for each in with_more.also] == ["both are old"]
    assert with_more.title == f"old {cheaper}"


def test_a_local_build_is_replaced_by_the_index_own_of_that_release():
    """What a build requires is not known of the one that takes its place."""
    of = facts(distributions=[wheel("torchvision", "0.23.0+cpu", "torch==2.8.0")])
    command = install(of.environment, "torchvision==0.23.0", again=True, alone=True)
    assert after.after(of, [command], None).distribution("torchvision").requires == []


@pytest.mark.parametrize("behind", [False, True])
def test_what_a_removed_package_brought_is_lost_unless_another_stands_behind_it(behind):
    of = facts(distributions=[old := wheel("nvidia-nccl-cu11", "2.14.3")])
    shadowed = [Shadowed("/usr/lib/libnccl.so.2", "cache")] * behind
    own = {"provided_by": "nvidia-nccl-cu11 2.14.3", "needed_by": ["x"], "shadowed": shadowed}
    nccl = library("libnccl.so.2", "2.14.3", "nccl", **own)
    put(of, libraries=[nccl], frameworks=[torch(loads=[nccl.path])])
    lost = after.after(of, [uninstall(of.environment, old)], None).load_faults
    assert [fault.name for fault in lost] == ["libnccl.so.2"] * (not behind)


@pytest.mark.parametrize("folder", ["/old", SITE])
def test_pip_leaves_what_a_folder_of_pythonpath_has(folder):
    old = wheel("typing-extensions", "4.5.0", location=folder)
    of = facts(environment=environment(PYTHONPATH="/old"), distributions=[old])
    command = install(of.environment, "typing-extensions>=4.10")
    changed = after.after(of, [command], None).distribution("typing-extensions")
    assert (changed.version == "4.5.0") == (folder == "/old")


@pytest.mark.parametrize(("release", "cuda"), [("0.16.0", "12.1"), ("0.14.0", "11.7")])
def test_only_a_torchvision_that_goes_with_pytorch_is_built_for_its_cuda(release, cuda):
    of = facts(
        distributions=[wheel("torch", "2.1.2"), wheel("torchvision", "0.15.2")],
        frameworks=[
            torch("2.1.2", "12.1"),
            kin("torchvision", "0.15.2+cu117", "11.7", distribution="torchvision"),
        ],
    )
    changed = after.after(of, [install(of.environment, f"torchvision=={release}")], None)
    assert changed.framework("torchvision").cuda == cuda
    assert of.framework("torchvision").cuda == "11.7"


@pytest.mark.parametrize(("folder", "heals"), [("nvidia/cublas/lib", True), ("made/lib", False)])
def test_a_wheel_brings_what_a_recipe_loads_from_it_alone(monkeypatch, folder, heals):
    recipe = {"name": "made", "steps": [{"load": [f"{folder}/libcublas.so.12"]}]}
    monkeypatch.setattr(after, "listed", lambda: [recipe])
    lost = fault("not found", "libcublas.so.12", f"{SITE}/made", "x", framework="made")
    of = facts(load_faults=[lost], distributions=[wheel("made", "1.0")])
    command = install(of.environment, "nvidia-cublas-cu12==12.6.4.1")
    assert (after.after(of, [command], None).load_faults == []) is heals


@pytest.mark.parametrize("meant", [False, True])
def test_what_an_overlay_pins_into_the_environment(meant):
    """What is nowhere else was put there to be used: the variable stays."""
    over = wheel("accelerate", "1.0", "nvidia-cublas-cu12==12.1.3.1", location="/overlay")
    put(over, hides=[] if meant else [f"{SITE}/accelerate-0.9.dist-info"])
    parts = [wheel("torch", "2.8.0"), wheel("nvidia-cublas-cu12", "12.8.4.1")]
    of = facts(environment=environment(PYTHONPATH="/overlay"), distributions=[over, *parts])
    asked = []

    def recollect(changes):
        asked.append(changes)
        return facts(distributions=parts)

    ((fix,), proven) = fixes(of, "CU402", recollect)
    assert proven
    if meant:
        assert "pip install --target /overlay --upgrade nvidia-cublas-cu12==12.1.3.1" in fix
    else:
        assert fix == "unset PYTHONPATH"
    assert asked == ([] if meant else [{"PYTHONPATH": None}])


@pytest.mark.parametrize("same", [False, True])
def test_one_command_mends_two_faults_of_a_variable(same):
    """One command as it stands, since a second one would set the variable back."""
    name = "LD_LIBRARY_PATH"

    def of(value):
        files = [f"{folder}/libcublas.so.12" for folder in (value or "").split(":") if folder]
        return facts(environment=environment(**{name: value or ""}), missing=[], unsure=files)

    def outside(of):
        for file in of.unsure[: 1 if same else 9]:
            if not file.startswith("/good"):
                shadowed = [
                    Shadowed(other, name) for other in of.unsure[1:] if same and "/b" in other
                ]
                found = library("libcublas.so.12", "12.1", "cublas", path=file, shadowed=shadowed)
                fix = leak(of, found)
                subject = "torch" if same else file
                yield finding("error", f"{file} is used", (), None, fix, subject, "outside")

    told = judge(of("/a:/good:/b"), {"CU303": outside}, lambda changes: of(changes[name]))
    assert [f.fix for f in told] == [[f"export {name}=/good"]]
    assert all(f.proven for f in every(told))
    assert len([*every(told)]) == (1 if same else 2)


class TestBounds:
    def test_no_more_than_so_many_are_tried(self, monkeypatch):
        monkeypatch.setattr(tried, "TRIALS", 0)
        of = facts(distributions=[wheel("jax-cuda12-pjrt", "0.6.2")], frameworks=[])
        fix, proven = fixes(of, "CU402")
        assert fix
        assert not proven

    def test_the_facts_stay_as_they_are(self):
        of = cases.of_fixes("a file that its package brings")
        before = of.to_dict()
        assert fixes(of, "CU404")[1]
        assert of.to_dict() == before


def test_a_variable_is_tried_by_looking_again(tmp_path):
    """The oracle is the check itself, asked with that variable."""
    venv = Prefix(tmp_path / "venv").venv()
    venv.wheels({"nvidia-cublas-cu12": "12.8.4.1"})
    over = tmp_path / "overlay"
    over.mkdir()
    venv.dist("accelerate", "1.0", ["nvidia-cublas-cu12==12.1.3.1"], site=over)
    venv.dist("accelerate", "0.9", [])
    report = inspect(str(venv.path), environ={"PYTHONPATH": str(over)}, probe_driver=False)
    (found,) = [f for f in report.findings if f.rule == "CU402"]
    assert (found.fix, found.proven) == (["unset PYTHONPATH"], True)
    assert tried_on_a_copy(report)
    healed = inspect(str(venv.path), environ={}, probe_driver=False)
    assert [f for f in healed.findings if f.rule == "CU402"] == []


def tried_on_a_copy(report):
    """The text, the page and the data all say so; a shell takes each line of it for a remark."""
    told = "tried on a copy of these facts"
    data = report.to_dict()["findings"]
    narrow = report.to_text(width=40).partition("# tried")[2].partition("\n\n")[0].splitlines()
    assert len(narrow) > 1
    assert all(line.lstrip().startswith("# ") for line in narrow[1:])
    return (
        told in str(report)
        and told in report.to_html()
        and any(c["heals"] for f in data for c in f["fix"])
    )


class TestOneCauseIsOneFinding:
    """What the same proven command takes away is told once, with the evidence of both."""

    def of(self):
        return cases.of_fixes("one cause is one finding")

    @pytest.mark.parametrize(
        ("select", "ignore", "left"),
        [
            ([], [], [["CU301", "CU402"]]),
            (["CU4"], [], [["CU402"]]),
            ([], ["CU301"], [["CU402"]]),
            ([], ["CU402"], [["CU301"]]),
            (["CU3", "CU402"], [], [["CU301", "CU402"]]),
        ],
    )
    def test_each_can_be_chosen_by_its_rule(self, select, ignore, left):
        report = Report(self.of(), judge(self.of())).restricted(select, ignore)
        loud = [f for f in report.findings if f.severity != "note"]
        assert [[f.rule, *(other.rule for other in f.also)] for f in loud] == left

    def test_every_form_shows_the_evidence_of_both(self):
        report = Report(self.of(), judge(self.of()))
        (found,) = [f for f in report.to_dict()["findings"] if f["also"]]
        assert [f["rule"] for f in found["also"]] == ["CU402"]
        card = report._repr_html_().partition("<details")[0]  # below are the pages of the rules
        for shown in (report.to_text(), re.sub("<[^>]*>", "", card)):
            assert shown.count("pip install") == 1
            assert "CU402 torch requires nvidia-cudnn-cu12==9.10.2.21" in shown
            assert "METADATA" in shown
        assert "mismatch: 1 error;" in report.to_text()

    def test_what_nobody_has_tried_stays_by_itself(self):
        of = self.of()
        put(of.frameworks[0], cudnn_by_pin=True)
        one, *_, other = [
            but(f, fix=[Command(c) for c in f.fix], also=[]) for f in every(judge(of))
        ]
        assert tried.fold([one, other]) == [one, other]


def test_the_work_grows_with_the_findings_and_not_faster(monkeypatch):
    """Each trial runs all rules, and there are so many trials; each finding asks each of them."""
    asked = []
    usual = tried._Trials.heals
    monkeypatch.setattr(tried._Trials, "heals", lambda *words: asked.append(1) or usual(*words))
    counts = []
    for many in (200, 400):
        asked.clear()
        files = [f"{SITE}/nvidia/x/lib/lib{n}.so.1" for n in range(many)]
        faults = [
            fault("rejected", file, f"{SITE}/torch/a.so", f"{file}: file too short", owner="torch")
            for file in files
        ]
        assert len(judge(facts(load_faults=faults))[0].also) >= many - 1
        counts.append(len(asked))
    assert counts[1] <= 2.2 * counts[0]


def test_what_takes_a_file_from_another_package_is_no_fix():
    """Both NCCLs are required and have one file: the newer is there, and an import wants the older
    one's symbol. With that one back, the newer one's users have a file that is not theirs.
    """
    file = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    owners = ["nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9"]
    torn = FileFault("nvidia-nccl-cu12", file, "owners", Evidence(f"{SITE}/RECORD", 7), owners)
    says = f"{SITE}/torch/a.so: undefined symbol: ncclOld"
    of = facts(
        distributions=[
            wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3", "nvidia-nccl-cu13==2.28.9"),
            wheel("nvidia-nccl-cu12", "2.27.3"),
            wheel("nvidia-nccl-cu13", "2.28.9"),
        ],
        load_faults=[fault("symbol", "ncclOld", f"{SITE}/torch/a.so", says, provider=file)],
        file_faults=[torn],
    )
    (found,) = [each for each in judge(of) if each.rule == "CU404"]
    assert (found.severity, found.fix, found.advice) == ("error", [], tried.NONE)
