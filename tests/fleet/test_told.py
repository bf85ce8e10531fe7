"""What a comparison says, to the letter: as text, as HTML, and each rule's title and evidence."""

from __future__ import annotations

import json
import re

import pytest
from made import driver, failing, fleet_of, gpus, nccl, of, report

from cudriver.fleet import compare
from cudriver.fleet.comparison import Comparison, few, listed, shown, title
from cudriver.fleet.report import Fleet
from cudriver.fleet.report_html import NODES_SHOWN, _nodes, _shares
from cudriver.fleet.report_text import _names, heading, remarks, render
from cudriver.fleet.result import Change, Finding, Group, Share
from cudriver.fleet.rules import judge
from cudriver.fleet.rules.versions import brought_by, known, together
from cudriver.fleet.stacks import FRAMEWORK, LIBRARY, VARIABLE, Stack
from cudriver.stack.report.text import Style

MIXED = """\
8 nodes in 5 groups; 3 agree
1 older report of the same left out
1 line of something else passed over

group 1  3 x  d[0-2]
  driver        580.65.06
  offers CUDA   13.0
  GPUs          8 x NVIDIA H200 (compute capability 9.0)
  Python        3.12.4
  torch         2.8.0+cu128 (CUDA 12.8, cuDNN 9.10.2, NCCL 2.27.3)

group 2  2 x  d[3-4]
  differs in     here       group 1
  driver         570.86.15  580.65.06
  kernel module  570.86.15  580.65.06

group 3  d5
  differs in    here                       group 1
  torch         2.8.0+cu128 (NCCL 2.26.2)  2.8.0+cu128 (NCCL 2.27.3)
  libnccl.so.2  2.26.2                     2.27.3

group 4  d6
  its own check: mismatch
  differs in   here              group 1
  CU303 torch  undefined symbol  none
  verdict      mismatch          consistent

group 5  d7
  its own check: could not tell
  differs in  here     group 1
  verdict     unknown  consistent

error FL301  NCCL of 2 versions in job 71
  why       ranks with other versions of NCCL do not form a communicator: it
            fails or hangs
  evidence  2.27.3  7 x  d[0-4,6-7]
            2.26.2  on  d5
  fix       Install one version of NCCL on all nodes, the one that the framework
            pins.

error FL601  1 of 8 reports tell of errors of their own
  why       there an import, or the first use of CUDA, fails
  evidence  CU303 undefined symbol  on  d6
  fix       Run `cudriver check` on one of these nodes: it says how to fix it.

warning FL101  drivers of 2 branches: R580 and R570
  why       a branch decides which CUDA runs: what the newer one runs the older
            may not
  evidence  580  6 x  d[0-2,5-7]
            570  2 x  d[3-4]
  fix       Install one driver branch on all nodes, the one that most of them
            have.

warning FL602  1 report without a verdict
  why       their own check could not tell whether the stack works: it may fail
            there
  evidence  no verdict  on  d7
  fix       Run `cudriver check` on one of these nodes: it names what it could
            not look into.

warning FL603  2 did not answer
  why       they may be down, or their check was ended or is still under way
  evidence  no report  2 x  d[8-9]

warning FL604  2 processes without a usable report
  why       the comparison lacks what they would have reported
  evidence  broken off or damaged after 11 characters  on  report 9
            schema 2: this cudriver reads schema 1  on  report 11
  fix       Gather damaged reports again: srun --label, or a file for each
            process. Where a process was killed or did not answer, run `cudriver
            check` on its node.

mismatch: 2 errors, 4 warnings; cudriver explain FL301
"""


def mixed():
    reports = [report(f"d{number}") for number in range(8)]
    for number, change in ((3, driver("570.86.15")), (4, driver("570.86.15")), (5, nccl),
                           (6, failing), (7, of(verdict="unknown"))):  # fmt: skip
        change(reports[number])
    text = ['{"schema":1', "noise", '{"schema":2}']
    return compare([*reports, *text, report("d0")], nodes="d[0-9]")


