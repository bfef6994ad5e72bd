"""CSV files as rows that remember where they stand, and as one checked object per row.

Values are checked by their dataclasses (`fields.checked`); this module says where in which file a
refused value is.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache, partial
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pipelab.display import DataFrame
from pipelab.errors import InvalidData, InvalidValue, nearest, refuse_unknown, shown
from pipelab.files.bundled_folders import data_dir
from pipelab.files.reading_and_writing import read_text

# Digits as people write them: Python would also take 4_0 for forty.
NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII
)


class Row(NamedTuple):
    """One line of a CSV file; `number` counts lines from 1, the header included."""

    path: Path
    number: int
    cells: Mapping[str, str]

    def error(self, column: str, value: Any, expected: str) -> InvalidData:
        """Make an error that names file, row, column, value and what was expected."""
        cell = "empty" if value in ("", None) else shown(value)
        return InvalidData(f"{self.path}, row {self.number}, column {column!r}: {cell}: {expected}")


def read_rows(
    path: Path, columns: Sequence[str], *, skipped: int = 0, header: Sequence[str] = ()
) -> list[Row]:
    """Read a CSV file, every cell as stripped text.

    `skipped` lines stand in front of the table; `header` are the columns of a file that does not name them.

    Raises
    ------
    InvalidData
        The file is missing, empty, unreadable, has a ragged row, or lacks one of `columns`.
    """
    reader = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    except csv.Error as error:
        place = f"{path}, row {reader.line_num}"
        raise InvalidData(f"{place}: cannot be read as CSV ({error})") from None
    lines = [(number, cells) for number, cells in lines if any(cells) and number > skipped]
    if not lines:
        expected = f"; expected columns {', '.join(columns)}" if columns else ""
        raise InvalidData(f"{path}: the file is empty{expected}")
    (first, header), *body = [(0, list(header)), *lines] if header else lines
    for column in columns:
        if column not in header:
            others = len(header) == 1 and set(header[0]) & set(";\t|")
            known = "expected commas between columns" if others else nearest(column, header)
            raise InvalidData(f"{path}, row {first}: column {column!r} is missing; {known}")
    for column in header:
        if header.count(column) > 1:
            times = f"occurs {header.count(column)} times, expected once"
            raise InvalidData(f"{path}, row {first}: column {column!r} {times}")
    if not body:
        raise InvalidData(f"{path}: there is no row below the header")
    for number, cells in body:
        if len(cells) != len(header):
            expected = f"expected {len(header)} as in the header"
            raise InvalidData(f"{path}, row {number}: {len(cells)} cells, {expected}")
    return [Row(path, number, dict(zip(header, cells, strict=True))) for number, cells in body]


def read_objects(
    path: Path,
    cls: type,
    *,
    make: Callable[..., Any] | None = None,
    more: Mapping[str, Any] = {},
    renamed: Mapping[str, str] = {},
    others: Sequence[str] = (),
) -> list[tuple[Row, Any]]:
    """Read a CSV file as one checked object per row.

    A field of the class is a column of the same name: of text, of true and false, or of numbers. The
    column of a field with a default may be absent, or a cell of it empty.

    Parameters
    ----------
    path : Path
    cls : type
        A class made by `fields.checked`, whose rules count.
    make : callable, optional
        Makes the object from keyword arguments; by default `cls` itself.
    more : mapping of str to type
        Columns that `make` takes beside the fields, all of them optional.
    renamed : mapping of str to str
        Columns that have another name than their field.
    others : sequence of str
        Columns that must be there, and are left to the caller.

    Returns
    -------
    list of (Row, object)
        In the order of the file.

    Raises
    ------
    InvalidData
        Naming file, row, column and value.
    """
    types = {**get_type_hints(cls, include_extras=True), **more}
    readers = {name: read for name, one in types.items() if (read := _reader(one))}
    required = [f.name for f in fields(cls) if f.default is MISSING and f.name in readers]
    column_of = {name: renamed.get(name, name) for name in readers}
    needed = [*others, *(column_of[name] for name in required)]
    rows = read_rows(path, needed)
    _refuse_misspelt(rows[0], [*others, *column_of.values()])
    objects = []
    for row in rows:
        given = [n for n in readers if n in required or row.cells.get(column_of[n])]
        values = {name: readers[name](row, column_of[name]) for name in given}
        objects.append((row, place(row, column_of, partial(make or cls, **values))))
    return objects


def read_by_name(path: Path, key: str, cls: type, **options: Any) -> dict[str, Any]:
    """Read the objects of a file by the name in the column `key`, of which each stands once."""
    by_name: dict[str, Any] = {}
    for row, one in read_objects(path, cls, others=[key], **options):
        name = row.cells[key]
        if not name or name in by_name:
            raise row.error(key, name, "expected a name that no other row has")
        by_name[name] = one
    return by_name


@cache
def bundled_by_name(file: str, key: str, cls: type) -> dict[str, Any]:
    """Read the objects of a file in `data/` by name, once."""
    return read_by_name(data_dir() / file, key, cls)


def _reader(annotation: Any) -> Callable[[Row, str], Any] | None:
    """Return what reads a field's cells: of text, numbers, or true and false; None if no cell can hold it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _reader(parts[0])
    if origin in (Union, UnionType):
        return next(filter(None, map(_reader, parts)), None)
    readers: dict[Any, Callable[[Row, str], Any]] = {str: _text, bool: flag, int: number}
    return (readers | {float: number, Literal: _text}).get(origin or annotation)


