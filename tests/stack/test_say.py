"""What people read is in their language: every text that the English has is in the table, and what
is printed keeps its width.
"""

import ast
import io
import re
import string
from collections.abc import Iterator
from pathlib import Path

import cases
import pytest
import samples
from say_keys import keys, literals
from test_report import report  # noqa: F401 - a fixture

import cudriver
from cudriver import cli
from cudriver.cli import COMMANDS
from cudriver.stack import say
from cudriver.stack.command import Command
from cudriver.stack.facts import ERROR, NOTE, WARNING, Environment, Facts, Finding, Problem
from cudriver.stack.load.observe import Observation, Row
from cudriver.stack.machine.driver import trouble
from cudriver.stack.machine_facts import Driver
from cudriver.stack.record import put
from cudriver.stack.report import Report
from cudriver.stack.report.components import components
from cudriver.stack.report.text import PROVEN, VERDICTS
from cudriver.stack.rulebook import rule_names
from cudriver.stack.rules import registry
from cudriver.stack.tables import table
from cudriver.stack.text import columns

PACKAGE = Path(cudriver.__file__).parent
HAN = re.compile("[\u4e00-\u9fff]")
# What is given to `say` by a variable.
GIVEN = [ERROR, WARNING, NOTE, PROVEN, *(word for word, _ in VERDICTS.values())]
GIVEN += ["{n} error", "{n} errors", "{n} warning", "{n} warnings"]
GIVEN += ["wheels", "directory", "unknown", "system", "the baseline"]
GIVEN += ["evidence", "also", "fix", "advice", "why"]
GIVEN += ["as found", "another", "not expected"]


@pytest.fixture(autouse=True)
def no_wish():
    """The language that a command wished for is not that of the next test."""
    yield
    say.choose(None)


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setattr(say, "can_encode", lambda *_: True)


def parts():
    return {name: part for name, part in table("zh").items() if isinstance(part, dict)}


def test_every_text_of_the_code_has_its_chinese():
    written = [text for text, files in keys(PACKAGE).items() if set(files) != {"probe_child.py"}]
    assert [text for text in [*written, *GIVEN] if text not in table("zh")["lines"]] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_text_of_the_help_has_its_chinese(name):
    parser = cli._load(name).parser()
    texts = [COMMANDS[name][1], parser.description, parser.epilog]
    texts += [group.title for group in parser._action_groups]
    texts += [action.help for action in parser._actions]
    assert [text for text in texts if text and text not in table("zh")["lines"]] == []


@pytest.mark.parametrize("rule", registry())
def test_every_title_that_a_case_has_seen_has_its_chinese(rule, chinese):
    for title in re.findall(r"(?m)^(?:error|warning|note): (.+)", cases.path(rule).read_text()):
        assert HAN.search(say.translate(title, rule)), title


def evidence_of(node: ast.expr) -> Iterator[str]:
    """What the last argument of `Evidence` may say, with a name for each value."""
    if isinstance(node, ast.JoinedStr):
        parts = [str(p.value) if isinstance(p, ast.Constant) else "/x" for p in node.values]
        yield "".join(parts)
    else:
        yield from literals(node)