def test_a_comparison_as_text():
    found = mixed()
    assert str(found) + "\n" == found.to_text(verbose=True) == MIXED
    assert repr(found) == ("<Fleet of 8 nodes: mismatch, FL301, FL601, FL101, FL602, FL603, FL604>")
    assert repr(compare([report()])) == "<Fleet of 1 node: consistent, no findings>"
    told = found.to_dict()
    assert [*told] == [
        "schema", "status", "counts", "missing", "reference", "groups", "differences", "findings",
    ]  # fmt: skip
    assert (told["status"], told["missing"], told["reference"]) == ("mismatch", "d[8-9]", "group 1")
    assert told["counts"] == {
        "nodes": 8, "reports": 9, "older": 1, "differing": 0, "broken": 2, "other": 1,
        "components": 6,
    }  # fmt: skip


def test_colour_marks_what_it_marks_and_changes_no_word():
    text = mixed().to_text(colour=True)
    assert re.sub(r" +$", "", re.sub(r"\x1b\[[0-9;]*m", "", text), flags=re.M) == MIXED
    for marked in ("\x1b[1m8 nodes in 5 groups; 3 agree\x1b[0m", "\x1b[1mgroup 2\x1b[0m  2 x",
                   "\x1b[31mits own check: mismatch\x1b[0m", "\x1b[31;1merror FL301\x1b[0m",
                   "\x1b[33mits own check: could not tell\x1b[0m", "\x1b[33;1mwarning FL101",
                   "\x1b[2mwhy       \x1b[0m",
                   "\n\x1b[31;1mmismatch\x1b[0m: 2 errors"):  # fmt: skip
        assert marked in text


HTML = (
    '<body><section class="cudriver page"><h1>3 nodes in 2 groups; 2 agree</h1>'
    '<span class="verdict bad">mismatch: 1 warning</span><h2>Findings</h2>'
    '<article class="doubt"><h3><span class="tag doubt"><a href="#FL101">FL101</a> warning</span>'
    "drivers of 2 branches: R580 and R570</h3><dl><dt>why</dt><dd><p>a branch decides which CUDA "
    "runs: what the newer one runs the older may not</p></dd><dt>evidence</dt><dd>VALUES</dd>"
    "<dt>fix</dt><dd><p>Install one driver branch on all nodes, the one that most of them have."
    "</p></dd></dl></article><h2>Groups</h2>"
    '<article class="good"><h3>Group 1: 2 of 3</h3><code>d[0,2]</code><table><tbody>'
    "<tr><th>driver</th><td>580.65.06</td></tr><tr><th>offers CUDA</th><td>13.0</td></tr>"
    "<tr><th>GPUs</th><td>8 x NVIDIA H200 (compute capability 9.0)</td></tr>"
    "<tr><th>Python</th><td>3.12.4</td></tr>"
    "<tr><th>torch</th><td>2.8.0+cu128 (CUDA 12.8, cuDNN 9.10.2, NCCL 2.27.3)</td></tr>"
    '</tbody></table></article><article class="good"><h3>Group 2: 1 of 3</h3><code>d1</code>'
    "<table><thead><tr><th>differs in</th><th>here</th><th>group 1</th></tr></thead><tbody>"
    "<tr><th>driver</th><td>570.86.15</td><td>580.65.06</td></tr>"
    "<tr><th>kernel module</th><td>570.86.15</td><td>580.65.06</td></tr></tbody></table></article>"
    "<details><summary>2 components that differ</summary><table><tbody>"
    "<tr><th>driver</th><td>VALUES.</td></tr><tr><th>kernel module</th><td>VALUES.</td></tr>"
    "</tbody></table></details></section>"
)
VALUES = (
    '<table><tbody><tr><td class="whole">580</td><td class="whole">2</td>'
    '<td><code>d[0,2]</code></td></tr><tr><td class="whole">570</td><td class="whole">1</td>'
    "<td><code>d1</code></td></tr></tbody></table>"
)


