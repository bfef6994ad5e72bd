"""Write the part of `docs/instructors.md` that follows from the notebooks: minutes, goals, exercises.

python docs/make_instructors.py
"""

import json
import re
from pathlib import Path

from pipelab.course import notebooks_of_the_course
from pipelab.course.exercises.book import EXERCISES
from pipelab.course.exercises.exercise import Exercise
from pipelab.io.paths import notebooks_dir

PAGE = Path(__file__).parent / "instructors.md"
BEGIN, END = "<!-- made by docs/make_instructors.py -->", "<!-- end -->"


def page() -> str:
    """The page with its middle made anew."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n{''.join(map(_section, notebooks_of_the_course()))}\n{END}{rest.split(END)[1]}"


def _section(book) -> str:
    cells = json.loads((notebooks_dir() / book.file).read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    goals = next(text for text in texts if text.startswith("**In this notebook you will**"))
    listed = re.findall(r"^\d\. (.*?)[.,]?$", goals, flags=re.M)
    before = re.search(r"previous: \[(\d\d)", texts[0])
    graded = [name for name in EXERCISES if name.startswith(f"{book.number}.")]
    spare = re.findall(r"^\*\*(\d)\.\*\* \*Optional", "\n".join(texts), flags=re.M)
    points = "; ".join(
        f"{name} {_asked(name)}{', optional' * (name[-1] in spare)}" for name in graded
    )
    after = f", after {before[1]}" if before else ""
    return (
        f"\n### {book.number} {book.title}\n\n*{book.minutes} minutes{after}; "
        f"{len(graded)} points.* Goals: {'; '.join(listed)}.\n\nGraded: {points}.\n"
    )


def _asked(name: str) -> str:
    exercise = EXERCISES[name]
    if isinstance(exercise, Exercise):
        return f"(a number{', in ' + exercise.unit if exercise.unit else ''})"
    signature = getattr(exercise, "signature", "")
    kind = {"Contest": "a schedule", "Refutation": "a placement", "SmallestMix": "a mix of GPUs"}
    return f"(`{signature}`)" if signature else f"({kind[type(exercise).__name__]})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
