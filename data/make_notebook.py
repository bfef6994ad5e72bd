"""Write notebooks/data.ipynb from data/README.md: `python data/make_notebook.py`.

JupyterLab, Voilà and the static copy show notebooks, and nothing above their folder; so what the
columns mean is a notebook, too. The text is kept in README.md alone.
"""

import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACK = "*Back to [00 Start here](00_start_here.ipynb) · made from `data/README.md`*"


def notebook(text: str) -> str:
    """The notebook's file: a cell per section, and per paragraph where a section has no table."""
    # dollars of money are no formula
    sections = re.split(r"\n(?=##)", text.strip().replace("$", r"\$"))
    cells = []
    for section in sections:
        head, *paragraphs = section.strip().split("\n\n")
        parts = (
            [section.strip()]
            if "\n|" in section
            else ["\n\n".join([head, *paragraphs[:1]]), *paragraphs[1:]]
        )
        cells += parts
    cells.insert(1, BACK)
    made = {
        "cells": [
            {
                "cell_type": "markdown",
                "id": str(i),
                "metadata": {},
                "source": source.splitlines(keepends=True),
            }
            for i, source in enumerate(cells)
        ],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    text = notebook((HERE / "README.md").read_text(encoding="utf-8"))
    (HERE.parent / "notebooks" / "data.ipynb").write_text(text, encoding="utf-8")
