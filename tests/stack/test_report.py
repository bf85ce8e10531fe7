"""What a person sees: text, JSON, HTML, notebook."""

import copy
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import samples
from facts import SITE, facts, fault, library
from golden import assert_words_as_before
from synth import Prefix

import cudriver.stack
from cudriver.fleet.report_text import elide
from cudriver.stack import rulebook
from cudriver.stack.facts import Environment, Evidence, Facts, Finding, Framework, Missing, Shadowed
from cudriver.stack.load.observe import Observation, Row
from cudriver.stack.machine_facts import Driver
from cudriver.stack.record import but, put
from cudriver.stack.report import Report
from cudriver.stack.report.components import _some, components, driver_line, libraries_line
from cudriver.stack.report.html import page
from cudriver.stack.report.list import one_line
from cudriver.stack.report.redaction import redacted
from cudriver.stack.report.text import How, Style, short_path
from cudriver.stack.rules import registry
from cudriver.stack.text import clean, columns, wrap_command
from schemas import strict

SCHEMA = Path(cudriver.stack.__file__).parent / "data" / "report.schema.json"
VOID = {"meta", "br"}


def strict_schema() -> dict:
    return strict(SCHEMA)


def observed() -> Observation:
    rows = [Row("torch.version.cuda", "12.8", "12.8"), Row("libnccl.so.2", "/a", "/b")]
    return Observation({"torch": None}, rows)


REPORTS = {
    "healthy": Report(samples.healthy(), []),
    "broken": Report(samples.healthy(), samples.broken_findings()),
    "hostile": Report(*samples.hostile()),
    "observed": Report(samples.healthy(), [], observation=observed()),
    "busy": Report(*samples.busy()),
}


def test_nothing_turns_the_direction_of_text():
    told = clean("2.8.0\u202egnp.\x1b[2J\x9b\u2028\u200b 项目\u3000训练 é")
    assert told == "2.8.0\\u202egnp.\\x1b[2J\\x9b\\u2028\\u200b 项目\u3000训练 é"


def named(prefix: str, *rules: str, frameworks: int = 1, severity: str = "warning") -> Report:
    """An environment of that name where these rules fired."""
    made = [Framework(f"torch{n or ''}", "2.8.0+cu128", cuda="12.8") for n in range(frameworks)]
    facts = Facts(Environment(prefix, "venv", python="3.11.7"), frameworks=made)
    return Report(facts, [Finding(rule, severity, "x") for rule in rules])


@pytest.mark.parametrize(
    ("severity", "unsure", "mark"),
    [
        ("error", [], "✗"),
        ("error", ["a file"], "✗"),
        ("warning", ["a file"], "?"),
        ("warning", [], "!"),
        ("note", [], "✓"),
    ],
)
def test_the_mark_of_an_environment_in_a_line(severity, unsure, mark):
    report = named("/envs/a", "CU302", severity=severity)
    put(report.facts, unsure=unsure)
    assert one_line(report, Style())[0] == mark
    plain = {"✗": "x", "✓": "+"}
    assert one_line(report, Style(ascii_only=True))[0] == plain.get(mark, mark)
    report.strict = True
    assert one_line(report, Style())[0] == ("✗" if severity != "note" else mark)


def test_an_environment_without_frameworks_in_a_line():
    assert one_line(named("/envs/a", frameworks=0), Style()).startswith("- /envs/a  no framework")
    assert one_line(named("/envs/a", "CU404", frameworks=0), Style())[0] == "!"


LONG = "/home/ana/work/projects/" + "very-long-name/" * 6 + "envs/train"
MANY_RULES = [f"CU{n}" for n in (103, 109, 202, 301, 302, 303, 304, 305, 307, 402, 404, 405, 407)]


@pytest.mark.parametrize("prefix", ["/e", "/home/ana/" + "环境" * 5])
def test_an_environment_in_a_line_fits_and_names_every_rule(prefix):
    for width, frameworks, rules in itertools.product((40, 60, 80), (0, 1, 7), (0, 1, 5, 13)):
        report = named(prefix, *MANY_RULES[:rules], frameworks=frameworks)
        text = one_line(report, Style(width=width))
        assert max(map(columns, text.splitlines())) <= width
        assert re.findall(r"CU\d{3}", text) == MANY_RULES[:rules]
        assert prefix in text
        assert text.count("2.8.0+cu128") == frameworks


