"""A report for people at a terminal: a line a component, a block a finding, the verdict.

Nothing is wider than `Style.width` except a path that is. Quiet when all is well.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Library,
    Problem,
)
from cudriver.stack.record import Any, Record
from cudriver.stack.report.components import (
    ABSENT,
    OK,
    UNJUDGED,
    components,
    judged_for,
    using_cuda,
)
from cudriver.stack.report.outcome import Outcome
from cudriver.stack.say import say, translate
from cudriver.stack.text import clean, columns, pad, wrap, wrap_clauses, wrap_command

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
SEVERITY_COLOUR = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}
MARKS = {OK: "✓", ABSENT: "-", UNJUDGED: " ", WARNING: "!", ERROR: "✗", UNKNOWN: "?"}
ASCII_MARKS = {OK: "+", ABSENT: "-", UNJUDGED: " ", WARNING: "!", ERROR: "x", UNKNOWN: "?"}
MARK_COLOUR = {OK: "green", WARNING: "yellow", ERROR: "red", UNKNOWN: "yellow"}
ELLIPSIS, ASCII_ELLIPSIS = "…", "..."
MB, MUCH = 1_000_000, 100_000_000  # bytes; a command that fetches so many says so
PROVEN = "tried on a copy of these facts: it fixes this, and breaks nothing"
LABEL = 12  # columns of the left-hand names
EVIDENCE_SHOWN = 6
VERDICTS = {
    CONSISTENT: ("consistent", "green"),
    MISMATCH: ("mismatch", "red"),
    UNKNOWN: ("could not tell", "yellow"),
}


class Style:
    """How to write: columns, colour, and whether the stream can show a tick."""

    def __init__(self, *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> None:
        self.width = width
        self.colour = colour
        self.marks: dict[str, str] = ASCII_MARKS if ascii_only else MARKS
        self.ellipsis = ASCII_ELLIPSIS if ascii_only else ELLIPSIS

    def paint(self, text: str, *names: str) -> str:
        """`text` in these colours, or as it is."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(COLOURS[name] for name in names)}m{text}\x1b[0m"

    def mark(self, severity: str) -> str:
        """The sign in front of a component, or of an environment."""
        return self.paint(self.marks[severity], MARK_COLOUR.get(severity, "dim"))


ELSEWHERE = Style(width=100)  # of what is shown elsewhere than at a terminal


class How(Record):
    """What a format may heed of the call that asks for it."""

    style: Style | None = None  # the terminal's
    verbose: bool = False
    listed: bool = False  # --all: many environments
    node: dict[str, Any] | None = None  # --compact: where the reports are made
    words: Sequence[str] = ()  # of the command line
    redact: bool = False  # tell nobody whose machine it is


def page(reports: Sequence[Outcome], how: How) -> str:
    """The reports one after another, an empty line between them."""
    style = how.style or Style()
    return "\n".join(render(report, style, verbose=how.verbose) for report in reports)


def render(report: Outcome, style: Style, *, verbose: bool = False) -> str:
    """The whole report; ends with a newline."""
    lines = [*_heading(report.facts, style), ""]
    for label, severity, text in components(report, verbose=verbose):
        texts = wrap_clauses(text, style.width - LABEL - 4)
        head = f"{style.mark(severity)} {pad(clean(label), LABEL)}  "
        lines += _beside(head, texts, LABEL + 4)
    if verbose and report.libraries:
        lines.append("")
        for library in report.libraries:
            lines += library_lines(library, report.facts, style)
    ranked = sorted(report.findings, key=lambda finding: RANK[finding.severity])
    for finding in ranked:
        if finding.severity != NOTE or verbose:
            lines += ["", *_finding(finding, report.facts, style, verbose)]
    notes = [finding for finding in ranked if finding.severity == NOTE]
    if notes and not verbose:
        lines.append("")
        for note in notes:
            lines += title_lines(note, style, "cyan")
    if report.facts.problems:
        lines += ["", *_problems(report.facts, style, verbose)]
    if report.observation is not None:
        lines += ["", *observation_lines(report, style, verbose)]
    lines += ["", *verdict_lines(report, style)]
    return "\n".join(lines) + "\n"


def verdict_lines(report: Outcome, style: Style) -> list[str]:
    """The last lines: the verdict, what explains the worst finding, why it could not be told."""
    verdict, (word, colour) = counted(report), _word(report)
    rules = [f.rule for f in report.findings if f.severity != NOTE]
    if rules and report.verdict != CONSISTENT:
        verdict += say("; ") + f"cudriver explain {rules[0]}"
    first, *rest = wrap(verdict, style.width)
    lines = [style.paint(say(word), colour, "bold") + first[len(say(word)) :], *rest]
    if report.verdict == UNKNOWN:
        for why in report.doubts:
            lines += ["  " + line for line in wrap(translate(why, "doubts"), style.width - 2)]
    return lines


