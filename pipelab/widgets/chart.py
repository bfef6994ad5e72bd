"""A chart that stays on the page: a new drawing takes the place of the old one, and the width is the page's."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pipelab.display import Figure
from pipelab.figures.html_charts import as_json, template_json
from pipelab.figures.theme import figure_of


class LiveChart(anywidget.AnyWidget):
    """A plotly chart beside controls; complete at birth, complete after every `put`.

    plotly.js comes from the one `pipelab.widgets.explorer_parts.Shared` on the page.

    Parameters
    ----------
    parts : dict of "data" and "layout", or Figure
        What is drawn. Values may be numpy arrays.

    Attributes
    ----------
    zoomed : list of float, or None
        The part of the time axis that a reader zoomed to; None for all of it.

    Examples
    --------
    >>> chart = LiveChart({"data": [{"type": "bar", "y": [1, 2]}], "layout": {"title": {"text": "two"}}})
    >>> chart.put({"data": [{"type": "bar", "y": [3]}], "layout": {"title": {"text": "one"}}})
    >>> chart.layout.title.text, chart.data[0].y
    ('one', (3,))
    """

    drawing = traitlets.Unicode().tag(sync=True)
    look = traitlets.Unicode().tag(sync=True)
    zoomed = traitlets.Any(None).tag(sync=True)
    _esm = (Path(__file__).parent / "live_chart.js").read_text(encoding="utf-8")

    def __init__(self, parts: "dict | Figure") -> None:
        super().__init__(drawing=as_json(parts), look=template_json())
        self.parts = parts
        self._figure: Figure | None = None

    def put(self, parts: "dict | Figure", zoomed: list[float] | None = None) -> None:
        """Draw this instead; `zoomed` where it shows a part of the time only."""
        self.parts, self._figure = parts, None
        with self.hold_sync():
            self.zoomed = zoomed
            self.drawing = as_json(parts)

    @property
    def figure(self) -> Figure:
        """What is drawn, as a still plotly Figure of its own: to keep, to save, to look into."""
        if self._figure is None:
            self._figure = figure_of(self.parts)
        return self._figure

    @property
    def data(self) -> Any:
        """The traces of `figure`."""
        return self.figure.data

    @property
    def layout(self) -> Any:
        """The layout of `figure`."""
        return self.figure.layout
