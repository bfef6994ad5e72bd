"""A notebook as a reader without a kernel sees it: run, with its outputs as HTML.

Widgets are shown as a page without a kernel can show them: their first state, in words and pictures.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from formulas import typeset_html
from pipelab.cli.student import without_solutions
from run_notebooks import WIDGET_STATES, executed

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FIGURE, _WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
NOTE = "Sliders and buttons work in the live notebook; here is the state in which it opens."
_PREFIX = "IPY_MODEL_"
_FOLDED = "remove-input"  # leaves the code of a cell out


def prepared(text: str, *, student: bool, name: str = "a notebook") -> "NotebookNode":
    """Return a notebook as a reader without a kernel sees it.

    Parameters
    ----------
    text : str
        Of the notebook's file.
    student : bool
        Leave out all solutions.
    name : str
        What errors call it.

    Returns
    -------
    NotebookNode
        Run, with its outputs as HTML.

    Raises
    ------
    PipelabError
        A cell failed, or took too long.
    """
    from nbformat.v4 import reads

    notebook = reads(text)
    if student:
        without_solutions(notebook)
    return with_outputs_as_html(executed(notebook, name))


def with_outputs_as_html(notebook: "NotebookNode") -> "NotebookNode":
    """Turn figures, widgets and objects into HTML; cell numbers and what goes to stderr are left out.

    Cells whose code is folded, since it shows an answer, get the tag that leaves their code out.
    """
    models = notebook.metadata.pop("widgets", {}).get(WIDGET_STATES, {}).get("state", {})
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [
            _shown(output, models) for output in cell.outputs if output.get("name") != "stderr"
        ]
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), _FOLDED]
    return notebook


def _shown(output: "NotebookNode", models: Mapping) -> "NotebookNode":
    from nbformat.v4 import new_output

    if {_FIGURE, _WIDGET, "text/html"}.isdisjoint(output.get("data", ())):
        return output
    return new_output("display_data", {"text/html": _html(output, models)})


def _html(output: Mapping, models: Mapping) -> str:
    """Write an output as HTML, also one that a widget holds."""
    data = output.get("data", {})
    if _FIGURE in data:
        return figure_html(data[_FIGURE])
    if _WIDGET in data:
        return still(data[_WIDGET]["model_id"], models)
    if "text/html" in data:
        return f'<div class="wide">{typeset_html("".join(data["text/html"]))}</div>'
    text = output.get("text") or data.get("text/plain") or ""
    return f"<pre>{escape(''.join(text))}</pre>" if text else ""


def still(model: str, models: Mapping[str, Mapping]) -> str:
    """Write a widget as HTML, given its id and every widget of the notebook by its id, with its `state`."""
    return f'<div class="still"><p class="note">{NOTE}</p>{_parts(model, models)}</div>'


def _state(model: str | None, models: Mapping) -> Mapping:
    return models.get((model or "").removeprefix(_PREFIX), {}).get("state", {})


def _parts(model: str, models: Mapping) -> str:
    state = _state(model, models)
    layout = _state(state.get("layout"), models)
    if (
        "pipelab-live-only" in state.get("_dom_classes", ())
        or layout.get("display") == "none"
        or layout.get("visibility") == "hidden"
    ):
        return ""
    figure = figure_of_state(state)
    if figure is not None:
        return figure_html(figure)
    if state.get("children"):
        inside = "".join(_parts(child, models) for child in state["children"])
        kind = "row" if state.get("_model_name") == "HBoxModel" else "column"
        return f'<div class="{kind}">{inside}</div>'
    if "outputs" in state:
        return "".join(_html(output, models) for output in state["outputs"])
    if isinstance(state.get("code"), str):
        return f"<details><summary>As code</summary><pre>{escape(state['code'])}</pre></details>"
    return _control(state)


def _control(state: Mapping) -> str:
    """Write a control as its label and its value; text stays as it is."""
    label, value = state.get("description") or "", state.get("value")
    if state.get("_model_name") in ("HTMLModel", "HTMLMathModel"):
        return f"<div>{value}</div>" if value else ""
    options, index = state.get("_options_labels"), state.get("index")
    if options is not None and isinstance(index, int):
        value = options[index]
    silent = state.get("_model_name") in ("ButtonModel", "FloatProgressModel")
    if silent or not label or value is None:
        return ""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f'<span class="control">{escape(label)} <b>{escape(shown)}</b></span>'


def figure_of_state(state: Mapping) -> dict | None:
    """Return the figure in the saved state of an explorer's chart, which keeps it as text; None for another widget."""
    if not isinstance(state.get("drawing"), str):
        return None
    figure = json.loads(state["drawing"])
    look = {"template": json.loads(state["look"])} if state.get("look") else {}
    return {"data": figure["data"], "layout": figure["layout"] | look}


def figure_html(figure: Mapping) -> str:
    """Write the `data`, `layout` and `frames` of a figure as a part of a page that has loaded plotly.js."""
    from plotly.io import to_html

    layout = {name: value for name, value in figure.get("layout", {}).items() if name != "width"}
    whole = {**figure, "layout": layout}  # as wide as the page
    config = {"responsive": True, "displaylogo": False}
    return to_html(
        whole,
        config,
        auto_play=False,
        include_plotlyjs=False,
        full_html=False,
        default_height="450px",
        validate=False,
    )
