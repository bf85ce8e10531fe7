"""The switch between the languages: each page names the same page in the other language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parent.parent
# language: folder of its pages, folder of its build, and what the link to the other language says
PAGES = {"en": DOCS, "zh_CN": DOCS / "zh"}
BUILDS = {"en": "en", "zh_CN": "zh"}
NAMES = {"en": "English", "zh_CN": "中文"}


def add_link(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Gives the templates the other language's link, from a page to its translation."""
    other = "en" if app.config.language == "zh_CN" else "zh_CN"
    # These are written while a language is built, the same ones in both.
    made = page in ("genindex", "search") or page.startswith(("reference/rules/", "source/"))
    known = made or (PAGES[other] / f"{page}.md").exists()
    target = page if known else "index"
    up = "../" * (page.count("/") + 1)
    context["other_language"] = other.replace("_", "-")
    context["other_language_name"] = NAMES[other]
    context["other_language_link"] = f"{up}{BUILDS[other]}/{target}.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("html-page-context", add_link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
