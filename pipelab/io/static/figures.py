"""A plotly figure as a part of a page that has loaded plotly.js."""

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

_numbers = count(1)
_CONFIG = {"responsive": True, "displaylogo": False}


def figure_html(figure: Mapping) -> str:
    """Write the `data`, `layout` and `frames` of a figure as a box and the script that draws into it."""
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
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", " ").replace("\u2029", " ")


def figure_of_state(state: Mapping) -> dict | None:
    """Return the figure in the saved state of an explorer's chart, which keeps it as text; None for another widget."""
    if not isinstance(state.get("drawing"), str):
        return None
    figure = json.loads(state["drawing"])
    look = {"template": json.loads(state["look"])} if state.get("look") else {}
    return {"data": figure["data"], "layout": figure["layout"] | look}
