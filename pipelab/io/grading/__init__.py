"""Grade a student's copy of a notebook."""

from pipelab.io.grading.grader import grade

__all__ = ["grade"]
