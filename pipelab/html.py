"""Tables for notebooks: text to the left, numbers to the right, as many digits as are worth reading."""

from dataclasses import dataclass

__all__ = ["Table", "show_table", "table"]


@dataclass(frozen=True)
class Table:
    """A data frame that shows itself as `table` does."""

    data: object

    def frame(self):
        """The data frame."""
        return self.data

    def _repr_html_(self) -> str:
        return table(self.data)

    def __repr__(self) -> str:
        return self.data.to_string(index=False)


def show_table(rows) -> Table:
    """Rows (named tuples, dicts or a data frame) as a table to read."""
    import pandas as pd

    return Table(pd.DataFrame(rows))


def table(frame, *, raw: bool = False) -> str:
    """A data frame as HTML.

    Parameters
    ----------
    frame : pandas.DataFrame
    raw : bool
        Cells hold HTML already; otherwise their text is escaped.
    """
    from pandas.api.types import is_float_dtype, is_numeric_dtype

    text = [c for c in frame.columns if not is_numeric_dtype(frame[c])]
    floats = [c for c in frame.columns if is_float_dtype(frame[c])]
    left = [{"selector": "th", "props": [("text-align", "left")]}]
    style = frame.style.set_properties(subset=text, **{"text-align": "left"}).set_table_styles(left)
    style = style.format(_digits, subset=floats, na_rep="–")
    style = style.format(subset=text, escape=None if raw else "html", na_rep="–")
    return style.hide(axis="index").to_html()


def _digits(value: float) -> str:
    return f"{value:,.7g}"
