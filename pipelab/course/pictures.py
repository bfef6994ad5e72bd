"""Pictures that several notebooks draw, most of all of the small inputs on which an answer is wrong."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelab.display import KIND_COLOURS
from pipelab.figures.theme import (
    BOTTLENECK,
    GRID,
    NEUTRAL,
    TYPE_COLOURS,
    WRONG,
    ink_on,
    plain,
    template,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go


# Rows of blocks


EMPTY = "#FFFFFF"  # of what is not placed

_MOST_ROWS = 24


class Block(NamedTuple):
    """Something as wide as a number: a layer, a stage, a price."""

    width: float
    colour: str
    text: str = ""


class Row(NamedTuple):
    """Blocks side by side. `mark` is a line across the row; `framed` and `wrong` stand out."""

    name: str
    blocks: Sequence[Block]
    mark: float | None = None
    framed: bool = False
    wrong: bool = False


def colour_of(number: int) -> str:
    """Of a GPU or of a class of GPUs, by its number.

    Examples
    --------
    >>> colour_of(0) == colour_of(8) == "#0072B2"
    True
    """
    return TYPE_COLOURS[number % len(TYPE_COLOURS)]


def plot_rows(
    rows: Sequence[Row], title: str, axis: str, note: str = "", limit: float | None = None
) -> "go.Figure":
    """One row above the other, to the same scale.

    Parameters
    ----------
    rows : sequence of Row
        The first at the top; of very many, as many as can be read, those that are wrong among them.
    title : str
        What is to be seen.
    axis : str
        What the widths are, such as "layers".
    note : str
        How to read it, in small type below the title.
    limit : float, optional
        A dashed line through all rows.

    Returns
    -------
    plotly.graph_objects.Figure
        Every block is one bar, with its text in it.

    Examples
    --------
    >>> cut = Row("a cut", [Block(2, colour_of(0), "2"), Block(1, colour_of(1), "1")])
    >>> plot_rows([cut], "Three layers in two stages", "layers").data[0].base
    (0.0, 2.0)
    """
    import plotly.graph_objects as go

    first = sorted(range(len(rows)), key=lambda number: not rows[number].wrong)[:_MOST_ROWS]
    shown = [rows[number] for number in sorted(first)]
    blocks = [(place, block) for place, row in enumerate(shown) for block in row.blocks]
    bases = [base for row in shown for base in _bases(row.blocks)]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[place for place, _ in blocks],
            x=[b.width for _, b in blocks],
            base=bases,
            width=0.72,
            marker={
                "color": [b.colour for _, b in blocks],
                "line": {"color": "#444444", "width": 1},
            },
            text=[b.text for _, b in blocks],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": [ink_on(b.colour) for _, b in blocks], "size": 12},
            constraintext="none",
            hoverinfo="none",
            showlegend=False,
        )
    )
    for place, row in enumerate(shown):
        bases_of = zip(_bases(row.blocks), row.blocks, strict=True)
        ends = [0, *(end for base, block in bases_of for end in (base, base + block.width))]
        if row.framed or row.wrong:
            look = {"color": WRONG if row.wrong else BOTTLENECK, "width": 3}
            figure.add_shape(
                type="rect", x0=min(ends), x1=max(ends), y0=place - 0.42, y1=place + 0.42, line=look
            )
        if row.mark is not None:
            figure.add_shape(
                type="line",
                x0=row.mark,
                x1=row.mark,
                y0=place - 0.46,
                y1=place + 0.46,
                line={"color": BOTTLENECK, "width": 4},
            )
    if limit is not None:
        figure.add_vline(x=limit, line={"dash": "dash", "color": BOTTLENECK})
    left_out = f"{len(shown)} of {len(rows)} rows shown" if len(shown) < len(rows) else ""
    said = "; ".join(part for part in (note, left_out) if part)
    figure.update_layout(
        template=template(),
        title=f"{title}<br><sup>{said}</sup>",
        height=150 + 34 * max(2, len(shown)),
        margin={"t": 78, "b": 48, "l": 30 + 8 * max((len(row.name) for row in shown), default=5)},
        xaxis={"title": {"text": axis}, "zeroline": False, "rangemode": "tozero"},
        yaxis={
            "range": [len(shown) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
            "tickvals": list(range(len(shown))),
            "ticktext": [f"<b>{plain(r.name)}</b>" if r.wrong else plain(r.name) for r in shown],
        },
    )
    return figure


def _bases(blocks: Sequence[Block]) -> list[float]:
    """Where each begins: one after the other, those below 0 to the left.

    >>> _bases([Block(-1, EMPTY), Block(2, EMPTY), Block(3, EMPTY)])
    [0.0, 0.0, 2.0]
    """
    bases, right, left = list[float](), 0.0, 0.0
    for block in blocks:
        bases.append(left if block.width < 0 else right)
        left, right = left + min(block.width, 0), right + max(block.width, 0)
    return bases


# Orders of actions, without times


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
                y=[lane for lane, *_ in mine],
                base=[place for _, place, _ in mine],
                x=[1] * len(mine),
                orientation="h",
                width=0.8,
                name=name,
                text=[plain(action) for *_, action in mine],
                textangle=0,
                textposition="inside",
                insidetextanchor="middle",
                hoverinfo="text",
                textfont={"color": ink_on(colour)},
                marker={"color": colour, "line": {"color": "white", "width": 1}},
            )
    lanes = {
        "tickvals": list(range(len(names))),
        "ticktext": [plain(name) for name in names],
        "zeroline": False,
        "range": [len(names) - 0.4, -0.6],
        "showgrid": False,
        "automargin": True,
    }
    longest = max([len(row) for row in rows.values()] + [1])
    figure.update_layout(
        template=template(),
        title=finding,
        barmode="overlay",
        height=150 + 40 * len(names),
        yaxis=lanes,
        xaxis={
            "title": {"text": axis},
            "range": [0, longest],
            "gridcolor": GRID,
            "zeroline": False,
        },
    )
    if held is not None:
        # what is held after an action stands under its box
        figure.add_scatter(
            x=list(range(len(held) + 1)),
            y=[*held, held[-1]],
            yaxis="y2",
            mode="lines",
            line={"color": NEUTRAL, "width": 3, "shape": "hv"},
            name="held",
        )
        lanes["domain"] = [0.72, 1]
        top = 1.15 * max([*held, room or 0])
        figure.update_layout(
            height=400,
            yaxis=lanes,
            xaxis={"anchor": "y2"},
            yaxis2={
                "domain": [0, 0.62],
                "range": [0, top],
                "gridcolor": GRID,
                "title": {"text": "microbatches held"},
            },
        )
        if room is not None:
            figure.add_shape(
                type="line",
                x0=0,
                x1=longest,
                y0=room,
                y1=room,
                yref="y2",
                xref="x",
                line={"dash": "dash", "color": WRONG},
            )
    return figure


# Lines over one axis


_TICKS = 12  # at most, one for each whole number


def plot_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    finding: str,
    axes: tuple[str, str],
    marked: tuple[float, float] | None = None,
    *,
    ranges: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> "go.Figure":
    """Lines with markers, and one point marked.

    Parameters
    ----------
    x : sequence of float
        Where all lines have their points.
    lines : mapping of name to sequence of float
        One number for each of `x`.
    finding : str
        The title.
    axes : (str, str)
        What x and y are.
    marked : (float, float), optional
        A point to look at.
    ranges : mapping of name to sequence of (float, float), optional
        For each line the least and the most at each of `x`, drawn as bars.

    Returns
    -------
    plotly.graph_objects.Figure
        A trace per line.

    Examples
    --------
    >>> figure = plot_lines([1, 2], {"a": [1, 4]}, "a grows by more than twice", ("n", "s"), (2, 4))
    >>> [trace.name for trace in figure.data]
    ['a', None]
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, ((name, y), colour) in enumerate(zip(lines.items(), TYPE_COLOURS, strict=False)):
        figure.add_scatter(
            x=list(x),
            y=list(y),
            name=plain(name),
            mode="lines+markers",
            line={"color": colour, "width": 3},
            marker={"size": 8},
            showlegend=len(lines) > 1,
            error_y=None
            if ranges is None
            else _bars(y, ranges[name], 4 + 6 * (len(lines) - 1 - i)),
        )
    if marked:
        figure.add_scatter(
            x=[marked[0]],
            y=[marked[1]],
            mode="markers",
            showlegend=False,
            hoverinfo="skip",
            marker={"size": 18, "symbol": "circle-open", "color": BOTTLENECK, "line": {"width": 3}},
        )
    figure.update_layout(
        template=template(),
        height=330,
        title=finding,
        xaxis={"title": {"text": axes[0]}, "gridcolor": GRID, "zeroline": False},
        yaxis={"title": {"text": axes[1]}, "gridcolor": GRID, "rangemode": "tozero"},
    )
    if all(float(at).is_integer() for at in x) and max(x) - min(x) <= _TICKS:
        figure.update_xaxes(dtick=1)  # plotly would put a tick at half a token
    return figure


def _bars(
    y: Sequence[float], ranges: Sequence[tuple[float, float]], width: float
) -> dict[str, object]:
    """Error bars; later ones cover earlier ones, whose ends are wider."""
    return {
        "array": [most - value for value, (_, most) in zip(y, ranges, strict=True)],
        "arrayminus": [value - least for value, (least, _) in zip(y, ranges, strict=True)],
        "symmetric": False,
        "thickness": 1.5,
        "width": width,
    }
