"""One file with sliders, a chart and words: every position of the sliders was computed beforehand, and is looked up.

Charts of neighbouring positions differ in little, so each part of a chart is written once, and a position is a list
of the parts that it shows. All are compressed; browsers undo that themselves.
"""

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidValue
from pipelab.figures.html_charts import as_json, plotly_js, template_json
from pipelab.files.reading_and_writing import path_of, write_to

MOST_POSITIONS = 1200
_MOST_BYTES = 8_000_000  # of a page, of which plotly.js takes 4.8 million
_HERE = Path(__file__).parent
_CHART = _HERE.parents[1] / "widgets" / "live_chart.js"
_EXPORT = "export default { render };"


class Axis(NamedTuple):
    """A control of the page: its name in code and in links, and the values that it takes."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_number(self) -> bool:
        """Whether it is a slider; else a menu."""
        return all(isinstance(value, int | float) for value in self.values)


class Answer(NamedTuple):
    """What the page shows at one position: a chart, words in HTML below it, and the code that makes it again."""

    chart: dict
    words: str
    code: str


def positions(what: str, axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return the values at every position of the axes, the last one changing first.

    Raises
    ------
    InvalidValue
        There are too many for a page.
    """
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POSITIONS:
        expected = f"expected at most {MOST_POSITIONS:,}; give shorter ranges"
        raise InvalidValue(what, [("combinations", f"{count:,}", expected)])
    names = [axis.name for axis in axes]
    combinations = product(*(axis.values for axis in axes))
    return [dict(zip(names, values, strict=True)) for values in combinations]


def write_page(
    path: str | Path, title: str, axes: Sequence[Axis], answers: Iterable[Answer], made_by: str
) -> Path:
    """Write the page; its file is replaced whole.

    Parameters
    ----------
    axes : sequence of Axis
    answers : iterable of Answer
        In the order of `positions`.
    made_by : str
        The command, and the version.

    Returns
    -------
    Path

    Raises
    ------
    InvalidValue
        The page would be larger than 8 MB.
    """
    path = path_of("page", path)
    parts: dict[str, int] = {}  # each text once, by the order in which they first came

    def number(text: str) -> int:
        return parts.setdefault(text, len(parts))

    def numbers(drawn: Mapping[str, Any]) -> list[int]:
        return [number(f"{json.dumps(name)}:{json.dumps(x)}") for name, x in drawn.items()]

    shown = []
    for answer in answers:
        drawn = json.loads(as_json(answer.chart))
        shown.append(
            {
                "data": [numbers(trace) for trace in drawn["data"]],
                "layout": numbers(drawn["layout"]),
                "words": number(answer.words),
                "code": number(answer.code),
            }
        )
    data = {
        "axes": [axis._asdict() | {"slider": axis.is_number} for axis in axes],
        "parts": list(parts),
        "answers": shown,
        "look": template_json(),
    }
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    chart = _CHART.read_text(encoding="utf-8")
    for name, text in {
        "TITLE": escape(title),
        "COUNT": f"{len(shown):,}",
        "MADE_BY": escape(made_by),
        "CHART": chart.replace(_EXPORT, ""),
        "DATA": base64.b64encode(packed).decode("ascii"),
        "PLOTLY": plotly_js(),
    }.items():
        page = page.replace(f"<!--{name}-->", text)
    content = page.encode("utf-8")
    if len(content) > _MOST_BYTES:
        expected = f"expected at most {_MOST_BYTES / 1e6:g} MB; give shorter ranges"
        raise InvalidValue("page", [("size", f"{len(content) / 1e6:.1f} MB", expected)])
    return write_to("page", path, content)
