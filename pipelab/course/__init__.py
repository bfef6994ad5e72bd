"""The notebooks as a course: guesses, checks, claims of published texts, and the figures of single notebooks.

What the notebooks alone use is here: `course.check`, `course.show_table`, …
"""

from pipelab.lazy_names import public_names

__all__, __getattr__ = public_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