def test_a_comparison_as_a_page():
    page = compare(fleet_of(3, driver("570.86.15"), at=1)).to_html()
    full = VALUES.replace("580", "580.65.06").replace("570", "570.86.15")
    told, _, rules = page[page.index("<body>") :].partition('<section class="cudriver page"><h2>R')
    assert told == HTML.replace("VALUES.", full).replace("VALUES", VALUES)
    heading = r'<article class="note" id="(\w+)"><details open><summary>(.+?)</summary>'
    assert re.findall(heading, rules) == [("FL101", "FL101 drivers of several branches")]
    assert "<title>CUDA stacks: 3 nodes in 2 groups; 2 agree</title>" in page
    broken = fleet_of(2, failing, at=0)
    html = compare([*broken, "{"])._repr_html_()
    assert html.startswith("<style>")
    styles = [text[: text.index("</style>")] for text in (page, html)]
    assert all(".cudriver details table table{width:auto}" in style for style in styles)
    for part in (
        'class="verdict bad">mismatch: ',
        '<article class="bad"><h3><span class="tag bad"',
        'Group 2: 1 of 2 <span class="tag bad">mismatch</span>',
        "2 components that",
        "<details><summary>FL601",
    ):
        assert part in html
    one = compare(fleet_of(2, of("environment", python="3.12.5"), at=1)).to_html()
    assert "<summary>1 component that differs</summary>" in one


def test_what_is_long_is_closed_and_what_is_short_is_never_broken():
    assert _nodes("n" * NODES_SHOWN) == f"<code>{'n' * 300}</code>"
    assert _nodes("n" * 301) == (
        f"<details><summary>{'n' * 40}…</summary><code>{'n' * 301}</code></details>"
    )
    for length, style in ((20, ' class="whole"'), (21, "")):
        row = f'<td{style}>{"v" * length}</td><td class="whole">1,234</td>'
        assert row in _shares([Share("v" * length, 1234, "d0")])


# ---- the rules' edges ----------------------------------------------------------------------------


def rules(reports, **options):
    return {each.rule: each for each in compare(reports, **options).findings}


@pytest.mark.parametrize(("count", "rest"), [(20, ""), (21, "; 1 more sets of nodes")])
def test_of_sets_of_libraries_twenty_are_listed(count, rest):
    reports = [report(f"d{number}") for number in range(count + 1)]
    for number, told in enumerate(reports[:-1]):
        told["libraries"].append({**told["libraries"][0], "soname": f"lib{number:02}.so"})
    found = rules(reports)["FL305"]
    assert len(found.evidence) == 40
    assert found.why.partition(" in another way there")[2].startswith(rest)
    assert bool(rest) == ("not listed" in found.why)


@pytest.mark.parametrize(("count", "more"), [(20, None), (21, "FL503 1 more variable differs"),
                                             (22, "FL503 2 more variables differ")])  # fmt: skip
def test_of_variables_twenty_are_told(count, more):
    names = {f"CUDA_{number:02}": "1" for number in range(count)}
    found = compare(fleet_of(2, lambda told: told["node"]["variables"].update(names), 1)).findings
    assert len(found) == min(count, 21)
    last = f"{found[-1].rule} {found[-1].title}"
    assert last == (more or "FL503 CUDA_19 differs")


@pytest.mark.parametrize(("count", "last"), [(21, "libx20.so comes from elsewhere on some nodes"),
                                             (22, "2 more: libx20.so comes from elsewhere on some "
                                              "nodes ...")])  # fmt: skip
def test_of_a_rules_findings_twenty_are_kept_and_one_alone_is_no_rest(count, last):
    reports = [report("d0"), report("d1")]
    for origin, told in zip(("one 1", "two 1"), reports, strict=True):
        told["libraries"] += [
            {**told["libraries"][0], "soname": f"libx{number:02}.so", "provided_by": origin}
            for number in range(count)
        ]
    found = [each for each in compare(reports).findings if each.rule == "FL304"]
    assert (len(found), found[-1].title) == (21, last)


def test_frameworks_that_are_missing_are_told_up_to_twenty():
    for count, told in ((20, "f19 is not installed on some nodes"),
                         (21, "1 more frameworks are not installed on some nodes")):  # fmt: skip
        reports = [report("d0"), report("d1")]
        row = reports[0]["frameworks"][0]
        reports[0]["frameworks"] += [{**row, "name": f"f{n:02}"} for n in range(count)]
        found = [each for each in compare(reports).findings if each.rule == "FL402"]
        assert found[-1].title == told


def test_capabilities_of_a_job_are_compared_up_to_a_number():
    for count in (32, 33):
        reports = [report(f"d{number}") for number in range(count)]
        for number, told in enumerate(reports):
            gpus(f"12.{number}")(told)
            told["frameworks"].clear()
        found = rules(reports).get("FL103")
        if count == 32:
            assert found is None
        else:
            assert (found.severity, found.title) == (
                "warning", "GPUs of 33 compute capabilities in a job"
            )  # fmt: skip
            assert found.why == "builds were compared with the first 32 of them"


