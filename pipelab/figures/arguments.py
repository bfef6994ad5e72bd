"""What `plot` was given besides the thing to draw, held against what its figure takes."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pipelab.errors import InvalidValue, UnknownName, nearest


def check(function: Callable, x: Any, others: tuple, options: Mapping[str, Any]) -> None:
    """Raise if a figure's function takes no such option, or more or fewer values.

    Raises
    ------
    UnknownName, InvalidValue
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                known = nearest(option, list(parameters)[1:])
                raise UnknownName(f"this figure has no option {option!r}; {known}")
    try:
        signature.bind(x, *others, **options)
    except TypeError as error:
        name = f"{function.__module__}.{function.__name__}"
        expected = f"expected what {name} takes: {error}"
        raise InvalidValue("plot", [("others", others, expected)]) from None
