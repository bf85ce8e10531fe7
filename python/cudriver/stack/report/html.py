"""A report as HTML: one file, no script, nothing loaded from elsewhere, every value escaped."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

from cudriver.stack import rulebook
from cudriver.stack.facts import (
    CONSISTENT,
    ERROR,
    MISMATCH,
    NOTE,
    RANK,
    UNKNOWN,
    WARNING,
    Evidence,
    Facts,
    Finding,
    every,
)
from cudriver.stack.report import text as terminal
from cudriver.stack.report.components import ABSENT, OK, UNJUDGED, components, using_cuda
from cudriver.stack.report.list import in_short, rules_of, standing, summary
from cudriver.stack.report.outcome import Outcome
from cudriver.stack.report.redaction import redacted
from cudriver.stack.say import language, say, translate
from cudriver.stack.tables import FOLDER
from cudriver.stack.text import html as _text
from cudriver.stack.text import quote

CLASSES = {CONSISTENT: "good", MISMATCH: "bad", UNKNOWN: "doubt"}  # of a verdict
CLASSES |= {OK: "good", ABSENT: "soft", UNJUDGED: "soft", WARNING: "doubt", ERROR: "bad"}


def _sheet(name: str) -> str:
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return "\n" + file.read()


# Notebooks style tables by two classes and an element; three classes win over them.
STYLE = _sheet("report.css").replace(".cudriver", ".cudriver" * 3)
PAGE_STYLE = _sheet("page.css")


def page(reports: Sequence[Outcome], how: terminal.How) -> str:
    """A whole document, one section a report, of several a table of them first; it names the
    command line that made it.
    """
    title = say("CUDA stack of {names}", names=", ".join(report.prefix for report in reports))
    several = len(reports) > 1
    parts = [_all(reports)] if several else []
    for n, report in enumerate(reports):
        parts.append(_section(report, "cudriver page", f"e{n}" * several))
    rules = {found.rule for report in reports for found in every(report.findings)}
    body = "\n".join([*parts, rule_pages(rules, "cudriver page")])
    made = document(title, body, language())
    return signed(made, how.words, redact=how.redact) if how.words else made


def document(title: str, body: str, lang: str = "en") -> str:
    """A page around what it shows."""
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}{PAGE_STYLE}</style></head>\n<body>"
        f"{body}</body></html>\n"
    )


def signed(page: str, words: Iterable[str], *, redact: bool = False) -> str:
    """A page that names, at its end, what made it: version, host, time and command.

    words: of the command line. redact: without what tells whose machine it is.
    """
    from datetime import datetime

    from cudriver._version import __version__

    made = datetime.now().astimezone().isoformat(" ", "seconds")
    host, given = os.uname().nodename, list(words)
    if redact:
        host, given = "host", redacted(given)
    about = _text(f"cudriver {__version__} · {host} · {made}")
    command = _text(" ".join(map(quote, ["cudriver", *given])))
    body, end, rest = page.rpartition("</section>")
    return f'{body}<p class="soft">{about} · <code>{command}</code></p>{end}{rest}'


def fragment(report: Outcome) -> str:
    """For a notebook's cell: the section and the pages of its rules, with their style."""
    rules = {found.rule for found in every(report.findings)}
    return f"<style>{STYLE}</style>{_section(report, 'cudriver')}{rule_pages(rules, 'cudriver')}"


def _all(reports: Sequence[Outcome]) -> str:
    """A row an environment, as --all has a line: it leads to its section."""
    rows = ""
    for n, report in enumerate(reports):
        mark = standing(report)
        uses = [f"{f.name} {f.version}{in_short(f)}" for f in report.frameworks]
        rows += (
            f'<tr><td class="mark {CLASSES[mark]}">{terminal.MARKS[mark]}</td>'
            f'<th><a href="#e{n}">{_text(report.prefix)}</a></th>'
            f"<td>{_text(', '.join(uses) or say('no framework that uses CUDA'))}</td>"
            f"<td>{' '.join(map(link, rules_of(report)))}</td></tr>"
        )
    heading = _text(summary([standing(report) for report in reports]))
    table = f"<table><tbody>{rows}</tbody></table>"
    return f'<section class="cudriver page"{lang()}><h1>{heading}</h1>{table}</section>'