def test_a_wide_terminal_shows_a_line_whole():
    text = one_line(named(LONG, *MANY_RULES, frameworks=3), Style(width=400))
    frameworks = ", ".join(f"torch{n} 2.8.0+cu128 (CUDA 12.8)" for n in ("", 1, 2))
    assert text == f"! {LONG}  {frameworks}  {', '.join(MANY_RULES)}"


def test_the_first_three_are_named():
    assert _some("abac") == "a, b, c"
    assert _some("abcde") == "a, b, c and 2 more"


def test_the_middle_is_left_out():
    assert elide("/a/b", 4, "…") == "/a/b"
    assert elide("0123456789", 7, "…") == "01…6789"
    assert elide("0123456789", 7, "...") == "0...789"
    assert elide("环境环境环境", 7, "…") == "环…环境"
    assert columns("é e\u0301 环 \udcff") == 1 + 1 + 1 + 1 + 2 + 1 + 6


def test_an_observation_without_an_answer_settles_nothing():
    told = Observation({}, [], "the interpreter gave no answer within 1 s")
    assert Report(samples.healthy(), [], observation=told).verdict == "unknown"
    nothing = Observation({}, [], "no framework to import")
    assert Report(samples.healthy(), [], observation=nothing).verdict == "consistent"


@pytest.fixture(params=REPORTS)
def report(request) -> Report:
    return REPORTS[request.param]


class Markup(HTMLParser):
    """Checks that every tag is closed in order and collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def parse(text: str) -> Markup:
    markup = Markup()
    markup.feed(text)
    markup.close()
    assert not markup.open
    return markup


def test_text_is_as_before(report):
    text = report.to_text(width=80) + one_line(report, Style(width=80))
    assert_words_as_before("report", text.encode("utf-8", "backslashreplace").decode())


@pytest.mark.parametrize("name", ["busy", "hostile"])  # which have all that the others have
def test_a_narrow_verbose_text_is_as_before(name):
    text = REPORTS[name].to_text(width=60, verbose=True)
    text += one_line(REPORTS[name], Style(width=60))
    assert_words_as_before("report", text.encode("utf-8", "backslashreplace").decode())


def test_html_is_as_before(report):
    body = report._repr_html_().rpartition("</style>")[2]
    body = body.partition('<section class="cudriver"><h2>')[0]  # the pages of its rules
    rows = re.sub(r"(?=<(section|article|details|table|h\d|tr|dt|p)\b)", "\n", body)
    assert_words_as_before("report", rows.strip())


def test_a_page_of_several_begins_with_a_table_that_leads_to_each():
    reports = list(REPORTS.values())
    first, _, rest = page(reports, How()).partition("</section>")
    parse(page(reports, How()))
    led = re.findall(r'href="#(e\d)"', first)
    assert led == re.findall(r'<section class="cudriver page" id="(e\d)"', rest)
    assert led == [f"e{n}" for n in range(len(reports))]
    for each, row in zip(reports, first.split("<tr>")[1:], strict=True):
        text = parse(f"<table><tr>{row.partition('</tr>')[0]}</tr></table>").text
        for name in (each.prefix, *(f"{f.name} {f.version}" for f in each.frameworks)):
            assert clean(name).encode("utf-8", "backslashreplace").decode() in text
        for finding in each.findings:
            assert finding.severity == "note" or finding.rule in text
    assert "<h1>5 environments, " in page(reports, How())
    assert 'href="#e0"' not in page(reports[:1], How())


def test_a_warning_tells_a_message_and_an_error_an_error():
    told = {
        s: Finding("CU303", s, "x", predicts="libx.so: no") for s in ("error", "warning", "note")
    }
    for severity, finding in told.items():
        report = Report(samples.healthy(), [finding])
        label = "error" if severity == "error" else "message"
        assert re.search(rf"^  {label} +libx\.so: no$", report.to_text(verbose=True), re.M)
        assert f"<dt>{label}</dt><dd><pre>libx.so: no</pre></dd>" in report.to_html()


def test_verbose_leaves_out_no_evidence_and_no_name():
    made = samples.healthy()
    put(made, missing=[Missing(f"libx{n}.so", "/a") for n in range(9)])
    evidence = [Evidence(f"/e{n}") for n in range(9)]
    also = Finding("CU302", "warning", "y", evidence=[Evidence(f"/also{n}") for n in range(9)])
    report = Report(made, [Finding("CU303", "error", "x", evidence=evidence, also=[also])])
    short, whole = report.to_text(), report.to_text(verbose=True)
    for start in ("/e", "/also", "libx"):
        assert f"{start}8" in whole
        assert f"{start}8" not in short
    assert short.count("and 3 more (-v)") == 2
    assert " more" not in whole


def test_markdown_is_one_block_of_code(report):
    """An independent parser reads it."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt()
    report.findings[:0] = [Finding("CU303", "error", "```` <b> ~~~")]
    (block,) = markdown.parse(report.to_markdown())
    report.findings[:1] = []
    assert block.type == "fence"
    for finding in report.findings:
        told = clean(" ".join(redacted(finding.fix)))
        assert all(word in block.content for word in told.split())


