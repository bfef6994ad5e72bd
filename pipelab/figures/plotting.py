"""plot(x): the figure of an object, by its type.

`FIGURES` holds the functions for each type.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pipelab.display import Figure
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.figures.classes import plot_classes
from pipelab.figures.deployments import plot_deployment
from pipelab.figures.flows import plot_flow
from pipelab.figures.gantts import gantt, plot_timelines
from pipelab.figures.in_flight import plot_in_flight
from pipelab.figures.placement_timelines import placed_gantt
from pipelab.figures.placements import plot_placement, plot_result
from pipelab.figures.predictions import plot_against_measured, plot_calibration
from pipelab.figures.served import plot_percentiles, plot_requests, plot_way
from pipelab.figures.sweeps_and_trade_offs import plot_sweep, plot_trade_off
from pipelab.figures.training_step import training_gantt

__all__ = ["FIGURES", "plot"]

# Name of a type → kind → function; the first kind is what is drawn by default.
FIGURES: dict[str, dict[str, Callable[..., Any]]] = {
    "Problem": {"placement": plot_placement},
    "Result": {"placement": plot_result},
    "Deployment": {"pipelines": plot_deployment},
    "Flow": {"stages": plot_flow},
    "Cluster": {"classes": plot_classes},
    "TradeOff": {"curve": plot_trade_off},
    "Sweep": {"points": plot_sweep},
    "Timeline": {"gantt": gantt},
    "PlacedTimeline": {"gantt": placed_gantt, "in_flight": plot_in_flight},
    "TrainingTimeline": {"gantt": training_gantt},
    "Served": {"percentiles": plot_percentiles, "requests": plot_requests, "way": plot_way},
    "DataFrame": {"against_measured": plot_against_measured},
    "Calibration": {"errors": plot_calibration},
    "several Timeline": {"timelines": plot_timelines},
}


def plot(x: Any, /, *others: Any, kind: str = "", **options: Any) -> Figure:
    """Draw the figure of an object.

    Parameters
    ----------
    x : Result, Deployment, Flow, Problem, Cluster, TradeOff, Sweep, Timeline, \
            PlacedTimeline, TrainingTimeline, Served, Calibration, table of `against_measured`
        A list of timelines, or a mapping of names to timelines, draws them side by side.
    *others
        What the figure needs besides: `plot(problem, placement)` draws a placement.
    kind : str, optional
        Which figure, if there are several: "gantt" or "in_flight" of a placed timeline; "percentiles", "requests" or
        "way" of what was served.
    **options
        As the figure's own function takes them; see `pipelab.figures`.

    Returns
    -------
    plotly.graph_objects.Figure
        Nothing is shown or set globally.

    Raises
    ------
    InvalidValue
        Objects of this type cannot be plotted, or the extra arguments do not fit.
    UnknownName
        The object has no such figure, or the figure no such option.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(forward=1, backward_input=1, backward_weight=1)
    >>> type(pl.plot(pl.simulate(pl.schedule("1F1B", 2, 4), costs))).__name__
    'Figure'
    """
    kinds = _kinds(x)
    kind = kind or next(iter(kinds))
    refuse_unknown("figure of this object named", kind, kinds)
    function = kinds[kind]
    signature = inspect.signature(function)
    known = list(signature.parameters)[1:]
    if "options" not in known:  # else the function hands them on, and says what does not fit
        for option in options:
            refuse_unknown("option of this figure named", option, known)
    try:
        signature.bind(x, *others, **options)
    except TypeError as error:
        expected = f"expected what {function.__module__}.{function.__name__} takes: {error}"
        raise InvalidValue("plot", [("others", others, expected)]) from None
    return function(x, *others, **options)


def _kinds(x: Any) -> Mapping[str, Callable[..., Any]]:
    several, shown = "", x
    if isinstance(x, Mapping | list | tuple) and len(x):
        several, shown = "several ", next(iter(x.values() if isinstance(x, Mapping) else x))
    for cls in type(shown).__mro__:
        if several + cls.__name__ in FIGURES:
            return FIGURES[several + cls.__name__]
    expected = f"expected one of {', '.join(FIGURES)}"
    raise InvalidValue("plot", [("x", type(x).__name__, expected)])
