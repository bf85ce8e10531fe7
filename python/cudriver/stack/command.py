"""A command of a fix: a text that a shell takes as it stands, and what it does."""

from __future__ import annotations

from cudriver.stack.record import Any


class Command(str):
    """A command, with what it does: see fixes/after.py."""

    installs: tuple[str, ...] = ()
    removes = ""  # a distribution
    sets: tuple[str, str | None] | None = None  # a variable; None: unsets it
    again = alone = upgrade = False
    source: str | None = None  # a package index
    folder: str | None = None  # what is installed goes there, and not where it is looked for
    heals = False  # it was tried on a copy of the facts: see data/report.schema.json
    downloads: int | None = None  # about how many bytes; None: not known

    @classmethod
    def of(cls, text: str, **does: Any) -> Command:
        """A command, or the same that does something else as well."""
        made = cls(text)
        made.__dict__.update(getattr(text, "__dict__", {}), **does)
        return made

    def to_dict(self) -> dict[str, Any]:
        return {"command": str(self), "heals": self.heals, "downloads": self.downloads}


def parted(lines: list[str]) -> tuple[list[Command], str]:
    """The commands among some lines, and the sentences. A `Command` is never a sentence."""
    advice = [line for line in lines if line.endswith(".") and not isinstance(line, Command)]
    return [Command.of(line) for line in lines if line not in advice], " ".join(advice)
