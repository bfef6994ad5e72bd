"""The notebooks of the course, and what their heads say of them."""

import json
import re
from dataclasses import dataclass
from functools import cache

from pipelab.errors import InvalidData
from pipelab.files.bundled_folders import notebooks_dir

__all__ = ["Notebook", "notebooks_of_the_course"]


@dataclass(frozen=True)
class Notebook:
    """A notebook of the course, as its first cell describes it."""

    file: str
    title: str
    minutes: int

    @property
    def number(self) -> str:
        """The first two characters of its name."""
        return self.file[:2]


@cache
def notebooks_of_the_course() -> tuple[Notebook, ...]:
    """The bundled notebooks in their order.

    Raises
    ------
    InvalidData
        A notebook's first cell has no title, or no line with its minutes.

    Examples
    --------
    >>> [book.number for book in notebooks_of_the_course()][-1]
    '17'
    """
    books = []
    for path in sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb")):
        head = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        begins = r"# (?P<title>[^\n:?]+).*^\*(?P<minutes>\d+) minutes"
        found = re.match(begins, head, flags=re.S | re.M)
        if not found:
            expected = "expected a title and a line such as '*20 minutes · next: …*'"
            raise InvalidData(f"{path}: the first cell: {expected}")
        books.append(Notebook(path.name, found["title"], int(found["minutes"])))
    return tuple(books)
