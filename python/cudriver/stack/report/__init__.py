"""The outcome of a check, in every format of `formats.py`."""

from __future__ import annotations

from collections.abc import Collection

from cudriver.stack.facts import every
from cudriver.stack.report.formats import Printed, written
from cudriver.stack.report.outcome import Outcome


class Report(Outcome, Printed):
    """The outcome of a check, as `cudriver.stack.inspect` returns it.

    Parameters
    ----------
    facts : Facts
        What was found in the environment.
    findings : iterable of Finding
        What does not fit, by rule.
    strict : bool, optional
        Whether warnings count as mismatches too, and a framework that is not modelled leaves the
        verdict open.
    observation : Observation, optional
        What a run of the environment's own Python has shown.

    Notes
    -----
    Read only. ``print`` shows it as the terminal does, a notebook as a table.

    Examples
    --------
    >>> report = stack.inspect(probe_driver=False)
    >>> report.to_dict()["verdict"] == report.verdict
    True
    """

    def restricted(self, select: Collection[str], ignore: Collection[str]) -> Report:
        """Return the same report with the findings of some rules only.

        Parameters
        ----------
        select : collection of str
            Beginnings of the rules to keep: ``"CU303"``, or ``"CU3"`` for all of its hundred. All
            rules if it is empty.
        ignore : collection of str
            Beginnings of the rules to leave out.

        Returns
        -------
        Report
            A new report about the same facts.

        Raises
        ------
        ValueError
            One of them is not the beginning of a rule.
        """
        from cudriver.stack.fixes.tried import fold
        from cudriver.stack.record import but
        from cudriver.stack.rulebook import check_rules

        check_rules([*select, *ignore])
        wanted, unwanted = tuple(select) or ("",), tuple(ignore)
        chosen = (finding for finding in every(self.findings) if finding.rule.startswith(wanted))
        kept = [but(each, also=[]) for each in chosen if not each.rule.startswith(unwanted)]
        return Report(self.facts, fold(kept), strict=self.strict, observation=self.observation)

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        from cudriver.stack.report.text import Style, render

        return render(self, Style(width=width, colour=colour), verbose=verbose)

    def to_html(self) -> str:
        return written("html", self)

    def to_markdown(self) -> str:
        """Return the report as Markdown, for an issue tracker.

        Returns
        -------
        str
            A block of code: what the terminal shows, `redacted`.
        """
        return written("markdown", self)

    def _repr_html_(self) -> str:
        from cudriver.stack.report.html import fragment

        return fragment(self)

    def __repr__(self) -> str:
        from cudriver.stack.text import clean

        findings = ", ".join(dict.fromkeys(f.rule for f in self.findings)) or "no findings"
        return f"<Report of {clean(self.prefix)}: {self.verdict}, {findings}>"
