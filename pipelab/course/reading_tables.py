"""Rows as tables to read in a notebook."""

from dataclasses import dataclass
from typing import Any

from pipelab.display import DataFrame, data_frame, table


@dataclass(frozen=True)
class ShownTable:
    """A data frame that shows itself as `table` does."""

    data: DataFrame
    digits: int = 4

    def to_frame(self) -> DataFrame:
        """The data frame."""
        return self.data

    def _repr_html_(self) -> str:
        return table(self.data, digits=self.digits)

    def __repr__(self) -> str:
        return self.data.to_string(index=False)


def show_table(rows: Any, digits: int = 4) -> ShownTable:
    """Rows as a table to read.

    Parameters
    ----------
    rows : list of named tuples or dicts, or pandas.DataFrame
        One per row of the table.
    digits : int
        Of numbers that are not whole, at most; whole digits are never rounded away.

    Returns
    -------
    ShownTable
        Shows itself as HTML in a notebook; `to_frame()` has the data frame.
    """
    return ShownTable(data_frame(rows), digits)
