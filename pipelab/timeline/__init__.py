"""Times for a schedule: costs in, a timeline with its measures out."""

from pipelab.timeline.costs import StageCosts
from pipelab.timeline.placed import PlacedTimeline
from pipelab.timeline.placements import inference_costs, timeline_of
from pipelab.timeline.simulate import simulate
from pipelab.timeline.timeline import Timeline
from pipelab.timeline.trace import save_chrome_trace
from pipelab.timeline.training import TrainingTimeline

__all__ = [
    "PlacedTimeline",
    "StageCosts",
    "Timeline",
    "TrainingTimeline",
    "inference_costs",
    "save_chrome_trace",
    "simulate",
    "timeline_of",
]
