"""What is planted is found, each by its rule; what agrees is silent."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import made
import pytest
from made import Report, fleet_of, library, report

from cudriver.fleet import compare
from cudriver.fleet.comparison import to_baseline
from cudriver.fleet.engines.answers import Answers
from cudriver.fleet.engines.preflight import judge
from cudriver.fleet.hosts import parse
from cudriver.fleet.result import Change, Share
from cudriver.fleet.rules import PAGES, registry
from cudriver.stack import explain


def nccl(told: Report) -> None:
    told["frameworks"][0]["nccl"] = "2.26.2"
    library(told, "libnccl.so.2").update(version="2.26.2", provided_by="nvidia-nccl-cu12 2.26.2")


def cudnn(told: Report) -> None:
    told["frameworks"][0]["cudnn"] = "9.8.0"
    library(told, "libcudnn.so.9").update(version="9.8.0", provided_by="nvidia-cudnn-cu12 9.8.0.87")


def torch(**changes: object) -> Callable[[Report], None]:
    return lambda told: told["frameworks"][0].update(changes)


def driver(release: str) -> Callable[[Report], None]:
    path = f"/usr/lib64/libcuda.so.{release}"
    return lambda told: told["driver"].update(release=release, kernel_release=release, path=path)


def no_driver(told: Report) -> None:
    told["driver"].update(release=None, kernel_release=None, cuda=None, path=None, devices=[])


def gpus(capability: str, count: int = 8) -> Callable[[Report], None]:
    def change(told: Report) -> None:
        del told["driver"]["devices"][count:]
        for device in told["driver"]["devices"]:
            device.update(compute_capability=capability, name=f"GPU of {capability}")

    return change


def two_kinds(told: Report) -> None:
    for device in told["driver"]["devices"][:4]:
        device["name"] = "NVIDIA L4"


def toolkit(row: int, version: str | None) -> Callable[[Report], None]:
    return lambda told: told["toolkits"][row].update(version=version)


def runtime(*majors: int) -> Callable[[Report], None]:
    """The CUDA runtimes of these majors, in place of 12's."""

    def change(told: Report) -> None:
        told["libraries"] = [
            row for row in told["libraries"] if row["soname"] != "libcudart.so.12"
        ] + [
            {**library(report(), "libcudart.so.12"), "soname": f"libcudart.so.{major}"}
            for major in majors
        ]

    return change


def without(name: str) -> Callable[[Report], None]:
    return lambda told: told["libraries"].remove(library(told, name))


def cublas(told: Report) -> None:
    library(told, "libcublas.so.12").update(
        version="12.9.1.4", provided_by="nvidia-cublas-cu12 12.9.1.4"
    )


def elsewhere(told: Report) -> None:
    library(told, "libcublas.so.12").update(
        path="/usr/local/cuda/lib64/libcublas.so.12", provided_by=None
    )


def of_library(name: str, **changes: object) -> Callable[[Report], None]:
    return lambda told: library(told, name).update(changes)


def moved(told: Report) -> None:
    text = json.dumps(told).replace(made.PREFIX, "/scratch/d3/env")
    told.update(json.loads(text))


def failing(told: Report) -> None:
    told.update(verdict="mismatch", findings=[made.finding("error")])


def of(*path: str | int, **changes: object) -> Callable[[Report], None]:
    """A change of the members of an object of a report."""

    def change(told: Report) -> None:
        for name in path:
            told = told[name]
        told.update(changes)

    return change


