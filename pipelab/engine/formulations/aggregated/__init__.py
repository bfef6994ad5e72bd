"""The joint optimum from counts: how many GPUs of each class, not which ones.

`classes` finds interchangeable GPUs, `rates` how fast stages of each mixture are and the
finitely many rates that an answer can have, `recipes` which mixtures reach a given rate,
`order` which stage may follow which at that rate, `counting` and `layered` the small integer
program that asks whether a placement reaches it, `read_back` turns its answer into GPUs.
"""
