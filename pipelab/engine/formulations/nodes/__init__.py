"""Identical nodes are interchangeable: the aggregated form without a class for every node.

`kinds` separates what a GPU is from the node that it is in, `rates` has the rates of stages inside one
node and of all others, `views` the classes that are left at one rate, `packing` the rows that keep
stages inside nodes, and `bins` the node of every such stage.
"""
