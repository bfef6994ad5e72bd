"""Placement for training: the placement whose step takes least time under a schedule, proven."""

from pipelab.engine.training.result import TrainingResult, schedules_for

__all__ = ["TrainingResult", "schedules_for"]