# What is changed on one of six nodes, and the rules that must say so: no more, no less.
PLANTED: dict[str, tuple[Callable[[Report], object], dict[str, str]]] = {
    "nothing": (lambda told: None, {}),
    "branch": (driver("570.86.15"), {"FL101": "warning"}),
    "patch level": (driver("580.82.07"), {"FL102": "note"}),
    "covered GPU": (gpus("8.0"), {"FL104": "note"}),
    "old GPU": (gpus("7.0"), {"FL103": "error", "FL104": "note"}),
    "lost GPU": (gpus("9.0", 7), {"FL104": "warning"}),
    "no driver": (no_driver, {"FL105": "warning"}),
    "major": (torch(version="2.8.0+cu130", cuda="13.0"), {"FL201": "error", "FL401": "error"}),
    "minor": (torch(cuda="12.6"), {"FL202": "warning"}),
    "toolkit": (toolkit(0, "13.0"), {"FL203": "note"}),
    "unknown toolkit": (toolkit(0, None), {}),
    "major of the runtime": (runtime(13), {"FL204": "error", "FL305": "note"}),
    "major of its toolkit": (toolkit(1, "13.0"), {"FL204": "error"}),
    "one more major": (runtime(12, 13), {"FL305": "note"}),
    "minor of its toolkit": (toolkit(1, "12.9"), {}),
    "NCCL": (nccl, {"FL301": "error"}),
    "NCCL of unknown version": (of_library("libnccl.so.2", version=None), {}),
    "no NCCL": (without("libnccl.so.2"), {"FL305": "note"}),
    "cuDNN": (cudnn, {"FL302": "warning"}),
    "cuDNN of unknown version": (of_library("libcudnn.so.9", version=None), {}),
    "cuBLAS": (cublas, {"FL303": "note"}),
    "cuBLAS of unknown version": (of_library("libcublas.so.12", version=None), {}),
    "origin": (elsewhere, {"FL304": "warning"}),
    "torch": (torch(version="2.7.1+cu128"), {"FL401": "error"}),
    "torch of unknown version": (torch(version=None), {}),
    "gone": (lambda told: told["frameworks"].clear(), {"FL402": "warning"}),
    "Python": (of("environment", python="3.11.9"), {"FL403": "warning"}),
    "patch of Python": (of("environment", python="3.12.5"), {"FL403": "note"}),
    "two kinds of GPUs": (two_kinds, {"FL104": "note"}),
    "folder": (moved, {"FL404": "note"}),
    "loader": (of("node", "variables", LD_LIBRARY_PATH="/usr/lib"), {"FL501": "warning"}),
    "NCCL_ALGO": (of("node", "variables", NCCL_ALGO="Tree"), {"FL502": "warning"}),
    "lazy": (of("node", "variables", CUDA_MODULE_LOADING="EAGER"), {"FL503": "note"}),
    "its own GPU": (of("node", "variables", CUDA_VISIBLE_DEVICES="3"), {}),
    "errors": (failing, {"FL601": "error"}),
    "unknown": (of(verdict="unknown"), {"FL602": "warning"}),
    "cudriver": (of("node", cudriver="0.2.0"), {"FL605": "note"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found_by_its_rule(name):
    change, rules = PLANTED[name]
    found = compare(fleet_of(6, change))
    assert {finding.rule: finding.severity for finding in found.findings} == rules
    verdict = "mismatch" if "error" in rules.values() else "consistent"
    assert found.status == ("unknown" if name == "unknown" else verdict)
    for finding in found.findings:
        assert any("d3" in share.nodes for share in finding.evidence), finding
        assert finding.why


def test_every_rule_is_planted_once():
    planted = {rule for _, rules in PLANTED.values() for rule in rules}
    assert {*registry()} - planted == {"FL603", "FL604", "FL606"}  # below


@pytest.mark.parametrize("rule", registry())
def test_every_rule_has_a_page(rule):
    text = explain.page(rule, PAGES)
    assert text.startswith(f"# {rule} ")
    parts = ["## What it means", "## How it is detected", "## How it is fixed"]
    assert [line for line in text.splitlines() if line.startswith("## ")] == parts
    assert max(map(len, text.splitlines())) <= 80
    assert explain.rule_names(PAGES) == list(registry())


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
    small, large = (operations(each_its_own(count), **options) for count in (50, 150))
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


def test_groups_are_the_equal_stacks_the_largest_first():
    reports = [report(f"d{number}") for number in range(20)]
    for number in (4, 5, 9):
        driver("570.86.15")(reports[number])
    nccl(reports[11])
    random.Random(3).shuffle(reports)
    found = compare(reports)
    told = [(group.count, group.nodes) for group in found.groups]
    assert told == [(16, "d[0-3,6-8,10,12-19]"), (3, "d[4-5,9]"), (1, "d11")]
    assert found.groups[0].differs == []
    assert [each.component for each in found.groups[1].differs] == ["driver", "kernel module"]
    assert [(c.component, c.value, c.reference) for c in found.groups[2].differs] == [
        ("torch", "2.8.0+cu128 (NCCL 2.26.2)", "2.8.0+cu128 (NCCL 2.27.3)"),
        ("libnccl.so.2", "2.26.2", "2.27.3"),
    ]
    values = {
        each.component: [(s.value, s.count) for s in each.values] for each in found.differences
    }
    assert values["driver"] == [("580.65.06", 17), ("570.86.15", 3)]


@pytest.mark.parametrize(
    ("rule", "change", "other"),
    [
        ("FL103", gpus("7.0"), gpus("7.0")),
        ("FL201", torch(cuda="13.0"), torch(cuda="11.8")),
        ("FL204", runtime(13), runtime(11)),
        ("FL301", nccl, lambda told: library(told, "libnccl.so.2").update(version="2.25.1")),
        ("FL401", torch(version="2.7.1"), torch(version="2.6.0")),
        ("FL502", of("node", "variables", NCCL_ALGO="Tree"),
         of("node", "variables", NCCL_ALGO="NVLS")),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_job_names_that_job_s_nodes(rule, change, other):
    reports = fleet_of(6, change)
    for told in reports[4:]:  # a job of its own, in which all agree
        told["node"]["job"] = "72"
        other(told)
    wrong = next(f for f in compare(reports).findings if f.rule == rule)
    named = [host for share in wrong.evidence for host in parse(share.nodes)]
    assert {*named} == {"d0", "d1", "d2", "d3"}
    assert len(wrong.evidence) == 2


def test_a_build_without_code_is_told_of_each_job_that_has_it():
    reports = fleet_of(6, gpus("7.0"))
    for told in reports[4:]:
        told["node"]["job"] = "72"
    gpus("7.0")(reports[5])
    [wrong] = [f for f in compare(reports).findings if f.rule == "FL103"]
    assert [parse(share.nodes) for share in wrong.evidence] == [
        ["d3", "d5"], ["d0", "d1", "d2", "d3", "d4", "d5"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("majors", "found"),
    [
        ([(12, 13)] * 4, {}),
        ([(12,), (12, 13), (11, 12), (12,)], {"FL305": "note"}),
        ([(12,), (12, 13), (13,), (12,)], {"FL204": "error", "FL305": "note"}),
    ],
)
def test_nodes_that_have_a_major_in_common_are_no_mismatch(majors, found):
    reports = [report(f"d{number}") for number in range(4)]
    for told, each in zip(reports, majors, strict=True):
        runtime(*each)(told)
    assert {each.rule: each.severity for each in compare(reports).findings} == found


def test_two_majors_without_a_framework_are_a_mismatch():
    reports = fleet_of(4, runtime(13))
    for told in reports:
        told["frameworks"].clear()
    found = compare(reports)
    assert found.status == "mismatch"
    assert found.findings[0].title == "the CUDA runtime of CUDA 12 and 13 in job 71"


def test_ranks_of_one_host_are_told_apart():
    reports = [report("d0", rank=rank, ranks=8) for rank in range(8)]
    nccl(reports[5])
    found = compare(reports)
    assert (found.counts["nodes"], found.counts["reports"]) == (1, 8)
    assert [group.nodes for group in found.groups] == ["d0 rank [0-4,6-7]", "d0 rank 5"]


def test_the_newest_report_of_a_node_counts():
    old, new = report("d1"), report("d1")
    nccl(old)
    new["node"]["time"] = "2026-11-22T13:00:00Z"
    for reports in ([report("d0"), old, new], [new, report("d0"), old]):
        found = compare(reports)
        assert (len(found.groups), found.counts["older"], found.status) == (1, 1, "consistent")
        assert "1 older report of the same left out, 1 of which differed" in str(found)
    nccl(new)
    assert "differed" not in str(compare([old, new]))


@pytest.mark.parametrize("time", ["2026-11-22T11:00:00Z", "2026-11-22T12:00:00Z"])
def test_machines_of_one_name_do_not_hide_one_another(time):
    one, other = report("ubuntu"), report("ubuntu")
    other["node"].update(boot_id="7e57ab1e-5555", time=time)
    found = compare([one, other])
    assert (found.counts["older"], len(found.groups)) == (1, 1)
    nccl(other)
    for reports in ([one, other], [other, one]):
        found = compare(reports)
        assert (found.status, found.counts["nodes"], found.counts["older"]) == ("mismatch", 2, 0)
        assert [group.nodes for group in found.groups] == [
            "ubuntu boot 7e57ab1e",
            "ubuntu boot ubuntu",
        ]


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


def test_pods_of_one_node_are_told_apart():
    reports = [report(f"check-{number}") for number in range(2)]
    for told in reports:
        told["node"]["scheduler"] = {"NODE_NAME": "n4", "POD_NAME": told["node"]["host"]}
    assert compare(reports).counts["nodes"] == 2  # by their boot ids
    for told in reports:
        told["node"]["boot_id"] = "n4"
    nccl(reports[1])
    found = compare(reports, nodes="n4")
    assert [group.nodes for group in found.groups] == ["n4 check-0", "n4 check-1"]
    assert (found.counts["nodes"], found.missing) == (1, "")


@pytest.mark.parametrize(
    ("asked", "missing", "count"),
    [
        ({"nodes": "d[0-9]"}, "d[6-9]", 4),
        ({"nodes": ["d0", "login.example.org"]}, "login.example.org", 1),
        ({"expect": 8}, "", 2),
        ({"expect": 6, "nodes": "d[0-5]"}, "", 0),
    ],
)
def test_nodes_that_did_not_answer(asked, missing, count):
    found = compare([report(f"d{number}.example.org") for number in range(6)], **asked)
    assert (found.missing, found.exit_code) == (missing, 3 if count else 0)
    assert [(f.rule, f.severity) for f in found.findings] == [("FL603", "warning")] * bool(count)
    assert all(f"{count} did not answer" in f.title for f in found.findings)


def test_a_rank_that_was_killed_is_missed():
    reports = [report("d0", rank=rank, ranks=10) for rank in (0, 1, 2, 4, 5, 8)]
    found = compare(reports)
    assert found.missing == "rank 3,6-7,9 of job 71"
    assert found.exit_code == 3


def test_of_steps_of_two_sizes_the_larger_one_counts():
    reports = [report(f"d{rank}", rank=rank, ranks=ranks) for rank, ranks in ((0, 2), (1, 4))]
    for each in (reports, reports[::-1]):
        assert compare(each).missing == "rank 2-3 of job 71"
    assert compare([report("d0", rank=5, ranks=2)]).missing == "rank 0-1 of job 71"


def test_of_reports_within_a_second_the_later_one_counts():
    first, last = report("d1"), report("d1")
    nccl(last)
    reports = [report("d0"), report("d2"), first, last]
    assert [group.count for group in compare(reports).groups] == [2, 1]
    reports[2:] = [last, first]
    assert [group.count for group in compare(reports).groups] == [3]


@pytest.mark.parametrize("capability", ["x", "9", "\u00b2.0", "", None])
def test_a_capability_that_is_none_is_no_finding(capability):
    found = compare(fleet_of(3, gpus(capability), at=1))
    assert "FL103" not in [finding.rule for finding in found.findings]


def test_a_device_counts_as_visible_unless_it_is_hidden():
    """What an older report does not tell; one that is hidden from the process is a difference."""
    untold, hidden = report("d1"), report("d2")
    for device in untold["driver"]["devices"]:
        del device["visible"]
    hidden["driver"]["devices"][0]["visible"] = False
    found = compare([report("d0"), untold, hidden])
    assert [group.nodes for group in found.groups] == ["d[0-1]", "d2"]
    assert found.groups[1].differs[0].value == "8 x NVIDIA H200 (7 visible)"


def test_a_node_with_two_errors_of_one_kind_counts_once():
    told = report("d0")
    failing(told)
    told["findings"].append({**told["findings"][0], "subject": "jax"})
    assert [share.count for share in compare([told]).findings[0].evidence] == [1]
    nameless = report("d0")
    failing(nameless)
    nameless["findings"][0].update(rule="", subject=None)
    assert compare([nameless]).status == "mismatch"


def test_the_rest_of_many_values_is_counted_by_nodes():
    reports = [report(f"d{number}") for number in range(206)]
    for number, told in enumerate(reports):
        driver(f"580.{number // 2}")(told)
    found = next(each for each in compare(reports).differences if each.component == "driver")
    assert found.values[-1] == Share("and 3 more", 6, "")


def test_the_baseline_alone_may_have_a_value():
    baseline = report("golden")
    baseline["driver"]["release"] = "580.1"
    found = compare([report("d0"), report("d1")], baseline=baseline)
    driver = next(each for each in found.differences if each.component == "driver")
    assert [share.nodes for share in driver.values] == ["d[0-1]", "the baseline"]


@pytest.mark.parametrize(("change", "raises"), [(cudnn, False), (nccl, True)])
def test_a_preflight_raises_for_errors_alone(change, raises):
    answers = Answers()
    answers.reports = fleet_of(3, change, at=1)
    assert bool(judge(answers)) is raises


def test_of_groups_of_one_size_the_healthy_one_comes_first():
    reports = [report("d0"), report("d1")]
    failing(reports[0])
    assert [group.nodes for group in compare(reports).groups] == ["d1", "d0"]


def test_an_error_beside_a_warning_of_its_rule_is_an_error():
    told = report("d0")
    failing(told)
    told["findings"].append(made.finding("warning", title="another symbol"))
    (found,) = compare([told]).findings
    assert found.evidence[0].value == "CU303 undefined symbol; another symbol"


def test_a_toolkit_of_the_system_in_another_folder_is_a_difference():
    found = compare(fleet_of(3, of("toolkits", 0, path="/opt/cuda"), at=1))
    assert [each.component for each in found.differences] == ["system toolkit"]


def test_a_toolkit_of_the_environment_in_another_folder_is_none():
    fleet = compare(fleet_of(3, of("toolkits", 1, path="/home/b/env"), at=1))
    assert fleet.differences == []


def test_a_baseline_tells_what_has_changed(tmp_path):
    golden = compare([report("d0")]).golden
    assert golden is not None
    saved = json.loads(json.dumps(to_baseline(golden)))
    assert compare([report("d7")], baseline=saved).findings == []
    reports = fleet_of(3, driver("580.82.07"), at=1)
    for baseline in (saved, report("d9")):
        found = compare(reports, baseline=baseline)
        told = {finding.rule: finding for finding in found.findings}
        assert {"FL102", "FL606"} == {*told}
        assert told["FL606"].evidence[0].nodes == "d1"
        assert "driver" in told["FL606"].why
    everywhere = [report("d0"), report("d1")]
    for each in everywhere:
        nccl(each)
    found = compare(everywhere, baseline=saved)
    assert found.status == "mismatch"
    assert [c.component for c in found.groups[0].differs] == ["torch", "libnccl.so.2"]


@pytest.mark.parametrize(
    "baseline", [{}, [], {"schema": 1, "baseline": [["driver"]]}, {"baseline": 3}, "x"]
)
def test_what_is_no_baseline_is_refused(baseline):
    with pytest.raises(ValueError, match=r"baseline|report"):
        compare([report()], baseline=baseline)


def test_no_report_is_no_verdict():
    found = compare([])
    assert (found.status, found.exit_code, found.groups) == ("unknown", 3, [])
    assert "no report" in str(found)
    assert "cudriver check --json --compact" in str(found)


def test_strict_counts_warnings():
    reports = fleet_of(3, cudnn, at=1)
    assert (compare(reports).exit_code, compare(reports, strict=True).exit_code) == (0, 1)


def test_the_order_of_reports_changes_nothing():
    reports = [*fleet_of(8, nccl), report("d9", rank=1, ranks=3)]
    cudnn(reports[-1])
    told = compare(reports).to_json()
    for seed in range(5):
        random.Random(seed).shuffle(reports)
        assert compare(reports).to_json() == told