# ---- the parts of the text -----------------------------------------------------------------------


def fleet(**told):
    counts = dict.fromkeys(
        ("nodes", "reports", "older", "differing", "broken", "other", "components"), 0
    )
    counts |= told.pop("counts", {})
    empty = {"groups": [], "differences": [], "findings": [], "reference": "group 1"}
    return Fleet(**{**empty, "golden": None, **told}, counts=counts)


def groups(*counts):
    return [Group(count, f"d{n}", "consistent") for n, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("nodes", "reports", "older", "counts", "text"),
    [
        (0, 0, 0, [], "no report"),
        (0, 2, 2, [], "no report"),
        (1, 1, 0, [1], "1 node"),
        (2, 2, 0, [2], "2 nodes: all the same"),
        (1, 8, 0, [8], "8 reports of 1 node: all the same"),
        (1, 2, 1, [1], "1 node"),
        (2, 2, 0, [1, 1], "2 nodes in 2 groups"),
        (3, 4, 1, [2, 1], "3 nodes in 2 groups; 2 agree"),
        (12345, 12345, 0, [6000, 6345], "12,345 nodes in 2 groups; 6,000 agree"),
    ],
)
def test_the_heading(nodes, reports, older, counts, text):
    told = {"nodes": nodes, "reports": reports, "older": older}
    found = fleet(counts=told, groups=groups(*counts))
    assert heading(found) == text
    found = fleet(counts=told, groups=groups(*counts), findings=[Finding("FL1", "error", "t", "w")])
    assert heading(found) == text + "; no two agree" * (counts == [1, 1])


@pytest.mark.parametrize(
    ("rule", "severity", "status"),
    [("FL102", "note", "consistent"), ("FL101", "note", "consistent"),
     ("FL302", "warning", "consistent"), ("FL101", "warning", "mismatch"),
     ("FL403", "warning", "mismatch"), ("FL301", "error", "mismatch")],
)  # fmt: skip
def test_no_two_agree_and_consistent_never_stand_together(rule, severity, status):
    findings = [Finding(rule, severity, "t", "w")]
    counts = {"nodes": 2, "reports": 2}
    found = fleet(counts=counts, groups=groups(1, 1), findings=findings)
    assert found.status == status
    for told in (str(found), found.to_html()):
        assert ("no two agree" in told) == (status == "mismatch")
        assert ("no mismatch" in told) == (status == "consistent")
        assert ">consistent" not in told
        assert "\nconsistent" not in told


def test_what_may_differ_is_one_of_four():
    with pytest.raises(
        ValueError, match="allow='gpus': it is one of driver, cuda, framework, python"
    ):
        compare([], allow=["gpus"])


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, ["a report is a line of `cudriver check --json --compact`: there was none"]),
        ({"broken": 1}, []),
        ({"reports": 1}, []),
        ({"reports": 9, "older": 1}, ["1 older report of the same left out"]),
        (
            {"reports": 9, "older": 2000, "differing": 1},
            ["2,000 older reports of the same left out, 1 of which differed from what counts"],
        ),
        ({"reports": 9, "other": 1}, ["1 line of something else passed over"]),
        ({"reports": 9, "other": 1200}, ["1,200 lines of something else passed over"]),
    ],
)
def test_remarks_on_what_was_read(counts, told):
    assert remarks(fleet(counts=counts)) == told


