"""What every explorer has: controls in groups, text in place, code to copy, what charts share."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from pipelab.display import REFUSED
from pipelab.figures.html_charts import plotly_js


class Shared(anywidget.AnyWidget):
    """Invisible: brings plotly.js to the page, once for all charts of a kernel, and keeps keys for the controls.

    Without the mark, JupyterLab takes arrow keys and other keys in a menu or on a slider for its own
    shortcuts.
    """

    bundle = traitlets.Unicode().tag(sync=True)
    _esm = (Path(__file__).parent / "shared.js").read_text(encoding="utf-8")


_shared: list[Shared] = []


def shared() -> Shared:
    """Return the one of this kernel; every explorer shows it."""
    if not _shared:
        _shared.append(Shared(bundle=plotly_js()))
    return _shared[0]


class CopyCode(anywidget.AnyWidget):
    """The code that makes the present state again, with a button that copies it."""

    code = traitlets.Unicode().tag(sync=True)
    _esm = (Path(__file__).parent / "copy_code.js").read_text(encoding="utf-8")


class Words(widgets.HTML):
    """Text in place: what a title does not say, or why a value is refused."""

    def say(self, *lines: str) -> None:
        """Show plain lines, escaped; empty ones are left out."""
        self.value = "".join(
            f"<div style='line-height:1.6'>{escape(line)}</div>" for line in lines if line
        )

    def explain(self, error: BaseException) -> None:
        """Say why there is nothing to show, marked as refused."""
        sign = f"<b style='color:{REFUSED.ink}'>{REFUSED.symbol}</b> "
        self.value = f"<div role='alert' style='line-height:1.6'>{sign}{escape(str(error))}</div>"


class Busy(widgets.HTML):
    """Says that an answer is not there yet."""

    def show(self, on: bool) -> None:
        """Show the words, or nothing."""
        words = "… Still solving; the charts show the previous values."
        self.value = f"<span role='status'>{words}</span>" if on else ""


class Explorer(widgets.VBox):
    """A widget with a sentence after it, which a saved notebook keeps although the widget needs a kernel.

    While the widget is on the page, the sentence is not seen.
    """

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        display(self._repr_mimebundle_(), raw=True)
        display(HTML(_AFTERWARDS))


_AFTERWARDS = """<style>.jp-OutputArea-child:has(.pipelab-chart)
+ .jp-OutputArea-child:has(.pipelab-live-only) { display: none }</style>
<div class="pipelab-live-only">Controls and charts need a running kernel. Where they are missing,
run this cell again, or all cells: Run ▸ Run All Cells.</div>"""


# As many columns as the page has room for; a group or a control fills its column.
COLUMNS = {
    "grid_template_columns": "repeat(auto-fit, minmax(360px, 1fr))",
    "grid_gap": "0 28px",
    "width": "100%",
}
LOOK: dict[str, Any] = {"style": {"description_width": "145px"}, "layout": {"width": "auto"}}
RELEASED = {**LOOK, "continuous_update": False}


def menu(description: str, options: Any = (), **more: Any) -> widgets.Dropdown:
    """Return a menu of values, or of pairs of label and value."""
    return widgets.Dropdown(description=description, options=options, **more, **LOOK)


def choice(description: str, options: Any, **more: Any) -> widgets.SelectionSlider:
    """Return a slider over a list of values, or of pairs of label and value."""
    return widgets.SelectionSlider(description=description, options=options, **more, **RELEASED)


def integer(description: str, least: int, most: int, **more: Any) -> widgets.IntSlider:
    """Return a slider of whole numbers."""
    return widgets.IntSlider(description=description, min=least, max=most, **more, **RELEASED)


class ControlPanel(widgets.VBox):
    """Controls in labelled groups, aligned in columns, or the simple preset's alone.

    Parameters
    ----------
    groups : mapping of label to sequence of Widget
        All controls.
    few : sequence of Widget
        The controls of the simple preset.
    simple : bool
        Whether the panel begins with the simple preset.
    note : Widget, optional
        Shown beside the checkbox.

    Attributes
    ----------
    more : Checkbox
        Checked while all controls are shown.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[widgets.Widget]],
        few: Sequence[widgets.Widget],
        simple: bool,
        note: widgets.Widget | None = None,
    ) -> None:
        self._groups = [
            widgets.VBox([widgets.HTML(f"<b>{label}</b>"), *controls])
            for label, controls in groups.items()
        ]
        self._few = tuple(few)
        self._others: list[widgets.Widget] = []
        self._grid = widgets.GridBox(layout=COLUMNS)
        self.more = widgets.Checkbox(
            value=not simple, description="more controls", indent=False, layout={"width": "160px"}
        )
        self.more.add_class("pipelab-live-only")  # a static copy leaves it out
        self.more.observe(lambda _change: self._arrange(), "value")
        self._arrange()
        super().__init__([self._grid, widgets.HBox([self.more, *([note] if note else [])])])

    def choose(self, few: Sequence[widgets.Widget]) -> None:
        """Have other controls in the simple preset."""
        self._few = tuple(few)
        self._arrange()

    def hide_with(self, *others: widgets.Widget) -> None:
        """Hide these, which are shown elsewhere, while only the simple preset is shown."""
        self._others.extend(others)
        self._arrange()

    def _arrange(self) -> None:
        every = self.more.value
        self._grid.children = self._groups if every else self._few
        for other in self._others:
            other.layout.display = None if every else "none"
