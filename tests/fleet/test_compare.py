"""Comparisons of many nodes, and what asks for them; test_compare_cases.py has what is found."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType

import made
import pytest
from made import Report, cudnn, driver, fleet_of, gpus, moved, nccl, report

from cudriver.fleet import compare
from cudriver.fleet.engines.answers import Answers
from cudriver.fleet.engines.preflight import judge
from cudriver.fleet.result import Change, Share
from cudriver.fleet.rules import PAGES, registry
from cudriver.stack import rulebook


@pytest.mark.parametrize("rule", registry())
def test_every_rule_has_a_page(rule):
    text = rulebook.page(rule, "en", PAGES)
    assert text.startswith(f"# {rule} ")
    parts = ["## What it means", "## How it is detected", "## How it is fixed"]
    assert [line for line in text.splitlines() if line.startswith("## ")] == parts
    assert max(map(len, text.splitlines())) <= 80
    assert rulebook.rule_names(PAGES) == list(registry())


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("{}", "{}"),
        ("{}/lib:/usr/lib:{}/lib64", "{}/lib:/usr/lib:{}/lib64"),
        ("--xla_gpu_cuda_data_dir={}", "--xla_gpu_cuda_data_dir={}"),
        # The same folder, though it ends in the other environment's, or begins with it.
        ("/mnt/opt/envs/train/lib", "/mnt/opt/envs/train/lib"),
        ("/opt/envs/train2/lib", "/opt/envs/train2/lib"),
    ],
)
def test_a_path_in_the_environment_is_no_difference(value, other):
    def change(told: Report) -> None:
        moved(told)
        told["node"]["variables"]["CUDA_HOME"] = other.replace("{}", "/scratch/d3/env")

    reports = fleet_of(4, change)
    for told in [*reports[:3]]:
        told["node"]["variables"]["CUDA_HOME"] = value.replace("{}", made.PREFIX)
    assert [finding.rule for finding in compare(reports).findings] == ["FL404"]


def each_its_own(count: int) -> list[Report]:
    """Nodes of one job that agree in nothing: libraries, frameworks, variables, GPUs, drivers."""
    reports = []
    for number in range(count):
        told = report(f"d{number}")
        (row,), (gpu, *_) = told["frameworks"], told["driver"]["devices"]
        told["driver"].update(release=f"{number}.1", devices=[
            {**gpu, "compute_capability": f"{number}.0", "name": f"GPU {number}"}])  # fmt: skip
        told["frameworks"] += [
            {**row, "name": f"own{number}"},
            {**row, "name": f"both{number // 2}", "version": f"2.{number}", "cuda": f"{number}.1"},
        ]
        told["libraries"] += [
            {**told["libraries"][0], "soname": f"lib{kind}.so", "version": f"1.{number}",
             "provided_by": f"package-{number} 1"}
            for kind in (f"own{number}", f"both{number // 2}", "all")
        ]  # fmt: skip
        told["toolkits"][0]["version"] = f"{number}.0"
        told["environment"]["python"] = f"3.{number}.1"
        told["node"].update(cudriver=f"0.{number}", variables={
            f"CUDA_{number}": "1", f"NCCL_{number}": "1", f"NCCL_BOTH{number // 2}": str(number),
            "LD_LIBRARY_PATH": f"/{number}"})  # fmt: skip
        told.update(verdict="mismatch", findings=[made.finding("error", title=f"odd {number}")])
        moved(told) if number % 2 else None
        reports.append(told)
    return reports


def operations(reports: list[Report], **options: object) -> int:
    """How many lines a comparison runs: no clock's business."""
    count = 0

    def trace(_frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        compare(reports, **options)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("options", [{}, {"baseline": report("golden")}])
def test_nodes_that_all_differ_take_linear_time(options):
    small, large = (operations(each_its_own(count), **options) for count in (30, 90))
    assert large < 3.5 * small


def test_of_what_is_too_much_the_rest_is_counted():
    reports = each_its_own(400)
    found = compare(reports)
    assert found.status == "mismatch"
    assert sum(group.count for group in found.groups) == len(found.groups) == 400
    assert found.groups[250].differs == [Change("25 components", "", "")]
    assert len(found.groups[150].differs) == 25
    reports[1]["node"]["variables"].update({f"CUDA_X{number}": "1" for number in range(500)})
    changes = next(g for g in compare(reports).groups if g.nodes == "d1").differs
    assert len(changes) == 101
    # Differences, their values, findings of a rule, evidence, titles.
    last = found.differences[-1].component
    assert last == f"and {found.counts['components'] - 100:,} more components"
    drivers = next(each for each in found.differences if each.component == "driver").values
    assert (len(drivers), drivers[-1]) == (101, Share("and 300 more", 300, ""))
    rules = Counter(finding.rule for finding in found.findings)
    assert max(rules.values()) == 21
    assert {rule for rule, count in rules.items() if count == 21} == {
        *("FL103", "FL201", "FL304", "FL401", "FL402", "FL502", "FL503"),
    }
    for finding in found.findings:
        assert len(finding.evidence) <= 101
        assert len(finding.title) < 200
        assert finding.why
    assert max(len(text) for text in (str(found), found.to_html())) < 2_000_000


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"scheduler": {"SLURMD_NODENAME": "n4"}}, "n4"),
        ({"scheduler": {"SLURMD_NODENAME": "n4", "SLURM_PROCID": "3"}, "rank": 3}, "n4"),
        ({"scheduler": {"SLURMD_NODENAME": "n4", "SLURM_PROCID": "0"}, "rank": 3}, "d0"),
        ({"scheduler": {"NODE_NAME": "n4", "POD_NAME": "check-x7"}}, "n4"),
        ({"scheduler": {"POD_NAME": "check-x7"}}, "d0"),
        ({"scheduler": {"NODE_NAME": "built-in"}}, "d0"),
    ],
)
def test_a_node_has_the_scheduler_s_name_for_it(told, name):
    one = report("d0")
    one["node"].update(told)
    found = compare([one], nodes=[name])
    assert (found.groups[0].nodes, found.missing) == (name, "")
    assert compare([one], nodes=["d0"]).missing == ""


