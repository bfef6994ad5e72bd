"""Figures: results in, a plotly figure out; nothing is shown, printed or set globally."""
