"""Avoids a wait of seconds: a grammar of IRIs that jsonschema builds whenever it is imported.

A kernel's first figure makes plotly import nbformat, and so does JupyterLab when it starts.
nbformat imports jsonschema, that imports rfc3987-syntax, and there two to three seconds go into a
grammar that no notebook's schema uses (python-jsonschema/jsonschema#1428).
"""

import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType

_SLOW = "rfc3987_syntax"
_ONE_AT_A_TIME = threading.Lock()


def build_iri_grammar_when_asked() -> None:
    """Import jsonschema so that the grammar is built when an IRI is checked for the first time, if ever.

    To be called before what imports jsonschema. IRI checks give the same results as before.

    Examples
    --------
    >>> build_iri_grammar_when_asked()
    >>> import jsonschema
    >>> jsonschema.FormatChecker().conforms("https://example.org/größe", "iri")
    True
    """
    with _ONE_AT_A_TIME:
        if "jsonschema" in sys.modules or _SLOW in sys.modules or not find_spec(_SLOW):
            return
        stand_in = ModuleType(_SLOW)
        stand_in.is_valid_syntax = _is_valid_syntax  # type: ignore[attr-defined]  # all that jsonschema takes from it
        sys.modules[_SLOW] = stand_in
        try:
            with suppress(ImportError):  # code that needs jsonschema reports this itself
                import jsonschema  # noqa: F401
        finally:
            del sys.modules[_SLOW]


def _is_valid_syntax(term: str, value: str) -> bool:
    from rfc3987_syntax import is_valid_syntax

    return is_valid_syntax(term, value)
