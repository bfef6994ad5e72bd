"""Run a notebook from a fresh kernel, and keep what its widgets show."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.errors import PipelabError

if TYPE_CHECKING:
    from pipelab.kinds import NotebookNode

__all__ = ["executed"]

_LIMIT_S = 900  # for one cell
# Explorers look further when nobody touches them; what they find is heard only while a cell runs.
_SETTLE = (
    "import sys\n\nif 'pipelab.explore.work' in sys.modules:\n"
    "    from pipelab.explore.work import at_rest\n\n    await at_rest()"
)


def executed(path: Path) -> "NotebookNode":
    """The notebook with its outputs.

    Raises
    ------
    PipelabError
        A cell failed, or took too long.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from pipelab.static.client import notebook_client

    notebook = nbformat.read(path, as_version=4)
    # A figure is kept as its data alone, without a copy of plotly.js.
    environment = dict(os.environ, PLOTLY_RENDERER="plotly_mimetype")
    with tempfile.TemporaryDirectory() as scratch:
        notebook.cells.append(nbformat.v4.new_code_cell(_SETTLE))
        client = notebook_client(notebook, timeout=_LIMIT_S, resources={"metadata": {"path": scratch}})
        try:
            client.execute(env=environment, stderr=subprocess.DEVNULL)  # the kernel's own log
        except CellExecutionError as error:
            raise PipelabError(f"{path.name}: a cell failed with {error.ename}: {error.evalue}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise PipelabError(f"{path.name}: {str(error).splitlines()[0]}") from None
    notebook.cells.pop()
    return notebook
