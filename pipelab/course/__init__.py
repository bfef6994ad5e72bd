"""The notebooks as a course: guesses, checks, claims of published texts, and the figures of single notebooks.

What the notebooks alone use is here: `course.check`, `course.show_table`, …
"""

from pipelab.lazy_names import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
