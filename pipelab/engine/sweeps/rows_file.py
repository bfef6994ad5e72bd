"""Rows on disk: a CSV that grows as a sweep runs, from which a later call goes on.

Every row is one line that ends with the method and its options, so that the file explains itself
and the file of another sweep is recognised by its first rows. A line that was cut off by a kill has
no line end: it is removed, and its point is solved again.
"""

import csv
import io
import json
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelab.engine.sweeps.grids_and_mixes import cell, value_of
from pipelab.engine.sweeps.workers import COLUMNS, SweepRow
from pipelab.errors import InvalidData
from pipelab.fields import given
from pipelab.files.csv_rows import Row, place
from pipelab.files.reading_and_writing import path_of, refused


def key_of(point: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what makes two points the same: the text of their values."""
    return tuple(map(cell, point.values()))


class RowsFile:
    """The rows of one sweep in one file.

    Parameters
    ----------
    path : str or Path
    names : sequence of str
        Names of the values of a point.
    method : str
    options : mapping
        Options of the method, plain values.
    """

    def __init__(
        self, path: str | Path, names: Sequence[str], method: str, options: Mapping[str, Any]
    ) -> None:
        self.path = path_of("sweep", path)
        self.names = tuple(names)
        self.settings = {"method": method, "options": json.dumps(dict(options), sort_keys=True)}
        self.header = [*names, *COLUMNS, *self.settings]
        self._file: io.BufferedWriter | None = None

    def read(self, requested: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return the rows of the file by their point's key, the last one if there are several.

        Raises
        ------
        InvalidData
            The file cannot be read, or belongs to another sweep or to none.
        """
        lines = self._whole_lines()
        if not lines:
            return {}
        if (header := lines[0]) != self.header:
            raise self._foreign(
                f"its columns are {', '.join(header)}; expected {', '.join(self.header)}"
            )
        rows = {}
        for number, cells in enumerate(lines[1:], 2):
            row = self._row(number, cells)
            rows[tuple(cells[: len(self.names)])] = row
        foreign = rows.keys() - set(requested)
        if foreign:
            first = next(key for key in rows if key in foreign)
            shown = ", ".join(f"{n} = {v}" for n, v in zip(self.names, first, strict=True))
            raise self._foreign(f"{len(foreign):,} points are not among these, such as {shown}")
        return rows

    def open(self) -> None:
        """Begin to add rows after the last whole line.

        Raises
        ------
        InvalidData
            The file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            whole = self.path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(whole)
            if not whole:
                self._file.write(_line(self.header))
        except (OSError, ValueError) as error:
            raise refused(self.path, "write", error) from None

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row to the open file; when this returns, it is on disk.

        Raises
        ------
        InvalidData
            It cannot be written.
        """
        file = given(self._file)
        try:
            file.write(_line(self._cells(row)))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise refused(self.path, "write", error) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written is known from `add`
                self._file.close()

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        answer = ["" if row[name] is None else cell(row[name]) for name in COLUMNS]
        return [*(cell(row[name]) for name in self.names), *answer, *self.settings.values()]

    def _whole_lines(self) -> list[list[str]]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise refused(self.path, "read", error) from None
        if data and b"\n" not in data and not _line(self.header).startswith(data):
            raise self._foreign("it has no line of a table")
        try:
            text = data[: data.rfind(b"\n") + 1].decode("utf-8-sig")
            csv.field_size_limit(2**31 - 1)  # points and reasons may be longer than 131,072
            return list(csv.reader(text.split("\n")[:-1], strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise self._foreign(f"it cannot be read as CSV ({error})") from None

    def _row(self, number: int, cells: list[str]) -> dict[str, Any]:
        if len(cells) != len(self.header):
            expected = f"expected {len(self.header)}; remove it"
            raise InvalidData(f"{self.path}, row {number}: {len(cells)} cells, {expected}")
        line = Row(self.path, number, dict(zip(self.header, cells, strict=True)))
        for name, asked in self.settings.items():
            text = line.cells[name]
            if _without_time(text) != _without_time(asked):
                raise self._foreign(f"row {number} says {name} {text}, this sweep has {asked}")
        values = {name: value_of(line.cells[name]) for name in COLUMNS if line.cells[name]}
        answer = place(line, {}, lambda: SweepRow(**values))
        return {name: value_of(line.cells[name]) for name in self.names} | vars(answer)

    def _foreign(self, why: str) -> InvalidData:
        return InvalidData(
            f"{self.path} belongs to another sweep: {why}. Give another file, or remove this one"
        )


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _without_time(text: str) -> Hashable:
    """Return a setting without its time limit: a row is valid whatever time it was given."""
    value = value_of(text)
    if not isinstance(value, dict):
        return text
    return json.dumps({k: v for k, v in value.items() if k != "time_limit"})
