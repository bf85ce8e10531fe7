"""A report for people at a terminal: a line a component, a block a finding, the verdict.

Nothing is wider than `Style.width` except a path that is. Quiet when all is well.
"""

from __future__ import annotations

from cudriver.stack.components import ABSENT, OK, RANK, components
from cudriver.stack.model import CONSISTENT, ERROR, NOTE, UNKNOWN, WARNING
from cudriver.stack.text import clean, columns, elide, is_command, wrap, wrap_clauses, wrap_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudriver.stack.model import Evidence, Facts, Finding, Library
    from cudriver.stack.outcome import Outcome

COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
SEVERITY_COLOUR = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}
MARKS = {OK: "✓", ABSENT: "-", WARNING: "!", ERROR: "✗", UNKNOWN: "?"}
PLAIN_MARKS = {OK: "+", ABSENT: "-", WARNING: "!", ERROR: "x", UNKNOWN: "?"}
MARK_COLOUR = {OK: "green", ABSENT: "dim", WARNING: "yellow", ERROR: "red", UNKNOWN: "yellow"}
ELLIPSIS, PLAIN_ELLIPSIS = "…", "..."
PROVEN = "# tried on a copy of these facts: it fixes this, and breaks nothing"
LABEL = 12  # columns of the left-hand names
EVIDENCE_SHOWN = 6
PREFIX_LEAST = 24  # columns of a prefix in a line for --all before its frameworks are shortened


class Style:
    """How to write: columns, colour, and whether the stream can show a tick."""

    def __init__(self, *, width: int = 80, colour: bool = False, plain: bool = False) -> None:
        self.width = width
        self.colour = colour
        self.marks: dict[str, str] = PLAIN_MARKS if plain else MARKS
        self.ellipsis = PLAIN_ELLIPSIS if plain else ELLIPSIS

    def paint(self, text: str, *names: str) -> str:
        """`text` in these colours, or as it is."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(COLOURS[name] for name in names)}m{text}\x1b[0m"

    def mark(self, severity: str) -> str:
        """The sign in front of a component, or of an environment."""
        return self.paint(self.marks[severity], MARK_COLOUR[severity])


def render(report: Outcome, style: Style, *, verbose: bool = False) -> str:
    """The whole report; ends with a newline."""
    lines = [*_heading(report.facts, style), ""]
    for label, severity, text in components(report):
        lines += _component(label, severity, text, style)
    if verbose and report.libraries:
        lines += ["", *_library_table(report, style)]
    ranked = sorted(report.findings, key=lambda finding: RANK[finding.severity])
    for finding in ranked:
        if finding.severity != NOTE or verbose:
            lines += ["", *_finding(finding, report.facts, style)]
    notes = [finding for finding in ranked if finding.severity == NOTE]
    if notes and not verbose:
        lines.append("")
        for note in notes:
            lines += _note(note, style)
    if report.facts.problems:
        lines += ["", *_problems(report.facts, style, verbose)]
    if report.observation is not None:
        lines += ["", *observation_lines(report, style, verbose)]
    lines += ["", verdict_line(report, style)]
    return "\n".join(lines) + "\n"


def verdict_line(report: Outcome, style: Style) -> str:
    """The last line."""
    errors = sum(f.severity == ERROR for f in report.findings)
    warnings = sum(f.severity == WARNING for f in report.findings)
    counts = ", ".join(
        f"{n} {word}{'s' if n > 1 else ''}"
        for n, word in ((errors, "error"), (warnings, "warning"))
        if n
    )
    verdict = report.verdict
    if verdict == CONSISTENT:
        text = style.paint("consistent", "green", "bold")
        return f"{text} ({counts})" if counts else text
    rules = list(dict.fromkeys(f.rule for f in report.findings if f.severity != NOTE))
    more = f"; cudriver explain {rules[0]}" if rules else ""
    if verdict == UNKNOWN:
        told = f" ({counts})" if counts else ""
        return style.paint("could not tell", "yellow", "bold") + told + more
    return style.paint("mismatch", "red", "bold") + (f": {counts}" if counts else "") + more


def one_line(report: Outcome, style: Style) -> str:
    """An environment in a line, for --all: its mark, prefix, frameworks, and the rules that fired.

    Within `style.width` the middle of a long prefix is left out, then what the frameworks were
    built for, then the last of these. Rules are all named: where they alone fill the line they
    stand in others below it.
    """
    frameworks = [clean(f"{f.name} {f.version}") for f in report.facts.frameworks]
    built = [
        clean(f" (CUDA {f.cuda})" if f.cuda else " (CPU)" if f.variant == "cpu" else "")
        for f in report.facts.frameworks
    ]
    prefix = clean(report.prefix)
    rules = ", ".join(dict.fromkeys(f.rule for f in report.findings if f.severity != NOTE))
    severity = standing(report)
    mark, colour = style.mark(severity), SEVERITY_COLOUR.get(severity, "yellow")
    room = style.width - 2
    below = rules != "" and room - 2 - columns(rules) < PREFIX_LEAST
    if rules and not below:
        room -= 2 + columns(rules)
    least = min(columns(prefix), PREFIX_LEAST)
    shown = ", ".join(map("".join, zip(frameworks, built, strict=True)))
    if columns(shown) > room - 2 - least:
        shown = _as_many(frameworks, room - 2 - least)
    elif not shown:
        shown = _as_many(["no framework that uses CUDA"], room - 2 - least)
    text = elide(prefix, room - (2 + columns(shown) if shown else 0), style.ellipsis)
    line = f"{mark} {text}  {shown}" if shown else f"{mark} {text}"
    if below:
        more = (style.paint(part, colour) for part in wrap(rules, style.width - 4))
        return "\n    ".join([line, *more])
    return f"{line}  {style.paint(rules, colour)}" if rules else line


def standing(report: Outcome) -> str:
    """What an environment's mark says: the worst of its findings, or that it could not be told."""
    if report.verdict == UNKNOWN:
        return UNKNOWN
    if report.verdict != CONSISTENT:
        return ERROR
    if any(f.severity == WARNING for f in report.findings):
        return WARNING
    return OK if report.facts.frameworks else ABSENT


