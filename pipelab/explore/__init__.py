"""Widgets: each wraps functions that can be called by hand; the only room that knows ipywidgets."""

from pipelab.explore.schedules import explore_schedules

__all__ = ["explore_schedules"]
