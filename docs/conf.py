"""Settings of the site: `sphinx-build -W -c docs . FOLDER`, in a clone with the extras `lab`, `docs` and `schedules`.

Sphinx reads the pages of the repository where they are, so that links between them are the same here,
on GitHub and in JupyterLab. What is made for the site is in `pages.py` beside this file. Nothing in
the site is loaded from elsewhere, so it reads from its folder as well as from a server.
"""

import sys
from pathlib import Path

import plotly

import pipelab as pl

sys.path.insert(0, str(Path(__file__).parent))

project = "pipelab"
author = copyright = "the pipelab authors"
release = pl.__version__

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_nb", "pages"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/**", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "**/.ipynb_checkpoints"]
suppress_warnings = ["myst.header"]

myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False
myst_heading_anchors = 3
myst_heading_slug_func = "pages.anchor"
nb_execution_mode = "off"  # the reader below runs them
student = tags.has("student")  # noqa: F821 - `-t student`: without solutions; Sphinx gives the tags
nb_custom_formats = {".ipynb": ["pages.run_notebook", {"student": student}, False]}
for_lecturers = [
    "docs/instructors.md",
    "docs/sessions.md",
    "docs/points.md",
    "docs/exam.md",
]
if student:  # `pages` takes what leads there out of the start page
    exclude_patterns += ["notebooks/solutions/**", *for_lecturers]
    suppress_warnings += ["myst.xref_missing"]

default_role = "py:obj"  # `solve` in a docstring links to it
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = f"pipelab {pl.__version__}"
html_static_path = ["_static", str(Path(plotly.__file__).parent / "package_data" / "plotly.min.js")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
templates_path = ["_templates"]
html_additional_pages = {"index": "to_the_start.html"}
html_search_scorer = str(Path(__file__).parent / "search_scores.js")
html_show_search_summary = False  # it is fetched, which a browser refuses in a folder
html_copy_source = False
html_show_sphinx = False