def _section(report: Outcome, classes: str, name: str = "") -> str:
    facts = report.facts
    warned = any(f.severity == WARNING for f in report.findings)
    style = CLASSES[report.verdict]
    if report.verdict == CONSISTENT and (warned or not using_cuda(report)):
        style = CLASSES[WARNING if warned else ABSENT]
    findings = sorted(report.findings, key=lambda finding: RANK[finding.severity])
    doubts = report.doubts if report.verdict == UNKNOWN else []
    anchor = f' id="{name}"' if name else ""
    parts = [
        f'<section class="{classes}"{anchor}{lang()}>',
        f"<h1>{_text(report.prefix)}</h1>",
        f'<p class="soft">{_text(", ".join(terminal.about(facts)))}</p>',
        f'<span class="verdict {style}">{_text(terminal.counted(report))}</span>',
        *(f"<p>{_text(translate(why, 'doubts'))}</p>" for why in doubts),
        _components(report),
    ]
    if findings:
        parts.append(f"<h2>{_text(say('Findings'))}</h2>")
        parts += [_finding(finding, facts) for finding in findings]
    if seen := terminal.observation_lines(report, terminal.ELSEWHERE, True):
        parts.append(f"<h2>{_text(say('Observed'))}</h2>{_lines(seen)}")
    if facts.problems:
        shown = ((p.file, translate(p.text, "{problem}")) for p in facts.problems)
        rows = "".join(f"<li><code>{_text(file)}</code> {_text(why)}</li>" for file, why in shown)
        parts.append(f"<h2>{_text(say('Not readable'))}</h2><ul>{rows}</ul>")
    if libraries := report.libraries:  # every one, as the terminal tells of it (-v)
        n, how = len(libraries), terminal.ELSEWHERE
        count = _text(say("1 CUDA library" if n == 1 else "{n} CUDA libraries", n=n))
        lines = (line for each in libraries for line in terminal.library_lines(each, facts, how))
        parts.append(f"<details><summary>{count}</summary>{_lines(lines)}</details>")
    return "".join([*parts, "</section>"])


def _components(report: Outcome) -> str:
    rows = []
    for label, severity, text in components(report):
        style, mark = CLASSES[severity], terminal.MARKS[severity].strip()
        rows.append(
            f'<tr><td class="mark {style}">{mark}</td><th>{_text(label)}</th>'
            f"<td>{_text(text)}</td></tr>"
        )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _finding(finding: Finding, facts: Facts) -> str:
    style = "note" if finding.severity == NOTE else CLASSES[finding.severity]
    rows = []
    if finding.predicts:
        rows.append((terminal.message(finding), f"<pre>{_text(finding.predicts)}</pre>"))
    if finding.evidence:
        rows.append(("evidence", _evidence_rows(finding, facts)))
    for other in finding.also:
        title = f"<p>{link(other.rule)} {_text(translate(other.title, other.rule))}</p>"
        rows.append(("also", title + _evidence_rows(other, facts)))
    if finding.fix:
        shown = [f"<pre>{_text(terminal.command_text(command))}</pre>" for command in finding.fix]
        shown += [f"<p># {_text(text)}</p>" for text in terminal.remarks(finding)]
        rows.append(("fix", "".join(shown)))
    if finding.advice:
        rows.append(("advice", f"<p>{_text(translate(finding.advice, 'fixes'))}</p>"))
    body = "".join(f"<dt>{_text(say(name))}</dt><dd>{value}</dd>" for name, value in rows)
    return (
        f'<article class="{style}"><h3><span class="tag {style}">{link(finding.rule)} '
        f"{_text(say(finding.severity))}</span>{_text(translate(finding.title, finding.rule))}</h3>"
        f"{f'<dl>{body}</dl>' if body else ''}</article>"
    )


def _evidence_rows(finding: Finding, facts: Facts) -> str:
    return "".join(_evidence(item, facts) for item in finding.evidence)


def _evidence(evidence: Evidence, facts: Facts) -> str:
    place, value = terminal.location(facts, evidence), _text(terminal.value_of(evidence))
    shown = f' <span class="soft">{value}</span>' if value else ""
    return f'<p><code title="{_text(evidence.file)}">{_text(place)}</code>{shown}</p>'


def _lines(lines: Iterable[str]) -> str:
    return f"<pre>{_text(chr(10).join(lines))}</pre>"


# ---- the pages of the rules, at the end, where their codes lead ----


def link(rule: str, folder: str = rulebook.FOLDER) -> str:
    """A rule's code, which leads to its page if there is one."""
    code = _text(rule)
    return f'<a href="#{code}">{code}</a>' if rule in rulebook.rule_names(folder) else code


def rule_pages(rules: Collection[str], classes: str, folder: str = rulebook.FOLDER) -> str:
    """The pages of these rules, each once, as they are written; in a notebook's cell only their
    headings stand open: JupyterLab follows a link to what is shown, and opens nothing.
    """
    pages = ""
    for rule in (rule for rule in rulebook.rule_names(folder) if rule in rules):
        heading, _, text = rulebook.page(rule, language(), folder).partition("\n")
        summary = f"<summary>{_text(heading.lstrip('# '))}</summary>"
        shown = " open" * ("page" in classes)
        body = f"<details{shown}>{summary}<pre>{_text(text.strip())}</pre></details>"
        pages += f'<article class="note" id="{rule}">{body}</article>'
    heading = f"<h2>{_text(say('Rules'))}</h2>"
    return f'<section class="{classes}"{lang()}>{heading}{pages}</section>' if pages else ""


def lang() -> str:
    """The attribute that says which Chinese characters are meant; none for English."""
    return "" if language() == "en" else f' lang="{language()}"'