def _as_many(names: Sequence[str], width: int) -> str:
    """The first names that fit, and how many more there are; nothing where not one fits."""
    for kept in range(len(names), 0, -1):
        more = f" and {len(names) - kept} more" if kept < len(names) else ""
        text = ", ".join(names[:kept]) + more
        if columns(text) <= width:
            return text
    return ""


def observation_lines(report: Outcome, style: Style, verbose: bool) -> list[str]:
    """Prediction and observation, side by side."""
    observation = report.observation
    if observation is None:
        return []
    first, *rest = wrap(observation.summary(), style.width - 10)
    lines = [f"{style.paint('observed', 'bold')}  {first}", *(" " * 10 + line for line in rest)]
    for row in observation.rows:
        if row.agrees and not verbose:
            continue
        lines.append(
            f"  {clean(row.name)}: {'same' if row.agrees else style.paint('differs', 'red')}"
        )
        lines.append(f"    predicted  {clean(row.predicted or '-')}")
        lines.append(f"    observed   {clean(row.observed or '-')}")
    return lines


def short_path(facts: Facts, path: str) -> str:
    """A path inside the environment without the prefix; any other as it is."""
    for folder in sorted(facts.environment.site_packages, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return clean("site-packages/" + path[len(folder) + 1 :])
    prefix = facts.environment.prefix
    if len(prefix) > 1 and path.startswith(prefix + "/"):
        return clean(path[len(prefix) + 1 :])
    return clean(path)


def _heading(facts: Facts, style: Style) -> list[str]:
    environment = facts.environment
    about = [environment.kind]
    if environment.python:
        about.append(f"Python {environment.python}")
    if facts.root != "/":
        about.append(f"in {facts.root}")
    prefix, details = clean(environment.prefix), f"({', '.join(about)})"
    if columns(prefix) + 1 + columns(clean(details)) <= style.width:
        return [f"{style.paint(prefix, 'bold')} {clean(details)}"]
    return [style.paint(prefix, "bold"), *wrap(details, style.width)]


def _component(label: str, severity: str, text: str, style: Style) -> list[str]:
    first, *rest = wrap_clauses(text, style.width - LABEL - 4)
    lines = [f"{style.mark(severity)} {clean(label):<{LABEL}}  {first}"]
    return lines + [" " * (LABEL + 4) + line for line in rest]


def _finding(finding: Finding, facts: Facts, style: Style) -> list[str]:
    tag = f"{finding.severity} {finding.rule}"
    colour = SEVERITY_COLOUR[finding.severity]
    first, *rest = wrap(finding.title, style.width - len(tag) - 2)
    lines = [f"{style.paint(tag, colour, 'bold')}  {first}"]
    lines += [" " * (len(tag) + 2) + line for line in rest]
    indent, room = 12, style.width - 12
    if finding.predicts:
        lines += _labelled("error", wrap(finding.predicts, room), indent, style)
    shown: list[str] = []
    for evidence in finding.evidence[:EVIDENCE_SHOWN]:
        shown += _evidence(evidence, facts, room)
    if len(finding.evidence) > EVIDENCE_SHOWN:
        shown.append(f"and {len(finding.evidence) - EVIDENCE_SHOWN} more (--json has them all)")
    if shown:
        lines += _labelled("evidence", shown, indent, style)
    fixes: list[str] = []
    for fix in finding.fix:
        fixes += wrap_command(fix, room) if is_command(fix) else wrap(fix, room)
    if fixes:
        lines += _labelled("fix", fixes, indent, style)
    if finding.proven:
        lines.append(" " * indent + style.paint(PROVEN, "dim"))
    return lines


def _labelled(label: str, texts: Sequence[str], indent: int, style: Style) -> list[str]:
    head = "  " + style.paint(f"{label:<{indent - 2}}", "dim") + texts[0]
    return [head, *(" " * indent + text for text in texts[1:])]


def _evidence(evidence: Evidence, facts: Facts, room: int) -> list[str]:
    place = short_path(facts, evidence.file)
    if evidence.line is not None:
        place += f":{evidence.line}"
    value = clean(evidence.value.strip())
    if not value:
        return [place]
    if columns(place) + 2 + columns(value) <= room:
        return [f"{place}  {value}"]
    return [place, *("  " + line for line in wrap(value, room - 2))]


def _note(finding: Finding, style: Style) -> list[str]:
    tag = f"note {finding.rule}"
    first, *rest = wrap(finding.title, style.width - len(tag) - 2)
    return [
        f"{style.paint(tag, 'cyan')}  {first}",
        *(" " * (len(tag) + 2) + line for line in rest),
    ]


def _problems(facts: Facts, style: Style, verbose: bool) -> list[str]:
    lines = []
    shown = facts.problems if verbose else facts.problems[:3]
    for problem in shown:
        place = short_path(facts, problem.file) + (f":{problem.line}" if problem.line else "")
        lines += wrap(f"unreadable  {place}: {problem.text}", style.width)
    if len(shown) < len(facts.problems):
        lines.append(f"            and {len(facts.problems) - len(shown)} more (-v)")
    return lines


def _library_table(report: Outcome, style: Style) -> list[str]:
    lines = []
    for library in report.libraries:
        lines += library_lines(library, report.facts, style)
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
        by = "" if library.found_by.startswith("preload") else "by "
        lines += _hanging(by + library.found_by, style)
    for other in library.shadowed:
        if was is None or other.path != was.path:
            place = short_path(facts, other.path)
            lines += _hanging(f"shadows {other.version or ''} {place} ({other.rule})", style)
    if was is not None:
        place = short_path(facts, was.path)
        lines += _hanging(f"instead of {place} (by {clean(was.found_by)})", style)
    return lines


def _hanging(text: str, style: Style) -> list[str]:
    first, *rest = wrap(text, style.width - 6)
    return ["    " + first, *("      " + line for line in rest)]
