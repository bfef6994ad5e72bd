"""Schedules as torch's CSV: a line per rank, a cell per action, an empty cell for an idle tick."""

import csv
import io
import os
import re
from pathlib import Path
from typing import Any

from pipelab.engine.schedules import validate
from pipelab.errors import InvalidData, InvalidSchedule, InvalidValue
from pipelab.io.csv_cells import path_of, write_to
from pipelab.io.whole_files import named, read_text
from pipelab.schedules import Action, Schedule

# torch also lists when parameters are gathered and gradients reduced, and every send and receive;
# none is part of the order here.
_ASIDE = re.compile(r"\d+(REDUCE_GRAD|UNSHARD|RESHARD|(SEND|RECV)_[FB]\d+)")


def to_csv(schedule: Schedule, path: str | Path | None = None) -> str:
    """Write a schedule as torch's CSV: a line per rank, a cell per action, idle ticks empty.

    Parameters
    ----------
    schedule : Schedule
        Complete or not.
    path : str or Path, optional
        Where to write it, too.

    Returns
    -------
    str
        The text of the file.

    Raises
    ------
    InvalidData
        Nothing can be written there.
    InvalidValue
        If `path` is not a path.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in schedule.actions:
        # A rank that does nothing has one idle tick: a blank line would be no rank at all.
        writer.writerow(["" if action.kind == "IDLE" else str(action) for action in row] or [""])
    if path is not None:
        write_to("to_csv", path, text.getvalue())
    return text.getvalue()


def from_csv(
    source: Any, *, name: str | None = None, microbatches: int | None = None, stage_rank: Any = None
) -> Schedule:
    """Read torch's CSV and validate it.

    Parameters
    ----------
    source : str or Path
        A file, or the text itself where it has more than one line.
    name, microbatches, stage_rank
        What the file does not say; by default taken from its name and its actions.

    Returns
    -------
    Schedule
        Without idle ticks; what torch lists besides (sends and receives, parameters gathered,
        gradients reduced) is left out.

    Raises
    ------
    InvalidData
        The file is not there, or a cell is not an action; names row and column.
    InvalidSchedule
        The file holds a schedule that cannot be run.
    InvalidValue
        If `source` is neither text nor a path.
    TooLarge
        It would take minutes to run; more than a million rounds of actions.
    """
    if isinstance(source, str) and "\n" in source:
        label, text, stem = "the CSV text", source, "from CSV"
    else:
        path = path_of("from_csv", source, field="source")
        label, stem = named(path), path.stem
        text = _text(path, label)
    try:
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InvalidData(f"{label}: cannot be read as CSV ({error})") from None
    rows = [
        [_read(label, r, c, cell) for c, cell in enumerate(line)]
        for r, line in enumerate(lines)
        if line
    ]
    name = stem if name is None else name
    try:
        working = [[action for action in row if action.kind != "IDLE"] for row in rows]
        schedule = Schedule.of(name, working, microbatches=microbatches, stage_rank=stage_rank)
        return validate(schedule)
    except InvalidSchedule as error:
        # A position is counted from 0 and without idle ticks; the action's name is what to look
        # for.
        raise InvalidSchedule(error.defects, f"{label}: this schedule") from None
    except InvalidValue as error:
        raise InvalidData(f"{label}: {error}") from None


def _text(path: Path, label: str) -> str:
    expected = (
        "expected torch's CSV, a line per rank; text instead of a file ends with a line break"
    )
    if not os.path.isfile(path):
        raise InvalidData(f"{label}: there is no such file; {expected}")
    return read_text(path, "CSV")


def _read(label: str, row: int, column: int, cell: str) -> Action:
    try:
        return Action.parse("" if _ASIDE.fullmatch(cell.strip()) else cell)
    except InvalidValue as error:
        _, value, expected = error.problems[0]
        raise InvalidData(
            f"{label}, row {row + 1}, column {column + 1}: {value!r}: {expected}"
        ) from None
