"""Write into the head of every notebook how long it takes: `python tests/make_minutes.py`.

The minutes are those of a newcomer who reads all that is not optional, looks at every figure and table and does the
exercises. Two readers of all twenty notebooks estimated what each takes them. The rule below is within a fifth of their
mean for every notebook. (Before it counted tables, and only half a minute for a figure, it was too low where a notebook
shows much in few words: by a third in 08.)

A notebook of more than an hour has two sittings, one of more than two hours three. Each is at most as long as a
lecture, and its head names the headings at which to stop. Headings that are named there stay while their number is
right. Otherwise they are those that divide the minutes most evenly.
"""

import re
from itertools import combinations, pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

import nbformat

from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Construction, Function

WORDS, LINES = 100, 4  # a minute
FORMULA = 4  # minutes for a formula on a line of its own, or one in the text that is LONG
LONG = 25  # characters
NUMBER, WRITTEN, BUILT = 5, 10, 25  # minutes for a number, a function, something to construct
SEEN, ASKED = 1.5, 1  # minutes for a figure, a table or a widget, and for a prediction
HOUR, LECTURE, ROUND = 60, 75, 5  # minutes

HEAD = re.compile(r"^\*\d+ minutes(, in (two|three) sittings: .+?, then \d+)?", re.M)
WIDGET = re.compile(r"pl\.explore_\w+\(|^@course\.interact", re.M)
_FIGURE = re.compile(r"pl\.(plot|gantt)\(|course\.(plot|show)_|pl\.certificate\(|px\.\w+\(")
_EXERCISE = re.compile(r"^\*\*\d\.\*\* (\*Optional\.\*)?", re.M)
_OPTIONAL = re.compile(r"## (Optional|Sources)|## .*\n\n\*Optional")


class Section(NamedTuple):
    """A heading of a notebook, "" for what stands above the first, and the minutes for what is below it."""

    heading: str
    minutes: float


def sections(path: Path) -> list[Section]:
    """Every heading of a notebook with its minutes; what is optional takes none."""
    found, skipped, spare = [Section("", 0.0)], False, False  # spare: of an optional exercise
    for cell in nbformat.read(path, as_version=4).cells:
        text, code = cell.source, cell.cell_type == "code"
        for part in [text] if code else re.split(r"(?m)^(?=## )", text):
            if not code and part.startswith("## "):
                found.append(Section(part.split("\n")[0].removeprefix("## "), 0.0))
                skipped, spare = bool(_OPTIONAL.match(part)), False
            if not code and (exercise := _EXERCISE.search(part)):
                spare = bool(exercise[1])
            if not skipped and not spare:
                heading, minutes = found[-1]
                takes = _of_code(cell) if code else _of_text(part)
                found[-1] = Section(heading, minutes + takes)
    return found


def _of_text(text: str) -> float:
    """Words and formulas, without folded solutions."""
    text = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    shown = re.findall(r"\$\$.+?\$\$", text, flags=re.S)
    rest = re.sub(r"\$\$.+?\$\$", "", text, flags=re.S)
    long = [tex for tex in re.findall(r"\$([^$\n]+)\$", rest) if len(tex) > LONG]
    return len(rest.split()) / WORDS + FORMULA * (len(shown) + len(long))


def _of_code(cell: nbformat.NotebookNode) -> float:
    """Lines without imports, and what they show or ask; of folded takeaways the words."""
    text, folded = cell.source, cell.metadata.get("jupyter", {}).get("source_hidden")
    if asked := re.search(r'course\.check\("(.*?)"', text):
        exercise = EXERCISES[asked[1]]
        kinds = ((Function, WRITTEN), (Construction, BUILT))
        return next((takes for kind, takes in kinds if isinstance(exercise, kind)), NUMBER)
    seen = SEEN * bool(WIDGET.search(text) or _FIGURE.search(text))
    if folded:
        read = len(text.split()) / WORDS if "Markdown(f" in text else 0
        return read + seen + ASKED * ("course.guess(" in text)
    return len(re.findall(r"^(?!from |import |guess_).*\S", text, flags=re.M)) / LINES + seen


def head(path: Path) -> str:
    """What the head of a notebook says of its minutes, as it should be."""
    parts = sections(path)
    total = _rounded(sum(part.minutes for part in parts))
    if total <= HOUR:
        return f"*{total} minutes"
    before, ends = 0.0, {}  # minutes before each heading
    for part in parts:
        ends[part.heading] = before
        before += part.minutes
    sittings = ceil(total / HOUR)
    said = HEAD.search(nbformat.read(path, as_version=4).cells[0].source)
    pauses = tuple(re.findall(r"up to “(.+?)”", said[0])) if said else ()
    if len(pauses) != sittings - 1 or not set(pauses) <= set(ends):
        pauses = min(
            combinations(list(ends)[1:], sittings - 1),
            key=lambda stops: _uneven(stops, ends, before),
        )
    until = [0, *(_rounded(ends[pause]) for pause in pauses)]
    takes = [
        f"{b - a} up to “{pause}”" for (a, b), pause in zip(pairwise(until), pauses, strict=True)
    ]
    number = {2: "two", 3: "three"}[sittings]
    return f"*{total} minutes, in {number} sittings: {', '.join(takes)}, then {total - until[-1]}"


def _uneven(stops: tuple[str, ...], ends: dict[str, float], total: float) -> float:
    times = [0.0, *(ends[stop] for stop in stops), total]
    return sum((later - earlier) ** 2 for earlier, later in pairwise(times))


def _rounded(minutes: float) -> int:
    return ROUND * round(minutes / ROUND)


if __name__ == "__main__":
    for path in sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        first = notebook.cells[0]
        first.source = first.source.replace(HEAD.search(first.source)[0], head(path))
        nbformat.write(notebook, path)
