"""Schedules as torch's CSV: a line per rank, a cell per action, an empty cell for an idle tick."""

import csv
import io

from pipelab.schedules import Schedule


def to_csv(schedule: Schedule) -> str:
    """Write a schedule, complete or not, as the text that torch reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in schedule.actions:
        # A rank that does nothing has one idle tick: a blank line would be no rank at all.
        writer.writerow(["" if action.kind == "IDLE" else str(action) for action in row] or [""])
    return text.getvalue()
