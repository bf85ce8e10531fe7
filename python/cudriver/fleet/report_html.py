"""A comparison as HTML: one file, no script, nothing loaded from elsewhere, every value escaped."""

from __future__ import annotations

from cudriver.fleet.report_text import cells, counted, heading, reference_of, remarks, told
from cudriver.fleet.rules import PAGES
from cudriver.stack.report.html import STYLE, document, lang, link, rule_pages
from cudriver.stack.report.text import VERDICTS
from cudriver.stack.say import language, say, translate
from cudriver.stack.text import html as _text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from cudriver.fleet.result import Difference, Finding, Group, Result, Share

CLASSES = {"consistent": "good", "mismatch": "bad", "unknown": "doubt"}
SEVERITIES = {"error": "bad", "warning": "doubt", "note": "note"}
GROUPS_SHOWN = 50
SHORT = 20  # characters of a value that is never broken
NODES_SHOWN = 300  # characters of a list of nodes that stands open


def page(fleet: Result) -> str:
    """A whole document."""
    title = say("CUDA stacks: {heading}", heading=heading(fleet))
    return document(title, _shown(fleet, "cudriver page"), language())


def fragment(fleet: Result) -> str:
    """For a notebook's cell: the section and the pages of its rules, with their style."""
    return f"<style>{STYLE}</style>{_shown(fleet, 'cudriver')}"


def _shown(fleet: Result, classes: str) -> str:
    rules = {finding.rule for finding in fleet.findings}
    return _section(fleet, classes) + rule_pages(rules, classes, PAGES)


def _section(fleet: Result, classes: str) -> str:
    warned = fleet.status == "consistent" and any(f.severity == "warning" for f in fleet.findings)
    style = "doubt" if warned else CLASSES[fleet.status]
    parts = [
        f'<section class="{classes}"{lang()}><h1>{_text(heading(fleet))}</h1>',
        *(f'<p class="soft">{_text(text)}</p>' for text in remarks(fleet)),
        f'<span class="verdict {style}">{_text(counted(fleet))}</span>',
    ]
    if fleet.findings:
        parts.append(f"<h2>{_text(say('Findings'))}</h2>")
        parts += map(_finding, fleet.findings)
    if fleet.groups:
        parts.append(f"<h2>{_text(say('Groups'))}</h2>")
        shown = enumerate(fleet.groups[:GROUPS_SHOWN], 1)
        parts += [_group(number, group, fleet) for number, group in shown]
        if len(fleet.groups) > GROUPS_SHOWN:
            more = say("and {n} more groups", n=f"{len(fleet.groups) - GROUPS_SHOWN:,}")
            parts.append(f"<p>{_text(more)}</p>")
    if fleet.differences:
        parts.append(_differences(fleet.differences, fleet.counts["components"]))
    return "".join([*parts, "</section>"])


def _finding(finding: Finding) -> str:
    style = SEVERITIES[finding.severity]
    rows = [("why", f"<p>{_text(translate(finding.why, 'why'))}</p>")]
    if finding.evidence:
        rows.append(("evidence", _shares(finding.evidence)))
    if finding.fix:
        rows.append(
            ("fix", "".join(f"<p>{_text(translate(fix, 'fixes'))}</p>" for fix in finding.fix))
        )
    body = "".join(f"<dt>{_text(say(name))}</dt><dd>{value}</dd>" for name, value in rows)
    title = _text(translate(finding.title, finding.rule))
    return (
        f'<article class="{style}"><h3><span class="tag {style}">{link(finding.rule, PAGES)} '
        f"{_text(say(finding.severity))}</span>{title}</h3><dl>{body}</dl></article>"
    )


def _group(number: int, group: Group, fleet: Result) -> str:
    style = CLASSES[group.verdict]
    reports = sum(each.count for each in fleet.groups)
    verdict = ""
    if group.verdict != "consistent":
        verdict = f' <span class="tag {style}">{_text(say(VERDICTS[group.verdict][0]))}</span>'
    rows = [(say(name), told(value)) for name, value in group.stack.items()] if number == 1 else []
    tables = _table((), rows)
    if group.differs:
        head = (say("differs in"), say("here"), reference_of(fleet.reference))
        tables += _table(head, map(cells, group.differs))
    values = {"n": number, "count": f"{group.count:,}", "all": f"{reports:,}"}
    return (
        f'<article class="{style}"><h3>{_text(say("Group {n}: {count} of {all}", **values))}'
        f"{verdict}</h3>"
        f"{_nodes(group.nodes)}{tables}</article>"
    )


def _differences(differences: Iterable[Difference], count: int) -> str:
    rows = [
        f"<tr><th>{_text(say(each.component))}</th><td>{_shares(each.values)}</td></tr>"
        for each in differences
    ]
    many, one = "{n} components that differ", "{n} component that differs"
    summary = say(many, n=f"{count:,}") if count > 1 else say(one, n=count)
    return (
        f"<details><summary>{_text(summary)}</summary>"
        f"<table><tbody>{''.join(rows)}</tbody></table></details>"
    )


def _shares(shares: Iterable[Share]) -> str:
    """Values, how many have each, and who."""

    def whole(value: str) -> str:
        return ' class="whole"' if len(value) <= SHORT else ""

    rows = "".join(
        f"<tr><td{whole(share.value)}>{_text(told(share.value))}</td>"
        f'<td class="whole">{share.count:,}</td>'
        f"<td>{_nodes(share.nodes)}</td></tr>"
        for share in shares
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _nodes(nodes: str) -> str:
    """Names of nodes; a long list is closed."""
    code = f"<code>{_text(nodes)}</code>"
    if len(nodes) <= NODES_SHOWN:
        return code
    return f"<details><summary>{_text(nodes[:40])}…</summary>{code}</details>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """The first column names what the others tell."""
    body = "".join(
        f"<tr><th>{_text(first)}</th>{''.join(f'<td>{_text(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    titles = "".join(f"<th>{_text(name)}</th>" for name in head)
    titles = f"<thead><tr>{titles}</tr></thead>" if titles else ""
    return f"<table>{titles}<tbody>{body}</tbody></table>" if body else ""
