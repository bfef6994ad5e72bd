"""Placement for training: the placement whose step takes least time under a schedule, proven."""

from pipelab.engine.training.compared import schedules_for
from pipelab.engine.training.result import TrainingResult

__all__ = ["TrainingResult", "schedules_for"]
