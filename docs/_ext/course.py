"""The course's chapters: run once for both languages, and written as .ipynb beside their pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jupytext
from chinese import join
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbformat import NotebookNode
from sphinx.application import Sphinx

ENGLISH = Path(__file__).parent.parent / "course"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def take_outputs(app: Sphinx) -> None:
    """Gives the Chinese chapters the outputs of the English ones.

    Their code differs in comments alone, as tests/project/test_course.py sees to. A chapter whose
    English version was not run as it stands runs itself.
    """
    if app.config.language != "zh_CN":
        return
    shutil.copy(ENGLISH / "lab.py", Path(app.srcdir, "course"))
    cache = get_cache(app.config.nb_execution_cache_path)
    for page in sorted(Path(app.srcdir, "course").glob("0*.md")):
        chinese = jupytext.read(page)
        try:
            _, english = cache.merge_match_into_notebook(jupytext.read(ENGLISH / page.name))
        except KeyError:
            continue
        chinese.metadata = english.metadata  # with the kernel's language
        for mine, other in zip(code_cells(chinese), code_cells(english), strict=True):
            mine.outputs, mine.execution_count = other.outputs, other.execution_count
        bundle = CacheBundleIn(chinese, str(page))
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Writes each chapter without output, for the links in course/index, and their helper."""
    if error is not None or app.builder.format != "html":
        return
    target = Path(app.outdir, "course")
    for page in sorted(Path(app.srcdir, "course").glob("0*.md")):
        notebook = jupytext.read(page)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                source = re.sub(r"\((0\d-[\w-]+)\.md\)", r"(\1.ipynb)", cell.source)
                cell.source = join(source)
        jupytext.write(notebook, target / f"{page.stem}.ipynb", fmt="ipynb")
    shutil.copy(Path(app.srcdir, "course", "lab.py"), target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", take_outputs)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
