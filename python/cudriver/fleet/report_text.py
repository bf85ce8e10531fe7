"""A comparison for people at a terminal: groups, what differs, findings, the status.

Nothing is wider than `Style.width`. What is long is cut short, and says how to see the rest.
"""

from __future__ import annotations

import io

from cudriver.stack.facts import NOTE
from cudriver.stack.report.text import SEVERITY_COLOUR, VERDICTS, counts_of
from cudriver.stack.say import say, translate
from cudriver.stack.text import clean, columns, pad, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudriver.fleet.result import Change, Finding, Group, Result, Share
    from cudriver.stack.report.text import Style

GROUPS_SHOWN, CHANGES_SHOWN, SHARES_SHOWN = 8, 12, 6
LABEL = 12  # columns of the left-hand names
INDENT = 12  # columns of a finding's body


def render(fleet: Result, style: Style, *, verbose: bool = False) -> str:
    """The whole comparison; ends with a newline."""
    lines = [style.paint(clean(heading(fleet)), "bold")]
    for text in remarks(fleet):
        lines += wrap(text, style.width)
    shown = fleet.groups if verbose else fleet.groups[:GROUPS_SHOWN]
    for number, group in enumerate(shown, 1):
        lines += ["", *_group(number, group, fleet, style, verbose)]
    if len(shown) < len(fleet.groups):
        rest = fleet.groups[len(shown) :]
        count = sum(group.count for group in rest)
        more = say(
            "and {n} more groups of {count} (-v shows them)", n=f"{len(rest):,}", count=f"{count:,}"
        )
        lines += ["", *wrap(more, style.width)]
    for finding in fleet.findings:
        brief = finding.severity == NOTE and not verbose
        lines += [] if brief else ["", *_finding(finding, style, verbose)]
    notes = [finding for finding in fleet.findings if finding.severity == NOTE]
    if notes and not verbose:
        lines.append("")
        for note in notes:
            lines += _title(note, style)
    lines += ["", *_status(fleet, style)]
    return "\n".join(lines) + "\n"


def heading(fleet: Result) -> str:
    """How many there are, and how many agree."""
    counts = fleet.counts
    nodes, reports = counts["nodes"], counts["reports"] - counts["older"]
    if not reports:
        return say("no report")
    text = say("{n} nodes" if nodes > 1 else "{n} node", n=f"{nodes:,}")
    if reports != nodes:
        text = say("{n} reports of {nodes}", n=f"{reports:,}", nodes=text)
    if len(fleet.groups) == 1:
        return say("{nodes}: all the same", nodes=text) if reports > 1 else text
    agree = fleet.groups[0].count
    values = {"nodes": text, "n": f"{len(fleet.groups):,}", "most": f"{agree:,}"}
    text = "{nodes} in {n} groups; {most} agree"
    if agree == 1:  # where nothing that matters differs they do
        text = "{nodes} in {n} groups"
        text += "; no two agree" if fleet.status != "consistent" else ""
    return say(text, **values)


def remarks(fleet: Result) -> list[str]:
    """What the input lacks, and what of it was left out."""
    older, other = fleet.counts["older"], fleet.counts["other"]
    texts = []
    if not fleet.counts["reports"] and not fleet.counts["broken"]:
        texts.append(say("a report is a line of `cudriver check --json --compact`: there was none"))
    if older:
        differing = fleet.counts["differing"]
        text = say(
            "{n} older reports of the same left out"
            if older > 1
            else "{n} older report of the same left out",
            n=f"{older:,}",
        )
        if differing:
            text += say(", {n} of which differed from what counts", n=f"{differing:,}")
        texts.append(text)
    if other:
        texts.append(
            say(
                "{n} lines of something else passed over"
                if other > 1
                else "{n} line of something else passed over",
                n=f"{other:,}",
            )
        )
    return texts


def word_of(fleet: Result) -> tuple[str, str]:
    """The status and its colour: "consistent" where all nodes carry one stack for CUDA."""
    if fleet.status == "consistent" and fleet.idle:
        return "nothing here uses CUDA", "dim"
    word, colour = VERDICTS[fleet.status]
    same = fleet.status != "consistent" or len(fleet.groups) < 2
    return (word, colour) if same else ("no mismatch", colour)


def counted(fleet: Result) -> str:
    """The status, and how many errors and warnings there are."""
    text = say(word_of(fleet)[0])
    counts = counts_of([finding.severity for finding in fleet.findings])
    return text + (say(": {counts}", counts=counts) if counts else "")


def _status(fleet: Result, style: Style) -> list[str]:
    """The last line."""
    word, colour = word_of(fleet)
    rules = [finding.rule for finding in fleet.findings if finding.severity != NOTE]
    more = say("; ") + f"cudriver explain {rules[0]}" if rules else ""
    first, *rest = wrap(counted(fleet) + more, style.width)
    return [style.paint(say(word), colour, "bold") + first[len(say(word)) :], *rest]


def _group(number: int, group: Group, fleet: Result, style: Style, verbose: bool) -> list[str]:
    head = say("group {n}", n=number)
    about = f"{group.count:,} x" if group.count > 1 else ""
    names = _names(group.nodes, style, verbose, columns(head) + columns(about) + 4)
    first, *rest = names
    start = f"{style.paint(head, 'bold')}  {about + '  ' if about else ''}"
    lines = [(start + first).rstrip(), *("    " + line for line in rest)]
    if group.verdict != "consistent":
        word, colour = VERDICTS[group.verdict]
        text = say("its own check: {verdict}", verdict=say(word))
        lines.append("  " + style.paint(text, colour))
    if number == 1:
        for name, value in group.stack.items():
            label = elide(clean(say(name)), LABEL, style.ellipsis)
            first, *rest = _folded(told(value), style.width - LABEL - 4)
            lines.append(f"  {label}{' ' * (LABEL - columns(label))}  {first}")
            lines += [" " * (LABEL + 4) + line for line in rest]
    if group.differs:
        lines += _changes(group.differs, fleet.reference, style, verbose)
    return lines


