"""What would have caught the faults of three programs, in one picture."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelab.course.fault_search import PROPERTIES
from pipelab.errors import InvalidValue
from pipelab.figures.theme import TYPE_COLOURS, ink_on, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.course.fault_search import Fault


def plot_faults(faults: "Sequence[Fault]") -> "Figure":
    """One bar per property, with as many parts as there are programs that break it.

    Parameters
    ----------
    faults : sequence of Fault
        At least one.

    Returns
    -------
    plotly.graph_objects.Figure
        In numbers of faults.

    Raises
    ------
    InvalidValue
        There is no fault.
    """
    import plotly.graph_objects as go

    if not faults:
        raise InvalidValue("plot_faults", [("faults", "none", "expected at least one")])
    found = Counter((fault.caught_by, fault.program) for fault in faults)
    total = Counter(fault.caught_by for fault in faults)
    most = max(PROPERTIES, key=lambda broken: total[broken])
    figure = go.Figure()
    for program, colour in zip(
        dict.fromkeys(f.program for f in faults), TYPE_COLOURS, strict=False
    ):
        numbers = [found[broken, program] for broken in PROPERTIES]
        figure.add_trace(
            go.Bar(
                orientation="h", name=program, y=[_wrapped(broken) for broken in PROPERTIES], x=numbers,
                marker={"color": colour}, text=[str(n) if n else "" for n in numbers], textposition="inside",
                insidetextanchor="middle", textangle=0, textfont={"color": ink_on(colour)}, constraintext="none",
                hovertemplate=f"%{{x}} faults of {program}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        template=template(), barmode="stack", height=150 + 56 * len(PROPERTIES),
        title=f"{total[most]} of {len(faults)} faults break the property that {most}",
        xaxis={"title": {"text": "faults that the property catches"}},
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8},
        legend={"traceorder": "normal"},
    )  # fmt: skip
    return figure


def _wrapped(text: str, width: int = 34) -> str:
    """In lines of so many characters, for the side of a figure."""
    import textwrap

    return "<br>".join(textwrap.wrap(text, width))
