"""`cudriver plan`: its answers against the tables and the check's own rules, and its forms."""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path

import pytest

from cudriver.cli import main
from cudriver.stack import plan
from cudriver.stack.collect import driver as drivers
from cudriver.stack.model import Environment, Facts, Framework
from cudriver.stack.plan import answer, candidates, question
from cudriver.stack.rules.cu1_releases import cu103
from cudriver.stack.rules.cu5 import cu501
from cudriver.stack.tables import table
from cudriver.stack.text import columns

SOURCES = Path(plan.__file__).parent
FRAMEWORKS = list(table("plan")["frameworks"])
RELEASES = [f"{row['branch']}.99" for row in table("driver")["branches"]]
CAPABILITIES = [row["capability"] for row in table("driver")["architectures"]]
EVERY = [*candidates.proven(), *candidates.derived()]


def errors(candidate, release, capability):
    """What the check says of these frameworks on such a machine."""
    facts = Facts(Environment("/env", "venv"), driver=drivers.assumed(release, [capability]))
    facts.frameworks = list(candidate.builds.values())
    found = [*cu103(facts), *cu501(facts)]
    return {f.rule for f in found if f.severity == "error"}


@pytest.mark.parametrize("candidate", EVERY, ids=lambda each: each.name or each.packages[0])
def test_a_plan_and_the_check_agree_on_every_driver_and_gpu(candidate):
    """What is planned is no error of CU103 or CU501; where all archs are known, nor is more."""
    for release, capability in itertools.product(RELEASES, CAPABILITIES):
        driver = drivers.assumed(release, [capability])
        asked = question.Question([*candidate.builds], driver)
        found = candidate.obstacles(asked)
        said = errors(candidate, release, capability)
        if not found:
            assert said == set(), (release, capability)
        if "CU103" in said:
            assert "driver" in found, (release, capability)
        if not said and found:  # the plan knows more: PTX that the driver must compile, libraries
            ptx = candidate.serves(capability) == "ptx"
            assert ptx or candidate.serves(capability) is None, (release, capability)


@pytest.mark.parametrize("candidate", candidates.proven(), ids=lambda each: each.name)
def test_the_architectures_of_a_proven_torch_are_those_of_the_table(candidate):
    torch = candidate.builds.get("torch")
    rows = [
        each
        for each in candidates.derived()
        if torch is not None
        and "torch" in each.builds
        and each.builds["torch"].archs
        and each.builds["torch"].version.split(".")[:2] == torch.version.split(".")[:2]
        and each.builds["torch"].cuda == torch.cuda
    ]
    for row in rows:
        listed = {arch for arch in row.builds["torch"].archs if arch.startswith("sm_")}
        assert set(torch.archs) == listed


@pytest.mark.parametrize("candidate", candidates.proven(), ids=lambda each: each.name)
def test_a_proven_set_installs_what_it_names(candidate):
    for python, installed in candidate.installed.items():
        for package in candidate.packages:
            name, _, version = re.sub(r"\[.*?\]", "", package).partition("==")
            assert installed[name.replace("_", "-")] == version, python


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("release", ["470.82.01", "535.104.05", "580.95.05"])
def test_the_best_is_the_newest_that_fits(name, release):
    asked = question.ask([name], release, ["8.0"], None, "uv")
    chosen = answer.best(asked)
    fitting = [e for e in candidates.proven() if name in e.builds and not e.obstacles(asked)]
    if fitting:
        least = min(len(each.builds) for each in fitting)
        alone = [each for each in fitting if len(each.builds) == least]
        newest = max(candidates.newness(each, [name]) for each in alone)
        assert chosen.dates
        assert candidates.newness(chosen, [name]) == newest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["numpi"], "'numpi' is no package"),
        (["torch", "--driver", "abc"], "'abc' is no driver release"),
        (["torch", "--driver", "5350.1"], "no driver branch 5350"),
        (["torch", "--gpu", "H1000"], "no GPU 'H1000'"),
        (["torch", "--gpu", "4.2"], "compute capability 4.2"),
        (["torch", "--gpu", "ampere"], "several architectures (8.0, 8.6)"),
        (["torch", "--python", "3.99"], "Python 3.99"),
        (["torch", "--python", "2.7"], "Python 2.7"),
        (["torch", "--installer", "easy_install"], "'easy_install' is no installer"),
        (["torch", "--server", "arch"], "'arch' is no family"),
        (["torch", "--containers"], "add --server"),
        (["torch", "--at", "/nowhere"], "/nowhere is no folder"),
        (["torch", "--at", "/usr", "--server", "debian"], "server or at"),
        (["--constraints", "torch-0.1"], "no set 'torch-0.1'"),
    ],
)
def test_what_does_not_exist_is_one_sentence(words, told, capsys):
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "number"),
    [("H100", "9.0"), ("NVIDIA GeForce RTX 4090", "8.9"), ("tesla-k80", "3.7"), ("Hopper", "9.0"),
     ("volta", "7.0"), ("sm_90", "9.0"), ("12.0", "12.0")],
)  # fmt: skip
def test_a_gpu_has_several_names(name, number):
    assert question.gpu(name) == [number]