def test_every_sentence_of_evidence_has_its_chinese(chinese):
    """Those that stand where the evidence is made, and those that are handed over by a variable."""
    told = ["absent", "permission denied", "does not have it", "does not have libx.so, liby.so"]
    told += [
        "1.2, by RPATH of libx.so (/x)",
        "1.2, preload by X",
        "1.2, gone",
        "unknown version, gone",
    ]
    told += ["is a script: what it sets, and which program it starts, is not known"]
    told += ["a,b,1 (on disk: 2 bytes)", "compiled against cuDNN 9.1", "gave no answer within 3 s"]
    for path in sorted((PACKAGE / "stack").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Evidence":
                told += (t for part in node.args[2:3] for t in evidence_of(part))
    words = [text for text in told if re.search("[a-z]{2} |[a-z] [a-z]|^[a-z]+$", text)]
    assert len(words) > 25
    assert [text for text in words if not HAN.search(say.translate(text, "evidence"))] == []


def test_what_stands_in_files_stays_as_it_is(chinese):
    """Raw lines are no sentences of ours; and of ours the rule of the loader is in Chinese too."""
    for text in (
        'numpy>=1.26; python_version < "3.13"',
        "nvidia/x.so,sha256=a,5",
        "NVIDIA H200",
        "13.0",
    ):
        assert say.translate(text, "evidence") == text
    told = say.translate("1.2, by RUNPATH of liba.so ($ORIGIN/../b)", "evidence")
    assert told == "1.2，依据 liba.so 的 RUNPATH（$ORIGIN/../b）"


def test_every_rule_has_titles():
    assert [rule for rule in rule_names() if rule not in parts() and rule[:2] == "CU"] == []


def test_what_is_said_has_the_values_of_the_english():
    fields = string.Formatter().parse
    for part in parts().values():
        for english, told in part.items():
            words = re.sub(r"\{\w+\}", "", english).strip(" ;:,.")
            assert HAN.search(told) or not words, english
            values = [{name for _, name, _, _ in fields(text) if name} for text in (english, told)]
            assert values[0] >= values[1], english


def test_a_finished_sentence_keeps_its_values(chinese):
    title = "driver 470.82.01 is too old for torch 2.8.0+cu128: CUDA 12 needs 525.60.13 or newer"
    told = say.translate(title, "CU103")
    for value in ("470.82.01", "torch 2.8.0+cu128", "525.60.13"):
        assert value in told
    assert say.translate("no such sentence", "CU103") == "no such sentence"
    assert say.translate(title, "CU999") == title


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("verbose", [False, True])
def test_a_chinese_report_fits_the_terminal(report, width, verbose, chinese):  # noqa: F811
    text = report.to_text(width=width, verbose=verbose)
    assert HAN.search(text)
    for line in text.splitlines():
        longest = max(map(columns, line.split()), default=0)
        assert columns(line) <= width or longest + 17 > width, line  # one word, beside a label


def test_columns_stand_below_each_other(chinese):
    made = Report(samples.healthy(), [])
    text = made.to_text()
    for label, _, about in components(made):
        (row,) = [line for line in text.splitlines() if line[2:].startswith(label + " ")]
        assert columns(row[: row.index(about[:4])]) == 16


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (Driver(), "找不到 libcuda.so.1"),
        (Driver(path="/usr/lib/libcuda.so.1", kind="stub"), "/usr/lib/libcuda.so.1 是 stub 库"),
        (Driver(path="/usr/lib/libcuda.so.1", init_code=804), "cuInit 返回 804"),
    ],
)
def test_what_is_wrong_with_the_driver_is_chinese(driver, told, chinese):
    put(driver, error=trouble(driver))
    facts = samples.healthy()
    put(facts, driver=driver)
    assert told in Report(facts, []).to_text()


@pytest.mark.parametrize(
    ("text", "part", "told"),
    [
        (
            "torch requires a==12.8 (installed: 12.1.105), b (installed: none) and 2 more",
            "CU402",
            "torch 要求 a==12.8（已安装 12.1.105）, b（未安装），另有 2 项",
        ),
        ("drivers of 2 branches: R580 and R570", "FL101", "驱动属于 2 个分支：R580 和 R570"),
        (
            "drivers of 5 branches: 1 and 2 and 3 more",
            "FL101",
            "驱动属于 5 个分支：1 和 2 等另外 3 个",
        ),
        ("remove it from /s/x.pth.", "fixes", "从 /s/x.pth 中删去这段代码。"),
        ("RPATH of libtorch.so ($ORIGIN/a)", "{by}", "libtorch.so 的 RPATH（$ORIGIN/a）"),
        ("preload by torch", "{by}", "由 torch 预加载"),
        ("ld.so.cache", "{by}", "ld.so.cache"),
        (
            "CUDA libraries that only some nodes have: a, b and 4 more",
            "FL305",
            "只有部分节点有的 CUDA 库：a, b 等另外 4 个",
        ),
        ("NCCL of 2 versions in one job", "FL301", "NCCL 有 2 个版本（同一作业中）"),
        ("NCCL of 2 versions in jobs 12, 13", "FL301", "NCCL 有 2 个版本（作业 12, 13）"),
        ("torch for CUDA 12 and 13 in one job", "FL201", "torch 针对 CUDA 12 和 13（同一作业中）"),
        (
            "V=9,1,2: '9' is not the index of a device; 1, 2 after it not read, "
            "0 of 2 GPUs visible",
            "CU502",
            "V=9,1,2：'9' 不是任何设备的编号；其后的 1, 2 没有读取，2 块 GPU 中 0 块可见",
        ),
        (
            "V=0,0: '0' names a device twice, which hides all, 0 of 1 GPU visible",
            "CU502",
            "V=0,0：'0' 重复列出一个设备，于是全部被隐藏，1 块 GPU 中 0 块可见",
        ),
        (
            "asking the driver failed: the child process crashed (SIGSEGV)",
            "CU110",
            "查询驱动失败：子进程崩溃（SIGSEGV）",
        ),
        ("cuInit gave no answer within 5 s", "driver", "cuInit 的子进程在 5 秒内没有回答"),
        ("/a: cannot be read: Permission denied", "doubts", "/a：无法读取：Permission denied"),
        ("cannot be read: Permission denied", "{problem}", "无法读取：Permission denied"),
        ("CU303 could not be checked: KeyError: 'x'", "doubts", "CU303 未能检查：KeyError: 'x'"),
    ],
)  # fmt: skip
def test_no_english_stays_around_names_and_numbers(text, part, told, chinese):
    assert say.translate(text, part) == told


