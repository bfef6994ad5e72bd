"""What the site has beside the pages of the repository: notebooks that are run, a gallery, reference and ledger."""

import re
import shutil
from html import escape, unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import pipelab as pl
from formulas import mathml
from outputs_as_html import prepared
from pipelab.cli.live_pages.explorers import axis_of, mix_page, schedules_page
from pipelab.course.outline import notebooks_of_the_course
from pipelab.figures.html_charts import plotly_js

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The gallery shows a notebook's first figure, or the first one below this heading.
PICTURES = {
    "02_exhaustive_search": "How good are the rules?",
    "05_joint_ilp": "Branch and bound",
    "07_pipeline_schedules": "1F1B saves memory",
    "09_real_gpus": "Predicted against measured",
    "10_in_flight": "Memory for all of them",
}

# Explorers whose answers are computed when the site is built; the start page links to them.
LIVE_SCHEDULES = (
    "name=GPipe,1F1B,ZBH1,ZBH2",
    "ranks=2..8",
    "microbatches=4,8,12,16,24",
    "message=0,0.25",
)
LIVE_MIX = ("a100-sxm-40=0..3", "l4=0..4", "t4=0..4")

LONG = 6  # headings, from which on a page has a list of its contents
_GALLERY = '<div class="gallery">'
# A picture is shown at a third of a page's width: its title, in small print there, is its text instead.
_UNTITLED = """async figure => {
  const said = figure.layout.title?.text || "";
  await Plotly.relayout(figure, {"title.text": "", "margin.t": Math.min(figure.layout.margin?.t ?? 60, 60)});
  return said;
}"""


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of everything here."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("builder-inited", _no_copies_of_notebooks)
    app.connect("source-read", _generated)
    app.connect("doctree-read", _numbers_and_anchors, priority=100)  # before titles are collected
    app.connect("env-get-outdated", lambda *_: ["docs/index"])  # its pictures are of other pages
    app.connect("html-page-context", _plotly_contents_and_gallery)
    app.connect("build-finished", _live_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def run_notebook(text: str, student: bool) -> nbformat.NotebookNode:
    """Run a notebook and give every cell an anchor by its id, as JupyterLab does; without solutions for a student."""
    notebook = prepared(text, student=student)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = f'<a id="cell-id={cell.id}"></a>\n\n{cell.source}'
    return notebook


def anchor(heading: str) -> str:
    """Return the anchor that Jupyter gives a heading."""
    return heading.replace(" ", "-")


def _live_pages(app: Sphinx, failed: Exception | None) -> None:
    """Write explorers as pages, whose answers are kept between builds beside what Sphinx keeps."""
    if failed is not None:
        return
    folder, kept = Path(app.outdir) / "docs", Path(app.doctreedir) / "mix.html"
    made_by = f"pipelab {pl.__version__}"
    schedules_page(
        folder / "schedules.html", [axis_of("LIVE", text) for text in LIVE_SCHEDULES], made_by
    )
    counts = [axis_of("LIVE", text) for text in LIVE_MIX]
    shutil.copy(mix_page(kept, "Llama-3-70B", counts, [], made_by, progress=False), folder)


def _no_copies_of_notebooks(app: Sphinx) -> None:
    """Keep MyST-NB from writing every notebook into a folder beside the site."""
    app.env.mystnb_config = app.env.mystnb_config.copy(output_folder="")


def _numbers_and_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Put a notebook's number before its title, and let links of other pages find its cells."""
    page = app.env.docname
    if number := re.search(r"/(\d\d)_", page):
        next(doctree.findall(nodes.title)).insert(0, nodes.Text(f"{number[1]} "))
    anchors = app.env.metadata[page].setdefault("myst_slugs", {})
    for raw in doctree.findall(nodes.raw):
        for name in re.findall(r'<a id="(cell-id=[^"]+)"', raw.astext()):
            anchors[name] = (None, name, "")


def _formula(translator: Any, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers typeset themselves: no script, no fonts to fetch."""
    kind = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(mathml(node.astext(), kind))
    raise nodes.SkipNode


def _generated(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the pages that are computed; for a student, take out what leads to pages for lecturers."""
    if name == app.config.root_doc and app.tags.has("student"):
        source[0] = re.sub(r"^% for lecturers$.*?^% end$", "", source[0], flags=re.M | re.S)
        source[0] = re.sub(r"^<a .*<b>Teach</b>.*\n", "", source[0], flags=re.M)
    if name == "docs/reference":
        source[0] += _reference()
    if name == "docs/ledger":
        body = pl.course.reproduce().html().partition("</h1>")[2].partition("</body>")[0]
        source[0] += f"\n```{{raw}} html\n{body}\n```\n"


def _reference() -> str:
    """Return every public name once, in the order and with the headings of the stubs; then rules and errors."""
    lines, seen = [], set[str]()
    for package in (pl, pl.hardware, pl.writeup, pl.course):
        lines.append(f"\n## `{package.__name__}`\n")
        stub = Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
        for line in stub.splitlines():
            if line.startswith("# ") and not line.startswith(("# The public", "# ruff")):
                lines.append(f"\n### {line.removeprefix('# ')}\n")
            for name in re.findall(r"\b(\w+) as \1\b", line):
                if name in seen:
                    continue
                seen.add(name)
                lines.append(f"```{{eval-rst}}\n{_entry(package, name)}```\n")
    for module in (pl.splits, pl.errors):
        members = f".. automodule:: {module.__name__}\n   :members:\n   :noindex:\n"
        lines.append(f"\n## `{module.__name__}`\n\n```{{eval-rst}}\n{members}```\n")
    return "\n".join(lines)


def _entry(package: ModuleType, name: str) -> str:
    value, full = getattr(package, name), f"{package.__name__}.{name}"
    if isinstance(value, ModuleType):
        return f"`{full}`: see below.\n"
    if not isinstance(value, type):
        return f".. autofunction:: {full}\n"
    kind = "exception" if issubclass(value, BaseException) else "class"
    fields = ", ".join(getattr(value, "_fields", ()))  # of a named tuple; its docstring has them
    skipped = f"   :exclude-members: {fields}\n" if fields else ""
    return f".. auto{kind}:: {full}\n   :members:\n{skipped}"


def _plotly_contents_and_gallery(
    app: Sphinx, name: str, _template: str, context: dict, _: Any
) -> None:
    if name.startswith("notebooks/"):
        plotly = context["pathto"]("_static/plotly.min.js", resource=True)
        # plotly.js comes before the figures; once the whole page is there, they take its width.
        fitted = 'addEventListener("load", () => dispatchEvent(new Event("resize")))'
        context["metatags"] += f'<script src="{plotly}"></script><script>{fitted}</script>'
    sections = context.get("toc", "").count("<li>")
    if sections >= LONG and name != app.config.root_doc:
        contents = f'<details class="on-this-page"><summary>On this page</summary>{context["toc"]}</details>'
        context["body"] = context["body"].replace("</h1>", f"</h1>{contents}", 1)
    if name == app.config.root_doc:
        cards = _cards(app, Path(app.outdir) / "_static" / "gallery")
        context["body"] = context["body"].replace(_GALLERY, f"{_GALLERY}{cards}")


def _cards(app: Sphinx, folder: Path) -> str:
    """Return a card per notebook of the course: a picture of one of its figures, its title, its minutes."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ExtensionError("the gallery's pictures need Chromium: apt install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    cards = []
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 720, "height": 700})
        for notebook in notebooks_of_the_course():
            stem = Path(notebook.file).stem
            if f"notebooks/{stem}" not in app.env.found_docs:
                continue
            doctree = app.env.get_doctree(f"notebooks/{stem}")
            says = _picture(tab, _figure(doctree, PICTURES.get(stem)), folder / f"{stem}.png")
            cards.append(
                f'<a href="../notebooks/{stem}.html"><img src="../_static/gallery/{stem}.png" '
                f'loading="lazy" alt="{escape(says)}"><b>{notebook.number} {escape(notebook.title)}</b>'
                f"<small>{notebook.minutes} minutes</small></a>"
            )
        chromium.close()
    return "".join(cards)


def _figure(doctree: nodes.document, heading: str | None) -> str:
    """Return the HTML of the first output with a figure, in the whole page or below a heading."""
    below = heading is None
    for node in doctree.findall():
        if isinstance(node, nodes.title):
            below = below or node.astext() == heading
        elif below and isinstance(node, nodes.raw) and 'class="plotly-graph-div"' in node.astext():
            return node.astext()
    raise ExtensionError(f"{doctree['source']}: no figure below the heading {heading!r}")


def _picture(tab: Any, figure: str, path: Path) -> str:
    """Take a picture of a figure without its title, and return the title."""
    style = ".plotly-graph-div { max-height: 560px; overflow: hidden; }"
    tab.set_content(f"<script>{plotly_js()}</script><style>{style}</style>{figure}")
    shown = tab.wait_for_selector(".plotly-graph-div:has(.main-svg)")
    title = shown.evaluate(_UNTITLED)
    tab.wait_for_timeout(300)  # plotly moves what it draws once it knows the fonts
    shown.screenshot(path=path)
    return unescape(re.sub(r"<br>.*|<[^>]*>", "", title, flags=re.S))
