"""Write what lecturers' pages have from the notebooks: rubrics, labs, and a run of show for every lecture.

python docs/make_instructors.py

It writes all of `docs/points.md` and `docs/lectures.md`, and the table of labs in `docs/instructors.md`. The words of
the rubrics stand in `docs/rubrics.toml`. What the notebooks say is taken from them: what is asked, the questions to
guess at, and what `course.check` says of common mistakes.
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
from pipelab.files.bundled_folders import notebooks_dir

DOCS = Path(__file__).parent
RUBRICS = DOCS / "rubrics.toml"
BEGIN, END = "<!-- labs: made by docs/make_instructors.py -->", "<!-- end of labs -->"
LECTURE = 90  # minutes
# What a lecture does not show: what students do, and what is for readers.
_LEFT_OUT = re.compile(
    "Exercises|Takeaways|Sources|Change it|Optional|What the write-up has|Where to go"
)
_POINTS = """# Points for every exercise

Made by `docs/make_instructors.py`. One point each: for every exercise, for a prediction, and for an answer in words.
*Half* is half a point.
"""
_LECTURES = """# Lectures, minute by minute

Made by `docs/make_instructors.py` from the notebooks. The minutes are each section's share of the lecture, by its words
and lines of code; homework and what only readers need is left out. *Ask* comes before *show*: let everybody write a
prediction down first.
"""


def pages() -> dict[str, str]:
    """Make every page anew: its name and its text."""
    head, rest = (DOCS / "instructors.md").read_text(encoding="utf-8").split(BEGIN)
    books = notebooks_of_the_course()
    return {
        "points.md": _POINTS + "".join(map(_section, books)),
        "lectures.md": _LECTURES + "".join(_lectures(head, books)),
        "instructors.md": f"{head}{BEGIN}\n\n{_labs()}\n{END}{rest.split(END)[1]}",
    }


def _labs() -> str:
    rows = [
        "| lab | function | measured in | 0 points | 1 point |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, lab in EXERCISES.items():
        if isinstance(lab, Lab):
            first = "".join(_cells(f"{name}.ipynb")[0]["source"])
            title = first.split("\n")[0].removeprefix("# Lab: ")
            rows.append(
                f"| [{title[0].upper()}{title[1:]}](../notebooks/{name}.ipynb) | `{lab.signature}` | {lab.measure} | "
                f"{lab.baseline_is} | {lab.best_is} |"
            )
    return "\n".join(rows) + "\n"


def _lectures(page: str, books: tuple[Notebook, ...]) -> Iterator[str]:
    """A table for each lecture that the page for instructors lists with its notebooks."""
    for number, title, named in re.findall(
        r"^(\d)\. \*\*(.*?)\*\* \(([\d, ]+)\)", page, flags=re.M
    ):
        of = [book for book in books if book.number in named.split(", ")]
        steps = [(book, *step) for book in of for step in _steps(book)]
        total, before = sum(weight for *_, weight in steps), 0.0
        yield f"\n## {number}. {title}\n\n| from | show | ask |\n| --- | --- | --- |\n"
        for book, heading, cell, asked, weight in steps:
            at = round(LECTURE * before / total)
            link = f"[{book.number} {heading}](../notebooks/{book.file}#cell-id={cell})"
            yield _row(f"{at // 60}:{at % 60:02}", link, " ".join(asked)) + "\n"
            before += weight


def _steps(book: Notebook) -> Iterator[tuple[str, str, list[str], float]]:
    """Sections of a notebook: heading, cell, questions, and how much there is in them."""
    steps: list[list[Any]] = []
    for cell in _cells(book.file):
        text = "".join(cell["source"])
        for part in re.split(r"(?m)^(?=## )", text):
            if cell["cell_type"] == "markdown" and part.startswith("## "):
                steps.append([part.split("\n")[0].removeprefix("## "), cell["id"], [], 0.0])
            if steps:
                code = cell["cell_type"] == "code"
                steps[-1][2] += _questions([part]) if code else []
                steps[-1][3] += len(part.splitlines()) / 8 if code else len(part.split()) / 130
    for heading, cell_id, asked, weight in steps:
        if not _LEFT_OUT.match(heading):
            yield heading, cell_id, asked, weight


def _cells(file: str) -> list[dict[str, Any]]:
    return json.loads((notebooks_dir() / file).read_text(encoding="utf-8"))["cells"]


def _section(book: Notebook) -> str:
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
    return (
        f"\n## {book.number} {book.title}\n\n*{book.minutes} minutes{after}; "
        f"{len(graded)} graded exercises, {len(rows)} points.* Goals: {'; '.join(listed)}.\n\n"
        "| for | full | half | none |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _questions(texts: list[str]) -> Iterator[str]:
    """What the notebook asks before it tells; a computed part of a question is "…"."""
    for text in texts:
        if "course.guess(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "guess":
                asked = call.args[0]
                parts = asked.values if isinstance(asked, ast.JoinedStr) else [asked]
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts
                )


def _rubric(
    number: str, graded: list[str], optional: set[str], questions: list[str], words: list[str]
) -> Iterator[str]:
    """A row per exercise, and one each for a prediction and an answer in words."""
    marks = tomllib.loads(RUBRICS.read_text(encoding="utf-8"))[number]
    if set(marks) != {*graded, "prediction", "words"}:
        sys.exit(f"rubrics.toml, {number}: expected {', '.join(graded)}, prediction and words")
    for name in graded:
        what = f"{name} {_asked(name)}{', optional' * (name in optional)}"
        yield _row(what, "right", *_half_and_none(name, marks[name]))
    part = marks["prediction"]["asks"]
    asked = [question for question in questions if part in question]
    if len(asked) != 1:
        sys.exit(f"rubrics.toml, {number}: {len(asked)} questions of the notebook have {part!r}")
    if len(words) != 1:
        sys.exit(f"{number}: expected one question in words in the notebook, got {len(words)}")
    for what, text in (("Prediction", asked[0]), ("In words", words[0])):
        row = marks["prediction" if what == "Prediction" else "words"]
        yield _row(f"*{what}*: {text}", row["full"], row["half"], row["none"])


def _half_and_none(name: str, marks: dict[str, Any]) -> tuple[str, str]:
    """In words; of a number, what the check says of the mistakes that it knows."""
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
