"""The joint optimum from counts: how many GPUs of each class, not which ones.

`classes` finds interchangeable GPUs, `rates` how fast stages of each mixture are and the
finitely many rates that an answer can have, `recipes` which mixtures reach a given rate, `packing`
what keeps stages inside nodes. `engine.stages` has what comes of it, and `engine.walk` the program.
"""
