"""Run a notebook from a fresh kernel, and keep what its widgets show."""

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from pipelab.errors import PipelabError

if TYPE_CHECKING:
    from nbformat import NotebookNode

_LIMIT_S = 900  # for one cell
WIDGET_STATES = "application/vnd.jupyter.widget-state+json"
# Explorers go on computing while no control changes, and a client receives only what is sent while a cell
# runs: so this cell waits until all have ended, and sends the state of every widget.
_SETTLE = f"""import sys

if "pipelab.widgets.background" in sys.modules:
    from pipelab.widgets.background import at_rest

    await at_rest()
if "ipywidgets" in sys.modules:
    from ipywidgets import Widget

    get_ipython().display_pub.publish({{"{WIDGET_STATES}": Widget.get_manager_state()}})"""


def executed(notebook: "NotebookNode", name: str) -> "NotebookNode":
    """Run a notebook in place and return it with its outputs; errors call it `name`.

    Raises
    ------
    PipelabError
        A cell failed, or took too long.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from pipelab.cli.kernel_client import NotebookRunner

    # A figure is kept as its data alone, without a copy of plotly.js.
    environment = dict(os.environ, PLOTLY_RENDERER="plotly_mimetype")
    with tempfile.TemporaryDirectory() as scratch:
        notebook.cells.append(nbformat.v4.new_code_cell(_SETTLE))
        client = NotebookRunner(
            notebook, timeout=_LIMIT_S, resources={"metadata": {"path": scratch}}
        )
        try:
            client.execute(env=environment, stderr=subprocess.DEVNULL)  # the kernel's own log
        except CellExecutionError as error:
            raise PipelabError(f"{name}: a cell raised {error.ename}: {error.evalue}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise PipelabError(f"{name}: {str(error).splitlines()[0]}") from None
    _update_widgets(notebook, notebook.cells.pop())
    return notebook


def _update_widgets(notebook: "NotebookNode", settled: "NotebookNode") -> None:
    """Replace the widget states that the client received by the kernel's final ones.

    All but the outputs inside widgets: these the client collects, and the kernel knows nothing of
    them.
    """
    heard = notebook.metadata.get("widgets", {}).get(WIDGET_STATES, {}).get("state", {})
    for output in settled.outputs:
        for model, known in output.get("data", {}).get(WIDGET_STATES, {}).get("state", {}).items():
            if model in heard:
                known["state"].pop("outputs", None)
                heard[model]["state"].update(known["state"])
