"""Tables for notebooks: text to the left, numbers to the right, as many digits as are worth reading."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from pandas import DataFrame

__all__ = ["NO_FORMULAS", "Table", "breakable", "show_table", "table"]

# The class with which MathJax leaves an element alone: what stands between two dollars is no
# formula there.
NO_FORMULAS = "tex2jax_ignore mathjax_ignore"


@dataclass(frozen=True)
class Table:
    """A data frame that shows itself as `table` does."""

    data: "pd.DataFrame"
    digits: int = 7

    def frame(self) -> "DataFrame":
        """The data frame."""
        return self.data

    def _repr_html_(self) -> str:
        return table(self.data, digits=self.digits)

    def __repr__(self) -> str:
        return self.data.to_string(index=False)


def show_table(rows: Any, digits: int = 7) -> Table:
    """Rows as a table to read.

    Parameters
    ----------
    rows : list of named tuples or dicts, or pandas.DataFrame
        One per row of the table.
    digits : int
        Of numbers that are not whole, at most.

    Returns
    -------
    Table
        Shows itself as HTML in a notebook; `frame()` has the data frame.
    """
    import pandas as pd

    return Table(pd.DataFrame(rows), digits)


def table(
    frame: "DataFrame",
    *,
    raw: bool = False,
    digits: int = 7,
    narrow: bool = False,
    html: Sequence[str] = (),
) -> str:
    """A data frame as HTML.

    Parameters
    ----------
    frame : pandas.DataFrame
    raw : bool
        Cells hold HTML already; otherwise their text is escaped.
    digits : int
        Of numbers that are not whole, at most.
    narrow : bool
        Less room between the columns, where formulas need it.
    html : sequence of str
        Columns whose cells hold HTML where others do not.
    """
    from pandas.api.types import is_float_dtype, is_numeric_dtype

    text = [c for c in frame.columns if not is_numeric_dtype(frame[c])]
    floats = [c for c in frame.columns if is_float_dtype(frame[c])]
    look = [{"selector": "th", "props": [("text-align", "left")]}]
    look += [{"selector": "th, td", "props": [("padding", "0.5em 0.25em")]}] if narrow else []
    style = frame.style.set_properties(subset=text, **{"text-align": "left"}).set_table_styles(look)
    style = style.format(lambda value: _digits(value, digits), subset=floats, na_rep="–")
    # A column of text may hold numbers, too, and they read like all others.
    style = style.format(lambda value: _cell(value, raw, digits), subset=text, na_rep="–")
    style = style.format(subset=list(html)) if html else style
    return style.format_index(breakable, axis="columns").hide(axis="index").to_html()


def breakable(name: object) -> str:
    """A name as HTML that may go on in the next line after an underscore; on a narrow page columns are cut off else."""
    return escape(str(name)).replace("_", "_<wbr>")


def _digits(value: float, digits: int) -> str:
    return f"{value:,.{digits}g}"


def _cell(value: object, raw: bool, digits: int) -> str:
    if isinstance(value, float):
        return _digits(value, digits)
    return str(value) if raw else escape(str(value))
