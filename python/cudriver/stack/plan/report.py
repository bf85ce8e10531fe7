"""A plan, in every form that people read, by the means of the check's report."""

from __future__ import annotations

from cudriver.stack.plan.answer import DERIVED, NOTHING, PROVEN, title
from cudriver.stack.plan.question import Line
from cudriver.stack.printed import Printed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cudriver.stack.plan.answer import Part
    from cudriver.stack.plan.commands import Step
    from cudriver.stack.plan.question import Question
    from cudriver.stack.report_text import Style

STATUS = {  # the words, the colour, the class of a page
    PROVEN: (Line("proven"), "green", "good"),
    DERIVED: (Line("not proven"), "yellow", "doubt"),
    NOTHING: (Line("nothing fits"), "red", "bad"),
}
SEE = Line("To see that it worked:")


class Plan(Printed):
    """What to install, as `cudriver.stack.plan.make` returns it. It prints itself, in a notebook
    as a page does.
    """

    def __init__(
        self, question: Question, parts: list[Part], server: list[Step], lang: str
    ) -> None:
        self.question, self.parts, self.server, self.lang = question, parts, server, lang

    @property
    def status(self) -> str:
        """Status: "proven", "derived" (by the tables alone) or "nothing" (fits), the worst."""
        known = [part.status for part in self.parts]
        return next((status for status in (NOTHING, DERIVED) if status in known), PROVEN)

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver plan``: 0, or 1 where nothing fits."""
        return 1 if self.status == NOTHING else 0

    def to_dict(self) -> dict[str, Any]:
        question = self.question
        asked = {
            "packages": question.packages,
            "driver": question.driver.release,
            "gpus": question.gpus,
            "python": question.python,
            "installer": question.installer,
        }
        server, parts = list(map(_step, self.server)), list(map(_part, self.parts))
        told = {"question": asked, "server": server, "environments": parts}
        return {"schema": 1, "status": self.status, **told}

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        from cudriver.stack.report_text import Style

        return self.render(Style(width=width, colour=colour))

    def render(self, style: Style) -> str:
        """The text for a terminal. Commands can be pasted as they stand."""
        from cudriver.stack.text import fold, wrap_command

        lines = [style.paint(self.heading(), "bold"), *fold(self._asked(), style.width)]
        for kind, text in self._rows():
            if kind in STATUS:
                lines += ["", style.paint(text, STATUS[kind][1], "bold")]
            elif kind == "title":
                lines += ["", style.paint(text, "bold")]
            elif kind == "command":
                lines += ["  " + row for row in wrap_command(text, style.width - 2)]
            else:
                lines += fold("  " + text, style.width, "  ")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        from cudriver.stack.report_html import document

        return document(self.heading(), self._section("cudriver page"), self.lang)

    def _repr_html_(self) -> str:
        from cudriver.stack.report_html import STYLE

        return f"<style>{STYLE}</style>{self._section('cudriver')}"

    def _section(self, classes: str) -> str:
        from cudriver.stack.text import html

        tags = {"title": "h2", "command": "pre"}
        rows = [f"<h1>{html(self.heading())}</h1>", f'<p class="soft">{html(self._asked())}</p>']
        for kind, text in self._rows():
            tag, style = tags.get(kind, "p"), ""
            if kind in STATUS:
                tag, style = "span", f' class="verdict {STATUS[kind][2]}"'
            rows.append(f"<{tag}{style}>{html(text)}</{tag}>")
        return f'<section class="{classes}">{"".join(rows)}</section>'

    def heading(self) -> str:
        """What the plan is for."""
        return " + ".join(map(title, self.question.packages))

    def _asked(self) -> str:
        driver, anything = self.question.driver, Line("any").text(self.lang)
        values = {
            "driver": driver.release or driver.cuda or anything,
            "gpus": ", ".join(self.question.gpus) or anything,
            "python": self.question.python or anything,
        }
        return Line("driver {driver}, GPU {gpus}, Python {python}", **values).text(self.lang)

    def _rows(self) -> Iterator[tuple[str, str]]:
        """The plan as lines in the reader's language, each with its kind."""
        from cudriver.stack.text import is_command

        yield from self._steps(self.server)
        for part in self.parts:
            yield part.status, STATUS[part.status][0].text(self.lang)
            for said in part.says:
                text = said.text(self.lang)
                yield "command" if text.startswith("sudo ") and is_command(text) else "say", text
            yield from self._steps(part.steps)

    def _steps(self, steps: list[Step]) -> Iterator[tuple[str, str]]:
        for step in steps:
            yield "title", step.title.text(self.lang)
            yield from (("command", command) for command in step.commands)
            if step.see:
                yield "say", SEE.text(self.lang)
            yield from (("command", command) for command in step.see)

    def __repr__(self) -> str:
        sets = [part.candidate.name for part in self.parts if part.candidate]
        return f"<Plan for {self.heading()}: {' '.join([self.status, *sets]).strip()}>"


def _step(step: Step) -> dict[str, Any]:
    return {"title": step.title.text(), "commands": step.commands, "see": step.see}


def _part(part: Part) -> dict[str, Any]:
    data: dict[str, Any] = {"packages": part.packages, "status": part.status}
    chosen = part.candidate
    if chosen is not None:
        data |= {"set": chosen.name or None, "proven": chosen.dates, "install": chosen.packages}
        data |= {"cuda": chosen.cuda, "driver_floor": chosen.floor([]), "index": chosen.index}
        versions = {name: build.version for name, build in chosen.builds.items()}
        data |= {"frameworks": versions, "pythons": chosen.pythons}
    data["says"] = [said.text() for said in part.says]
    return {**data, "steps": list(map(_step, part.steps))}
