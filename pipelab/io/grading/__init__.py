"""Grade students' copies of notebooks."""

from pipelab.io.grading.grader import grade, grade_folder

__all__ = ["grade", "grade_folder"]