@pytest.mark.parametrize(
    ("severities", "options", "status", "code", "last"),
    [
        ([], {}, "consistent", 0, "consistent"),
        ([], {"unsure": True}, "unknown", 3, "could not tell"),
        (["note"], {"strict": True}, "consistent", 0, "consistent"),
        (["warning"], {}, "consistent", 0, "consistent: 1 warning; cudriver explain FL0"),
        (
            ["warning"], {"strict": True, "unsure": True}, "mismatch", 1,
            "mismatch: 1 warning; cudriver explain FL0",
        ),
        (
            ["note", "error", "error", "warning", "warning"], {"unsure": True}, "mismatch", 1,
            "mismatch: 2 errors, 2 warnings; cudriver explain FL1",
        ),
        (
            ["warning"], {"unsure": True}, "unknown", 3,
            "could not tell: 1 warning; cudriver explain FL0",
        ),
    ],
)  # fmt: skip
def test_the_status(severities, options, status, code, last):
    findings = [Finding(f"FL{n}", severity, "t", "w") for n, severity in enumerate(severities)]
    found = fleet(findings=findings, counts={"nodes": 1, "reports": 1}, groups=groups(1), **options)
    assert (found.status, found.exit_code) == (status, code)
    assert str(found).splitlines()[-1] == last


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (8, None),
        (9, "and 1 more groups of 1 (-v shows them)"),
        (12, "and 4 more groups of 4 (-v shows them)"),
    ],
)
def test_eight_groups_are_shown(count, more):
    found = fleet(groups=groups(*[1] * count), counts={"nodes": count, "reports": count})
    lines = str(found).splitlines()
    assert sum(line.startswith("group ") for line in lines) == 8
    assert (more in lines) if more else not any("more" in line for line in lines)
    assert found.to_text(verbose=True).count("\ngroup ") == count


@pytest.mark.parametrize("count", [12, 13])
def test_twelve_changes_of_a_group_are_shown(count):
    changes = [Change(f"c{n}", "a", "b") for n in range(count)]
    found = fleet(groups=[Group(1, "d0", "consistent", {}, changes)])
    assert ("and 1 more (-v)" in str(found)) is (count == 13)
    assert ("c12" in str(found)) is False
    assert ("c12" in found.to_text(verbose=True)) is (count == 13)


@pytest.mark.parametrize("count", [6, 7])
def test_six_values_of_a_finding_are_shown(count):
    shares = [Share(f"v{n}", n + 1, "d0") for n in range(count)]
    found = fleet(findings=[Finding("FL1", "error", "t", "w", shares)])
    lines = str(found).splitlines()
    assert "  evidence  v0  on  d0" in lines
    assert "            v1  2 x  d0" in lines
    assert ("            and 1 more (-v)" in lines) is (count == 7)
    assert ("            v6  7 x  d0" in found.to_text(verbose=True).splitlines()) is (count == 7)


def test_notes_are_titles_alone_unless_all_is_asked_for():
    found = fleet(findings=[Finding("FL1", "note", "title", "because", [Share("v", 1, "d")])])
    assert str(found).splitlines()[-4:] == ["", "note FL1  title", "", "consistent"]
    assert "why       because" in found.to_text(verbose=True)


@pytest.mark.parametrize(
    ("names", "used", "verbose", "lines"),
    [
        ("a,b", 0, False, ["a,b"]),
        ("aaaaaaaa,bbbbbbbb", 22, False, ["aaaaaaaa,bbbbbbbb"]),
        ("aaaaaaaa,bbbbbbbb", 23, False, ["aaaaaaaa,", "bbbbbbbb"]),
        ("aaaaaaaa", 32, False, ["", "aaaaaaaa"]),
        (",".join(["aaaaaa"] * 8), 26, False, ["aaaaaa,aaaaaa,", "aaaaaa,… (-v: all)"]),
        (",".join(["aaaaaa"] * 8), 26, True,
         ["aaaaaa,aaaaaa,", "aaaaaa,aaaaaa,aaaaaa,", "aaaaaa,aaaaaa,aaaaaa"]),
    ],
)  # fmt: skip
def test_names_are_broken_after_commas_in_two_lines_or_all(names, used, verbose, lines):
    assert _names(names, Style(width=40), verbose, used) == lines


def test_a_value_that_is_long_is_cut_unless_all_is_asked_for():
    value = "x" * 121
    found = fleet(findings=[Finding("FL1", "error", "t", "w", [Share(value, 1, "d0")])])
    assert "x" * 60 not in found.to_text(width=60)
    assert found.to_text(width=60).replace("explain", "").count("x") == 119
    assert found.to_text(width=60, verbose=True).replace("explain", "").count("x") == 121
    assert render(found, Style(width=61)).replace("explain", "").count("x") == 121


