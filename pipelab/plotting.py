"""plot(x): the figure of whatever can be drawn.

`FIGURES` names the function behind each type; it is imported when first used.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelab.errors import InvalidValue, UnknownName, nearest

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["FIGURES", "plot"]

# Type → kind → the function in `pipelab.figures`; the first kind is what is drawn by default.
FIGURES = {
    "Problem": {"placement": "placements:plot_placement"},
    "Result": {
        "placement": "placements:plot_result",
        "progress": "progress:plot_progress",
    },
    "Deployment": {"pipelines": "deployments:plot_deployment"},
    "Cluster": {"classes": "classes:plot_classes"},
    "Comparison": {"bars": "baselines:plot_comparison"},
    "TradeOff": {"curve": "trade_off_chart:plot_trade_off"},
    "Sweep": {"points": "sweep_charts:plot_sweep"},
    "Timeline": {"gantt": "gantts:gantt", "live": "gantts:gantt_widget"},
    "PlacedTimeline": {
        "gantt": "placed:placed_gantt",
        "in_flight": "in_flight_chart:plot_in_flight",
    },
    "TrainingTimeline": {"gantt": "training_charts:training_gantt"},
    "DataFrame": {"against_measured": "predictions:plot_against_measured"},
    "BestSchedule": {"gantt": "gantts:plot_best_schedule"},
    "several Timeline": {"timelines": "gantts:plot_timelines"},
}


def plot(x: Any, *others: Any, kind: str = "", **options: Any) -> "Figure":
    """Draw what can be drawn.

    Parameters
    ----------
    x : Result, Deployment, Problem, Cluster, Certificate, Comparison, TradeOff, Sweep, Timeline, \
            PlacedTimeline, TrainingTimeline, table of `against_measured`, or several of these
        A list of timelines, or a mapping of names to timelines or comparisons, draws them
        side by side.
    *others
        What the figure needs besides: `plot(problem, placement)` draws a placement.
    kind : str, optional
        Which figure, where there are several: of a result "placement", "progress" or "search"; of a
        timeline "gantt" or "live" (bars appear as you zoom in); of a placed one "gantt" or
        "in_flight".
    **options
        As the figure's own function takes them; see `pipelab.figures`.

    Returns
    -------
    plotly.graph_objects.Figure
        Nothing is shown or set globally.

    Raises
    ------
    InvalidValue
        There is no figure of such a thing, or too much or too little besides it.
    UnknownName
        There is no such kind of figure of it, or no such option.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(forward=1, backward_input=1, backward_weight=1)
    >>> type(pl.plot(pl.simulate(pl.schedule("1F1B", 2, 4), costs))).__name__
    'Figure'
    """
    kinds = _kinds(x)
    if kind and kind not in kinds:
        raise UnknownName(f"there is no kind {kind!r} of figure of this; {nearest(kind, kinds)}")
    module, name = kinds[kind or next(iter(kinds))].split(":")
    function = getattr(import_module(f"pipelab.figures.{module}"), name)
    import_module("pipelab.figures.arguments").check(function, x, others, options)
    return function(x, *others, **options)


def _kinds(x: Any) -> Mapping[str, str]:
    listed = (
        list(x.values()) if isinstance(x, Mapping) else x if isinstance(x, list | tuple) else []
    )
    several, shown = ("several ", listed[0]) if listed else ("", x)
    for cls in type(shown).__mro__:
        if several + cls.__name__ in FIGURES:
            return FIGURES[several + cls.__name__]
    expected = f"expected one of {', '.join(FIGURES)}"
    raise InvalidValue("plot", [("x", type(x).__name__, expected)])
