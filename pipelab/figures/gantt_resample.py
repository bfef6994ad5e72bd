"""A Gantt chart that changes with the zoom: a raster of the whole, bars once few enough are in view."""

from typing import TYPE_CHECKING, Any

from pipelab.errors import InvalidValue, needed_by
from pipelab.figures.gantt_bars import visible
from pipelab.figures.gantt_chart import MOST_BARS, gantt

if TYPE_CHECKING:
    from plotly.graph_objects import FigureWidget

    from pipelab.engine.timeline.timeline import Timeline


def gantt_widget(timeline: "Timeline", **options: Any) -> "FigureWidget":
    """`gantt` as a widget: zoom in on a large schedule, and the raster gives way to bars; zoom out, and it is back.

    Parameters
    ----------
    timeline : Timeline
        Made by `simulate`.
    **options
        As for `gantt`, but `window` and `overview`, which the zoom decides.

    Returns
    -------
    plotly.graph_objects.FigureWidget
        Needs a kernel for as long as it is to change.

    Raises
    ------
    InvalidValue
        `window` or `overview` is among the options, or a value does not fit.
    TypeError
        The option is unknown.
    MissingPackage
        anywidget is not installed.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1))
    >>> type(gantt_widget(timeline)).__name__
    'FigureWidget'
    """
    import plotly.graph_objects as go

    for name in ("window", "overview"):
        if name in options:
            raise InvalidValue(
                "gantt_widget", [(name, options[name], "the zoom decides; expected no such option")]
            )
    with needed_by('kind="live"', "anywidget"):
        widget = go.FigureWidget(gantt(timeline, **options))
    shown = {"overview": len(visible(timeline, None)) > MOST_BARS}
    if not shown["overview"]:
        return widget  # bars throughout: nothing to exchange

    def exchange(_layout: Any, seen: Any) -> None:
        window = _inside(timeline, seen)
        overview = len(visible(timeline, window)) > MOST_BARS
        if overview and shown["overview"]:
            return  # the raster of the whole stays sharp enough until bars take over
        figure = gantt(timeline, window=None if overview else window, **options)
        shown["overview"] = overview
        with widget.batch_update():
            widget.data = []
            widget.add_traces(figure.data)

    widget.layout.on_change(exchange, "xaxis.range")
    return widget


def _inside(timeline: "Timeline", seen: Any) -> tuple[float, float]:
    """The visible part of the time, with something of it left wherever the reader has dragged to."""
    low, high = sorted(float(edge) for edge in seen)
    low = min(max(low, 0.0), timeline.makespan * (1 - 1e-9))
    return low, max(min(high, timeline.makespan), low * (1 + 1e-9) + 1e-12)
