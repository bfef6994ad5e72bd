"""What only restates published work: by what users ask for, imported when first used.

All of it lies in `pipelab/course/ledger`, and no module below the course imports it.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

_FOLDER = "pipelab.course.ledger"
REPRODUCTIONS = {
    "method='type_count'": "type_count:solve_type_count",
    "segments='as_run'": "author_segments:segments_as_run",
    "a case of the newest form": "newest_cases:newest_case",
}


def reproduction(asked: str) -> Callable[..., Any]:
    """Import the function behind one of `REPRODUCTIONS`.

    Examples
    --------
    >>> reproduction("method='type_count'").__name__
    'solve_type_count'
    """
    return resolve_name(f"{_FOLDER}.{REPRODUCTIONS[asked]}")
