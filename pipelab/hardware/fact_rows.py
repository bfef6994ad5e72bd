"""From a row of a table of facts to a checked object; an empty cell leaves a field at its default."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipelab.io.csv_cells import Row, number, place, read_rows, refuse_misspelt


def facts_from(
    path: Path,
    key: str,
    make: Callable,
    required: Sequence[str],
    optional: Sequence[str] = (),
    texts: Collection[str] = (),
    flags: Collection[str] = (),
) -> dict:
    """One object per row, by name, in the order of the file.

    Parameters
    ----------
    key : str
        Column of the name; each stands once.
    make : function of the name and a dict of values
        Numbers come as text, for the class to check; raises `InvalidValue`.
    required, optional : sequences of str
        Columns that must be there, and filled in every row; and those that may.
    texts, flags : collections of str
        Columns that are text, or true and false; all others are numbers.

    Raises
    ------
    InvalidData
        Naming file, row, column and value.
    """
    found: dict = {}
    rows = read_rows(path, [key, *required])
    refuse_misspelt(rows[0], [key, *required, *optional])
    for row in rows:
        name = row.cells[key]
        if not name or name in found:
            raise row.error(key, name, "expected a name that no other row has")
        for column in required:
            if not row.cells[column]:
                raise row.error(column, "", "expected a value: nothing can be computed without it")
        there = [c for c in (*required, *optional) if row.cells.get(c)]
        values = {c: _value(row, c, texts, flags) for c in there}
        found[name] = place(row, {}, partial(make, name, values))
    return found


def _value(row: Row, column: str, texts: Collection[str], flags: Collection[str]) -> Any:
    text = row.cells[column]
    if column in texts:
        return text
    if column in flags:
        if text.lower() not in ("true", "false"):
            raise row.error(column, text, "expected true or false")
        return text.lower() == "true"
    return number(row, column)
