"""`cudriver plan`: its answers against the tables and the check's own rules, and its forms."""

from __future__ import annotations

import itertools
import json
import operator
import re
from bisect import bisect
from pathlib import Path

import pytest
from packaging.version import Version

from cudriver.cli import main
from cudriver.stack import say
from cudriver.stack.facts import Environment, Facts, Framework
from cudriver.stack.fixes.fix import branch_for, torch_archs
from cudriver.stack.machine import driver as drivers
from cudriver.stack.planning import answer, candidates, plan, question
from cudriver.stack.planning.commands import LISTED
from cudriver.stack.record import put
from cudriver.stack.rules import registry
from cudriver.stack.tables import driver_floor, table
from cudriver.stack.text import columns
from cudriver.stack.versions import major

SOURCES = Path(answer.__file__).parent
FRAMEWORKS = list(table("plan")["frameworks"])
RELEASES = [f"{row['branch']}.99" for row in table("driver")["branches"]]
BRANCHES = [row["branch"] for row in table("driver")["branches"]]
ARCHITECTURES = {row["capability"]: row for row in table("driver")["architectures"]}
CAPABILITIES = [*ARCHITECTURES]
EVERY = [*candidates.sets("proven"), *candidates.sets("derived")]
# Releases that differ in nothing that decides about drivers and GPUs are asked about once.
DECIDES = operator.attrgetter("cuda", "floor", "drivers", "ptx")
KINDS = {
    str((DECIDES(each), [(n, f["cuda"], f["archs"]) for n, f in each.frameworks.items()])): each
    for each in EVERY
}
cu103, cu501 = map(registry().__getitem__, ("CU103", "CU501"))


def errors(candidate, release, capability):
    """What the check says of these frameworks on such a machine."""
    facts = Facts(Environment("/env", "venv"), driver=drivers.assumed(release, [capability]))
    put(facts, frameworks=[Framework(name, **told) for name, told in candidate.frameworks.items()])
    found = [*cu103(facts), *cu501(facts)]
    return {f.rule for f in found if f.severity == "error"}


def borders(candidate, capability):
    """The releases on both sides of all that may decide: floors, and where a GPU begins or ends."""
    row = ARCHITECTURES[capability]
    floors = [candidate.floor, *candidate.drivers]
    floors += [driver_floor(told["cuda"]) for told in candidate.frameworks.values()]
    branches = {major(floor) for floor in floors} | {row["first_branch"], row["last_branch"]}
    places = {bisect(BRANCHES, branch) for branch in branches - {None}}
    near = {place + side for place in places for side in (-2, -1, 0)} | {0, len(RELEASES) - 1}
    return [RELEASES[place] for place in sorted(near) if 0 <= place < len(RELEASES)]


def test_a_plan_and_the_check_agree_on_every_driver_and_gpu(monkeypatch):
    """What is planned is no error of CU103 or CU501; where all archs are known, nor is more."""
    # Fixes are not looked at, and take long.
    monkeypatch.setattr("cudriver.stack.rules.cu5._other_build", lambda *_: [])
    for candidate, capability in itertools.product(KINDS.values(), CAPABILITIES):
        for release in borders(candidate, capability):
            driver = drivers.assumed(release, [capability])
            asked = question.Question([*candidate.frameworks], driver)
            found = candidate.obstacles(asked)
            said = errors(candidate, release, capability)
            where = candidate.name or candidate.packages, release, capability
            if not found:
                assert said == set(), where
            if "CU103" in said:
                assert "driver" in found, where
            if not said and found:  # the plan knows more: PTX that the driver compiles, libraries
                ptx = capability in candidate.ptx
                assert ptx or capability not in candidate.gpus, where


# Compute capability: the last branch. NVIDIA, CUDA Toolkit, Driver and Architecture Matrix.
LAST = {
    **dict.fromkeys(["2.0", "2.1"], 390),
    **dict.fromkeys(["3.0", "3.2", "3.5", "3.7"], 470),
    **dict.fromkeys(["5.0", "5.2", "5.3", "6.0", "6.1", "7.0"], 580),
}


