"""Widgets as a page without a kernel can show them: their first state, in words and pictures."""

from collections.abc import Callable, Mapping
from html import escape

from pipelab.io.static.figures import figure_html, figure_of_state

NOTE = "Sliders and buttons work in the live notebook; here is the state in which it opens."

_PREFIX = "IPY_MODEL_"


def still(model: str, models: Mapping[str, Mapping], show: Callable[[Mapping], str]) -> str:
    """Write a widget as HTML.

    Parameters
    ----------
    model : str
        The widget's id.
    models : mapping
        Every widget of the notebook by its id, with its `state`.
    show : callable
        How an output inside a widget becomes HTML.
    """
    parts = _parts(model, models, show, set())
    return f'<div class="still"><p class="note">{NOTE}</p>{parts}</div>'


def _parts(model: str, models: Mapping, show: Callable, seen: set[str]) -> str:
    known = models.get(model.removeprefix(_PREFIX))
    if known is None or model in seen:
        return ""
    seen.add(model)
    state = known["state"]
    if "pipelab-live-only" in state.get("_dom_classes", ()) or _hidden(
        state.get("layout") or "", models
    ):
        return ""
    figure = figure_of_state(state)
    if figure is not None:
        return figure_html(figure)
    if state.get("children"):
        inside = "".join(_parts(child, models, show, seen) for child in state["children"])
        kind = "row" if state.get("_model_name") == "HBoxModel" else "column"
        return f'<div class="{kind}">{inside}</div>'
    if "outputs" in state:
        return "".join(show(output) for output in state["outputs"])
    if isinstance(state.get("code"), str):
        return f"<details><summary>As code</summary><pre>{escape(state['code'])}</pre></details>"
    return _control(state)


def _hidden(layout: str, models: Mapping) -> bool:
    state = models.get(layout.removeprefix(_PREFIX), {}).get("state", {})
    return state.get("display") == "none" or state.get("visibility") == "hidden"


def _control(state: Mapping) -> str:
    """Write a control as its label and its value; text stays as it is."""
    label, value = state.get("description") or "", state.get("value")
    if state.get("_model_name") in ("HTMLModel", "HTMLMathModel"):
        return f"<div>{value}</div>" if value else ""
    options, index = state.get("_options_labels"), state.get("index")
    if options is not None and isinstance(index, int):
        value = options[index]
    if (
        not label
        or value is None
        or state.get("_model_name") in ("ButtonModel", "FloatProgressModel")
    ):
        return ""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f'<span class="control">{escape(label)} <b>{escape(shown)}</b></span>'
