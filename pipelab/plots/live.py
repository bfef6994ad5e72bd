"""Charts that stay on the page: what differs is exchanged, nothing is drawn anew."""

from pipelab.theme import template

__all__ = ["live_figure", "put_figure"]


def live_figure(parts):
    """A chart on the page that takes the width it is given; complete at birth.

    Parameters
    ----------
    parts : dict of "data" and "layout", or Figure

    Returns
    -------
    plotly.graph_objects.FigureWidget
    """
    import plotly.graph_objects as go

    chart = go.FigureWidget(parts)
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