def _text(row: Row, column: str) -> str:
    if not row.cells[column]:
        raise row.error(column, "", "expected a value")
    return row.cells[column]


def number(row: Row, column: str, note: str = "") -> str:
    """Return the text of a cell, which must read as a number; `note` says what it stands for."""
    if not NUMBER.fullmatch(row.cells[column]):
        raise row.error(column, row.cells[column], f"expected a number{note}")
    return row.cells[column]


def flag(row: Row, column: str, note: str = "") -> bool:
    """Read a cell that must say true or false."""
    text = row.cells[column].lower()
    if text not in ("true", "false"):
        raise row.error(column, row.cells[column], f"expected true or false{note}")
    return text == "true"


def _refuse_misspelt(row: Row, known: Sequence[str]) -> None:
    """Refuse an unknown column whose name is close to a known one.

    Raises
    ------
    InvalidData
    """
    absent = [column for column in known if column not in row.cells]
    for column in row.cells:
        meant = [] if column in known else get_close_matches(column, absent, 1, 0.85)
        if meant:
            doubt = f"column {column!r} is not known; did you mean {meant[0]!r}?"
            raise InvalidData(f"{row.path}, row 1: {doubt}")


def place(row: Row, column_of: Mapping[str, str], make: Callable[[], Any]) -> Any:
    """Call `make`; a value it refuses is reported at its place in the file."""
    try:
        return make()
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        raise row.error(column_of.get(field, field), value, expected) from None


def plain(value: Any) -> str:
    """Write a value as text that reads back to the same value, whole numbers without a point."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else repr(float(value))
    return str(value)


def csv_text(header: list, rows: list[list]) -> str:
    """Write a table as the text of a CSV file."""
    import pandas as pd

    return pd.DataFrame(rows, columns=header).to_csv(index=False, lineterminator="\n")


def frame_of(path: Path, index: str) -> DataFrame:
    """Read a CSV as a DataFrame by the rules of `read_rows`: only an empty cell is missing."""
    import pandas as pd

    rows = [row.cells for row in read_rows(path, [index])]
    text = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    return pd.read_csv(StringIO(text), keep_default_na=False, na_values=[""]).set_index(index)


def saved_run(name: str) -> DataFrame:
    """Load a table of measurements that was saved beside the cases.

    Parameters
    ----------
    name : str
        "aggregated_runs": seconds and sizes of the aggregated form on random problems, and beside
        the joint ILP; written by `tests/benchmarks/aggregated.py`.

    Returns
    -------
    pandas.DataFrame
        Columns `series`, `value`, `seed`, `method`, `seconds`, `status`, `throughput` (tokens/s),
        `variables` and `rows`; `notebooks/data.md` explains each.

    Raises
    ------
    UnknownName
        There is no such table.

    Examples
    --------
    >>> import pipelab as pl
    >>> saved_run("aggregated_runs")["method"].iloc[0]
    'aggregated'
    """
    there = sorted(path.stem for path in data_dir().glob("*_runs.csv"))
    refuse_unknown("saved run", name, there)
    return bundled_frame(f"{name}.csv")


def bundled_frame(file: str, **options: Any) -> DataFrame:
    """Read a table of `data/`, with options of `pandas.read_csv`."""
    import pandas as pd

    return pd.read_csv(data_dir() / file, **options)
