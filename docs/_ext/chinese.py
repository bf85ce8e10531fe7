"""Chinese has no spaces between words: a line's end inside a paragraph must not become one."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

WIDE = r"\u3000-\u303f\uff00-\uffef\u2018-\u201d\u2026"  # punctuation of full width
HAN = r"\u4e00-\u9fff"
MARK = r"\n|[-*>|#]|\d+\. "  # what begins a paragraph, or an item, a row, a quotation in Markdown
LINE_END = re.compile(rf"(?<=[{WIDE}])\n(?!{MARK})|\n(?=[{WIDE}])|(?<=[{HAN}])\n(?=[{HAN}])")


def join(text: str) -> str:
    """The text without the line ends that would show as spaces."""
    return LINE_END.sub("", text)


def join_lines(app: Sphinx, document: nodes.document) -> None:
    """Does so in every text but code. A line's end is a node of its own, between its neighbours."""
    if app.config.language != "zh_CN":
        return
    for text in list(document.findall(nodes.Text)):
        parent = text.parent
        if "\n" not in text or isinstance(parent, nodes.literal | nodes.FixedTextElement):
            continue
        at = next(at for at, node in enumerate(parent.children) if node is text)  # not an equal one
        before = "".join(node.astext() for node in parent.children[:at])[-1:]
        after = "".join(node.astext() for node in parent.children[at + 1 :])[:1]
        joined = join(before + text + after)
        parent[at] = nodes.Text(joined[len(before) : len(joined) - len(after)])


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("doctree-read", join_lines)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