def counted(report: Outcome) -> str:
    """The verdict, and how many errors and warnings there are."""
    text = say(_word(report)[0])
    counts = counts_of([finding.severity for finding in report.findings])
    return text + (say(": {counts}", counts=counts) if counts else "")


def _word(report: Outcome) -> tuple[str, str]:
    """The verdict's word and colour: "consistent" where all that is here for CUDA can use it."""
    if report.verdict == CONSISTENT and not using_cuda(report):
        return "nothing here uses CUDA", "dim"
    return VERDICTS[report.verdict]


def counts_of(severities: Sequence[str]) -> str:
    """ "1 error, 2 warnings": of findings of `check`, or of `fleet`."""
    parts = []
    for severity, many in ((ERROR, "{n} errors"), (WARNING, "{n} warnings")):
        n = severities.count(severity)
        if n:
            parts.append(say(many if n > 1 else f"{{n}} {severity}", n=n))
    return say(", ").join(parts)


def observation_lines(report: Outcome, style: Style, verbose: bool) -> list[str]:
    """Prediction and observation, side by side."""
    observation = report.observation
    if observation is None:
        return []
    head = say("observed") + "  "
    text = wrap(observation.summary(), style.width - columns(head))
    lines = _beside(style.paint(head, "bold"), text, columns(head))
    for row in observation.rows:
        if row.agrees and not verbose:
            continue
        differs = say("same") if row.agrees else style.paint(say("differs"), "red")
        lines.append(f"  {clean(row.name)}: {differs}")
        predicted = clean(translate(row.predicted or "-", "observed"))
        lines.append(f"    {pad(say('predicted'), 9)}  {predicted}")
        lines.append(f"    {pad(say('observed'), 9)}  {clean(row.observed or '-')}")
    return lines


def short_path(facts: Facts, path: str) -> str:
    """A path inside the environment without the prefix; any other as it is."""
    prefix = facts.environment.prefix
    if prefix == "/" or not path.startswith(prefix + "/"):
        return clean(path)
    for folder in sorted(facts.environment.site_packages, key=len, reverse=True):
        if folder.startswith(prefix + "/") and path.startswith(folder + "/"):
            return clean("site-packages/" + path[len(folder) + 1 :])
    return clean(path[len(prefix) + 1 :])


def location(facts: Facts, where: Evidence | Problem) -> str:
    """A file and a line."""
    line = "" if where.line is None else f":{where.line}"
    return short_path(facts, where.file) + line


def value_of(evidence: Evidence) -> str:
    """The value of a piece of evidence; a sentence of this check is in the reader's language."""
    return translate(evidence.value.strip(), "evidence")


def about(facts: Facts) -> list[str]:
    """What kind of environment it is, its Python, in which root it is, and for which driver it is
    judged.
    """
    parts = [say(facts.environment.kind)]
    if facts.environment.python:
        parts.append(f"Python {facts.environment.python}")
    if facts.root != "/":
        parts.append(say("in {root}", root=facts.root))
    if facts.environment.by:
        parts.append(translate(facts.environment.by, "by"))
    return [*parts, *filter(None, [judged_for(facts)])]


def _heading(facts: Facts, style: Style) -> list[str]:
    prefix, details = clean(facts.environment.prefix), f"({', '.join(about(facts))})"
    if columns(prefix) + 1 + columns(clean(details)) <= style.width:
        return [f"{style.paint(prefix, 'bold')} {clean(details)}"]
    return [style.paint(prefix, "bold"), *wrap(details, style.width)]


def _finding(finding: Finding, facts: Facts, style: Style, verbose: bool) -> list[str]:
    lines = title_lines(finding, style)
    indent, room = 12, style.width - 12
    if finding.predicts:
        lines += _labelled(say(message(finding)), wrap(finding.predicts, room), indent, style)
    shown = _evidence_lines(finding, facts, room, verbose)
    if shown:
        lines += _labelled(say("evidence"), shown, indent, style)
    for other in finding.also:
        texts = wrap(f"{other.rule}  {translate(other.title, other.rule)}", room)
        texts += _evidence_lines(other, facts, room, verbose)
        lines += _labelled(say("also"), texts, indent, style)
    fixes = [line for fix in finding.fix for line in wrap_command(command_text(fix), room)]
    if fixes:
        lines += _labelled(say("fix"), fixes, indent, style)
    remark = [f"# {line}" for text in remarks(finding) for line in wrap(text, room - 2)]
    lines += [" " * indent + style.paint(line, "dim") for line in remark]
    if finding.advice:
        advice = wrap(translate(finding.advice, "fixes"), room)
        lines += _labelled(say("advice"), advice, indent, style)
    return lines


