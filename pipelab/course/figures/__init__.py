"""Figures that one notebook alone uses."""
