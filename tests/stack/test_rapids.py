"""The check as one of `rapids doctor`'s: found and called as rapids-cli 0.2 and its pages do."""

from __future__ import annotations

import inspect
import warnings
from importlib.metadata import entry_points

import pytest
from samples import broken_findings, healthy

from cudriver import rapids_plugin as rapids
from cudriver.stack.command import Command
from cudriver.stack.facts import Finding
from cudriver.stack.record import put
from cudriver.stack.report import Report


@pytest.fixture
def run(monkeypatch):
    """Calls the check as `rapids doctor` does: what it gave, its warnings and its error."""
    found = [e for e in entry_points(group="rapids_doctor_check") if "cudriver" in e.value]
    if not found:  # tests/project/test_build.py wants it in the wheel
        pytest.skip("cudriver is not installed here, or was before it had this entry point")
    check = found[0].load()

    def call(facts, findings, **told):
        monkeypatch.setattr(rapids, "inspect", lambda: Report(facts, findings))
        value = error = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = check(**told)
            except Exception as raised:
                error = raised
        return value, [str(each.message) for each in caught], error

    call.check = check
    return call


def test_a_healthy_environment_passes_and_says_more_only_where_asked(run):
    assert run(healthy(), [], verbose=False, gpu_info=None) == (None, [], None)
    value, warned, error = run(healthy(), [], verbose=True)
    assert value == f"{healthy().environment.prefix}: consistent: torch works"
    assert (warned, error) == ([], None)


def test_errors_fail_with_their_fixes_and_nothing_is_left_out(run):
    findings = broken_findings()
    _, _, error = run(healthy(), findings, verbose=False)
    assert isinstance(error, RuntimeError)
    for finding in findings:
        loud = finding.severity in ("error", "warning")
        assert (finding.rule in str(error)) == loud
        assert not loud or all(line in str(error) for line in finding.fix)


def test_a_warning_is_a_warning(run):
    finding = Finding(
        "CU302", "warning", "two are mixed", fix=[Command("pip install 'jax[cuda12]'")]
    )
    value, (told,), error = run(healthy(), [finding], verbose=False)
    assert (value, error) == (None, None)
    # Rich takes "[cuda12]" for a style, and would print nothing for it.
    assert told == "CU302: two are mixed\n  pip install 'jax\\[cuda12]'"


def test_what_could_not_be_told_is_a_warning_too(run):
    facts = healthy()
    put(facts, unsure=["/a: cannot be read"])
    value, warned, error = run(facts, [], verbose=False)
    assert (value, error) == (None, None)
    assert warned == ["/a: cannot be read"]


def test_its_first_line_describes_it(run):
    assert run.check.__name__ == "cuda_stack_check"
    assert inspect.getdoc(run.check).splitlines()[0].startswith("Check that ")
