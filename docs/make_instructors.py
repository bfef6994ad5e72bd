"""Write what lecturers' pages have from the notebooks: rubrics and labs.

python docs/make_instructors.py

It writes all of `docs/points.md`, and the table of labs in `docs/instructors.md`. The words of the rubrics stand in
`docs/rubrics.toml`. What the notebooks say is taken from them: what is asked, the questions to guess at, and what
`course.check` says of common mistakes.
"""

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Construction, Number
from pipelab.course.outline import Notebook, notebooks_of_the_course
from pipelab.course.scored_labs import Lab
from pipelab.display import counted
from pipelab.files.bundled_folders import notebooks_dir

DOCS = Path(__file__).parent
RUBRICS = DOCS / "rubrics.toml"
BEGIN, END = "<!-- labs: made by docs/make_instructors.py -->", "<!-- end of labs -->"
_POINTS = """# Points for every exercise

Made by `docs/make_instructors.py`. A point stands for ten minutes of work: a number has one, a function or something
to find has three, a lab has twelve, an answer in words has one. *Half* is half of them.

A **prediction** has one point if it was written down with a reason before its answer was shown. Right and wrong ones
earn the same: whoever is afraid of being wrong copies. Without a reason it is half a point.

Points of what is optional come on top of those that a notebook has.
"""


def pages() -> dict[str, str]:
    """Make every page anew: its name and its text."""
    head, rest = (DOCS / "instructors.md").read_text(encoding="utf-8").split(BEGIN)
    return {
        "points.md": _POINTS + "".join(map(_points_of, notebooks_of_the_course())),
        "instructors.md": f"{head}{BEGIN}\n\n{_labs()}\n{END}{rest.split(END)[1]}",
    }


def _labs() -> str:
    rows = [
        "| lab | function | measured in | 0 points | all points |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {_named(name)} | `{lab.signature}` | {lab.measure} | {lab.baseline_is} | {lab.best_is} |"
        for name, lab in EXERCISES.items()
        if isinstance(lab, Lab)
    ]
    return "\n".join(rows) + "\n"


def _named(lab: str) -> str:
    """Return a lab's title with a link."""
    title = "".join(_cells(f"{lab}.ipynb")[0]["source"]).split("\n")[0].removeprefix("# Lab: ")
    return f"[{title[0].upper()}{title[1:]}](../notebooks/{lab}.ipynb)"


def _cells(file: str) -> list[dict[str, Any]]:
    return json.loads((notebooks_dir() / file).read_text(encoding="utf-8"))["cells"]


def _points_of(book: Notebook) -> str:
    texts = ["".join(cell["source"]) for cell in _cells(book.file)]
    goals = next(text for text in texts if text.startswith("**In this notebook you will**"))
    listed = re.findall(r"^\d\. (.*?)[.,]?$", goals, flags=re.M)
    before = re.search(r"previous: \[(\d\d)", texts[0])
    graded = [name for name in EXERCISES if name.startswith(f"{book.number}.")]
    after = f", after {before[1]}" if before else ""
    spare = re.findall(r"^\*\*(\d)\.\*\* \*Optional", "\n".join(texts), flags=re.M)
    optional = {name for name in graded if name[-1] in spare}
    words = re.findall(r"^\*\*In words\.\*\* (.*)$", "\n".join(texts), flags=re.M)
    rows = [*_rubric(book.number, graded, optional, list(_questions(texts)), words)]
    points = 2 + sum(EXERCISES[name].worth for name in graded if name not in optional)
    return (
        f"\n## {book.number} {book.title}\n\n*{book.minutes} minutes{after}; "
        f"{counted(points, 'point')}.* Goals: {'; '.join(listed)}.\n\n"
        "| for | points | full | half | none |\n| --- | --- | --- | --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )


def _questions(texts: list[str]) -> Iterator[str]:
    """Yield what the notebook asks before it tells."""
    for text in texts:
        if "course.guess(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "guess":
                asked = call.args[0]
                if not isinstance(asked, ast.Constant):  # pages show it without running a cell
                    sys.exit(f"a question needs a number from its cell: {ast.unparse(asked)}")
                yield str(asked.value)


def _rubric(
    number: str, graded: list[str], optional: set[str], questions: list[str], words: list[str]
) -> Iterator[str]:
    """Yield a row per exercise, and one each for a prediction and an answer in words."""
    marks = tomllib.loads(RUBRICS.read_text(encoding="utf-8"))[number]
    if set(marks) != {*graded, "prediction", "words"}:
        sys.exit(f"rubrics.toml, {number}: expected {', '.join(graded)}, prediction and words")
    for name in graded:
        what = f"{name} {_asked(name)}{', optional' * (name in optional)}"
        yield _row(what, str(EXERCISES[name].worth), "right", *_half_and_none(name, marks[name]))
    guess, said = marks["prediction"], marks["words"]
    asked = [question for question in questions if guess["asks"] in question]
    if len(asked) != 1:
        sys.exit(
            f"rubrics.toml, {number}: {len(asked)} questions of the notebook have {guess['asks']!r}"
        )
    if len(words) != 1:
        sys.exit(f"{number}: expected one question in words in the notebook, got {len(words)}")
    full = f"a guess with a reason; the right one: {guess['reason']}"
    yield _row(f"*Prediction*: {asked[0]}", "1", full, "a guess alone", "none")
    yield _row(f"*In words*: {words[0]}", "1", said["full"], said["half"], said["none"])


def _half_and_none(name: str, marks: dict[str, Any]) -> tuple[str, str]:
    """Return both in words; of a number, what the check says of the mistakes that it knows."""
    exercise = EXERCISES[name]
    if not isinstance(exercise, Number):
        return marks["half"], marks["none"]
    half, none = (
        "; ".join(f"“{says}”" for says in group) for group in (exercise.half, exercise.mistakes)
    )
    return half, f"{none}; any other" if none else "any other"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _asked(name: str) -> str:
    exercise = EXERCISES[name]
    if isinstance(exercise, Number):
        return f"(a number{', in ' + exercise.unit if exercise.unit else ''})"
    if isinstance(exercise, Construction):
        return f"({exercise.asks})"
    return f"(`{exercise.signature}`)"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
