"""plot(x): the figure of an object, by its type.

`FIGURES` names the function behind each type; it is imported when first used.
"""

import inspect
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
    "TradeOff": {"curve": "curves:plot_trade_off"},
    "Sweep": {"points": "curves:plot_sweep"},
    "Timeline": {"gantt": "gantts:gantt", "live": "gantts:gantt_widget"},
    "PlacedTimeline": {
        "gantt": "placed:placed_gantt",
        "in_flight": "in_flight:plot_in_flight",
    },
    "TrainingTimeline": {"gantt": "training:training_gantt"},
    "DataFrame": {"against_measured": "predictions:plot_against_measured"},
    "BestSchedule": {"gantt": "gantts:plot_best_schedule"},
    "several Timeline": {"timelines": "gantts:plot_timelines"},
}


def plot(x: Any, /, *others: Any, kind: str = "", **options: Any) -> "Figure":
    """Draw the figure of an object.

    Parameters
    ----------
    x : Result, Deployment, Problem, Cluster, Comparison, TradeOff, Sweep, Timeline, \
            PlacedTimeline, TrainingTimeline, BestSchedule, table of `against_measured`
        A list of timelines, or a mapping of names to timelines, draws them side by side.
    *others
        What the figure needs besides: `plot(problem, placement)` draws a placement.
    kind : str, optional
        Which figure, if there are several: "placement" or "progress" of a result; "gantt" or
        "live" (bars appear as you zoom in) of a timeline; "gantt" or "in_flight" of a placed one.
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
    if kind and kind not in kinds:
        raise UnknownName(f"this object has no {kind!r} figure; {nearest(kind, kinds)}")
    module, name = kinds[kind or next(iter(kinds))].split(":")
    function = getattr(import_module(f"pipelab.figures.{module}"), name)
    signature = inspect.signature(function)
    known = list(signature.parameters)[1:]
    if "options" not in known:  # else the function hands them on, and says what does not fit
        for option in options:
            if option not in known:
                raise UnknownName(f"this figure has no option {option!r}; {nearest(option, known)}")
    try:
        signature.bind(x, *others, **options)
    except TypeError as error:
        expected = f"expected what pipelab.figures.{module}.{name} takes: {error}"
        raise InvalidValue("plot", [("others", others, expected)]) from None
    return function(x, *others, **options)


def _kinds(x: Any) -> Mapping[str, str]:
    several, shown = "", x
    if isinstance(x, Mapping | list | tuple) and len(x):
        several, shown = "several ", next(iter(x.values() if isinstance(x, Mapping) else x))
    for cls in type(shown).__mro__:
        if several + cls.__name__ in FIGURES:
            return FIGURES[several + cls.__name__]
    expected = f"expected one of {', '.join(FIGURES)}"
    raise InvalidValue("plot", [("x", type(x).__name__, expected)])
