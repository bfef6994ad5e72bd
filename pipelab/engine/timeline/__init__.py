"""Times for a schedule: costs in, a timeline with its measures out."""

from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.placement_timelines import (
    PlacedTimeline,
    TrainingTimeline,
    timeline_of,
    training_timeline,
)
from pipelab.engine.timeline.timeline import Timeline, simulate

__all__ = [
    "PlacedTimeline",
    "StageCosts",
    "Timeline",
    "TrainingTimeline",
    "simulate",
    "timeline_of",
    "training_timeline",
]
