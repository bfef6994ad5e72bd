"""One notebook as a page: text, code and outputs, with links to the other pages."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from pipelab.io.static.figures import figure_html
from pipelab.io.static.formulas import typeset, typeset_html
from pipelab.io.static.stills import still

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FIGURE, _WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"
_FOLDED = "pipelab-folded"  # cells whose code shows an answer
_LINK = re.compile(r'<a\s[^>]*?href="([^":]+?)\.ipynb(#[^"]*)?"[^>]*>(.*?)</a>', flags=re.S)


def title_of(notebook: "NotebookNode") -> str:
    """Return the notebook's first heading."""
    return notebook.cells[0].source.split("\n")[0].removeprefix("# ")


def page(notebook: "NotebookNode", name: str, pages: Sequence[str]) -> str:
    """Write a notebook that has been run as a page.

    Parameters
    ----------
    notebook : NotebookNode
    name : str
        Of its page within the folder, such as `solutions/00_start_here.html`.
    pages : sequence of str
        All pages there will be; a link to any other notebook becomes plain text.
    """
    plain = _plain(notebook)
    outputs = [o for cell in plain.cells for o in cell.get("outputs", ()) if "data" in o]
    figures = any("Plotly.newPlot" in o.data.get("text/html", "") for o in outputs)
    about = {"title": title_of(notebook), "name": name, "pages": pages, "figures": figures}
    return linked(_exporter().from_notebook_node(plain, resources=about)[0], name, pages)


@cache  # its templates take longer to compile than a page to write
def _exporter() -> Any:
    """nbconvert's, with a template of pipelab's own, and without the code of folded cells."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = {
        "TagRemovePreprocessor": {"enabled": True, "remove_input_tags": {_FOLDED}},
        "CSSHTMLHeaderPreprocessor": {"style": "friendly"},
    }
    folder = str(Path(__file__).parent / "templates")
    return HTMLExporter(
        template_name="pipelab",
        extra_template_basedirs=[folder],
        anchor_link_text="",
        config=Config(config),
    )


def _plain(notebook: "NotebookNode") -> "NotebookNode":
    """Return the notebook with formulas as MathML and outputs as text or HTML, without cell numbers."""
    from copy import deepcopy

    plain = deepcopy(notebook)
    models = plain.metadata.pop("widgets", {}).get(_STATE, {}).get("state", {})
    for cell in plain.cells:
        if cell.cell_type == "markdown":
            cell.source = typeset(cell.source)
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        for output in cell.outputs:
            data = output.get("data", {})
            if _FIGURE in data or _WIDGET in data or "text/html" in data:
                output.update(output_type="display_data", metadata={})
                output.data = {"text/html": _html(output, models)}
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), _FOLDED]
    return plain


def _html(output: Mapping, models: Mapping) -> str:
    """Write an output as HTML, also one that a widget holds."""
    data = output.get("data", {})
    if _FIGURE in data:
        return figure_html(data[_FIGURE])
    if _WIDGET in data:
        return still(data[_WIDGET]["model_id"], models, lambda inner: _html(inner, models))
    if "text/html" in data:
        return f'<div class="wide">{typeset_html("".join(data["text/html"]))}</div>'
    text = output.get("text") or data.get("text/plain") or ""
    return f"<pre>{escape(''.join(text))}</pre>" if text else ""


def linked(body: str, name: str, pages: Sequence[str]) -> str:
    """Links between notebooks as links between pages; links to notebooks without a page as text.

    >>> linked('<a href="01.ipynb#Cut">cuts</a>', "index.html", ["index.html", "01.html"])
    '<a href="01.html#Cut">cuts</a>'
    """
    here, known = PurePosixPath(name).parent, set(pages)

    def link(found: re.Match) -> str:
        target, anchor, text = found.groups()
        if normpath(here / f"{target}.html") in known:
            return f'<a href="{target}.html{anchor or ""}">{text}</a>'
        return f'<span title="not in this copy">{text}</span>'

    return _LINK.sub(link, body)