def test_what_was_observed_is_chinese(chinese):
    rows = [Row("a", "1", "1"), Row("b", "1", "2")]
    seen = Observation({"torch": "ImportError: x"}, rows)
    assert seen.summary() == "2 个值，1 个不同；import torch: ImportError: x"
    dead = Observation({}, [], "the interpreter crashed (SIGSEGV)")
    assert dead.summary() == "解释器崩溃（SIGSEGV）"
    assert dead.to_dict()["error"] == "the interpreter crashed (SIGSEGV)"
    facts = samples.healthy()
    facts.problems.append(Problem("/a", "is not text"))
    made = Report(facts, [], observation=seen)
    for shown in (made.to_text(), made.to_html()):
        assert "不是文本" in shown
        assert "1 个不同；" in shown


def test_the_remark_of_a_command_is_chinese(chinese):
    seen = "".join(file.read_text() for file in sorted(cases.FOLDER.iterdir()))
    remarks = {*re.findall(r"(?m)^  \$ .*?  # (.+)$", seen)}
    assert len(remarks) > 5
    assert [text for text in remarks if not HAN.search(say.translate(text, "remarks"))] == []
    fix = ["sudo apt-get install x  # from NVIDIA's repository", "a  # or: sudo b"]
    made = Report(samples.healthy(), [Finding("CU202", WARNING, "t", fix=[*map(Command.of, fix)])])
    for shown in (made.to_text(), made.to_html()):
        assert "install x  # 来自 NVIDIA 的软件源" in shown
        assert "a  # 或者：sudo b" in shown


def test_json_is_english(chinese):
    data = Report(samples.healthy(), [Finding("CU303", ERROR, "t")]).to_json()
    assert not HAN.search(data)


def test_every_form_of_a_report_is_chinese(chinese):
    made = Report(samples.healthy(), [Finding("CU303", ERROR, "a needs f, which nothing provides")])
    for shown in (made.to_text(), made.to_html(), made._repr_html_()):
        assert "a 需要 f，但没有库提供" in shown
        assert "不匹配：1 个错误" in shown
    assert '<html lang="zh">' in made.to_html()
    assert [row[0] for row in components(made)] == ["驱动", "工具包", "torch", "库"]


@pytest.mark.parametrize(
    ("locale", "words", "told"),
    [
        ("C", ["--lang", "zh"], "用法"),
        ("C", ["--lang=zh"], "用法"),
        ("C", [], "usage"),
        ("zh_CN.UTF-8", [], "用法"),
        ("zh_CN.UTF-8", ["--lang", "en"], "usage"),
    ],
)
def test_help_follows_locale_and_option(locale, words, told, monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", locale)
    assert cli.main(["check", "--help", *words]) == 0
    assert capsys.readouterr().out.startswith(told)


@pytest.mark.parametrize("width", ["60", "80", "100"])
@pytest.mark.parametrize("name", COMMANDS)
def test_chinese_help_fits_the_terminal(name, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    assert cli.main([name, "--help", "--lang", "zh"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert columns(line) <= int(width), line
        assert not line.endswith(":"), line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "--jsn"], "错误：无法识别的参数：--jsn；是否想用 --json？"),
        (["check", "--select", "X9"], "不是规则（CU303）"),
        (["check", "--match", "x"], "无效的值 'x'（可选："),
        (["check", "--timeout"], "需要一个值"),
        (["check", "/nowhere"], "/nowhere 不是目录"),
        (["check", ""], "空路径不是目录"),
        (["plan", "numpi"], "没有软件包 'numpi' 的方案"),
        (["bench", "--size", "abc"], "--size abc：'abc' 不是 512M、2G、64K 这样的大小"),
        (["check", "--all", "x"], "--all 与 PREFIX 不能同时使用"),
        (["chek"], "没有命令 'chek'；是否想用 'check'？"),
        (["completion"], "缺少参数：shell"),
    ],
)
def test_errors_of_usage_are_chinese(words, told, monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert cli.main(words) == 2
    assert told in "".join(capsys.readouterr().err.split("\n    "))


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", "en"), ("gbk", "zh"), ("utf-8", "zh")]
)
def test_chinese_is_written_where_the_output_can_show_it(encoding, expected, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert say.language() == expected


def test_the_next_command_has_the_locale_s_language_again(monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", "C")
    cli.main(["check", "--help", "--lang", "zh"])
    cli.main(["check", "--help"])
    assert "\nusage: " in capsys.readouterr().out


def test_a_reason_is_chinese(chinese):
    made = Report(Facts(Environment("/a", "unknown", near="/a/env")), [])
    assert made.to_text().endswith("\n  /a 中既没有 Python，也没有软件包；是否想检查 /a/env？\n")


def test_english_reads_no_table(monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setattr(say, "table", lambda name: pytest.fail(f"{name} is read"))
    made = Report(samples.healthy(), [Finding("CU303", ERROR, "t")])
    assert "mismatch: 1 error" in made.to_text()
    assert "mismatch: 1 error" in made.to_html()
