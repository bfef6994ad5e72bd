"""Orders of actions as boxes, one after the other, without times; below, what a rank holds after each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelab.display import KIND_COLOURS
from pipelab.figures.theme import GRID, NEUTRAL, WRONG, ink_on, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

_NAMES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def plot_orders(
    rows: Mapping[str, Sequence[str]],
    finding: str,
    axis: str,
    held: Sequence[float] | None = None,
    room: float | None = None,
) -> "go.Figure":
    """A lane of boxes per row; of a single row, what it holds below.

    Parameters
    ----------
    rows : mapping of name to sequence of str
        Actions such as `"F0"`, in their order; what is no such action is grey.
    finding : str
        The title.
    axis : str
        What the boxes' places mean.
    held : sequence of float, optional
        After each action of the only row.
    room : float, optional
        Where a dashed line says how much fits.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar trace per kind of action.

    Examples
    --------
    >>> figure = plot_orders({"rank 0": ["F0", "B0"]}, "One microbatch, there and back", "place")
    >>> [trace.name for trace in figure.data]
    ['forward', 'backward']
    """
    import plotly.graph_objects as go

    figure, names = go.Figure(), list(rows)
    boxes = [
        (lane, place, str(action))
        for lane, row in enumerate(rows.values())
        for place, action in enumerate(row)
    ]
    for kind, name in [*_NAMES.items(), ("", "no action")]:
        mine = [b for b in boxes if (b[2][:1] if b[2][:1] in _NAMES else "") == kind]
        colour = KIND_COLOURS.get(kind, "#999999")
        if mine:
            figure.add_bar(
                y=[lane for lane, *_ in mine], base=[place for _, place, _ in mine], x=[1] * len(mine),
                orientation="h", width=0.8, name=name, text=[plain(action) for *_, action in mine],
                textangle=0, textposition="inside", insidetextanchor="middle", hoverinfo="text",
                textfont={"color": ink_on(colour)}, marker={"color": colour, "line": {"color": "white", "width": 1}},
            )  # fmt: skip
    lanes = {
        "tickvals": list(range(len(names))), "ticktext": [plain(name) for name in names], "zeroline": False,
        "range": [len(names) - 0.4, -0.6], "showgrid": False, "automargin": True,
    }  # fmt: skip
    longest = max([len(row) for row in rows.values()] + [1])
    figure.update_layout(
        template=template(), title=finding, barmode="overlay", height=150 + 40 * len(names), yaxis=lanes,
        xaxis={"title": {"text": axis}, "range": [0, longest], "gridcolor": GRID, "zeroline": False},
    )  # fmt: skip
    if held is not None:
        # what is held after an action stands under its box
        figure.add_scatter(
            x=list(range(len(held) + 1)), y=[*held, held[-1]], yaxis="y2", mode="lines",
            line={"color": NEUTRAL, "width": 3, "shape": "hv"}, name="held",
        )  # fmt: skip
        lanes["domain"] = [0.72, 1]
        top = 1.15 * max([*held, room or 0])
        figure.update_layout(
            height=400, yaxis=lanes, xaxis={"anchor": "y2"},
            yaxis2={"domain": [0, 0.62], "range": [0, top], "gridcolor": GRID,
                    "title": {"text": "microbatches held"}},
        )  # fmt: skip
        if room is not None:
            figure.add_shape(
                type="line", x0=0, x1=longest, y0=room, y1=room, yref="y2", xref="x",
                line={"dash": "dash", "color": WRONG},
            )  # fmt: skip
    return figure