@pytest.mark.parametrize("cuda", sorted({each.cuda for each in EVERY}))
def test_a_driver_that_the_check_offers_ends_the_error(cuda):
    """None is offered where no driver both serves the GPU and has that CUDA."""

    def wrong(release, capability):
        facts = Facts(Environment("/env", "venv"), driver=drivers.assumed(release, [capability]))
        put(facts, frameworks=[Framework("cupy", "13.0", cuda)])
        return {finding.rule: finding.fix for finding in (*cu103(facts), *cu501(facts))}

    for release, capability in itertools.product(RELEASES, CAPABILITIES):
        last = LAST.get(capability)
        for rule, fixes in wrong(release, capability).items():
            pair, told = (rule, release, capability), " ".join(fixes)
            if last and major(driver_floor(cuda)) > last:
                assert "nvidia-driver" not in told, pair
                continue
            (branch,) = re.findall(r"nvidia-driver-(\d+)", told)
            assert rule not in wrong(f"{branch}.999", capability), pair
            assert ("or newer" in told) == (last is None), pair


def test_the_driver_that_a_plan_names_is_known_to_serve_it():
    for candidate in EVERY:
        for capability in candidate.gpus:
            where = candidate.name or candidate.packages, capability
            driver = drivers.assumed("390.157", [capability])
            branch = branch_for(driver, candidate.floor_for([capability]))
            if branch is None:  # no driver does
                assert major(candidate.floor) > LAST[capability], where
            else:
                then = drivers.assumed(f"{branch}.999", [capability])
                asked = question.Question([*candidate.frameworks], then)
                assert candidate.obstacles(asked) == set(), where
                assert errors(candidate, f"{branch}.999", capability) == set(), where


def test_the_architectures_of_a_proven_torch_are_those_of_the_table():
    for candidate in candidates.sets("proven"):
        torch = candidate.frameworks.get("torch")
        listed = torch and torch_archs(torch["version"], torch["cuda"], "x86_64")
        if listed:
            named = {arch for arch in listed if arch.startswith("sm_")}
            assert set(torch["archs"]) == named, candidate.name


def test_floors_are_those_of_nvidia_s_release_notes():
    """CUDA Toolkit release notes, minor version compatibility; and the driver's first branches."""
    floors = {10: "440.33", 11: "450.80.02", 12: "525.60.13", 13: "580"}
    firsts = {"8.9": 520, "9.0": 520, "10.0": 570, "10.3": 575, "10.7": 615, "12.0": 570}
    for candidate in EVERY:
        assert candidate.floor == floors[int(candidate.cuda.partition(".")[0])], candidate.packages
        for floor, gpus in candidate.drivers.items():
            for gpu in {*gpus}.intersection(firsts):
                assert int(floor.partition(".")[0]) >= firsts[gpu], (candidate.packages, gpu)


def test_a_proven_set_installs_what_it_names():
    for candidate in candidates.sets("proven"):
        for python, package in itertools.product(candidate.pythons, candidate.packages):
            name, _, version = re.sub(r"\[.*?\]", "", package).partition("==")
            installed = candidate.versions(python)[name.replace("_", "-")]
            assert installed == version, (candidate.name, python)


def test_an_installer_is_kept_from_what_is_known_to_fail():
    (_, install, _) = plan("numba-cuda", driver="580.65.06", gpus=["H100"]).parts[0].steps
    assert install.commands[0].endswith("'numba-cuda[cu13]==0.30.4' 'numpy<2.5'")