# ---- the parts of a comparison -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "other", "text"),
    [
        (None, None, "none"),
        (("1",), None, "1"),
        (("1", "a", "", "b"), None, "1 (a, b)"),
        (("1", "a", "b"), ("1", "b", "c"), "1 (a)"),
        (("1", "a"), ("2", "b"), "1"),
        (("", "a"), None, "a"),
        (("1", ""), None, "1"),
    ],
)
def test_a_value_is_shown(value, other, text):
    assert shown(value, other) == text


def test_components_are_called():
    assert [title(each) for each in (
        (VARIABLE, "X"), ("loaded", "l.so"), ("built for", "torch"), ("driver", ""), (LIBRARY, "l"),
    )] == ["$X", "l.so, loaded", "torch, built for", "driver", "l"]  # fmt: skip


def test_words_of_a_title_and_shares_are_few():
    assert listed(["a"]) == "a"
    assert listed(list("abcd")) == "a and b and c and d"
    assert listed(list("abcdef")) == "a and b and c and d and 2 more"
    shares = [Share(str(n), 2, "") for n in range(101)]
    assert few(shares[:100]) == shares[:100]
    assert few(shares)[100:] == [Share("and 1 more", 2, "")]


@pytest.mark.parametrize(
    ("told", "version"),
    [("12.8", "12.8"), (None, None), ("", None), ("unknown version", None),
     ("12.8 + unknown version", None)],
)  # fmt: skip
def test_a_version_that_is_unknown_is_none(told, version):
    assert known(told) == version


def test_several_versions_are_one_value():
    assert together(["13", None, "12", "13", ""]) == "12 + 13"
    assert together([None]) is None


@pytest.mark.parametrize(
    ("origins", "name"),
    [([], None), (["pkg 1.2"], "pkg"), (["/usr/lib/x.so"], "/usr/lib/x.so"),
     (["a 1", "b 2"], "a 1, b")],
)  # fmt: skip
def test_what_brought_a_library(origins, name):
    assert brought_by("x")(Stack({(LIBRARY, "x"): ("1", *origins)})) == name
    assert (
        Stack({(FRAMEWORK, "t"): ("1", "CUDA 12.8", "NCCL 2")}).says(FRAMEWORK, "t", "NCCL ") == "2"
    )


def test_nothing_to_compare_finds_nothing():
    assert judge(Comparison()) == []
    assert json.loads(compare([]).to_json())["groups"] == []


def test_a_build_that_covers_a_gpu_on_one_platform_is_none_without_code(monkeypatch):
    monkeypatch.setattr(
        "cudriver.fleet.rules.machines.with_ptx",
        lambda build, platform: ["sm_90"] if platform == "x86_64" else ["sm_90", "sm_70"],
    )
    assert "FL103" not in rules(fleet_of(2, gpus("7.0"), at=1))


def test_a_page_has_fifty_groups_and_counts_what_it_leaves_out():
    for count, more in ((50, None), (51, "<p>and 1 more groups</p>")):
        page = fleet(groups=groups(*[1] * count)).to_html()
        assert page.count("<h3>Group ") == 50
        assert ("more groups" in page) is (more is not None)
        assert more is None or more in page
    reports = [report("d0"), report("d1")]
    names = {f"CUDA_{number}": "1" for number in range(1234)}
    reports[0]["node"]["variables"].update(dict([*names.items()][:900]))
    page = compare(reports).to_html()
    assert "<summary>900 components that differ</summary>" in page
    assert "and 800 more components" in page


def test_nodes_without_anything_for_cuda_are_not_called_consistent():
    """As `check` says. A report without states says nothing of that."""
    reports = [report("d0"), report("d1")]
    cpu = {"name": "jax", "version": "0.7.2", "cuda": None, "state": None}
    for each in reports:
        each["frameworks"] = [cpu]
    told = compare(reports)
    assert (told.status, told.exit_code) == ("consistent", 0)
    assert told.to_text().endswith("\nnothing here uses CUDA\n")
    assert "jax           0.7.2 (without CUDA)" in told.to_text()
    assert ">nothing here uses CUDA<" in told.to_html()
    del cpu["state"]
    assert compare(reports).to_text().endswith("\nconsistent\n")
    reports[1]["frameworks"] = [{**cpu, "state": None}, {**cpu, "name": "torch", "state": "works"}]
    assert "nothing here" not in compare(reports).to_text()
