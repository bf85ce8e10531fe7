"""The parts of a comparison at their edges: lines, nodes, values."""

from __future__ import annotations

import builtins
import io
from types import SimpleNamespace

import pytest
from made import PREFIX, finding, nccl, report

from cudriver.fleet import compare, here, read
from cudriver.fleet.comparison import _gaps, to_baseline
from cudriver.fleet.node import node
from cudriver.fleet.stacks import LONGEST, MOST_PARTS, Reducer, Unusable, _relative, check, said

# ---- lines ---------------------------------------------------------------------------------------


def lines(*texts, place="p.txt"):
    found = []
    for item in read.lines(io.BytesIO("\n".join(texts).encode()), place):
        if isinstance(item, read.Told):
            found.append(("told", item.name, item.value))
        elif isinstance(item, read.Broken):
            found.append(("broken", item.place, item.why))
        else:
            found.append("other")
    return found


ONE = '{"schema":1}'


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], []),
        (["", "  ", ONE], [("told", "p.txt:3", {"schema": 1})]),
        ([f"pod/x:  {ONE}"], [("told", "pod/x", {"schema": 1})]),
        ([f": {ONE}"], [("told", "p.txt:1", {"schema": 1})]),
        ([f"a {ONE} b {ONE} {{"], [("told", "a", {"schema": 1}), ("told", "a", {"schema": 1}),
                                   "other"]),
        (["{", '"schema": 1', "}"], [("told", "p", {"schema": 1})]),
        (["[", ONE, ",", ONE, "]"], ["told"]),
        (['{"schema":1,'], [("broken", "p.txt:1", "broken off or damaged after 12 characters")]),
        (['a: {"sch'], [("broken", "p.txt:1", "broken off or damaged after 1 characters")]),
        (["x {", ONE], ["other", ("told", "p.txt:2", {"schema": 1})]),
        (["{x"], ["other"]),
        (['{"x'], ["other"]),
        (['{"'], [("broken", "p.txt:1", "broken off or damaged after 1 characters")]),
        (['{ "schema" : 1'], [("broken", "p.txt:1", "broken off or damaged after 14 characters")]),
        ([ONE[:-1] + ONE], ["broken", ("told", "p.txt:1", {"schema": 1})]),
        (['{"reports":[1,{"a":2}]}'], [("told", "p.txt:1", 1), ("told", "p.txt:1", {"a": 2})]),
        (['{"reports":3}'], [("told", "p.txt:1", {"reports": 3})]),
        (["3: {\"schema\":1,", "3: \"a\":2}"], [("told", "3", {"schema": 1, "a": 2})]),
        (["x", "{", '"schema":1}'], ["other"] * 3),
        (
            ['3: {"schema":1,"a":"x\r', '3: y"}\r'],
            [("told", "3", {"schema": 1, "a": "xy"})],
        ),
        (["3: {\"schema\":1,\r", "3: \"a\":2}\r"], [("told", "3", {"schema": 1, "a": 2})]),
        (["3: {\"schema\":1,", "4: \"a\":2}"], ["other", "broken"]),
        (["3: {\"schema\":1,", "3: {\"schema\":2}"], ["broken", ("told", "3", {"schema": 2})]),
    ],
)  # fmt: skip
def test_what_lines_tell(texts, found):
    def alike(seen, wanted):
        return seen[0] == wanted if isinstance(wanted, str) and seen != "other" else seen == wanted

    if texts[:1] == ["["]:
        assert [item[0] for item in lines(*texts)] == ["told", "told"]
        return
    seen = lines(*texts)
    assert len(seen) == len(found), seen
    assert all(map(alike, seen, found)), seen


def test_a_document_of_many_lines_is_kept_to_a_limit(monkeypatch):
    monkeypatch.setattr(read, "LINE_LIMIT", 40)
    text = '{\n"schema":1,\n"a":"' + "x" * 10 + '"\n}'
    assert len(text) < 40
    assert lines(text) == [("told", "p", {"schema": 1, "a": "x" * 10})]
    ((kind, place, _),) = lines('{\n"schema":1,\n"a":"' + "x" * 40 + '"\n}')
    assert (kind, place) == ("broken", "p.txt:1")


