"""A plan, in every form that people read, by the means of the check's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cudriver.stack.planning.answer import (
    DERIVED,
    NOTHING,
    PROVEN,
    THERE,
    Answer,
    age,
    facts,
    titles,
)
from cudriver.stack.planning.commands import Instruction
from cudriver.stack.planning.question import Line, Question
from cudriver.stack.record import Any
from cudriver.stack.report.formats import Printed
from cudriver.stack.say import language
from cudriver.stack.tables import table

COLOURS = {NOTHING: "red", DERIVED: "yellow", PROVEN: "green", THERE: "green"}  # the worst first
CLASSES = {"red": "bad", "yellow": "doubt", "green": "good"}
TAGS = {s: f'<h1 class="verdict {CLASSES[c]}">{{}}</h1>' for s, c in COLOURS.items()}
TAGS |= {"for": '<p class="soft">{}</p>', "step": "<h2>{}</h2>", "says": "<p>{}</p>"}
TAGS |= {"command": "<pre>{}</pre>"}


class Plan(Printed):
    """What to install, as `cudriver.stack.planning.plan` returns it. It prints itself."""

    def __init__(
        self,
        question: Question,
        parts: list[Answer],
        says: Sequence[Line] = (),
        fixes: Sequence[Instruction] = (),
    ) -> None:
        self.question: Question = question
        self.parts: list[Answer] = parts
        self.says: list[Line] = [*facts(question), *says, *age()]
        self.fixes: list[Instruction] = [*fixes]  # of the environment that is added to
        self.title: str = titles(question.packages)

    @property
    def status(self) -> str:
        """Status: "there", "proven", "derived" (not all was run) or "nothing": its worst part's."""
        found = {part.status for part in self.parts}
        return next(status for status in COLOURS if status in found)

    @property
    def exit_code(self) -> int:
        """Exit code of ``cudriver plan``: 0, or 1 where nothing fits."""
        return 1 if self.status == NOTHING else 0

    def to_dict(self) -> dict[str, Any]:
        question = self.question
        asked = {name: getattr(question, name) for name in ("packages", "gpus", "python")}
        asked |= {"driver": question.driver.release, "installer": question.installer}
        data = {"schema": 1, "status": self.status, "question": asked}
        data["tables"] = table("derived")["drawn"]
        data["says"] = [*self.says]
        data["fixes"] = [step.to_dict() for step in self.fixes]
        return {**data, "environments": [part.to_dict() for part in self.parts]}

    def to_text(self, *, width: int = 80, colour: bool = False, verbose: bool = False) -> str:
        from cudriver.stack.report.text import Style
        from cudriver.stack.text import wrap, wrap_command

        style, lines = Style(width=width, colour=colour), list[str]()
        for kind, text in self._rows():
            if kind == "command":
                lines += ["  " + row for row in wrap_command(text, width - 2)]
            elif kind in ("says", "for"):
                indent = "  " * (kind == "says")
                lines += [indent + line for line in wrap(text, width - len(indent))]
            else:
                lines += [""] * bool(lines)
                lines.append(style.paint(text, *filter(None, [COLOURS.get(kind)]), "bold"))
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        from cudriver.stack.report.html import document

        return document(self.title, self._section("cudriver page"), language())

    def _repr_html_(self) -> str:
        from cudriver.stack.report.html import STYLE

        return f"<style>{STYLE}</style>{self._section('cudriver')}"

    def _section(self, classes: str) -> str:
        from cudriver.stack.text import html

        rows = [TAGS[kind].format(html(text)) for kind, text in self._rows()]
        return f'<section class="{classes}">{"".join(rows)}</section>'

    def _rows(self) -> Iterator[tuple[str, str]]:
        """The plan as lines in the reader's language, each with its kind."""
        question, anything = self.question, Line("any").own
        driver = question.driver.release or question.driver.cuda or anything
        gpus, python = ", ".join(question.gpus) or anything, question.python or anything
        yield self.status, Line(self.status, names=self.title).own
        yield "for", Line("asked", driver=driver, gpus=gpus, python=python).own
        yield from (("says", line.own) for line in self.says)
        yield from self._steps(self.fixes)
        for part in self.parts:
            if len(self.parts) > 1:
                yield part.status, Line(part.status, names=titles(part.packages)).own
            yield from (("says", line.own) for line in part.says)
            yield from self._steps(part.steps)

    def _steps(self, steps: list[Instruction]) -> Iterator[tuple[str, str]]:
        for step in steps:
            title = step.title if step.ran else Line("not run", title=step.title.own)
            yield "step", title.own
            yield from (("command", command) for command in step.commands)
            yield from [("says", Line("see").own)] * bool(step.see)
            yield from (("command", command) for command in step.see)
