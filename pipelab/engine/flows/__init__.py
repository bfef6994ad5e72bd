"""Flows through stages that overlap: `pl.flow`, its bound and its search. `pipelab/flows.py` defines them."""
