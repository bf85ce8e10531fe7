"""The site, in two builds: English from docs/, and with `-t zh` Chinese from docs/zh/.

A Chinese page has the path of the English one, below docs/zh/. Notebooks run on the simulated
driver.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

DOCS = Path(__file__).parent
BUILD = DOCS.parent / "build" / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import elsewhere  # noqa: E402

# What runs while the site is built: this interpreter's programs, no GPU, no colours, a fixed width.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
os.environ |= {"CUDRIVER_LIBRARY": "sim", "COLUMNS": "88", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
for name in ("CUDRIVER_TRACE", "CUDRIVER_REPORT_LEAKS", "LD_LIBRARY_PATH"):
    os.environ.pop(name, None)

project = "cudriver"
author = "the cudriver developers"
copyright = f"2026, {author}"
release = version = metadata.version("cudriver")

language = "zh_CN" if tags.has("zh") else "en"  # type: ignore[name-defined]  # noqa: F821
exclude_patterns = ["_*", "zh", "course/*.ipynb"]  # what a reader made of the chapters

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.programoutput",
    "chinese",
    "chinese_search",
    "course",
    "elsewhere",
    "languages",
    "outputs",
    "rules",
    "signatures",
    "sources",
]
intersphinx_mapping = elsewhere.inventories(BUILD / "inventories")

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
chinese = language == "zh_CN"
# What is folded in the course are the solutions.
nb_code_prompt_show = "显示答案" if chinese else "Show the solution"
nb_code_prompt_hide = "隐藏答案" if chinese else "Hide the solution"

autodoc_member_order = "groupwise"
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "py:obj"  # `copy` in a docstring leads to copy()
highlight_language = "text"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

templates_path = ["_templates"]
html_theme = "furo"  # system fonts, nothing from other servers
html_title = f"cudriver {version}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "_static" / "scorer.js")
html_copy_source = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3b6e00", "color-brand-content": "#0b62b0"},
    "dark_css_variables": {"color-brand-primary": "#8fd14f", "color-brand-content": "#6cb6ff"},
}