def test_the_best_is_the_newest_that_fits():
    """Of those that bring the fewest other frameworks, whoever has run them."""
    for name, release in itertools.product(FRAMEWORKS, ["470.82.01", "535.104.05", "580.95.05"]):
        asked = question.Question([name], drivers.assumed(release, ["8.0"]))
        fitting = [e for e in EVERY if name in e.frameworks and not e.obstacles(asked)]
        least = min((len(each.frameworks) for each in fitting), default=0)
        versions = [e.frameworks[name]["version"] for e in fitting if len(e.frameworks) == least]
        newest = max(map(Version, versions), default=None)
        chosen = candidates.best(asked)
        found = chosen and Version(chosen.frameworks[name]["version"])
        assert (found and found.public) == (newest and newest.public), (name, release)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["numpi"], "'numpi' is not a package"),
        (["torch", "--driver", "abc"], "'abc' is not a driver release"),
        (["torch", "--driver", "5350.1"], "no driver branch 5350"),
        (["torch", "--driver", "\u0665\u0663\u0665.1"], "is not a driver release"),
        (["torch", "--gpu", "H1000"], "no GPU 'H1000'"),
        (["torch", "--gpu", "4.2"], "compute capability 4.2"),
        (["torch", "--gpu", "ampere"], "'ampere' may be 8.0, 8.6, 8.7: state which"),
        (["torch", "--gpu", "V100", "--gpu", "B200"], "capabilities 7.0, 10.0 together"),
        (["torch", "--gpu", "K80", "--gpu", "H100"], "capabilities 3.7, 9.0 together"),
        (["torch==2.4"], "'torch==2.4' is more than a name: a plan chooses versions"),
        (["jax[cuda12]"], "'jax[cuda12]' is more than a name"),
        (["torch", "--python", "3.99"], "Python 3.99"),
        (["torch", "--python", "2.7"], "Python 2.7"),
        (["torch", "--python", "3"], "Python 3; known are"),
        (["torch", "--python", "3.12; ls"], "Python 3.12; ls; known are"),
        (["torch", "--python", "3.12.1.2"], "Python 3.12.1.2"),
        (["torch", "--installer", "easy_install"], "'easy_install' is not an installer"),
        (["torch", "--python", ""], "Python ''; known are"),
        (["torch", "--at", "/nowhere"], "/nowhere is not a folder"),
        (["torch", "--at", "/proc"], "/proc has no Python"),
        (["torch", "--at", "/usr", "--python", "3.12"], "no --python"),
        (["--constraints", "torch-0.1"], "no set 'torch-0.1'"),
    ],
)
def test_what_does_not_exist_is_one_sentence(words, told, capsys):
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1
    assert main(["plan", *words, "--lang", "zh"]) == 2
    assert re.search("[\u4e00-\u9fff]", capsys.readouterr().err)