def test_what_follows_a_line_that_is_a_byte_too_long_is_read(monkeypatch):
    monkeypatch.setattr(read, "LINE_LIMIT", 20)
    for more in range(3):
        found = lines("{" + "x" * (18 + more), ONE)
        assert found[-1] == ("told", "p.txt:2", {"schema": 1})
        assert found[0] == ("other" if more == 0 else ("broken", "p.txt:1", read.TOO_LONG))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name in ("b/2", "b/1", "a/3", "c", ".d/4", "b/.5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(ONE)
    names = [item.name.removeprefix(f"{tmp_path}/") for item in read.named(str(tmp_path))]
    assert names == ["c:1", ".d/4:1", "a/3:1", "b/1:1", "b/2:1"]
    with pytest.raises(FileNotFoundError):
        [*read.named(str(tmp_path / "none"))]


# ---- nodes and values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "x"}, (None, 3, None)),
        ({"RANK": "1", "WORLD_SIZE": "x", "PMI_RANK": "2"}, (None, 2, None)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "FLUX_TASK_RANK": "1"}, (None, 2, 4)),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "SLURM_PROCID": "0"}, (None, 1, 2)),
        ({"RANK": "999999999", "WORLD_SIZE": "999999999"}, (None, 999999999, 999999999)),
        ({"RANK": "1234567890", "WORLD_SIZE": "4"}, (None, None, None)),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, (None, None, None)),
        ({"RANK": "²", "WORLD_SIZE": "4"}, (None, None, None)),
        ({"PBS_JOBID": "7.pbs", "TORCHELASTIC_RUN_ID": "x"}, ("7.pbs", None, None)),
        ({"TORCHELASTIC_RUN_ID": "none"}, (None, None, None)),
        ({"SLURM_JOB_ID": "none", "LSB_JOBID": "9"}, ("9", None, None)),
        ({"SLURM_JOB_ID": "1", "FLUX_JOB_ID": "2"}, ("1", None, None)),
    ],
)
def test_job_and_rank_by_the_launchers_variables(variables, found):
    seen = node(variables)
    assert (seen["job"], seen["rank"], seen["ranks"]) == found


def test_what_a_node_tells(monkeypatch, tmp_path):
    seen = node(
        {"NCCL_B": "1", "CUDA_A": "2", "XCUDA_A": "3", "PATH": "4", "UCX_TLS": "5", "CUDA": "6",
         "SLURM_NODEID": "7", "POD_NAME": "p", "KUBERNETES_SERVICE_HOST": "h"},
        ranks=None, extra=3,
    )  # fmt: skip
    assert [*seen] == [
        "host", "time", "boot_id", "cudriver", "job", "rank", "ranks", "scheduler", "variables",
    ]  # fmt: skip
    assert list(seen["variables"].items()) == [("CUDA_A", "2"), ("NCCL_B", "1"), ("UCX_TLS", "5")]
    assert seen["scheduler"] == {"SLURM_NODEID": "7", "POD_NAME": "p", "extra": "3"}
    monkeypatch.setattr("cudriver.fleet.node.BOOT_ID", str(tmp_path / "none"))
    assert node({})["boot_id"] is None
    (tmp_path / "none").write_bytes(b"\xff")
    assert node({})["boot_id"] is None


def test_the_libraries_that_a_process_has_mapped(monkeypatch, tmp_path):
    monkeypatch.setattr(here, "MAPS", str(tmp_path / "maps"))
    assert here.loaded() == []
    row = "7f-7f r-xp 00 08:01 12 "
    (tmp_path / "maps").write_text("".join(row + path + "\n" for path in (
        "/b/libnccl.so.2", "/a/libcudart.so.12", "/b/libnccl.so.2", "/b/libm.so.6", "[heap]", "",
        "/a b/libcudnn.so.9", "libcublas.so.12",
    )))  # fmt: skip
    assert [each["path"] for each in here.loaded()] == [
        "/a b/libcudnn.so.9", "/a/libcudart.so.12", "/b/libnccl.so.2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * LONGEST, "x" * LONGEST), (None, ""), (3, "3"), (True, "True"), (1.5, "1.5"),
        (10**100, "1" + "0" * 79), ([], "<list>"), ({}, "<dict>"),
    ],
)  # fmt: skip
def test_a_value_of_a_report_is_text(value, text):
    assert said(value) == text


