"""Solvers of integer programs, and the arrays that a program is handed over as."""
