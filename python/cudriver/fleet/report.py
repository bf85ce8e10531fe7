"""The outcome of a comparison, in every form that people read."""

from __future__ import annotations

from cudriver.fleet.result import Result
from cudriver.stack.report.formats import Printed


class Fleet(Result, Printed):
    """Many reports compared, as `cudriver.fleet.compare` returns it.

    Parameters
    ----------
    groups : list of Group
        Nodes that carry equal stacks, the largest group first.
    differences : list of Difference
        The components that are not the same on all nodes.
    findings : list of Finding
        The differences that matter, the worst first.
    missing : str, optional
        Who did not answer: ``"d[3,7]"``, ``"rank 5"``.
    unsure : bool, optional
        Whether something could not be told.
    counts : dict of str to int
        How many ``nodes`` and ``reports`` there are, and how many reports are ``older`` ones of the
        same (``differing`` of these told of other stacks), ``broken``, or ``other`` lines; and how
        many ``components`` differ.
    reference : str
        What groups are compared with: ``"group 1"`` or ``"the baseline"``.
    golden : Stack or None
        What the largest group carries.
    strict : bool, optional
        Whether warnings count as mismatches too.
    idle : bool, optional
        Whether no report has a framework that is there for CUDA.

    Notes
    -----
    Read only. ``print`` shows it as the terminal does, a notebook as tables. Names of nodes are
    folded as Slurm does it: ``d[0-3]``. Of very many changes, values or findings of one rule the
    first are kept; the last says how many more there are.

    Examples
    --------
    >>> fleet.compare([]).status
    'unknown'
    """

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        from cudriver.fleet.report_text import render
        from cudriver.stack.report.text import Style

        return render(self, Style(width=width, colour=colour), verbose=verbose)

    def to_html(self) -> str:
        from cudriver.fleet.report_html import page

        return page(self)

    def _repr_html_(self) -> str:
        from cudriver.fleet.report_html import fragment

        return fragment(self)

    def __repr__(self) -> str:
        rules = ", ".join(dict.fromkeys(f.rule for f in self.findings)) or "no findings"
        nodes = self.counts["nodes"]
        return f"<Fleet of {nodes} node{'' if nodes == 1 else 's'}: {self.status}, {rules}>"
