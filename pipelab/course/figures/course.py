"""The map of the course: who reads which notebooks, and how long that takes."""

from itertools import accumulate
from typing import TYPE_CHECKING

from pipelab.course import WAYS, Notebook, notebooks_of_the_course
from pipelab.figures.theme import NEUTRAL, NEUTRAL_LIGHT, template

if TYPE_CHECKING:
    import plotly.graph_objects as go


def plot_course() -> "go.Figure":
    """A lane for each kind of reader; every notebook is as wide as the minutes it takes.

    Returns
    -------
    plotly.graph_objects.Figure
        In minutes from the beginning.

    Raises
    ------
    InvalidData
        A notebook does not say how many minutes it takes.

    Examples
    --------
    >>> plot_course().layout.xaxis.title.text
    'minutes from the beginning'
    """
    import plotly.graph_objects as go

    books = notebooks_of_the_course()
    begins = dict(
        zip([b.number for b in books], accumulate([0, *(b.minutes for b in books)]), strict=False)
    )
    lanes = list(WAYS)
    figure = go.Figure()
    for name, pick, colour, pattern, ink in (
        ("read", lambda way: way.whole, NEUTRAL, "", "white"),
        ("read in part", lambda way: way.part, NEUTRAL_LIGHT, "/", "#222222"),
    ):
        shown = [
            (lane, book) for lane in lanes for book in books if book.number in pick(WAYS[lane])
        ]
        figure.add_trace(
            go.Bar(
                orientation="h", name=name, y=[lane for lane, _ in shown], x=[b.minutes for _, b in shown],
                base=[begins[b.number] for _, b in shown], text=[b.number for _, b in shown],
                textposition="inside", insidetextanchor="middle", textangle=0, textfont={"color": ink},
                marker={
                    "color": colour, "line": {"color": "white", "width": 2},
                    "pattern": {"shape": pattern, "fgcolor": "#8A9AA6", "size": 6},
                },
                customdata=[f"{b.number} {b.title}, {b.minutes} minutes" for _, b in shown],
                hovertemplate="%{y}: %{customdata}<extra></extra>",
            )
        )  # fmt: skip
    names = [
        {
            "x": begins[b.number] + b.minutes / 2, "y": 1, "yref": "paper", "text": f"{b.number} {b.title}",
            "textangle": -32, "showarrow": False, "xanchor": "left", "yanchor": "bottom", "font": {"size": 12},
            "xshift": -6,
        }
        for b in books
    ]  # fmt: skip
    figure.update_layout(
        template=template(), title=_title(books), height=410, barmode="overlay", bargap=0.3, annotations=names,
        xaxis={"title": {"text": "minutes from the beginning"}, "range": [0, sum(b.minutes for b in books)]},
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8},
        legend={"y": -0.28, "yanchor": "top", "x": 0, "xanchor": "left"}, margin={"t": 196, "r": 180, "b": 90},
    )  # fmt: skip
    return figure


def _title(books: tuple[Notebook, ...]) -> str:
    minutes = {book.number: book.minutes for book in books}
    first, *others = (
        f"{sum(minutes[number] for number in way.whole) / 60:.1f} hours for the {lane}"
        for lane, way in WAYS.items()
    )
    note = "what is read in part is not counted; the table below says which parts"
    return f"{len(books)} notebooks: {first}, {' and '.join(others)}<br><sup>{note}</sup>"