def test_no_packages_are_asked_for(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    assert main(["plan", "--driver", "580.1", "--gpu", "9.0"]) == 2
    assert "no package is named; known are torch, jax" in capsys.readouterr().err


@pytest.fixture(params=say.LANGUAGES)
def lang(request):
    """The reader's language."""
    say.choose(request.param)
    yield request.param
    say.choose(None)


@pytest.mark.parametrize("tool", table("plan")["make"])
def test_the_forms_of_a_plan_tell_the_same(tool, lang):
    made = plan("torch", driver="535.104.05", gpus=["9.0"], installer=tool)
    data = json.loads(made.to_json())
    (part,) = data["environments"]
    assert made.exit_code == 0
    assert part["status"] == made.status
    page, card, text = made.to_html(), made._repr_html_(), made.to_text()
    assert f'lang="{lang}' in page
    for step in part["steps"]:
        for command in step["commands"]:
            assert " ".join(command.split()) in " ".join(re.sub(r"\s*\\\n\s*", " ", text).split())
            assert command.split("'")[0].replace(">", "&gt;") in page
            assert command.split("'")[0].replace(">", "&gt;") in card
    assert max(map(columns, text.splitlines())) <= 80
    assert (re.search("[\u4e00-\u9fff]", text) is not None) == (lang == "zh")


def test_every_sentence_is_used_and_there_in_chinese():
    known, code = table("plan")["lines"], "".join(p.read_text() for p in SOURCES.glob("*.py"))
    assert [key for key in known if f'"{key}"' not in code] == []
    assert [text for text in known.values() if text not in table("zh")["lines"]] == []


def test_the_versions_of_a_set_are_a_constraints_file(capsys):
    candidate = candidates.sets("proven")[0]
    assert main(["plan", "--constraints", candidate.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    installed = candidate.versions(candidate.pythons[-1])
    assert lines == [f"{name}=={version}" for name, version in installed.items()]


@pytest.mark.parametrize(("cuda", "packages"), [("12.8", "cupy-cuda12x"), ("13.0", "cupy-cuda13x")])
def test_what_is_added_is_of_the_environment_s_cuda_and_moves_nothing(cuda, packages):
    env = Environment("/srv/a b", "uv", "3.11.7", "/srv/a b/bin/python", installer="uv")
    facts = Facts(env, driver=drivers.assumed("580.95.05", ["9.0"]))
    put(facts, frameworks=[Framework("torch", "2.8.0", cuda)])
    asked = question.Question(["torch", "cupy"], facts.driver, "3.11")
    there, added = answer.add(asked, facts)
    assert there.says[0] == "PyTorch 2.8.0 is there already."
    assert added.status == "derived"
    listed, install, _ = (step.commands[0] for step in added.steps)
    assert listed == "uv pip list --python '/srv/a b/bin/python' --format freeze > constraints.txt"
    assert "--constraint constraints.txt" in install
    assert packages in install


def test_what_cannot_be_added_gets_an_environment_of_its_own():
    env = Environment("/srv/old", "venv", "3.10.4", "/srv/old/bin/python")
    facts = Facts(env, driver=drivers.assumed("535.104.05", ["8.0"]))
    put(facts, frameworks=[Framework("torch", "2.0.1", "11.7")])
    asked = question.Question(["jax"], facts.driver, "3.10")
    refused, instead = answer.add(asked, facts)
    assert refused.status == "nothing"
    assert instead.candidate.obstacles(asked) == set()
    assert instead.steps[0].commands == ["uv venv --python 3.10 env-jax"]


def test_a_driver_is_asked_for_where_it_brings_a_newer_release_not_another_cuda():
    def said(name):
        made = plan(name, driver="525.60.13", gpus=["8.0"], python="3.12")
        return made.parts[0].says

    assert not any(
        "The branch to install" in line for line in said("jax")
    )  # 0.12 is for CUDA 12 as well
    assert any(
        line.startswith("For PyTorch 2.15.0+cu132 the driver must be 580") for line in said("torch")
    )


def added(packages, driver, *frameworks, python="3.12.4"):
    """What a plan adds to an environment that has these frameworks."""
    env = Environment("/srv/env", "venv", python, "/srv/env/bin/python")
    facts = Facts(env, driver=driver)
    put(facts, frameworks=list(frameworks))
    asked = question.Question(packages, driver, python.rpartition(".")[0])
    return answer.add(asked, facts)


@pytest.mark.parametrize(
    ("release", "gpu", "rule"),
    [("525.60.13", "8.0", "CU103"), ("580.95.05", "7.0", "CU501"), ("580.95.05", "8.0", None)],
)
def test_what_is_there_is_no_plan_where_the_check_finds_it_broken(release, gpu, rule):
    archs = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    torch = Framework("torch", "2.13.0+cu130", "13.0", archs=archs)
    first, *rest = added(["torch"], drivers.assumed(release, [gpu]), torch)
    assert first.says[0] == "PyTorch 2.13.0+cu130 is there already."
    if rule is None:
        assert (first.status, rest) == ("there", [])
    else:
        assert first.status == "nothing"
        assert first.says[1].startswith(f"{rule}: ")
        assert first.steps[0].commands
        (own,) = rest
        assert own.status in ("proven", "derived")
        assert own.steps[0].commands == ["uv venv --python 3.12 env-torch"]


@pytest.mark.parametrize("gpus", [[], ["9.0"]])
def test_a_build_without_cuda_is_replaced_not_held(gpus):
    """Its own version in constraints.txt would forbid every other build of it."""
    torch = Framework("torch", "2.13.0+cpu", None, variant="cpu")
    first, own = added(["torch"], drivers.assumed("580.95.05", gpus), torch)
    assert first.status == "nothing"
    assert first.says[1] == "CU401: torch 2.13.0+cpu is built without CUDA."
    assert own.status == "proven"
    assert not any(LISTED in command for step in first.steps for command in step.commands)


@pytest.mark.parametrize(
    ("release", "gpu", "kind"), [("470.82.01", "B200", "-open"), ("610.43.02", "P100", "")]
)
def test_the_kernel_modules_are_those_that_the_gpu_takes(release, gpu, kind):
    (part,) = plan("torch", driver=release, gpus=[gpu]).parts
    assert f"sudo apt-get install -y nvidia-driver-580{kind}" in part.steps[0].commands
    told = "This GPU works with the open kernel modules only."
    assert (told in part.says) == bool(kind)


def test_nobody_is_sent_to_a_newer_driver_where_that_is_the_fault():
    facts = Facts(Environment("/env", "venv"), driver=drivers.assumed("610.43.02", ["6.0"]))
    (finding,) = cu501(facts)
    assert "R580, then reboot" in finding.fix[0]
    assert "newer" not in finding.fix[0]
    assert "newer" not in plan("torch", driver="610.43.02", gpus=["6.0"]).to_text()


def test_a_plan_says_what_was_tried_and_is_not_proven(monkeypatch):
    (row,) = (row for row in table("proven")["failed"] if row["frameworks"] == ["vllm"])
    (chosen,) = (each for each in EVERY if each.packages == row["packages"])
    monkeypatch.setattr(answer, "best", lambda _, proven=False: None if proven else chosen)
    (part,) = plan("vllm", driver="580.95.05", gpus=["H100"], python="3.12").parts
    assert part.status == "derived"
    assert row["reason"] in part.says[0]
    assert f"Installed on {row['date']}, it is not a proven set" in part.says[0]


def test_a_machine_without_a_driver_is_told_which_one_to_install(monkeypatch):
    asked = question.Question(["torch"], here=True)
    (part,) = answer.answer(asked)
    assert any(line.startswith("No driver is found here. The branch to") for line in part.says)


def test_check_and_plan_refuse_the_same_drivers(capsys):
    for release in ("5350.1", "abc", "2000.1", "299.1"):
        assert main(["check", "--assume-driver", release]) == 2
        refused = capsys.readouterr().err
        assert main(["plan", "torch", "--driver", release]) == 2
        assert capsys.readouterr().err == refused


@pytest.mark.parametrize(("python", "kind"), [("3.11.7", "torch==2.0.1"), ("3.12.1", None)])
def test_what_the_check_offers_a_kepler_is_there_for_its_python(python, kind):
    """CUDA 12 is not for its last driver, and PyTorch 2.0 not for Python 3.12."""
    env = Environment("/srv/env", "venv", python, "/srv/env/bin/python", installer="uv")
    facts = Facts(env, driver=drivers.assumed("470.82.01", ["3.7"]))
    put(facts, frameworks=[Framework("torch", "2.8.0+cu128", "12.8", archs=["sm_70", "sm_80"])])
    (old,), (none,) = cu103(facts), cu501(facts)
    assert old.advice.startswith("no driver from R525 on serves ")
    (part,) = plan("torch", driver="470.82.01", gpus=["K80"], python=python[:4]).parts
    assert (part.candidate is None) == (kind is None)
    if kind:
        assert " torch==2.0.1" in none.fix[0]
    else:
        assert none.advice.startswith("no PyTorch that is known here has code for this GPU and ")
        assert [*old.fix, *none.fix] == []


def test_the_plan_is_small():
    files = [*SOURCES.glob("*.py"), SOURCES.parents[1] / "cli" / "plan.py"]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 980


def test_a_gpu_that_newer_drivers_leave_out_gets_no_newer_one():
    """V100: R580 is the last branch that knows it, and the first for CUDA 13."""
    facts = Facts(Environment("/env", "venv"), driver=drivers.assumed("535.104.05", ["7.0"]))
    put(facts, frameworks=[Framework("cupy", "14.2.0", "13")])
    (finding,) = cu103(facts)
    assert "R580, then reboot" in finding.fix[-1]
