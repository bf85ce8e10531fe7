"""No plan claims more than was run: every set, Python, installer and form against the records."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from cudriver.stack import say
from cudriver.stack.planning import answer, candidates, plan
from cudriver.stack.tables import FOLDER, table

# The commands of the runs that data/proven.json has the dates of, as they were typed. After a
# change of one of them, every run of that installer is to be done again: corpus.proven.
RAN = {
    "uv": """
        uv venv --python {python} env
        env/bin/python --version
        cudriver plan --constraints {name} --python {python} > constraints.txt
        wc -l constraints.txt
        uv pip install --python env/bin/python --constraint constraints.txt {packages}
        uv pip check --python env/bin/python
        cudriver check --strict env
    """,
    "pip": """
        python{python} -m venv env
        env/bin/python --version
        cudriver plan --constraints {name} --python {python} > constraints.txt
        wc -l constraints.txt
        env/bin/python -m pip install --constraint constraints.txt {packages}
        env/bin/python -m pip check
        cudriver check --strict env
    """,
}
SETS = json.loads(Path(FOLDER, "proven.json").read_text(encoding="utf-8"))["sets"]
RUNS = [(made, run) for made in SETS for run in made["runs"]]
TOOLS = list(table("plan")["make"])
# In the first line, in English and in Chinese.
PROVEN, OTHERWISE = {"en": ": proven", "zh": "：已验证"}, {"en": ": not proven", "zh": "：未验证"}
MARK = {"en": " (not run)", "zh": "（未运行）"}


@pytest.fixture(params=say.LANGUAGES)
def lang(request):
    """The reader's language."""
    say.choose(request.param)
    yield request.param
    say.choose(None)


def made_of(monkeypatch, made, run, tool, **more):
    """The plan of one set."""
    (chosen,) = (each for each in candidates.sets("proven") if each.name == made["name"])
    monkeypatch.setattr(answer, "best", lambda *_, **__: chosen)
    names = made["frameworks"]
    more = {"driver": "580.95.05", **more}
    return plan(*names, python=run["python"], installer=tool, **more)


def typed(step, tool):
    """The commands of a step that a run types, without their remarks."""
    prefix = table("plan")["prefixes"][tool].format(folder="env")
    see = step.see if not step.title.startswith("check it") else []  # it computes on the GPU
    lines = (re.sub(r"\s+# .*", "", line) for line in [*step.commands, *see])
    return [line.replace(prefix, "env") for line in lines]


def recorded(made, run, tool):
    """What was typed in the run of this installer."""
    packages = shlex.join(made["packages"])
    told = RAN[tool].format(name=made["name"], python=run["python"], packages=packages)
    return [line.strip() for line in told.strip().splitlines()]


def test_a_step_is_said_to_have_been_run_only_where_a_record_has_its_commands(monkeypatch):
    for (made, run), tool in itertools.product(RUNS, TOOLS):
        (part,) = made_of(monkeypatch, made, run, tool).parts
        where, plans = (made["name"], run["python"], tool), run.get("plans", {})
        assert [bool(step.ran) for step in part.steps] == [
            tool in plans,
            *[("uv" if tool == "uv" else "pip") in plans] * 3,
        ], where
        for step in part.steps:
            if step.ran:
                (by,) = {tool, "pip"} & RAN.keys() if tool != "uv" else {"uv"}
                assert step.ran == plans[by], where
                assert {*typed(step, tool)} <= {*recorded(made, run, by)}, where
        if tool in plans:
            everything = [line for step in part.steps for line in typed(step, tool)]
            assert everything == recorded(made, run, tool), where


def test_every_form_begins_with_whether_all_was_run(lang, monkeypatch):
    for (made, run), tool in itertools.product(RUNS, TOOLS):
        where, ran = (made["name"], run["python"], tool), tool in run.get("plans", {})
        told = made_of(monkeypatch, made, run, tool)
        first = told.title + (PROVEN if ran else OTHERWISE)[lang]
        assert told.to_text().splitlines()[0] == first, where
        headings = [re.findall(r"<h1.*?>(.*?)</h1>", page) for page in forms(told)]
        assert headings == [[first], [first]], where
        assert json.loads(told.to_json())["status"] == ("proven" if ran else "derived"), where
        steps = json.loads(told.to_json())["environments"][0]["steps"]
        unmarked = [step["title"] for step in steps if step["ran"]]
        for page in (*forms(told), told.to_text()):
            assert page.count(MARK[lang]) == len(steps) - len(unmarked), where
        says = " ".join(each for part in told.parts for each in part.says)
        assert ("These commands were run on" in says) == ran, where
        assert ("marked as not run" in says) == bool(unmarked and not ran), where
        assert ("never run as they stand" in says) == (not unmarked), where


def forms(told):
    """A page, and what a notebook shows."""
    return told.to_html(), told._repr_html_()


@pytest.mark.parametrize("words", [["torch"], ["jax"], ["torch", "tensorflow"]])
@pytest.mark.parametrize("driver", ["390.157", "470.82.01"])
def test_what_needs_another_driver_first_claims_no_run_of_it(words, driver):
    for part in plan(*words, driver=driver, gpus=["A100"], python="3.12").parts:
        for step in part.steps:
            assert not (step.ran and "sudo" in " ".join(step.commands))
        named = part.candidate is not None and part.candidate.name
        assert named or not any(step.ran for step in part.steps)
