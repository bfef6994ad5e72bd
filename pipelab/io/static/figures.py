"""A plotly figure as a part of a page that has loaded plotly.js."""

import base64
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

_numbers = count(1)
_CONFIG = {"responsive": True, "displaylogo": False}


def figure_html(figure: Mapping) -> str:
    """The `data`, `layout` and `frames` of a figure as a box and the script that draws into it."""
    box = f"figure-{next(_numbers)}"
    layout = dict(figure.get("layout", {}))
    height = layout.get("height", 450)
    layout.pop("width", None)  # as wide as the page
    whole = {"data": figure.get("data", []), "layout": layout, "config": _CONFIG}
    if figure.get("frames"):
        whole["frames"] = figure["frames"]
    style = f"width:100%;min-height:{height}px"
    script = f'Plotly.newPlot("{box}", {_script_safe(whole)});'
    return f'<div id="{box}" class="figure" style="{style}"></div>\n<script>{script}</script>'


def _script_safe(value: Any) -> str:
    """JSON that cannot end the script it stands in."""
    return (
        json.dumps(value, ensure_ascii=False)
        .replace("<", "\\u003c")
        .replace("\u2028", " ")
        .replace("\u2029", " ")
    )


def figure_of_state(state: Mapping, buffers: list) -> dict | None:
    """The figure in the saved state of a widget; None where the widget is no chart.

    A chart of an explorer keeps it as text; a FigureWidget keeps traces and layout, with numpy
    arrays apart as buffers.
    """
    if isinstance(state.get("drawing"), str):
        figure = json.loads(state["drawing"])
        look = {"template": json.loads(state["look"])} if state.get("look") else {}
        return {"data": figure["data"], "layout": figure["layout"] | look}
    if "_widget_data" not in state:
        return None
    parts = json.loads(
        json.dumps(
            {"_widget_data": state["_widget_data"], "_widget_layout": state["_widget_layout"]}
        )
    )
    for buffer in buffers:
        _put_back(parts, buffer["path"], buffer["data"])
    return {"data": parts["_widget_data"], "layout": parts["_widget_layout"]}


# numpy's names of types, and plotly.js's.
_TYPES = {
    "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8",
}  # fmt: skip


def _put_back(parts: Any, path: list, data: str) -> None:
    """Put an array where it belongs, as plotly.js takes arrays: a type and text in base 64."""
    *way, last = path
    at = parts
    for step in way:
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            return  # of a state that has been replaced since
    if not isinstance(at, dict) or at.get("dtype") not in _TYPES:
        return
    base64.b64decode(data, validate=True)
    shape = ", ".join(map(str, at.get("shape", [])))
    at.pop(last, None)
    at.pop("shape", None)
    at |= {"dtype": _TYPES[at["dtype"]], "bdata": data} | ({"shape": shape} if "," in shape else {})
