"""What a page needs for charts: plotly.js, the package's template, drawings as JSON.

A FigureWidget checks every property of every drawing, sends all of plotly.js with every chart, and
has the page send back what it made of each change. A live chart (`pipelab.widgets.chart`) sends one
text and gets back no more than the part that is zoomed to.
"""

import base64
import json
from functools import cache
from typing import Any

import numpy as np

from pipelab.display import Figure
from pipelab.figures.theme import as_dict, template


@cache
def plotly_js() -> str:
    """Return the plotly.js that the installed plotly brings along; nothing is fetched from elsewhere."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


@cache
def template_json() -> str:
    """Return the package's template, which every live chart sends once."""
    return json.dumps(template().to_plotly_json(), default=_encode)


def as_json(parts: "dict | Figure") -> str:
    """Return a drawing as plotly.js reads it; arrays as base64, which neither side reads number by number.

    Parameters
    ----------
    parts : dict of "data" and "layout", or Figure
        Values may be numpy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> as_json({"data": [{"x": np.array([1, 2], dtype="i1")}], "layout": {}})
    '{"data": [{"x": {"dtype": "i1", "bdata": "AQI="}}], "layout": {}}'
    """
    return json.dumps(as_dict(parts), default=_encode, allow_nan=False)


def _encode(value: Any) -> Any:
    """Encode what json does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a drawing cannot hold a {type(value).__name__}")
    if value.dtype.kind not in "iuf" or value.ndim > 3:
        return value.tolist()
    kind = value.dtype.str[1:]
    if kind in ("i8", "u8"):  # plotly.js knows no whole numbers of 64 bits
        kind = "i4" if np.array_equal(value.astype("i4"), value) else "f8"
    text = base64.b64encode(np.ascontiguousarray(value, dtype="<" + kind).tobytes()).decode("ascii")
    shape = {"shape": ",".join(map(str, value.shape))} if value.ndim > 1 else {}
    return {"dtype": kind, "bdata": text} | shape
