"""Rows of blocks: the one picture for the small inputs of exercises, on which an answer is wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelab.figures.theme import BOTTLENECK, TYPE_COLOURS, WRONG, ink_on, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
            orientation="h", y=[place for place, _ in blocks], x=[b.width for _, b in blocks], base=bases,
            width=0.72, marker={"color": [b.colour for _, b in blocks], "line": {"color": "#444444", "width": 1}},
            text=[b.text for _, b in blocks], textposition="inside", insidetextanchor="middle", textangle=0,
            textfont={"color": [ink_on(b.colour) for _, b in blocks], "size": 12}, constraintext="none",
            hoverinfo="none", showlegend=False,
        )
    )  # fmt: skip
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
                type="line", x0=row.mark, x1=row.mark, y0=place - 0.46, y1=place + 0.46,
                line={"color": BOTTLENECK, "width": 4},
            )  # fmt: skip
    if limit is not None:
        figure.add_vline(x=limit, line={"dash": "dash", "color": BOTTLENECK})
    left_out = f"{len(shown)} of {len(rows)} rows shown" if len(shown) < len(rows) else ""
    said = "; ".join(part for part in (note, left_out) if part)
    figure.update_layout(
        template=template(), title=f"{title}<br><sup>{said}</sup>", height=150 + 34 * max(2, len(shown)),
        margin={"t": 78, "b": 48, "l": 30 + 8 * max((len(row.name) for row in shown), default=5)},
        xaxis={"title": {"text": axis}, "zeroline": False, "rangemode": "tozero"},
        yaxis={"range": [len(shown) - 0.4, -0.6], "showgrid": False, "zeroline": False,
               "tickvals": list(range(len(shown))),
               "ticktext": [f"<b>{plain(r.name)}</b>" if r.wrong else plain(r.name) for r in shown]},
    )  # fmt: skip
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
