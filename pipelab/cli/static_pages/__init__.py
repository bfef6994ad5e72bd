"""A copy of the notebooks that reads without installing: pages with their figures alive, beside one plotly.js."""

from pipelab.cli.static_pages.site import static_copy

__all__ = ["static_copy"]
