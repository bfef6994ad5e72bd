"""A heuristic's predictions as pictures: against what is possible, and which part is to blame."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelab.figures.theme import (
    BOTTLENECK,
    NEUTRAL_LIGHT,
    TYPE_COLOURS,
    WRONG,
    template,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SAME = 1 + 1e-9  # rates this close to one another are the same

RIGHT, TOO_MUCH, TOO_LITTLE = "right", "too much", "too little"
NOTHING, NO_ROOM = "called infeasible, but is not", "a rate, but the model does not fit"
INFEASIBLE = "infeasible, and said so"
_COLOURS = {
    RIGHT: TYPE_COLOURS[0],
    TOO_LITTLE: TYPE_COLOURS[4],
    TOO_MUCH: TYPE_COLOURS[1],
    NOTHING: TYPE_COLOURS[3],
    NO_ROOM: WRONG,
    INFEASIBLE: NEUTRAL_LIGHT,
}


def outcome_of_prediction(predicted: float | None, possible: float | None) -> str:
    """How a prediction compares with the truth.

    Parameters
    ----------
    predicted, possible : float or None
        Tokens/s; None: no placement is said to exist, or none does.

    Returns
    -------
    str
        Such as "right" or "too much".

    Examples
    --------
    >>> outcome_of_prediction(6692.8, 6321.0), outcome_of_prediction(853.3, None)
    ('too much', 'a rate, but the model does not fit')
    """
    if predicted is None:
        return INFEASIBLE if possible is None else NOTHING
    if possible is None:
        return NO_ROOM
    if predicted > possible * _SAME:
        return TOO_MUCH
    return RIGHT if predicted * _SAME >= possible else TOO_LITTLE


def plot_predictions(
    mixes: Sequence[str], predicted: Sequence[float | None], possible: Sequence[float | None]
) -> "go.Figure":
    """A point per GPU mix: what is possible to the right, what is predicted upwards, and the diagonal.

    Parameters
    ----------
    mixes : sequence of str
        Names, shown where the mouse rests.
    predicted : sequence of float or None
        Tokens/s; mixes without a prediction are left out.
    possible : sequence of float or None
        The proven optimum in tokens/s; None where the model does not fit.

    Returns
    -------
    plotly.graph_objects.Figure
        Its title says how many predictions are too high, and by how much the worst.

    Examples
    --------
    >>> figure = plot_predictions(["2 L4", "4 T4"], [300.0, 200.0], [200.0, 200.0])
    >>> figure.layout.title.text.split("<br>")[0]
    'Too much for 1 of 2 mixes that hold the model, by up to 1.50 times (2 L4)'
    """
    import plotly.graph_objects as go

    points = [
        (name, p, q) for name, p, q in zip(mixes, predicted, possible, strict=True) if p is not None
    ]
    top = 1.06 * max(max(p, q or 0) for _, p, q in points)
    figure = go.Figure()
    figure.add_scatter(
        x=[0, top], y=[0, top], mode="lines", name="predicted = possible",
        line={"color": BOTTLENECK, "width": 1, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    for kind in (RIGHT, TOO_LITTLE, TOO_MUCH, NO_ROOM):
        mine = [point for point in points if outcome_of_prediction(point[1], point[2]) == kind]
        if mine:
            figure.add_scatter(
                x=[q or 0 for *_, q in mine], y=[p for _, p, _ in mine], mode="markers", name=kind,
                marker={"color": _COLOURS[kind], "size": 9, "opacity": 0.85,
                        "symbol": "x" if kind == NO_ROOM else "circle"},
                text=[name for name, *_ in mine], cliponaxis=False,
                hovertemplate="%{text}: predicted %{y:,.1f}, possible %{x:,.1f}<extra></extra>",
            )  # fmt: skip
    held = [(p / q, name) for name, p, q in points if q]
    worst = max(held)
    over = sum(ratio > _SAME for ratio, _ in held)
    figure.add_annotation(
        x=next(q for name, _, q in points if name == worst[1]), text=worst[1], showarrow=False, xanchor="left",
        y=next(p for name, p, _ in points if name == worst[1]), xshift=8,
    )  # fmt: skip
    title = f"Too much for {over} of {len(held)} mixes that hold the model, by up to {worst[0]:.2f} times ({worst[1]})"
    figure.update_layout(
        template=template(), height=520, margin={"t": 92},
        title=f"{title}<br><sup>above the diagonal: predicted more than any placement yields</sup>",
        xaxis={"title": {"text": "possible (proven), tokens/s"}, "range": [-0.02 * top, top], "tickformat": ","},
        yaxis={"title": {"text": "predicted, tokens/s"}, "range": [0, top], "tickformat": ","},
    )  # fmt: skip
    return figure


def plot_fixes(outcomes: Mapping[str, Sequence[str]]) -> "go.Figure":
    """A bar per version of the heuristic: for how many mixes it is right, and how it errs elsewhere.

    Parameters
    ----------
    outcomes : mapping of name to sequence of str
        Of every version, `outcome_of_prediction` for each mix.

    Returns
    -------
    plotly.graph_objects.Figure
        Stacked bars, the first version at the top.

    Examples
    --------
    >>> figure = plot_fixes({"as written": ["too much", "right"], "fixed": ["right", "right"]})
    >>> figure.layout.title.text
    'Of 2 mixes that hold the model, 1 is right as written and 2 are after the last fix'
    """
    import plotly.graph_objects as go

    names = list(outcomes)
    figure = go.Figure()
    for kind, colour in _COLOURS.items():
        counts = [list(outcomes[name]).count(kind) for name in names]
        if any(counts):
            figure.add_bar(
                orientation="h", y=names, x=counts, name=kind, marker={"color": colour},
                text=[str(n) if n else "" for n in counts], textposition="inside", textangle=0,
                insidetextanchor="middle", constraintext="none",
                hovertemplate=f"%{{y}}: {kind} for %{{x}} mixes<extra></extra>",
            )  # fmt: skip
    first, last = (list(outcomes[name]).count(RIGHT) for name in (names[0], names[-1]))
    held = sum(kind not in (NO_ROOM, INFEASIBLE) for kind in outcomes[names[0]])
    title = f"Of {held} mixes that hold the model, {first} {'is' if first == 1 else 'are'} right {names[0]}"
    figure.update_layout(
        template=template(), barmode="stack", height=150 + 52 * len(names), margin={"t": 100, "l": 150},
        title=f"{title} and {last} are after the last fix",
        xaxis={"title": {"text": "GPU mixes"}}, yaxis={"autorange": "reversed", "title": {"text": ""}},
        legend={"traceorder": "normal"},
    )  # fmt: skip
    return figure


def plot_against_prediction(
    predicted: float, rates: Mapping[str, float], optimum: float | None = None
) -> "go.Figure":
    """A bar for every rate that a choice yields, a line where the prediction is, and the optimum.

    Parameters
    ----------
    predicted : float
        Tokens/s.
    rates : mapping of name to float
        What the choice yields, tokens/s; 0: does not fit.
    optimum : float, optional
        What is possible with any choice, tokens/s; 0: nothing fits. A bar of its own.

    Returns
    -------
    plotly.graph_objects.Figure
        Horizontal bars, the first at the top.

    Examples
    --------
    >>> orders = {"best order": 5688.9, "worst order": 762.9}
    >>> plot_against_prediction(6692.8, orders).layout.title.text
    'Predicted 6,692.8 tokens/s; the choice yields 762.9 to 5,688.9'
    >>> plot_against_prediction(6692.8, orders, optimum=6321).layout.title.text
    'Predicted 6,692.8 tokens/s; the choice yields 762.9 to 5,688.9; possible: 6,321.0'
    """
    import plotly.graph_objects as go

    bars = {**rates} if optimum is None else {**rates, "optimum": optimum}
    names, values = list(bars), list(bars.values())
    colours = [TYPE_COLOURS[0]] * len(rates) + [TYPE_COLOURS[2]] * (optimum is not None)
    top = 1.18 * max(predicted, *values)
    figure = go.Figure(
        go.Bar(
            orientation="h", y=names, x=values, marker={"color": colours}, showlegend=False,
            text=[f"{v:,.1f}" if v else "does not fit" for v in values], cliponaxis=False, textangle=0,
            # Beside a long bar, the text would stand on the line.
            textposition=["inside" if v > top / 3 else "outside" for v in values], constraintext="none",
            hovertemplate="%{y}: %{x:,.1f} tokens/s<extra></extra>",
        )
    )  # fmt: skip
    figure.add_vline(x=predicted, line={"color": WRONG, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=predicted, y=1, yref="paper", yanchor="bottom", text="predicted", showarrow=False, font={"color": WRONG},
    )  # fmt: skip
    figure.update_layout(
        template=template(), height=150 + 44 * len(names), margin={"t": 84, "l": 170},
        title=f"Predicted {predicted:,.1f} tokens/s; {_yields(rates.values())}{_possible(optimum)}",
        xaxis={"title": {"text": "tokens/s"}, "range": [0, top], "tickformat": ","},
        yaxis={"autorange": "reversed", "title": {"text": ""}},
    )  # fmt: skip
    return figure


def _yields(rates: Iterable[float]) -> str:
    fitting = [rate for rate in rates if rate]
    if not fitting:
        return "the choice does not fit"
    low, high = min(fitting), max(fitting)
    between = f"{high:,.1f}" if low * _SAME >= high else f"{low:,.1f} to {high:,.1f}"
    return f"the choice yields {between}"


def _possible(optimum: float | None) -> str:
    if optimum is None:
        return ""
    return f"; possible: {optimum:,.1f}" if optimum else "; the model does not fit"


def plot_speedup(factor: Callable[[int], float], most: int = 8) -> "go.Figure":
    """How many times as fast as one GPU k of them are predicted to be, beside k.

    Parameters
    ----------
    factor : callable
        Of k, the number of GPUs.
    most : int
        Up to so many GPUs.

    Returns
    -------
    plotly.graph_objects.Figure
        Two lines.

    Examples
    --------
    >>> plot_speedup(lambda k: 1.5 * k).layout.title.text
    '8 GPUs are predicted to be 12.00 times as fast as one'
    """
    import plotly.graph_objects as go

    sizes = list(range(1, most + 1))
    figure = go.Figure()
    for name, values, colour in (
        ("predicted", [factor(k) for k in sizes], WRONG),
        ("true: k times", sizes, TYPE_COLOURS[0]),
    ):
        figure.add_scatter(
            x=sizes, y=values, name=name, mode="lines+markers", line={"color": colour}
        )
    figure.update_layout(
        template=template(), height=360,
        title=f"{most} GPUs are predicted to be {factor(most):.2f} times as fast as one",
        xaxis={"title": {"text": "k, GPUs of a stage"}, "dtick": 1},
        yaxis={"title": {"text": "times as fast as one GPU"}, "rangemode": "tozero"},
    )  # fmt: skip
    return figure
