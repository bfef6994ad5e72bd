"""Widgets: each wraps functions that can be called by hand; the only room that knows ipywidgets."""

from pipelab.explore.mix import explore_mix
from pipelab.explore.pipeline import explore_pipeline
from pipelab.explore.schedules import explore_schedules
from pipelab.explore.watch import watch_solve

__all__ = ["explore_mix", "explore_pipeline", "explore_schedules", "watch_solve"]