def _names(nodes: str, style: Style, verbose: bool, used: int) -> list[str]:
    """The nodes in lines broken after commas: two of them, or all. The first, which begins after
    what is `used`, is empty where not even one name fits.
    """
    lines, room = [""], style.width - used
    for word in clean(nodes).split(","):
        piece = word + ","
        if columns(lines[-1]) + columns(piece) > room:
            lines.append("")
            room = style.width - INDENT - 4
        lines[-1] += elide(piece, style.width - INDENT - 4, style.ellipsis)
    lines[-1] = lines[-1].removesuffix(",")
    if len(lines) > 2 and not verbose:
        more = style.ellipsis + say(" (-v: all)")
        while lines[1] and columns(lines[1]) + columns(more) > style.width - INDENT - 4:
            lines[1] = "".join(lines[1].removesuffix(",").rpartition(",")[:2])
        return [lines[0], lines[1] + more]
    return lines


def _changes(changes: Sequence[Change], reference: str, style: Style, verbose: bool) -> list[str]:
    """What differs from the reference, in three columns."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in (say("differs in"), say("here"), reference_of(reference)):
        table.add_column(Text(clean(name)), overflow="fold")
    shown = changes if verbose else changes[:CHANGES_SHOWN]
    for change in shown:
        table.add_row(*(Text(clean(cell)) for cell in cells(change)))
    if len(shown) < len(changes):
        table.add_row(Text(say("and {n} more (-v)", n=len(changes) - len(shown))))
    out = io.StringIO()
    console = Console(
        file=out,
        width=style.width,
        color_system="standard" if style.colour else None,
        force_terminal=style.colour,
        legacy_windows=False,
    )
    console.print(Padding(table, (0, 0, 0, 2)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def cells(change: Change) -> tuple[str, str, str]:
    """What differs, here and there, in the reader's language."""
    rule = change.component.partition(" ")[0]  # of a component that is a finding
    here, there = (told(translate(value, rule)) for value in (change.value, change.reference))
    return say(change.component), here, there


def told(value: str) -> str:
    """A value in the reader's language: a finding's rule and title, or the English around names."""
    rule, _, title = value.partition(" ")
    return (
        f"{rule} {translate(title, rule)}"
        if rule.startswith("CU")
        else translate(say(value), "stack")
    )


def _title(finding: Finding, style: Style) -> list[str]:
    tag = f"{say(finding.severity)} {finding.rule}"
    used = columns(tag) + 2
    first, *rest = _folded(translate(finding.title, finding.rule), style.width - used)
    painted = style.paint(tag, SEVERITY_COLOUR[finding.severity], "bold")
    return [f"{painted}  {first}", *(" " * used + line for line in rest)]


def reference_of(reference: str) -> str:
    """What groups are compared with, in the reader's language."""
    first = "group 1"
    return say("group {n}", n=1) if reference == first else say(reference)


def _finding(finding: Finding, style: Style, verbose: bool) -> list[str]:
    lines = _title(finding, style)
    room = style.width - INDENT
    lines += _labelled(say("why"), _folded(translate(finding.why, "why"), room), style)
    shown = finding.evidence if verbose else finding.evidence[:SHARES_SHOWN]
    seen = [line for share in shown for line in _share(share, style, verbose)]
    if len(shown) < len(finding.evidence):
        seen.append(say("and {n} more (-v)", n=len(finding.evidence) - len(shown)))
    if seen:
        lines += _labelled(say("evidence"), seen, style)
    fixes = [line for fix in finding.fix for line in wrap(translate(fix, "fixes"), room)]
    return lines + (_labelled(say("fix"), fixes, style) if fixes else [])


def _share(share: Share, style: Style, verbose: bool) -> list[str]:
    """A value, how many have it, and who."""
    value = told(share.value)
    value = value if verbose else elide(value, 2 * style.width, style.ellipsis)
    many = f"{share.count:,} x" if share.count > 1 else say("on")
    lines = _folded(value, style.width - INDENT - columns(many) - 2)
    lines[-1] += f"  {many}"
    first, *rest = _names(share.nodes, style, verbose, INDENT + columns(lines[-1]) + 2)
    lines[-1] += f"  {first}" if first else ""
    return lines + ["    " + line for line in rest]


def _folded(text: str, width: int) -> list[str]:
    """Words in lines; a word that is too long for one is broken."""
    lines: list[str] = []
    for line in wrap(text, width):
        lines.append("")
        for character in line:
            if columns(lines[-1]) + columns(character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def _labelled(label: str, texts: Sequence[str], style: Style) -> list[str]:
    head = "  " + style.paint(pad(label, INDENT - 2), "dim") + texts[0]
    return [head, *(" " * INDENT + text for text in texts[1:])]


def elide(text: str, width: int, sign: str) -> str:
    """At most `width` columns: a sign stands for the middle, and the end keeps more than the start.

    What is narrower than the sign comes back as the sign.
    """
    if columns(text) <= width:
        return text
    room = max(width - columns(sign), 0)
    head = _start(text, room // 3)
    tail = _start(text[::-1], room - columns(head))[::-1]
    return head + sign + tail


def _start(text: str, width: int) -> str:
    """The longest start of at most so many columns."""
    used = 0
    for end, character in enumerate(text):
        used += columns(character)
        if used > width:
            return text[:end]
    return text
