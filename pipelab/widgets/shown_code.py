"""Scripts: a few calls, written once, that make a value and are shown to a reader as code."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

_LINE_LETTERS = 88


class Term:
    """An expression: its text, and its value, which is made when it is first asked for.

    Attributes and calls of a term are terms, so that a script reads like the code it shows.

    Examples
    --------
    >>> three = Term("three", lambda: 3)
    >>> power = Term("pow", lambda: pow)(three, 2)
    >>> power.text, power.value
    ('pow(three, 2)', 9)
    """

    def __init__(self, text: str, make: Callable[[], Any]) -> None:
        self.text, self._make = text, make

    @cached_property
    def value(self) -> Any:
        """What the expression comes to; raises what it raises."""
        return self._make()

    def __getattr__(self, name: str) -> "Term":
        if name.startswith("_"):
            raise AttributeError(name)
        return Term(f"{self.text}.{name}", lambda: getattr(self.value, name))

    def __call__(self, *args: Any, **options: Any) -> "Term":
        shown = [*map(_text, args), *(f"{name}={_text(x)}" for name, x in options.items())]
        text = f"{self.text}({', '.join(shown)})"
        if len(text) > _LINE_LETTERS:
            text = f"{self.text}(\n" + "".join(f"    {part},\n" for part in shown) + ")"

        def make() -> Any:
            named = {name: _value(x) for name, x in options.items()}
            return self.value(*map(_value, args), **named)

        return Term(text, make)


class Script:
    """The lines that name terms, one after the other.

    Examples
    --------
    >>> script = Script()
    >>> four = script.let("four", Term("max", lambda: max)(4, 1))
    >>> script.lines, four.text, four.value
    (['four = max(4, 1)'], 'four', 4)
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, name: str, term: Term) -> Term:
        """Add a line; return the name as a term."""
        self.lines.append(f"{name} = {term.text}")
        return Term(name, lambda: term.value)

    @property
    def code(self) -> str:
        """The lines, after the imports that they need."""
        body = "\n".join(self.lines) + "\n"
        head = "import dataclasses\n\n" if "dataclasses." in body else ""
        head += "import pipelab as pl\n"
        return f"{head}\n{body}"


def literal(value: Any) -> Term:
    """Return a plain value as a term."""
    return Term(_text(value), lambda: value)


def public(function: Callable, module: str = "pl") -> Term:
    """Return a public name as a term."""
    return Term(f"{module}.{function.__name__}", lambda: function)


def _text(x: Any) -> str:
    """Return the code of a term or a plain value, with double quotes as the formatter has them."""
    if isinstance(x, Term):
        return x.text
    text = repr(x)
    return text if '"' in text else text.replace("'", '"')


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Term) else x
