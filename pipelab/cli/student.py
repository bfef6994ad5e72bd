"""The notebooks as students get them: without solutions, and without answers to the questions in words."""

import re
from typing import Any

_FOLD = re.compile(
    r"<details>\s*<summary>(Solution|An answer)</summary>.*?</details>\s*", flags=re.S
)


def is_solution(name: str) -> bool:
    """Say whether a notebook has solutions only, by its path among the notebooks."""
    return name.startswith("solutions/")


def without_solutions(notebook: dict[str, Any]) -> dict[str, Any]:
    """Take the folded solutions out of a notebook, and the cells that hold nothing else.

    Parameters
    ----------
    notebook : dict
        As `json` or `nbformat` reads it; it is changed.

    Returns
    -------
    dict
        The notebook.
    """
    cells = notebook["cells"]
    for cell in cells:
        if cell["cell_type"] == "markdown":
            cell["source"] = _FOLD.sub("", "".join(cell["source"])).rstrip()
    notebook["cells"] = [
        cell for cell in cells if cell["cell_type"] != "markdown" or cell["source"]
    ]
    return notebook
