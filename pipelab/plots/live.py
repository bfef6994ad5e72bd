"""Charts that stay on the page: what differs is exchanged, nothing is drawn anew.

A FigureWidget carries all of plotly.js, 5 MB, to the page, each one again, and gives up where that takes longer than
two seconds. These charts carry a few lines that wait for one shared copy, whoever brings it
(`pipelab.explore.parts.Shared`).
"""

from functools import cache
from pathlib import Path

from pipelab.theme import template

__all__ = ["live_figure", "plotly_bundle", "put_figure"]

# `pipelabPlotly` becomes what plotly's own bundle exports. A chart begins when it is shown, with the state of then.
_LOADER = """export default () => {
  let chart = null;
  return { async render(context) {
    let waited = 0;
    while (!globalThis.pipelabPlotly && waited++ < 1200) await new Promise(go => setTimeout(go, 50));
    const make = await globalThis.pipelabPlotly;
    if (!chart) { chart = make(); chart.initialize(context); }
    return chart.render(context); } }; }"""


@cache
def _chart_class():
    import plotly.graph_objects as go

    return type("LiveChart", (go.FigureWidget,), {"_esm": _LOADER, "__module__": __name__})


@cache
def plotly_bundle() -> str:
    """The JavaScript that a FigureWidget brings with it."""
    import plotly.graph_objects as go

    own = go.FigureWidget._esm
    return own.read_text(encoding="utf-8") if isinstance(own, Path) else str(own)


def live_figure(parts):
    """A chart on the page that takes the width it is given; complete at birth.

    Parameters
    ----------
    parts : dict of "data" and "layout", or Figure

    Returns
    -------
    plotly.graph_objects.FigureWidget
    """
    chart = _chart_class()(parts)
    chart.layout.template = template()
    chart._config = {**chart._config, "responsive": True, "displaylogo": False}
    return chart


def put_figure(chart, parts) -> None:
    """Put other data and another layout into a chart that is on the page already.

    Traces of the same number and kinds change in place, which is quickest; others are exchanged.

    Parameters
    ----------
    chart : FigureWidget
        Made by `live_figure`.
    parts : dict of "data" and "layout", or Figure
    """
    if not isinstance(parts, dict):
        parts = {"data": [t.to_plotly_json() for t in parts.data], "layout": parts.layout.to_plotly_json()}
    layout = {"shapes": [], "annotations": []} | parts["layout"]
    layout.pop("template", None)
    axes = (name for name in chart.layout.to_plotly_json() if name[1:5] == "axis")
    layout |= {name: None for name in axes if name not in layout}  # of a second chart that is gone
    with chart.batch_update():
        if [t.type for t in chart.data] == [t["type"] for t in parts["data"]]:
            for old, new in zip(chart.data, parts["data"], strict=True):
                old.update({name: value for name, value in new.items() if name not in ("type", "uid")}, overwrite=True)
        else:
            chart.data = []
            chart.add_traces(parts["data"])
        chart.layout.update(layout, overwrite=True)
    chart._repr_mimebundle_()  # without it, a page that is loaded again shows the old chart