def command_text(command: str) -> str:
    """A command whose remark is in the reader's language."""
    text, mark, about = command.partition("  # ")
    return text + mark + translate(about, "remarks")


def remarks(finding: Finding) -> list[str]:
    """What is known of its commands: that they heal, and that they fetch much."""
    size = sum(command.downloads or 0 for command in finding.fix)
    much = [say("it downloads up to {size} MB", size=size // MB)] * (size >= MUCH)
    return [say(PROVEN)] * finding.proven + much


def message(finding: Finding) -> str:
    """The label of what a program will say: an error's is one, a warning's may never be met."""
    return "error" if finding.severity == ERROR else "message"


def title_lines(finding: Finding, style: Style, *tag_styles: str) -> list[str]:
    """Severity, rule and title."""
    tag = f"{say(finding.severity)} {finding.rule}"
    indent = columns(tag) + 2
    styles = tag_styles or (SEVERITY_COLOUR[finding.severity], "bold")
    texts = wrap(translate(finding.title, finding.rule), style.width - indent)
    return _beside(f"{style.paint(tag, *styles)}  ", texts, indent)


def _beside(head: str, texts: Sequence[str], indent: int) -> list[str]:
    """Lines, the first of them beside a head."""
    return [head + texts[0], *(" " * indent + text for text in texts[1:])]


def _labelled(label: str, texts: Sequence[str], indent: int, style: Style) -> list[str]:
    return _beside("  " + style.paint(pad(label, indent - 2), "dim"), texts, indent)


def _evidence_lines(finding: Finding, facts: Facts, room: int, verbose: bool) -> list[str]:
    most = len(finding.evidence) if verbose else EVIDENCE_SHOWN
    shown = []
    for evidence in finding.evidence[:most]:
        shown += _evidence(evidence, facts, room)
    more = len(finding.evidence) - most
    return shown + [say("and {n} more (-v)", n=more)] * (more > 0)


def _evidence(evidence: Evidence, facts: Facts, room: int) -> list[str]:
    place = location(facts, evidence)
    value = clean(value_of(evidence))
    if not value:
        return [place]
    if columns(place) + 2 + columns(value) <= room:
        return [f"{place}  {value}"]
    return [place, *("  " + line for line in wrap(value, room - 2))]


def _problems(facts: Facts, style: Style, verbose: bool) -> list[str]:
    lines = []
    shown = facts.problems if verbose else facts.problems[:3]
    for problem in shown:
        place, text = location(facts, problem), translate(problem.text, "{problem}")
        lines += wrap(f"{say('unreadable')}  {place}: {text}", style.width)
    if len(shown) < len(facts.problems):
        more = len(facts.problems) - len(shown)
        lines.append(" " * 12 + say("and {n} more (-v)", n=more))
    return lines


def library_lines(
    library: Library, facts: Facts, style: Style, *, was: Library | None = None
) -> list[str]:
    """A library: name and version, its file, the rule that found it, what that shadows.

    `was` is the one that its name resolves to today.
    """
    head = f"{library.soname} {library.version or ''}"
    if library.provided_by:
        head += f" ({library.provided_by})"
    first, *more = wrap(head, style.width - 4)
    lines = [style.paint(first, "bold"), *("    " + line for line in more)]
    lines.append(f"    {short_path(facts, library.path)}")
    if library.found_by:
        lines += _hanging(found_by(library.found_by), style)
    for other in library.shadowed:
        if was is None or other.path != was.path:
            values = {"version": other.version or "", "path": short_path(facts, other.path)}
            text = say(
                "shadows {version} {path} ({rule})", **values, rule=translate(other.rule, "{by}")
            )
            lines += _hanging(text, style)
    if was is not None:
        place, by = short_path(facts, was.path), translate(clean(was.found_by), "{by}")
        lines += _hanging(say("instead of {path} (by {rule})", path=place, rule=by), style)
    return lines


def found_by(rule: str) -> str:
    """The loader's rule, in a sentence."""
    text = translate(rule, "{by}")
    return text if rule.startswith("preload") else say("by {rule}", rule=text)


def _hanging(text: str, style: Style) -> list[str]:
    return _beside("    ", wrap(text, style.width - 6), 6)
