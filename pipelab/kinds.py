"""Types of heavy libraries by name, for annotations alone: `if TYPE_CHECKING:` imports them from here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from pandas import DataFrame
    from plotly.graph_objects import Figure, FigureWidget

__all__ = ["DataFrame", "Figure", "FigureWidget", "NotebookNode"]