def test_a_value_that_is_too_long_is_told_apart():
    one, other = said("x" * LONGEST + "1"), said("x" * LONGEST + "2")
    assert one != other
    assert one[:LONGEST] == "x" * LONGEST
    assert len(one) == LONGEST + len("... 12345678")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/opt/env", "PREFIX"), ("/opt/env/lib", "PREFIX/lib"), ("a=/opt/env", "a=PREFIX"),
        ("/opt/env:/opt/env/", "PREFIX:PREFIX/"), ("(/opt/env)", "(PREFIX)"),
        ("/opt/env2", "/opt/env2"), ("/mnt/opt/env", "/mnt/opt/env"), ("x/opt/env", "x/opt/env"),
        ("/opt/env.x", "/opt/env.x"), ("none", "none"), ("", ""),
    ],
)  # fmt: skip
def test_the_environments_folder_is_named(text, found):
    assert _relative(text, "/opt/env") == found
    assert _relative(text, "/") == text
    assert _relative("/a/b /a", "/a") == "PREFIX/b PREFIX"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, "a JSON int, not a report"),
        ([], "a JSON list, not a report"),
        ({}, "JSON without 'schema', not a report of cudriver check"),
        ({"schema": "9" * 50}, f"schema {'9' * 40}: this cudriver reads schema 1"),
        ({**report(), "driver": []}, "a report whose 'driver' is not a JSON object"),
        ({**report(), "environment": None}, "a report whose 'environment' is not a JSON object"),
        ({**report(), "findings": {}}, "a report whose 'findings' is not a JSON list"),
        ({**report(), "toolkits": None}, "a report whose 'toolkits' is not a JSON list"),
    ],
)
def test_what_is_no_report_is_told(value, why):
    with pytest.raises(Unusable) as caught:
        check(value)
    assert str(caught.value) == why
    (lost,) = [f for f in compare([value]).findings if f.rule == "FL604"]
    assert [(s.value, s.nodes) for s in lost.evidence] == [(why, "report 1")]


def test_processes_of_one_machine_are_told_apart_by_job_worker_or_rank():
    for change in ({"job": "72"}, {"rank": 1}, {"scheduler": {"worker": "w"}}):
        other = report("d0")
        other["node"].update(change)
        found = compare([report("d0"), other])
        assert (found.counts["nodes"], found.counts["older"]) == (1, 0), change
    both = [report("d0"), report("d0")]
    for number, told in enumerate(both):
        told["node"]["scheduler"] = {"worker": f"w{number}", "POD_NAME": f"p{number}"}
    nccl(both[1])
    assert [group.nodes for group in compare(both).groups] == ["d0 w0", "d0 w1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["findings"][0].update(subject="jax"),
        lambda told: told["findings"][0].update(title="another"),
        lambda told: told["findings"][0].update(severity="warning"),
        lambda told: told["findings"][0].update(rule="CU1"),
        lambda told: told["node"].update(loaded=[{"soname": "l", "version": "1", "path": "/l"}]),
        lambda told: told["node"]["variables"].update(CUDA_X="1"),
        lambda told: told["driver"]["devices"][0].update(visible=False),
        lambda told: told["driver"]["devices"][0].update(name="other"),
        lambda told: told["driver"]["devices"][0].update(compute_capability="8.0"),
        lambda told: told["driver"].update(error="odd"),
        lambda told: told["environment"].update(python="3.12.5"),
        lambda told: told["toolkits"][0].update(path="/other"),
        lambda told: told["frameworks"][0].update(archs=["sm_90"]),
        lambda told: told["libraries"][0].update(provided_by="x 1"),
        lambda told: told.update(verdict="mismatch"),
    ],
    ids=range(15),
)
def test_what_the_reducer_keeps_apart(change):
    """A stack is looked up by what a report says: all of that counts."""
    reports = [report("d0"), report("d1")]
    for told in reports:
        told["findings"] = [finding("error")]
    change(reports[1])
    assert len(compare(reports).groups) == 2


