"""Questions to a reader: predict first, then look; and exercises that check themselves."""

from pipelab.exercises.answer import Answer, guess
from pipelab.exercises.book import EXERCISES, check
from pipelab.exercises.contest import Contest
from pipelab.exercises.exercise import Exercise, Mistake

__all__ = ["EXERCISES", "Answer", "Contest", "Exercise", "Mistake", "check", "guess"]