def test_json_follows_the_shipped_schema(report):
    jsonschema.validate(json.loads(report.to_json()), strict_schema())


def test_json_says_what_the_facts_say():
    data = json.loads(REPORTS["broken"].to_json())
    assert data["verdict"] == "mismatch"
    assert data["driver"]["release"] == "580.159.04"
    assert [device["visible"] for device in data["driver"]["devices"]] == [True, False]
    assert data["libraries"][0]["shadowed"][0]["version"] == "9.14.0"
    assert [finding["rule"] for finding in data["findings"]] == ["CU201", "CU303", "CU302"]
    assert data["findings"][1]["predicts"] == samples.PREDICTED


@pytest.mark.parametrize("member", ["schema", "verdict", "driver", "findings"])
def test_schema_notices_a_missing_member(member):
    data = json.loads(REPORTS["broken"].to_json())
    del data[member]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, strict_schema())


@pytest.mark.parametrize(
    ("severity", "options", "code"),
    [
        (None, {}, 0),
        ("note", {"strict": True}, 0),
        ("warning", {}, 0),
        ("warning", {"strict": True}, 1),
        ("error", {}, 1),
        (None, {"observation": observed()}, 1),
    ],
)
def test_exit_codes(severity, options, code):
    findings = [f for f in samples.broken_findings() if f.severity == severity]
    assert Report(samples.healthy(), findings, **options).exit_code == code


def test_select_and_ignore_take_a_rule_or_the_start_of_one():
    report = REPORTS["broken"]
    assert [f.rule for f in report.restricted(["CU3"], []).findings] == ["CU303", "CU302"]
    assert [f.rule for f in report.restricted(["CU3"], ["CU303"]).findings] == ["CU302"]
    assert [f.rule for f in report.restricted([], ["CU303", "CU302"]).findings] == ["CU201"]
    assert report.restricted([], ["CU303"]).exit_code == 0
    for odd in ("CU303", ["cu303"], ["CU999"], ["CU"], [""]):
        for select, ignore in ((odd, []), ([], odd)):
            with pytest.raises(ValueError, match="neither a rule"):
                report.restricted(select, ignore)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_text_fits_the_terminal(report, width):
    for line in report.to_text(width=width, verbose=True).splitlines():
        # Only a word that is itself too long (a path, a symbol) may stick out: it stands alone,
        # but for the label before it and a backslash after it.
        words = line.removesuffix(" \\").split()
        alone = len(words) == 1 or (
            len(words) == 2
            and line.startswith("  ")
            and words[0] in ("error", "evidence", "fix", "advice")
        )
        assert len(line) <= width or (alone and 12 + len(words[-1]) > width - 2), line


def test_a_command_can_be_pasted(tmp_path):
    """The shell takes the wrapped command for the same words."""
    import shlex

    text = REPORTS["broken"].to_text(width=60)
    start = text.index("/home/ana/envs/train/bin/python")
    block = text[start:].partition("\n\n")[0]
    assert "\\\n" in block
    joined = re.sub(r"\\\n\s*", "", block)
    assert shlex.split(joined) == shlex.split(samples.broken_findings()[1].fix[0])


