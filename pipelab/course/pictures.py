"""What the notebooks' pictures have in common, and those that several of them draw.

Most of these are of the small inputs on which an answer is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pipelab.display import KIND_COLOURS, Figure
from pipelab.figures import theme
from pipelab.figures.theme import (
    BOTTLENECK,
    NEUTRAL,
    TYPE_COLOURS,
    WRONG,
    ink_on,
    new_figure,
    plain,
    template,
)

# What every picture has


SAME = 1 + 1e-9  # times and rates that differ by less than this factor are one

# Where the text of a bar stands, whatever the width of the bar.
INSIDE: dict[str, Any] = {
    "textposition": "inside",
    "insidetextanchor": "middle",
    "textangle": 0,
    "constraintext": "none",
}
BARE: dict[str, Any] = {"showgrid": False}  # an axis without lines
# From one place to another; `x` and `y` are its head, `ax` and `ay` its foot.
ARROW: dict[str, Any] = {"axref": "x", "ayref": "y", "showarrow": True, "text": "", "arrowhead": 2}
NAMES: dict[str, Any] = {"autorange": "reversed", "automargin": True}


def finish(figure: Figure, title: str, note: str = "", **layout: Any) -> Figure:
    """Give a figure with its traces what `figures.theme.finish` gives to all: title, note, margins, axes.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        With its traces.
    title, note, **layout
        As `pipelab.figures.theme.finish` takes them.

    Returns
    -------
    plotly.graph_objects.Figure
        The same one.
    """
    shown = [{"showlegend": trace.showlegend is not False} for trace in figure.data]
    made = theme.finish(shown, title, note, **layout)
    return figure.update_layout(made["layout"], template=template())


def retitle(figure: Figure, title: str, note: str) -> Figure:
    """Give a finished figure another title and note."""
    return figure.update_layout(title=theme.finish([], title, note)["layout"]["title"])


def colour_of(number: int) -> str:
    """Of a GPU or of a class of GPUs, by its number.

    Examples
    --------
    >>> colour_of(0) == colour_of(8) == "#0072B2"
    True
    """
    return TYPE_COLOURS[number % len(TYPE_COLOURS)]


def add_legend(figure: Figure, colours: Mapping[str, str], **where: Any) -> None:
    """Name colours in the legend, apart from the bars: one that is framed or red would mislead."""
    for name, colour in colours.items():
        figure.add_bar(name=plain(name), x=[None], y=[None], marker={"color": colour}, **where)


def add_layers(
    figure: Figure, sizes: Sequence[int], colours: Sequence[str], hover: Sequence[str], **at: Any
) -> None:
    """Draw stages side by side, each as wide as its number of layers."""
    figure.add_bar(
        orientation="h",
        y=[0] * len(sizes),
        x=sizes,
        base=list(accumulate(sizes, initial=0))[:-1],
        width=1,
        marker={"color": colours, "line": {"color": "white", "width": 2}},
        showlegend=False,
        text=[str(n) for n in sizes],
        textfont={"color": [ink_on(colour) for colour in colours], "size": 12},
        hovertext=hover,
        hoverinfo="text",
        **INSIDE,
        **at,
    )


def add_times(
    figure: Figure, ms: Sequence[float], colours: Sequence[str], hover: Sequence[str], **at: Any
) -> None:
    """Draw a bar for each time in milliseconds; the longest are framed."""
    framed = [each * SAME >= max(ms) for each in ms]
    frames = {"color": BOTTLENECK, "width": [3 * frame for frame in framed]}
    said = [f"{each:,.0f}" for each in ms]
    figure.add_bar(
        x=list(range(1, len(ms) + 1)),
        y=ms,
        showlegend=False,
        cliponaxis=False,
        marker={"color": colours, "line": frames},
        text=[f"<b>{t}</b>" if frame else t for t, frame in zip(said, framed, strict=True)],
        textfont={"size": 11},
        hovertext=hover,
        hoverinfo="text",
        **{**INSIDE, "textposition": "outside"},
        **at,
    )


def bars_of(
    names: Sequence[str],
    values: Sequence[float],
    texts: Sequence[str],
    hover: str = "",
    **look: Any,
) -> Figure:
    """Draw a bar for each name, the first at the top, with a text at its end; to be finished.

    `hover` is a template; `look` is for the bars, such as `marker`.
    """
    shown = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    ends = {**INSIDE, "textposition": "outside", "cliponaxis": False}
    look = {"showlegend": False, **ends, **shown, **look}
    figure = new_figure()
    figure.add_bar(orientation="h", y=list(names), x=list(values), text=list(texts), **look)
    return figure.update_layout(yaxis=NAMES)


# Rows of blocks


EMPTY = "#FFFFFF"  # of what is not placed

_MOST_ROWS, _MOST_TICKS = 24, 12


class Block(NamedTuple):
    """Something as wide as a number: a layer, a stage, a price."""

    width: float
    colour: str
    text: str = ""


class BlockRow(NamedTuple):
    """Blocks side by side. `mark` is a line across the row; `framed` and `wrong` stand out."""

    name: str
    blocks: Sequence[Block]
    mark: float | None = None
    framed: bool = False
    wrong: bool = False


def plot_rows(
    rows: Sequence[BlockRow], title: str, axis: str, note: str = "", limit: float | None = None
) -> Figure:
    """One row above the other, to the same scale.

    Parameters
    ----------
    rows : sequence of BlockRow
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
    >>> cut = BlockRow("a cut", [Block(2, colour_of(0), "2"), Block(1, colour_of(1), "1")])
    >>> plot_rows([cut], "Three layers in two stages", "layers").data[0].base
    (0.0, 2.0)
    """
    first = sorted(range(len(rows)), key=lambda number: not rows[number].wrong)[:_MOST_ROWS]
    shown = [rows[number] for number in sorted(first)]
    blocks = [(place, block) for place, row in enumerate(shown) for block in row.blocks]
    figure = new_figure()
    figure.add_bar(
        orientation="h",
        y=[place for place, _ in blocks],
        x=[b.width for _, b in blocks],
        base=[base for row in shown for base in _bases(row.blocks)],
        width=0.72,
        marker={
            "color": [b.colour for _, b in blocks],
            "line": {"color": "#444444", "width": 1},
        },
        text=[b.text for _, b in blocks],
        textfont={"color": [ink_on(b.colour) for _, b in blocks], "size": 12},
        hoverinfo="none",
        showlegend=False,
        **INSIDE,
    )
    reached = [0.0]
    for place, row in enumerate(shown):
        bases = _bases(row.blocks)
        ends = [0, *bases, *(b + block.width for b, block in zip(bases, row.blocks, strict=True))]
        reached += [*ends, row.mark or 0]
        if row.framed or row.wrong:
            line = {"color": WRONG if row.wrong else BOTTLENECK, "width": 3}
            y = {"y0": place - 0.42, "y1": place + 0.42}
            figure.add_shape(type="rect", x0=min(ends), x1=max(ends), line=line, **y)
        if row.mark is not None:
            line, y = {"color": BOTTLENECK, "width": 4}, {"y0": place - 0.46, "y1": place + 0.46}
            figure.add_shape(type="line", x0=row.mark, x1=row.mark, line=line, **y)
    if limit is not None:
        figure.add_vline(x=limit, line={"dash": "dash", "color": BOTTLENECK})
    left_out = f"{len(shown)} of {len(rows)} rows shown" if len(shown) < len(rows) else ""
    return finish(
        figure,
        title,
        "; ".join(part for part in (note, left_out) if part),
        height=150 + 34 * max(2, len(shown)),
        x={"title": axis, "rangemode": "tozero", **_ticks(reached)},
        y=theme.rows([f"<b>{plain(r.name)}</b>" if r.wrong else plain(r.name) for r in shown]),
    )


def _ticks(numbers: Sequence[float]) -> dict:
    """A tick at every whole number of a short axis: plotly would put one at half a token."""
    whole = all(float(number).is_integer() for number in numbers)
    return {"dtick": 1} if whole and max(numbers) - min(numbers) <= _MOST_TICKS else {}


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


_ACTIONS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def plot_orders(
    rows: Mapping[str, Sequence[str]],
    finding: str,
    held: Sequence[float] = (),
    room: float = 0.0,
) -> Figure:
    """A row of boxes per order; of a single one, what it holds below.

    Parameters
    ----------
    rows : mapping of name to sequence of str
        Actions such as `"F0"`, in their order; what is no such action is grey.
    finding : str
        The title.
    held : sequence of float
        After each action of the only row.
    room : float
        How much fits, as a dashed line.

    Returns
    -------
    plotly.graph_objects.Figure
        A box per action; the legend has the kinds of action.

    Examples
    --------
    >>> figure = plot_orders({"rank 0": ["F0", "B0"]}, "One microbatch, there and back")
    >>> [trace.name for trace in figure.data[1:]]
    ['forward', 'backward']
    """
    grey = "#999999"
    lanes = [
        BlockRow(name, [Block(1, KIND_COLOURS.get(str(a)[:1], grey), plain(a)) for a in row])
        for name, row in rows.items()
    ]
    figure = plot_rows(lanes, finding, "place in the order; no time")
    kinds = {str(action)[:1] for row in rows.values() for action in row}
    legend = {name: KIND_COLOURS[kind] for kind, name in _ACTIONS.items() if kind in kinds}
    add_legend(figure, legend | ({"no action": grey} if kinds - {*_ACTIONS} else {}))
    if held:  # what is held after an action stands under its box
        figure.add_scatter(
            x=list(range(len(held) + 1)),
            y=[*held, held[-1]],
            yaxis="y2",
            mode="lines",
            line={"color": NEUTRAL, "width": 3, "shape": "hv"},
            name="held",
        )
        limit = {"dash": "dash", "color": WRONG}
        figure.add_shape(x0=0, x1=len(held), y0=room, y1=room, yref="y2", type="line", line=limit)
        top, below = 1.15 * max(*held, room), {"domain": [0, 0.62]}
        figure.update_layout(
            height=400,
            yaxis={"domain": [0.72, 1]},
            xaxis={"anchor": "y2"},
            yaxis2={"range": [0, top], "title": "microbatches held", **below},
        )
    return figure


# Lines over one axis


def plot_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    finding: str,
    axes: tuple[str, str],
    marked: tuple[float, float] | None = None,
    *,
    ranges: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Figure:
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
    figure, ends = new_figure(), [list(y) for y in lines.values()]
    for i, (name, y, colour) in enumerate(zip(lines, ends, TYPE_COLOURS, strict=False)):
        wide = 4 + 6 * (len(lines) - 1 - i)  # later bars cover earlier ones, whose ends are wider
        covered = 6 * ends[i + 1 :].count(y)
        dash = "dot" if "bound" in name else "solid"
        figure.add_scatter(
            x=list(x),
            y=y,
            name=plain(name),
            mode="lines+markers",
            line={"color": colour, "width": 3 + covered, "dash": dash},
            marker={"size": 8 + covered},
            showlegend=len(lines) > 1,
            error_y=_bars(y, ranges[name], wide) if ranges else None,
        )
    if marked:
        look = {"symbol": "circle-open", "color": BOTTLENECK, "line": {"width": 3}}
        figure.add_scatter(
            x=[marked[0]],
            y=[marked[1]],
            mode="markers",
            showlegend=False,
            hoverinfo="skip",
            marker={"size": 18, **look},
        )
    return finish(
        figure,
        finding,
        height=330,
        x={"title": axes[0], **_ticks(x)},
        y={"title": axes[1], "rangemode": "tozero"},
    )


def plot_what_fits(
    kept: Mapping[int, float], room: float, fewest: float, finding: str, axes: tuple[str, str]
) -> Figure:
    """Draw what is kept against the room for it, with the first number that fits marked."""
    lines = {"kept": [*kept.values()], "room": [room] * len(kept)}
    at = (fewest, kept[int(fewest)]) if fewest in kept else None
    return plot_lines([*kept], lines, finding, axes, at)


def _bars(y: Sequence[float], ranges: Iterable[tuple[float, float]], width: float) -> dict:
    """Error bars from the least to the most."""
    least, most = zip(*ranges, strict=True)
    return {
        "array": [high - value for value, high in zip(y, most, strict=True)],
        "arrayminus": [value - low for value, low in zip(y, least, strict=True)],
        "symmetric": False,
        "thickness": 1.5,
        "width": width,
    }
