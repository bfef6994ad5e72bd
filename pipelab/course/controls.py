"""Cells with controls: a figure that is drawn again whenever a slider moves."""

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from IPython.display import display
from IPython.utils.capture import capture_output


class _Panel(widgets.interactive):
    """The controls and what they show, which the kernel itself writes down while the cell runs.

    ipywidgets would have the client collect it. Those without a browser (`jupyter nbconvert --execute`,
    papermill) then answer on the channel on which they wait for the end of the cell, and may never hear of
    it (https://github.com/jupyter/nbclient/issues/312). A control is moved by a browser alone.
    """

    def __init__(self, *given: Any, **controls: Any) -> None:
        super().__init__(*given, **controls)
        for control in self.kwargs_widgets:
            control.style.description_width = "100px"  # of the longest names

    def update(self, *moved: Any) -> None:
        if moved:
            super().update(*moved)
            return
        with capture_output(stderr=False) as shown:
            result = self.f(**{w._kwarg: w.get_interact_value() for w in self.kwargs_widgets})
            if result is not None:
                display(result)
        if shown.stdout:
            self.out.append_stdout(shown.stdout)
        self.out.outputs += tuple(
            {"output_type": "display_data", "data": output.data, "metadata": output.metadata or {}}
            for output in shown.outputs
        )


def interact(**controls: Any) -> Callable[[Callable], Callable]:
    """Show what a function returns and prints below controls for its arguments; a decorator.

    Parameters
    ----------
    **controls
        By argument what `ipywidgets.interact` takes: (least, most), a list to choose from, or a widget.

    Returns
    -------
    decorator
        Runs the function with its defaults, and again whenever a control moves.
    """
    return _Panel.factory()(**controls)