def test_reports_may_be_objects():
    found = compare([SimpleNamespace(to_dict=report), report("d1")])
    assert found.groups[0].nodes == "d[0-1]"


def test_a_report_has_as_many_parts_as_it_may_have():
    told = report()
    parts = len(Reducer().node(told, "x").stack.parts)
    told["node"]["variables"] |= {f"CUDA_{n}": "1" for n in range(MOST_PARTS - parts)}
    assert len(Reducer().node(told, "x").stack.parts) == MOST_PARTS
    told["node"]["variables"]["CUDA_X"] = "1"
    with pytest.raises(Unusable, match=f"{MOST_PARTS + 1} components: no machine has so many"):
        Reducer().node(told, "x")


def parts(change=None):
    told = report()
    if change is not None:
        change(told)
    return Reducer().node(told, "x").stack.parts


def test_the_components_of_a_node():
    assert parts() == {
        ("driver", ""): ("580.65.06", ""),
        ("kernel module", ""): ("580.65.06",),
        ("offers CUDA", ""): ("13.0",),
        ("libcuda", ""): ("/usr/lib64/libcuda.so.*",),
        ("GPUs", ""): ("8 x NVIDIA H200", "compute capability 9.0"),
        ("Python", ""): ("3.12.4",),
        ("system toolkit", ""): ("12.8", "/usr/local/cuda"),
        ("environment's toolkit", ""): ("12.8",),
        ("framework", "torch"): ("2.8.0+cu128", "CUDA 12.8", "cuDNN 9.10.2", "NCCL 2.27.3"),
        ("built for", "torch"): ("sm_80 sm_90 sm_100 sm_120",),
        ("library", "libcudart.so.12"): ("12.8.90", "nvidia-cuda-runtime-cu12 12.8.90"),
        ("library", "libcublas.so.12"): ("12.8.4.1", "nvidia-cublas-cu12 12.8.4.1"),
        ("library", "libcudnn.so.9"): ("9.10.2", "nvidia-cudnn-cu12 9.10.2.21"),
        ("library", "libnccl.so.2"): ("2.27.3", "nvidia-nccl-cu12 2.27.3"),
        ("variable", "NCCL_ALGO"): ("Ring",),
        ("variable", "LD_LIBRARY_PATH"): ("PREFIX/lib",),
        ("verdict", ""): ("consistent",),
    }


def test_the_components_of_a_node_that_has_other_things():
    def change(told):
        del told["driver"]["devices"][3:]
        first, second, _ = told["driver"]["devices"]
        first.update(name=None, compute_capability=None)
        second.update(visible=False, compute_capability="8.0")
        told["driver"].update(release=None, error="no answer")
        told["toolkits"] += [
            {"origin": "system", "version": None, "path": "/a"},
            {"origin": "environment", "version": "12.9", "path": "/b"},
        ]
        told["libraries"] = [
            {"soname": "l.so", "version": None, "path": f"{PREFIX}/x/l.so", "provided_by": None},
            {"soname": "l.so", "version": "1", "path": "/y/l.so", "provided_by": None},
        ]
        told["findings"] = [
            {"severity": "note", "rule": "CU1", "title": "t"},
            {"severity": "warning", "rule": "CU2", "subject": None, "title": f"{PREFIX}/a"},
            {"severity": "error", "rule": "CU2", "subject": None, "title": "b"},
        ]
        told["node"]["loaded"] = [{"soname": "m.so", "version": "2", "path": "/m.so"}]
        told["verdict"] = "strange"

    found = parts(change)
    assert {key: found[key] for key in (
        ("driver", ""), ("libcuda", ""), ("GPUs", ""), ("system toolkit", ""),
        ("environment's toolkit", ""), ("library", "l.so"), ("loaded", "m.so"), ("finding", "CU2"),
        ("verdict", ""),
    )} == {
        ("driver", ""): ("none", "no answer"),
        ("libcuda", ""): ("/usr/lib64/libcuda.so.580.65.06",),
        ("GPUs", ""): ("1 x GPU; 2 x NVIDIA H200", "compute capability  8.0 9.0", "2 visible"),
        ("system toolkit", ""): ("12.8, unknown version", "/a", "/usr/local/cuda"),
        ("environment's toolkit", ""): ("12.8, 12.9",),
        ("library", "l.so"): ("unknown version + 1", "PREFIX/x/l.so", "/y/l.so"),
        ("loaded", "m.so"): ("2", "/m.so"),
        ("finding", "CU2"): ("PREFIX/a; b", "error"),
        ("verdict", ""): ("unknown",),
    }  # fmt: skip
    assert ("finding", "CU1") not in found


