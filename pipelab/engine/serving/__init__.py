"""Requests through a plan: who comes, which lines there are, and what came of it."""
