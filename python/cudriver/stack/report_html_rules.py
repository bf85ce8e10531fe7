"""The pages of a report's rules, at the end of its HTML, where its rule codes lead."""

from __future__ import annotations

import os
import re

from cudriver.stack import explain
from cudriver.stack.say import language, say
from cudriver.stack.text import html

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def link(rule: str, folder: str = explain.FOLDER) -> str:
    """A rule's code, which leads to its page if there is one."""
    code = html(rule)
    return f'<a href="#{code}">{code}</a>' if rule in explain.rule_names(folder) else code


def section(rules: Collection[str], classes: str, folder: str = explain.FOLDER) -> str:
    """The pages of these rules, each once. In a notebook's cell only their headings stand open:
    JupyterLab follows a link to what is shown, and opens nothing.
    """
    folder = os.path.join(folder, "zh" if language() == "zh" else "")
    known = [rule for rule in explain.rule_names(folder) if rule in rules]
    pages = ""
    for rule in known:
        heading, *blocks = _blocks(explain.page(rule, folder))
        body = "".join(blocks)
        if "page" not in classes:
            heading, body = "", f"<details><summary>{heading}</summary>{body}</details>"
        pages += f'<article class="note" id="{rule}">{heading}{body}</article>'
    heading = html(say("Rules"))
    return (
        f'<section class="{classes}"{lang()}><h2>{heading}</h2>{pages}</section>' if pages else ""
    )


def lang() -> str:
    """The attribute that says which Chinese characters are meant; none for English."""
    return "" if language() == "en" else f' lang="{language()}"'


def _blocks(page: str) -> Iterator[str]:
    """A page's headings, paragraphs, lists and code; the pages have no other Markdown."""
    pieces = r"^```.*?^```|^(?!```|\n).+?(?=\n\n|\n```|\Z)"
    for text in re.findall(pieces, page.strip(), re.MULTILINE | re.DOTALL):
        if text.startswith("```"):
            yield f"<pre>{html(text.partition(chr(10))[2].removesuffix('```'))}</pre>"
        elif text.startswith("#"):
            heading, _, rest = text.partition("\n")
            level = 3 if heading.startswith("# ") else 4
            yield f"<h{level}>{_inline(heading.lstrip('# '))}</h{level}>"
            yield from _blocks(rest) if rest else ()
        elif text.startswith("- "):
            items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
            yield f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        else:
            yield f"<p>{_inline(text)}</p>"


def _inline(text: str) -> str:
    """A line's code in its type."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html(" ".join(text.split())))
