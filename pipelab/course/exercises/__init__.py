"""Questions to a reader: predict first, then look; and exercises that check themselves."""

from pipelab.course.exercises.answer import Answer, guess
from pipelab.course.exercises.book import EXERCISES, check
from pipelab.course.exercises.contest import Contest
from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Puzzle
from pipelab.course.exercises.refutation import Refutation
from pipelab.course.exercises.requirement import Requirement

__all__ = [
    "EXERCISES", "Answer", "Contest", "Exercise", "Mistake", "Puzzle", "Refutation", "Requirement", "check", "guess",
]  # fmt: skip
