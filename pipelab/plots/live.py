"""Charts that stay on the page: what differs is exchanged, nothing is drawn anew.

A FigureWidget carries all of plotly.js, 5 MB, to the page, each one again, and gives up where that takes longer than
two seconds. These charts carry a few lines that wait for one shared copy, whoever brings it
(`pipelab.explore.parts.Shared`).
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelab.theme import template

if TYPE_CHECKING:
    from pipelab.kinds import FigureWidget

__all__ = ["chart_bundle", "live_figure", "plotly_js", "put_figure"]

# `pipelabPlotly` becomes what plotly's own bundle exports. A chart begins when it is shown, with the state of then;
# what changes while plotly draws it for the first time is lost to it, and then it begins once more.
_LOADER = """
const pause = (ms) => new Promise(go => setTimeout(go, ms));
export default () => ({ async render(context) {
  const { model, el } = context;
  for (let i = 0; i < 1200 && !globalThis.pipelabPlotly; i++) await pause(50);
  const make = await globalThis.pipelabPlotly;
  let changed = false, end = null;
  for (const what of ["change:_widget_data", "change:_widget_layout"]) model.on(what, () => { changed = true; });
  for (let tries = 0; tries < 5; tries++) {
    changed = false;
    end?.(); el.replaceChildren();
    const chart = make();
    chart.initialize(context);
    end = chart.render(context);
    for (let i = 0; i < 200 && !el.querySelector(".js-plotly-plot .main-svg"); i++) await pause(50);
    await pause(100);
    if (!changed) break;
  }
  return () => end?.(); } });"""


@cache
def _chart_class() -> type:
    import plotly.graph_objects as go

    return type("LiveChart", (go.FigureWidget,), {"_esm": _LOADER, "__module__": __name__})


@cache
def chart_bundle() -> str:
    """The JavaScript that a FigureWidget brings with it."""
    import plotly.graph_objects as go

    own = go.FigureWidget._esm
    return own.read_text(encoding="utf-8") if isinstance(own, Path) else str(own)


def live_figure(parts: Any) -> "FigureWidget":
    """A chart on the page that takes the width it is given; complete at birth.

    Parameters
    ----------
    parts : dict of "data" and "layout", or Figure

    Returns
    -------
    plotly.graph_objects.FigureWidget
    """
    data, layout = (parts["data"], parts["layout"]) if isinstance(parts, dict) else (parts.data, parts.layout)
    chart = _chart_class()(data, {**_plain(layout), "template": template()})
    chart._config = {**chart._config, "responsive": True, "displaylogo": False}
    return chart


def put_figure(chart: "FigureWidget", parts: Any) -> None:
    """Put other data and another layout into a chart that is on the page already.

    Traces of the same number and kinds change in place, which is quickest; others are exchanged.

    Parameters
    ----------
    chart : FigureWidget
        Made by `live_figure`.
    parts : dict of "data" and "layout", or Figure
    """
    if not isinstance(parts, dict):
        parts = {"data": [t.to_plotly_json() for t in parts.data], "layout": _plain(parts.layout)}
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


def _plain(layout: Any) -> dict:
    return layout if isinstance(layout, dict) else layout.to_plotly_json()


def plotly_js() -> str:
    """The plotly.js that the installed plotly brings: 4.5 MB, for pages without a server."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
