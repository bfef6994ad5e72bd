"""One notebook as a page: text, code and outputs, with links to the other pages."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from pathlib import PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from pipelab.io.static.figures import figure_html
from pipelab.io.static.formulas import typeset, typeset_html
from pipelab.io.static.stills import still
from pipelab.io.static.style import STYLE

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FIGURE, _WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"
_FOLDED = "pipelab-folded"  # cells whose code shows an answer
_LINK = re.compile(r'<a\s[^>]*?href="([^":]+?)\.ipynb(#[^"]*)?"[^>]*>(.*?)</a>', flags=re.S)


def title_of(notebook: "NotebookNode") -> str:
    """The notebook's first heading."""
    return notebook.cells[0].source.split("\n")[0].removeprefix("# ")


def page(notebook: "NotebookNode", name: str, pages: Iterable[str]) -> str:
    """The page of a notebook that has been run.

    Parameters
    ----------
    notebook : NotebookNode
    name : str
        Of its page within the folder, such as `solutions/00_start_here.html`.
    pages : iterable of str
        All pages there will be; a link to any other notebook becomes plain text.
    """
    body, _ = _exporter().from_notebook_node(_plain(notebook))
    return shell(title_of(notebook), linked(body, name, pages), name, pages)


@cache  # its templates take longer to compile than a page to write
def _exporter() -> Any:
    """nbconvert's, with formulas as MathML, and without the code of folded cells."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    class Exporter(HTMLExporter):
        """nbconvert's own, with formulas as MathML instead of a script from elsewhere."""

        def markdown2html(self, context: Any, source: str) -> Any:
            return super().markdown2html(context, typeset(source))

        # jinja hands over its context where the function carries the mark of `pass_context`.
        vars(markdown2html).update(vars(HTMLExporter.markdown2html))

    folded = Config({"TagRemovePreprocessor": {"enabled": True, "remove_input_tags": {_FOLDED}}})
    return Exporter(template_name="basic", anchor_link_text="", config=folded)


def _plain(notebook: "NotebookNode") -> "NotebookNode":
    """The notebook with every output as text or HTML, and without the code that a reader should not see first."""
    from copy import deepcopy

    plain = deepcopy(notebook)
    models = plain.metadata.pop("widgets", {}).get(_STATE, {}).get("state", {})
    for cell in plain.cells:
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [
            _shown(output, models) for output in cell.outputs if output.get("name") != "stderr"
        ]
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), _FOLDED]
    return plain


def _shown(output: Any, models: Mapping) -> Any:
    from nbformat.v4 import new_output

    data = output.get("data")
    if data is None:
        return output
    if _FIGURE in data or _WIDGET in data or "text/html" in data:
        return new_output("display_data", {"text/html": _html(output, models)})
    return output


def _html(output: Mapping, models: Mapping) -> str:
    """An output as HTML; also one that a widget holds."""
    data = output.get("data", {})
    if _FIGURE in data:
        return figure_html(data[_FIGURE])
    if _WIDGET in data:
        return still(data[_WIDGET]["model_id"], models, lambda inner: _html(inner, models))
    if "text/html" in data:
        return f'<div class="wide">{typeset_html("".join(data["text/html"]))}</div>'
    text = output.get("text") or data.get("text/plain") or ""
    return f"<pre>{escape(''.join(text))}</pre>" if text else ""


def linked(body: str, name: str, pages: Iterable[str]) -> str:
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


def shell(title: str, body: str, name: str, pages: Iterable[str]) -> str:
    """The page around a body: its title, its style, links to the other pages, plotly.js if it has figures."""
    up = "../" * name.count("/")
    script = f'<script src="{up}plotly.min.js"></script>' if "Plotly.newPlot" in body else ""
    links = " ".join(
        f'<a href="{up}{other}"{" aria-current=page" if other == name else ""}>{_short(other)}</a>'
        for other in pages
        if "/" not in other
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}{_highlight()}</style>{script}</head>\n"
        f"<body><nav>{links}</nav><main>{body}</main></body></html>\n"
    )


def _short(name: str) -> str:
    stem = PurePosixPath(name).stem
    return {"index": "all"}.get(stem, stem[:2] if stem[:2].isdigit() else stem)


def _highlight() -> str:
    from pygments.formatters import HtmlFormatter

    return HtmlFormatter(style="friendly").get_style_defs(".highlight")