def test_no_packages_are_asked_for(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    assert main(["plan", "--driver", "580.1", "--gpu", "9.0"]) == 2
    assert "no package; known are torch, jax" in capsys.readouterr().err


@pytest.mark.parametrize("tool", question.INSTALLERS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_forms_of_a_plan_tell_the_same(tool, lang):
    made = plan.make("torch", driver="535.104.05", gpus=["9.0"], installer=tool, lang=lang)
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


def test_every_sentence_is_there_in_chinese():
    known = table("plan_zh")["lines"]
    written = set()
    for path in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "text":
                written |= {_constant(node.value)}
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Line":
                written |= {_constant(node.args[0])}
    assert written - {None} == set(known)
    for english, chinese in known.items():
        assert set(re.findall(r"{(\w+)}", english)) == set(re.findall(r"{(\w+)}", chinese))


def _constant(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("family", ["debian", "ubuntu", "rhel"])
@pytest.mark.parametrize(
    ("gpu", "kind"), [("V100", "proprietary"), ("H100", "open"), ("B200", "open")]
)
def test_a_new_server_begins_with_the_driver_for_its_gpus(family, gpu, kind):
    made = plan.make("torch", server=family, gpus=[gpu], containers=True)
    titles = [step.title.text() for step in made.server]
    assert titles[0] == "install the driver, branch R580, and restart"
    assert "container" in titles[1]
    assert titles[2] == "install uv"
    rows = {(row["family"], row["modules"]): row for row in table("plan")["drivers"]}
    commands = [command.replace("{branch}", "580") for command in rows[family, kind]["commands"]]
    assert made.server[0].commands == commands
    assert all(step.see for step in made.server)


def test_the_versions_of_a_set_are_a_constraints_file(capsys):
    candidate = candidates.proven()[0]
    assert main(["plan", "--constraints", candidate.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    installed = candidate.installed[candidate.pythons[-1]]
    assert lines == [f"{name}=={version}" for name, version in installed.items()]


@pytest.mark.parametrize(("cuda", "packages"), [("12.8", "cupy-cuda12x"), ("13.0", "cupy-cuda13x")])
def test_what_is_added_is_of_the_environment_s_cuda_and_moves_nothing(cuda, packages):
    env = Environment("/srv/a b", "uv", "3.11.7", "/srv/a b/bin/python", installer="uv")
    facts = Facts(env, driver=drivers.assumed("580.95.05", ["9.0"]))
    facts.frameworks = [Framework("torch", "2.8.0", cuda)]
    asked = question.Question(["torch", "cupy"], facts.driver, "3.11")
    there, added = answer.add(asked, facts)
    assert there.says[0].text() == "PyTorch 2.8.0 is there already."
    assert added.status == "derived"
    listed, install = (step.commands[0] for step in added.steps)
    assert listed == "uv pip list --python '/srv/a b/bin/python' --format freeze > constraints.txt"
    assert "--constraint constraints.txt" in install
    assert packages in install


def test_what_cannot_be_added_gets_an_environment_of_its_own():
    env = Environment("/srv/old", "venv", "3.10.4", "/srv/old/bin/python")
    facts = Facts(env, driver=drivers.assumed("535.104.05", ["8.0"]))
    facts.frameworks = [Framework("torch", "2.0.1", "11.7")]
    asked = question.Question(["cupy"], facts.driver, "3.10")
    refused, instead = answer.add(asked, facts)
    assert refused.status == "nothing"
    assert instead.status == "proven"
    assert instead.steps[0].commands == ["uv venv --python 3.10 env-cupy"]


def test_a_driver_is_asked_for_where_it_brings_a_newer_release_not_another_cuda():
    def said(name):
        made = plan.make(name, driver="525.60.13", gpus=["8.0"], python="3.12")
        return [line.text() for line in made.parts[0].says]

    assert not any("To install one" in line for line in said("jax"))  # 0.12 is for CUDA 12 as well
    assert any(line.startswith("PyTorch 2.15.0+cu132 needs driver 580") for line in said("torch"))