def test_colour_is_asked_for_and_changes_nothing_else(report):
    plain = report.to_text(verbose=True)
    coloured = report.to_text(verbose=True, colour=True)
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_content_cannot_steer_the_terminal():
    text = REPORTS["hostile"].to_text(verbose=True)
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert "\\x1b[31m" in text


def test_html_is_one_file_without_script_or_address(report):
    text = report.to_html()
    text.encode("utf-8")
    markup = parse(text)
    tags = {tag for tag, _ in markup.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert not [a for _, attributes in markup.tags for a in attributes if a.startswith("on")]
    assert [way for way in ("url(", "@import", "src=") if way in text] == []
    assert not [
        a for _, attributes in markup.tags for a in attributes.values() if "//" in (a or "")
    ]


def test_the_code_of_a_rule_leads_to_its_page_in_the_same_file(report):
    markup = parse(report.to_html())
    ids = [attributes["id"] for _, attributes in markup.tags if "id" in attributes]
    links = [attributes["href"] for _, attributes in markup.tags if "href" in attributes]
    rules = sorted({each.rule for found in report.findings for each in (found, *found.also)})
    assert ids == [rule for rule in rules if rule in rulebook.rule_names()]
    assert set(links) == {f"#{rule}" for rule in ids}
    card = report._repr_html_()  # where they are closed
    assert [rule for rule in ids if f'<a href="#{rule}">' not in card] == []
    assert card.count(' id="') == len(ids)
    assert card.count("<details><summary>CU") == len(ids)
    shown = re.sub(r"[#`*\s-]", "", markup.text)
    assert [rule for rule in ids if re.sub(r"[#`*\s-]", "", rulebook.page(rule)) not in shown] == []


FIXED = re.compile(r" +and \d+ more|mismatch")  # lines that are never broken
SPARE = {r" +(?:shadows|by|preload) | .*pip install": 2, "lib": 4}  # columns left free


@pytest.mark.parametrize("verbose", [True, False])
@pytest.mark.parametrize("name", ["healthy", "broken", "observed", "busy"])
def test_a_line_is_broken_where_it_must_be_and_no_sooner(name, verbose):
    def lines(width):
        return REPORTS[name].to_text(width=width, verbose=verbose).splitlines()

    for line in lines(400):
        if len(line.split()) > 2 and not FIXED.match(line):
            fits = columns(line) + next(
                (n for start, n in SPARE.items() if re.match(start, line)), 0
            )
            assert line in lines(fits)
            assert line not in lines(fits - 1)


def test_two_libraries_are_several():
    facts = samples.healthy()
    facts.libraries.extend(facts.libraries)
    assert "<summary>2 CUDA libraries</summary>" in Report(facts, []).to_html()
    assert "2, all from the environment" in Report(facts, []).to_text()


def test_notebook_view_is_a_fragment(report):
    text = report._repr_html_()
    parse(text)
    assert not re.search(r"<(html|head|body)\b", text)
    # Every rule of the style is bound to the report's own class.
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    selectors = re.findall(r"([^{}]+)\{", style.replace("@media (prefers-color-scheme:dark)", ""))
    assert all(
        part.strip().startswith(".cudriver")
        for group in selectors
        if group.strip()
        for part in group.split(",")
    )


def test_every_colour_has_one_for_the_dark(report):
    style = report._repr_html_().partition("</style>")[0]
    light, *dark = (
        set(re.findall(r"(--\w+):", rule)) for rule in re.findall(r"\{[^{}]*--ink[^{}]*", style)
    )
    assert len(light) > 5
    assert dark == [light, light]
    for theme in ("data-jp-theme-light", "vscode-dark", "data-theme"):
        assert theme in style


def test_repr_is_short(report):
    assert len(repr(report)) < 300
    assert report.verdict in repr(report)


def test_print_shows_the_report(report, capsys):
    print(report)
    shown = report.to_text().encode("utf-8", "backslashreplace").decode()
    assert capsys.readouterr().out == shown


def test_facts_are_not_changed_by_showing_them():
    facts = samples.healthy()
    before = copy.deepcopy(facts.to_dict())
    report = Report(facts, samples.broken_findings())
    report.to_text(), report.to_json(), report.to_html()
    assert facts.to_dict() == before


def test_another_environment_s_folder_is_outside():
    """/envs/train2 is not below /envs/train."""
    for path, named in (
        ("/envs/train2/lib/libnccl.so.2", True),
        ("/envs/train/lib/libnccl.so.2", False),
        ("/usr/lib/libnccl.so.2", True),
    ):
        nccl = library("libnccl.so.2", "2.27.3", "nccl", shadowed=[Shadowed(path, "cache", "2")])
        line = libraries_line(facts(libraries=[nccl]))
        assert ("unused on the system: libnccl.so.2 2" in line) is named, line


def test_a_path_is_shortened_by_the_innermost_site_packages():
    made = facts()
    put(made.environment, site_packages=[SITE, f"{SITE}/deep"])
    assert short_path(made, f"{SITE}/deep/torch/x.so") == "site-packages/torch/x.so"
    assert short_path(made, f"{SITE}/torch/x.so") == "site-packages/torch/x.so"
    assert short_path(made, f"{SITE}2/torch/x.so") == "lib/python3.11/site-packages2/torch/x.so"
    assert short_path(made, "/envs/train2/x.so") == "/envs/train2/x.so"
    # of PYTHONPATH, or the user's own: site-packages would be another folder
    made.environment.site_packages.extend(["/home/u/.local/lib/python3.11/site-packages", "/envs"])
    user = "/home/u/.local/lib/python3.11/site-packages/torch/x.so"
    assert short_path(made, user) == user
    assert short_path(made, f"{made.environment.prefix}/lib/x.so") == "lib/x.so"


def test_a_remark_keeps_its_apostrophes():
    command = "sudo apt-get install driver-580  # or your distribution's, if it's newer"
    assert wrap_command(command, 100) == [command]
    for width in (40, 60):
        lines = wrap_command(command, width)
        remark = " ".join(line[2:] for line in lines if line.startswith("# "))
        assert remark == "or your distribution's, if it's newer"
        typed = " ".join(line.removesuffix(" \\").strip() for line in lines if line[0] != "#")
        assert typed == "sudo apt-get install driver-580"


def test_a_quoted_word_is_kept_whole():
    command = "echo 'one two' \"three  four\" five # six"
    words = wrap_command(command, 20)
    assert words == ["# six", "echo 'one two' \\", '  "three  four" \\', "  five"]


class TestWhyItCannotBeTold:
    def test_the_environment_around_a_folder_or_in_it_is_named(self, tmp_path):
        Prefix(tmp_path / "env").venv()
        (tmp_path / "empty").mkdir()
        for folder, near in ((tmp_path / "env/bin", "env"), (tmp_path, "env")):
            report = cudriver.stack.inspect(str(folder), environ={}, probe_driver=False)
            assert report.verdict == "unknown"
            text = " ".join(report.to_text(width=1000).splitlines()[-1].split())
            assert text == (
                f"{folder} has neither a Python nor packages; did you mean {tmp_path / near}?"
            )
        report = cudriver.stack.inspect(str(tmp_path / "empty"), environ={}, probe_driver=False)
        assert report.to_text(width=200).endswith("empty has neither a Python nor packages\n")

    def test_a_folder_of_packages_is_looked_at_by_pythonpath(self, tmp_path):
        (tmp_path / "of pip" / "numpy-2.1.0.dist-info").mkdir(parents=True)
        folder = str(tmp_path / "of pip")
        report = cudriver.stack.inspect(folder, environ={}, probe_driver=False)
        hint = f"did you mean PYTHONPATH='{folder}' cudriver check?"
        assert report.doubts == [f"{folder} has packages, but no Python; {hint}"]

    def test_every_open_verdict_has_a_reason(self):
        open_ones = [
            facts(unsure=["/a: cannot be read"]),
            facts(
                frameworks=[Framework("mine", "1.0", modelled=False)],
                load_faults=[
                    fault("not found", "libx.so.1", "/a", "x", framework="mine", means="unmodelled")
                ],
            ),
            facts(match="system"),
            facts(environment=Environment("/nothing", "unknown"), distributions=[]),
        ]
        for of in open_ones:
            report = Report(of, [*registry()["CU201"](of)])
            assert report.verdict == "unknown"
            assert len(report.doubts) == 2 - all(f.modelled for f in of.frameworks)
            for why in report.doubts:
                assert f"  {why}" in report.to_text(width=200).splitlines()
                assert f"<p>{why}</p>" in report.to_html()

    def test_what_a_real_import_settles(self):
        """It is offered where it can be made, and with its answer nothing is open."""
        of = facts(
            frameworks=[Framework("mine", "1.0", modelled=False, module="mine")],
            load_faults=[
                fault("not found", "libx.so.1", "/a", "x", framework="mine", means="unmodelled")
            ],
        )
        finding = Finding("CU404", "warning", "t", doubt="whether a needs b is not known")
        report = Report(of, [Finding("CU303", "warning", "t", also=[finding])])
        command = f"cudriver check --observe {of.environment.prefix}"
        assert report.doubts == [
            "whether a needs b is not known",
            "how mine loads its libraries is not known, and libx.so.1, which it links, is not "
            "found",
            f"the real imports tell: {command}",
        ]
        assert "--observe" not in str(Report(but(of, root="/mnt"), report.findings).doubts)
        for imports, error, verdict in (
            ({"mine": None}, None, "consistent"),
            ({"mine": "ImportError: no"}, None, "mismatch"),
            ({}, "the interpreter gave no answer within 3 s", "unknown"),
        ):
            seen = Observation(imports, [], error)
            known = but(of, imports=imports)
            assert Report(known, report.findings, observation=seen).verdict == verdict

    def test_an_error_leaves_nothing_open(self):
        of = facts(unsure=["/a: cannot be read"])
        report = Report(of, [Finding("CU303", "error", "t")])
        assert report.verdict == "mismatch"
        assert "cannot be read" not in report.to_text()


@pytest.mark.parametrize("form", [Report.to_text, Report.to_html, Report._repr_html_])
def test_a_verdict_with_warnings_says_so_in_every_form(form):
    report = Report(samples.healthy(), [Finding("CU302", "warning", "t")] * 2)
    shown = form(report)
    assert "consistent: 2 warnings" in shown
    assert 'verdict good"' not in shown


def test_a_row_with_a_cross_says_what_is_wrong():
    report = Report(samples.healthy(), [Finding("CU303", "error", "t", subject="torch")])
    rows = [row for row in components(report) if row[1] == "error"]
    assert [row[0] for row in rows] == ["torch", "libraries"]
    assert all(row[2].endswith("; undefined symbol (CU303)") for row in rows)


@pytest.mark.parametrize(
    ("variables", "driver", "told"),
    [
        ({}, {"cuda": "13.0"}, "13.0"),
        ({}, {"cuda": "13.0", "init_code": 0}, "13.0"),
        ({}, {"cuda": "13.0", "init_code": 100}, None),  # conda calls cuInit first
        ({}, {}, None),
        ({"CONDA_OVERRIDE_CUDA": "12.4"}, {"cuda": "13.0"}, "12.4"),
        ({"CONDA_OVERRIDE_CUDA": "12.4"}, {}, "12.4"),
        ({"CONDA_OVERRIDE_CUDA": ""}, {"cuda": "13.0"}, None),
    ],
)
def test_what_conda_would_take_for_the_driver(variables, driver, told):
    """As conda.plugins.virtual_packages.cuda does; an empty variable means that there is none."""
    env = Environment("/opt/conda", "conda", variables=variables)
    made = Report(Facts(env, driver=Driver(**driver)), [])
    assert json.loads(made.to_json())["driver"]["conda_cuda"] == told
    shown = f"__cuda of conda and pixi: {told or 'none'}"
    assert shown + " (by CONDA_OVERRIDE_CUDA)" * bool(variables) in driver_line(made.facts)
    put(env, kind="venv")
    assert "__cuda" not in driver_line(made.facts)
