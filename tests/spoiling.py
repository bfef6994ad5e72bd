"""Files with a few things done to them."""

import csv
import io
import warnings
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import pipelab as pl

ODD = (
    "", " ", "0", "-0", "-1", "1", "2.5", "1e3", "1e-400", "1e400", "1e308", "1000000000", "999999", "1_000", "0x10",
    "٣", "½", "nan", "inf", "-inf", "∞", "None", "true", "TRUE", "1,5", "1;2", "=1+1", "'", '"', '""', "a\nb", "\x00",
    "\ufeff", "9" * 400, "9" * 5000, "x" * 140_000, "é", "\u202e", "gpu_0", "A100", "0F0", "(0F0;0B0)OVERLAP_F_B",
    "99999999999F0", "[]", "{}", "[[[[",
)  # fmt: skip
CHANGES = ["digit", "swap", "drop", "double", "rows", "out", "again", "columns", "add"]
CHANGES += 3 * ["odd"]
BYTES = b'\x00 \xff \xfe\xff \xef\xbb\xbf \r \r\n \n\n " , \xc3 \x1a'.split(b" ")
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig", "cp1252")


def table_of(text: str) -> list[list[str]]:
    """The cells of a CSV text."""
    return list(csv.reader(io.StringIO(text)))


def written(table: list[list[str]]) -> str:
    """A table as CSV text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    return text.getvalue()


@st.composite
def spoilt(draw, text: str) -> bytes:
    """A valid file with a few things done to it, or something that never was one."""
    whole = draw(st.integers(0, 11))
    if whole == 0:
        return draw(st.binary(max_size=200))
    if whole == 1:
        return draw(st.text(st.characters(codec="utf-8"), max_size=200)).encode()
    table = table_of(text)
    for _ in range(draw(st.integers(1, 3))):
        _spoil(draw, table)
    data = written(table).encode("utf-8", "surrogatepass")
    if whole == 2:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.sampled_from(BYTES)) + data[at:]
    if whole == 3:
        data = data[: draw(st.integers(0, len(data)))]
    if whole == 4:
        data = written(table).encode(draw(st.sampled_from(ENCODINGS)), "replace")
    return data


def _spoil(draw, table: list[list[str]]) -> None:
    """Change a table in one place."""
    if not table:
        return
    i, j = (draw(st.integers(0, len(table) - 1)) for _ in range(2))
    row = table[i]
    c = draw(st.integers(0, max(len(row) - 1, 0)))
    match draw(st.sampled_from(CHANGES)):
        case "odd" if row:
            row[c] = draw(st.sampled_from(ODD))
        case "digit" if row:  # a number that is nearly the same
            row[c] = (
                draw(st.sampled_from(["-", "", "1", "0", " ", "e5", "."]))
                + row[c]
                + draw(st.sampled_from(["", "0", "e3", "%"]))
            )
        case "swap" if row and table[j]:
            d = min(c, len(table[j]) - 1)
            row[c], table[j][d] = table[j][d], row[c]
        case "drop" if row:
            del row[c]
        case "double" if row:
            row.insert(c, row[c])
        case "rows":
            table[i], table[j] = table[j], table[i]
        case "out":
            del table[i]
        case "again":
            table.insert(j, list(row))
        case "columns":  # every row alike, header included
            for line in table:
                if c < len(line):
                    del line[c]
        case "add":
            for line in table:
                line.append("1")


def read_or_refused(load: Callable[[], Any], name: str) -> Any:
    """Return what was read, or None where a sentence of pipelab's own refuses it, with the name of what is bad data."""
    with warnings.catch_warnings(
        action="ignore"
    ):  # a parameter that nobody reads is said, and no fault
        try:
            return load()
        except pl.PipelabError as error:
            message, of_data = str(error), isinstance(error, pl.errors.InvalidData)
    assert len(message) < 3000, f"{len(message)} characters are no sentence: {message[:200]} …"
    assert message.isprintable()
    assert name in message or not of_data, message
    return None
