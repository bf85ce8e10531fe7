"""What a comparison says in Chinese."""

from __future__ import annotations

import re

import pytest
from made import driver, fleet_of
from test_compare_cases import CASES, of_case

from cudriver.fleet import compare, report_text
from cudriver.fleet.result import Change, Share, finding
from cudriver.stack import say
from cudriver.stack.report.text import Style


@pytest.fixture(autouse=True)
def _chinese(monkeypatch):
    monkeypatch.setattr(say, "language", lambda: "zh")


def test_a_comparison_in_chinese():
    told = compare(fleet_of(3, driver("570.86.15"), at=1))
    text = told.to_text()
    for part in (
        "3 个节点分为 2 组；其中 2 个一致",
        "\n  驱动          580.65.06\n  支持 CUDA     13.0\n",
        "警告 FL101  驱动属于 2 个分支：R580 和 R570\n  原因      驱动分支决定",
        "\n不匹配：1 个警告；cudriver explain FL101\n",
    ):
        assert part in text
    assert "<th>驱动</th>" in told.to_html()
    assert "驱动" not in told.to_json()


def test_what_differs_is_chinese_in_its_cells():
    title = "libnccl.so.2 is not a usable library"
    told = (
        report_text.cells(Change(component=component, value=value, reference=reference))
        for component, value, reference in (
            ("CU404 torch", title, "none"),
            ("verdict", "mismatch", "unknown"),
            ("libnccl.so.2", "2.27.3", "none"),
        )
    )
    assert [*told] == [
        ("CU404 torch", "libnccl.so.2 不是可用的库", "没有"),
        ("结论", "不匹配", "未知"),
        ("libnccl.so.2", "2.27.3", "没有"),
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2.8.0+cu128 (fails)", "2.8.0+cu128 (不可用)"),
        ("2.8.0 (CUDA 12.8, CPU only)", "2.8.0 (CUDA 12.8, 只能用 CPU)"),
        ("2 x NVIDIA H200 (compute capability 9.0)", "2 x NVIDIA H200 (计算能力 9.0)"),
        ("CU404 libnccl.so.2 is not a usable library", "CU404 libnccl.so.2 不是可用的库"),
        ("no verdict", "没有结论"),
        ("/opt/fails/lib", "/opt/fails/lib"),
    ],
)
def test_no_english_of_ours_stays_in_a_value(value, shown):
    assert report_text.told(value) == shown


def test_evidence_is_chinese():
    share = Share("CU404 libnccl.so.2 is not a usable library", 2, "n[1-2]")
    made = finding("error", "the report tells of errors", "why", [share])
    shown = "".join(report_text._finding(made, Style(), False))
    assert "CU404 libnccl.so.2 不是可用的库" in shown


@pytest.mark.parametrize("name", CASES)
def test_a_finding_is_told_in_chinese(name):
    for each in of_case(name).findings:
        for text, part in (
            (each.title, each.rule),
            (each.why, "why"),
            *((f, "fixes") for f in each.fix),
        ):
            told = say.translate(text, part)
            assert re.search(r"[\u4e00-\u9fff]", told), text
            assert not re.search(r"\b(and|more|none|nodes)\b", told), told
