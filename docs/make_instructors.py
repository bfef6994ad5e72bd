"""Write the part of `docs/instructors.md` that follows from the notebooks: minutes, goals, rubrics.

python docs/make_instructors.py

The words of the rubrics stand in `docs/rubrics.toml`. What the notebooks say is taken from them: what is
asked, the questions to guess at, and what `course.check` says of common mistakes.
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
from pipelab.files.paths import notebooks_dir

PAGE = Path(__file__).parent / "instructors.md"
RUBRICS = Path(__file__).parent / "rubrics.toml"
BEGIN, END = "<!-- made by docs/make_instructors.py -->", "<!-- end -->"


def page() -> str:
    """The page with its middle made anew."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n{''.join(map(_section, notebooks_of_the_course()))}\n{END}{rest.split(END)[1]}"


def _section(book: Notebook) -> str:
    cells = json.loads((notebooks_dir() / book.file).read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
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
        f"\n### {book.number} {book.title}\n\n*{book.minutes} minutes{after}; "
        f"{len(graded)} graded exercises, {len(rows)} points.* Goals: {'; '.join(listed)}.\n\n"
        "| for | full | half | none |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _questions(texts: list[str]) -> Iterator[str]:
    """What the notebook asks before it tells, where the question is plain text."""
    for text in texts:
        if "course.guess(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "guess":
                asked = call.args[0]
                if isinstance(asked, ast.Constant):
                    yield str(asked.value)


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
    PAGE.write_text(page(), encoding="utf-8")
