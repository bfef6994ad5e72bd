"""A schedule to play with: turn a knob, and see the Gantt chart and its measures change."""

from html import escape

from pipelab.checked import whole_number
from pipelab.errors import PipelabError, UnknownName, nearest, shown
from pipelab.plots import gantt, gantt_widget
from pipelab.schedules import RULES, schedule
from pipelab.timeline import StageCosts, Timeline, simulate

__all__ = ["explore_schedules"]

HEIGHT = 430  # eight ranks fit, and the page does not jump


def explore_schedules(name: str = "ZBH1", ranks: int = 4, microbatches: int = 8):
    """Controls for schedule, ranks, microbatches, one slow rank and communication; below, chart and measures.

    Parameters
    ----------
    name : str
        The schedule to begin with.
    ranks, microbatches : int

    Returns
    -------
    ipywidgets.VBox

    Raises
    ------
    UnknownName, InvalidValue
        There is no such schedule, or the sliders do not reach so far.
    """
    import ipywidgets as widgets

    names = [known for known in RULES if known != "Inference"]
    if not isinstance(name, str) or name not in names:
        raise UnknownName(f"schedule {shown(name)} is not known here; {nearest(name, names)}")
    ranks = whole_number("explore_schedules", "ranks", ranks, most=8)
    microbatches = whole_number("explore_schedules", "microbatches", microbatches, most=32)
    wide = {"style": {"description_width": "110px"}, "layout": {"width": "320px"}, "continuous_update": False}
    controls = {
        "name": widgets.Dropdown(options=names, value=name, description="schedule", **_without_delay(wide)),
        "ranks": widgets.IntSlider(value=ranks, min=1, max=8, description="ranks", **wide),
        "microbatches": widgets.IntSlider(value=microbatches, min=1, max=32, description="microbatches", **wide),
        "slow_rank": widgets.IntSlider(value=1, min=0, max=7, description="slow rank", **wide),
        "slowness": widgets.FloatSlider(value=1, min=1, max=3, step=0.25, description="how slow", **wide),
        "weight": widgets.FloatSlider(value=1, min=0, max=2, step=0.25, description="W (F = B = 1)", **wide),
        "comm": widgets.FloatSlider(value=0, min=0, max=2, step=0.05, description="message", **wide),
        "critical_path": widgets.Checkbox(value=False, description="critical path", **_without_delay(wide)),
    }
    chart = gantt_widget(_timeline(name, ranks, microbatches))
    chart.layout.height = HEIGHT
    chart._config = {**chart._config, "responsive": True}  # plotly then fills the width when the window changes
    measures = widgets.HTML()

    def redraw(_change=None) -> None:
        controls["slow_rank"].max = controls["ranks"].value - 1
        values = {key: control.value for key, control in controls.items()}
        critical_path = values.pop("critical_path")
        try:
            timeline = _timeline(**values)
        except PipelabError as error:
            _exchange(chart, (), f"There is no {values['name']} for these numbers")
            measures.value = f"<p>{escape(str(error))}</p>"
            return
        figure = gantt(timeline, critical_path=critical_path)
        figure.layout.height = HEIGHT
        _exchange(chart, figure.data, figure.layout.title.text, figure.layout.xaxis, figure.layout.yaxis)
        measures.value = _measures(timeline)

    redraw()
    for control in controls.values():
        control.observe(redraw, "value")
    columns = list(controls.values())
    panel = widgets.HBox([widgets.VBox(columns[i : i + 3]) for i in range(0, len(columns), 3)])
    return widgets.VBox([panel, measures, chart, _fitting()])


def _fitting():
    """An invisible widget that makes charts take the width they are given: they are laid out before they know it."""
    import anywidget

    class Fit(anywidget.AnyWidget):
        _esm = """export default { render() {
          for (const wait of [0, 300, 1500]) setTimeout(() => window.dispatchEvent(new Event("resize")), wait); } }"""

    return Fit()


def _measures(timeline: Timeline) -> str:
    """Times, the three measures and memory in one line; a widget's HTML knows no notebook's table styles."""
    shown = {name: f"{value:.4g}" for name, value in timeline.measures().items()}
    shown["held, per rank"] = " ".join(f"{peak:.4g}" for peak in timeline.peak_memory)
    cells = (
        f"<span style='margin-right:1.6em'>{name} <b style='font-size:1.15em'>{value}</b></span>"
        for name, value in shown.items()
    )
    return f"<div style='margin:6px 0;line-height:1.8'>{' '.join(cells)}</div>"


def _without_delay(style: dict) -> dict:
    """Sliders alone can wait until they are let go."""
    return {key: value for key, value in style.items() if key != "continuous_update"}


def _timeline(
    name: str,
    ranks: int,
    microbatches: int,
    slow_rank: int = 0,
    slowness: float = 1,
    weight: float = 1,
    comm: float = 0,
) -> Timeline:
    """One rank's work takes longer by `slowness`; a rank that is not there slows nobody."""
    order = schedule(name, ranks, microbatches)
    factors = [slowness if rank == slow_rank else 1.0 for rank in range(ranks)]
    costs = StageCosts(factors, factors, [weight * factor for factor in factors], comm)
    return simulate(order, costs.cut_for(order))


def _exchange(chart, traces, title: str, xaxis=None, yaxis=None) -> None:
    """Put other traces into a figure that is shown already."""
    with chart.batch_update():
        chart.data = []
        chart.add_traces(list(traces))
        chart.layout.title.text = title
        if xaxis is not None:
            chart.layout.xaxis.range = xaxis.range
            chart.layout.yaxis.update(range=yaxis.range, tickvals=yaxis.tickvals, ticktext=yaxis.ticktext)
    chart._repr_mimebundle_()  # without it, a page that is loaded again shows the old chart
