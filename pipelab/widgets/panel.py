"""Controls in labelled groups side by side, or the few of the simple preset, with a checkbox between the two."""

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

# As many columns as the page has room for; a group or a control fills its column.
COLUMNS = {
    "grid_template_columns": "repeat(auto-fit, minmax(290px, 1fr))",
    "grid_gap": "0 28px",
    "width": "100%",
}
LOOK: dict[str, Any] = {"style": {"description_width": "150px"}, "layout": {"width": "auto"}}
RELEASED = {**LOOK, "continuous_update": False}


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
