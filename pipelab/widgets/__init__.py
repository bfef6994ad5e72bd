"""Widgets: each wraps functions that can be called by hand; the only package that imports ipywidgets."""

from pipelab.widgets.mix_explorer import explore_mix
from pipelab.widgets.pipeline_explorer import explore_pipeline
from pipelab.widgets.schedule_explorer import explore_schedules
from pipelab.widgets.watch import watch_solve

__all__ = ["explore_mix", "explore_pipeline", "explore_schedules", "watch_solve"]