@pytest.mark.parametrize("capability", ["x", "9", "\u00b2.0", "", None])
def test_a_capability_that_is_none_is_no_finding(capability):
    found = compare(fleet_of(3, gpus(capability), at=1))
    assert "FL103" not in [finding.rule for finding in found.findings]


def test_the_rest_of_many_values_is_counted_by_nodes():
    reports = [report(f"d{number}") for number in range(206)]
    for number, told in enumerate(reports):
        driver(f"580.{number // 2}")(told)
    found = next(each for each in compare(reports).differences if each.component == "driver")
    assert found.values[-1] == Share("and 3 more", 6, "")


@pytest.mark.parametrize(("change", "raises"), [(cudnn, False), (nccl, True)])
def test_a_preflight_raises_for_errors_alone(change, raises):
    answers = Answers()
    answers.reports = fleet_of(3, change, at=1)
    assert bool(judge(answers)) is raises


@pytest.mark.parametrize(
    "baseline", [{}, [], {"schema": 1, "baseline": [["driver"]]}, {"baseline": 3}, "x"]
)
def test_what_is_no_baseline_is_refused(baseline):
    with pytest.raises(ValueError, match=r"baseline|report"):
        compare([report()], baseline=baseline)


@pytest.mark.parametrize("one", ["reports.jsonl", b"{}", report()])
def test_one_report_or_text_is_not_many(one):
    with pytest.raises(TypeError, match="reports is one"):
        compare(one)


def test_fewer_than_none_are_not_expected():
    with pytest.raises(ValueError, match="expect=-1"):
        compare([], expect=-1)


def test_no_report_is_no_verdict():
    found = compare([])
    assert (found.status, found.exit_code, found.groups) == ("unknown", 3, [])
    assert "no report" in str(found)
    assert "cudriver check --json --compact" in str(found)


def test_the_order_of_reports_changes_nothing():
    reports = [*fleet_of(8, nccl), report("d9", rank=1, ranks=3)]
    cudnn(reports[-1])
    told = compare(reports).to_json()
    for seed in range(5):
        random.Random(seed).shuffle(reports)
        assert compare(reports).to_json() == told
