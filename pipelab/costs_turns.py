"""Whole sequences: what sharing a batch means for a stage's rate, and for the time of one pass.

The GPUs of a stage that share a batch of B sequences hold b_i of them each, and b_i need not be
whole: two GPUs and one sequence make a half each. As a *rate* that is no fiction. The GPUs take
turns: at every *interval* (tokens of a pass over the rate) the stage begins with another
microbatch, while an earlier one is still on another of its GPUs. But no sequence is cut: whoever
has its turn works on ⌈b_i⌉ of them. So a *pass* through the stage takes as long as the slowest GPU
needs for ⌈b_i⌉ sequences, which is never less than the interval, and equals it where all b_i are
whole.

A batch of four on two GPUs: 2 and 2, pass and interval are one. A batch of one on two GPUs: a pass
takes what one GPU alone needs, and twice as many passes begin.
"""

from typing import Any

import numpy as np

__all__ = ["pass_time", "whole_sequences"]

_SAME = 1e-9  # shares and times this close to one another differ by the last bits of the arithmetic


def whole_sequences(batch: Any) -> Any:
    """Sequences that a GPU works on in its turn, given its share of the batch; a number or an array.

    Examples
    --------
    >>> whole_sequences(np.array([0.0, 0.5, 2.0, 2.5])).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    return np.ceil(np.maximum(0.0, batch - _SAME * np.maximum(1.0, batch)))


def pass_time(interval: Any, longest: Any) -> Any:
    """The time of a pass: `longest` GPU's turn, but never less than the interval; arrays broadcast.

    `longest` may be an ounce below the interval where it is meant to equal it, and is truly below
    it only where synthetic coefficients make a longer batch quicker than a shorter one.

    Examples
    --------
    >>> pass_time(0.5, 0.75).item(), pass_time(0.5, 0.5 + 1e-16).item()
    (0.75, 0.5)
    """
    return np.where(longest > interval * (1 + _SAME), longest, interval)