@pytest.mark.parametrize(
    ("seen", "size", "gaps"),
    [([], 0, []), ([], 2, [(0, 1)]), ([0], 1, []), ([1], 2, [(0, 0)]), ([0], 3, [(1, 2)]),
     ([0, 1, 3], 5, [(2, 2), (4, 4)])],
)  # fmt: skip
def test_ranks_that_are_not_seen(seen, size, gaps):
    assert _gaps(seen, size) == gaps


def test_ranks_of_a_size_of_none_are_not_missed():
    for ranks in (None, 0):
        assert compare([report("d0", rank=1, ranks=ranks)]).missing == ""
    bare = report("d0", rank=1, ranks=2)
    bare["node"]["job"] = None
    assert compare([bare]).missing == "rank 0"


@pytest.mark.parametrize(
    ("rank", "ranks", "known"),
    [(0, 1, (0, 1)), (True, 2, (None, 2)), (-1, 2, (None, 2)), (1 << 31, 1, (None, 1)),
     ((1 << 31) - 1, None, ((1 << 31) - 1, None)), ("1", 2.0, (None, None))],
)  # fmt: skip
def test_a_rank_is_a_number(rank, ranks, known):
    told = report()
    told["node"].update(rank=rank, ranks=ranks)
    found = Reducer().node(told, "x")
    assert (found.rank, found.ranks) == known


def test_who_is_expected_counts_beside_who_is_named():
    reports = [report("d0"), report("d1")]
    for asked, count in (({"expect": 2}, None), ({"expect": 1}, None), ({"expect": 5}, 3),
                         ({"expect": 4, "nodes": "d[0-9]"}, 8),
                         ({"expect": 9, "nodes": "d[0-2]"}, 7)):  # fmt: skip
        titles = [f.title for f in compare(reports, **asked).findings]
        assert titles == ([f"{count} did not answer"] if count else []), asked


def test_a_baseline_is_written_by_its_components():
    saved = to_baseline(compare([report()]).golden)
    assert saved["schema"] == 1
    assert saved["baseline"][:2] == [["driver", "", "580.65.06", ""],
                                     ["kernel module", "", "580.65.06"]]  # fmt: skip
    assert saved["baseline"][-1] == ["verdict", "", "consistent"]
    for row in (["driver", ""], ["strange", "", "1"], "driver", None):
        with pytest.raises(ValueError, match="a baseline that --save-baseline did not write"):
            compare([report()], baseline={"baseline": [*saved["baseline"], row]})
    assert compare([report()], baseline=saved).reference == "the baseline"


def test_of_what_is_broken_twenty_are_named():
    found = compare([f'x{number}: {{"schema":' for number in range(21)])
    (lost,) = [f for f in found.findings if f.rule == "FL604"]
    assert lost.title == "21 processes without a usable report"
    assert (len(lost.evidence), found.counts["broken"]) == (20, 21)
    (one,) = [f for f in compare(['{"schema":']).findings if f.rule == "FL604"]
    assert one.title == "1 process without a usable report"


def test_a_file_of_maps_that_cannot_be_read_is_none(monkeypatch):
    def fails(*_, **__):
        raise PermissionError

    monkeypatch.setattr(builtins, "open", fails)
    assert here._mapped_files() == set()
