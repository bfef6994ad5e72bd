"""The least time of one pass under a floor of throughput: stages and links that add up.

`times` lists what a stage of every composition of classes takes, and a hop between any two;
`sequence` counts stages where all layers are identical, `path` leads through the layers where they
differ. Stages and links that miss the floor are not there to be chosen.
"""
