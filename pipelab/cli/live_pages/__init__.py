"""Explorers as pages of one file, whose sliders look up answers that were computed beforehand."""
