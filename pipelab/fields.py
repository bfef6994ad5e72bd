"""Frozen dataclasses whose fields check themselves once, when they are made.

The rules are the field types (`memory_gb: Positive`), read by pydantic, so that a rule
stands in one place whether the value comes from code or from a file. A bad value raises
`InvalidValue` with the field, the value and what was expected.

`checked_arguments` reads the same types at the parameters of a function, and `checked_value` for one
value whose name or limits are known only when it is there; `whole_number` and `amounts` are the two
types that are asked for most. Each returns a Python number, so no NumPy integer can overflow later.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from functools import cache, cached_property, partial, wraps
from math import isfinite
from numbers import Real as AnyReal
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    ParamSpec,
    TypeVar,
    dataclass_transform,
    get_type_hints,
    overload,
)

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import (
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    StrictBool,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from pipelab.errors import InvalidValue, PipelabError, nearest

_Class = TypeVar("_Class")
_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")

Real = Annotated[float, BeforeValidator(lambda value: _no_flag(value, "expected a number"))]
Number = Annotated[Real, AllowInfNan(False)]
Positive = Annotated[Real, Gt(0), AllowInfNan(False)]
Share = Annotated[Real, Gt(0), Le(1), AllowInfNan(False)]
NotNegative = Annotated[Real, Ge(0), AllowInfNan(False)]
Integer = Annotated[int, BeforeValidator(lambda value: _no_flag(value))]
MOST_COUNTED = 10**9
Count = Annotated[Integer, Ge(1), Le(MOST_COUNTED)]
Natural = Annotated[Integer, Ge(0), Le(MOST_COUNTED)]
Layers = Annotated[Integer, Ge(1), Le(100_000)]
Flag = StrictBool
Matrix = Annotated[np.ndarray, BeforeValidator(lambda values: _numbers(values).astype(float))]
Indices = Annotated[np.ndarray, BeforeValidator(lambda values: _numbers(values))]
# In `Annotated`: may be None when the object is made; its `__post_init__` fills it in.
Later = WrapValidator(lambda value, check: None if value is None else check(value))


def _no_flag(value: Any, expected: str = "expected a whole number") -> Any:
    """Refuse booleans, which do not count as numbers."""
    if isinstance(value, bool | np.bool_):
        raise ValueError(expected)
    return value


def _numbers(values: Any) -> np.ndarray:
    """Copy values into an array of real numbers."""
    array = np.array(values)
    if array.dtype.kind not in "iuf":
        raise ValueError("expected an array of numbers")
    return array


class ReadOnlyDict(dict):
    """A dict that refuses every change, and stays so when it is copied or pickled.

    >>> ReadOnlyDict(a=1)["a"] = 2
    Traceback (most recent call last):
    TypeError: this mapping is read-only: change a copy, such as {**mapping}
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("this mapping is read-only: change a copy, such as {**mapping}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple:
        return type(self), (dict(self),)


# Asked thousands of times for each key of an explorer: in tuples, and what is frequent comes first.
_CANNOT_CHANGE, _IN_ORDER = (float, int, str, type(None), range), (tuple, list)
_REAL = (float, int, AnyReal)


def read_only(value: Any, fresh: bool = False) -> Any:
    """Return a value whose mappings, lists, sets and arrays nobody can change: copies, as somebody else may hold them.

    Of a value that is `fresh`, which nobody else holds, arrays are not copied.

    >>> read_only([1, {"a": {2}}])
    (1, {'a': frozenset({2})})
    """
    if isinstance(value, _CANNOT_CHANGE):
        return value
    if isinstance(value, _IN_ORDER):
        parts = [read_only(part, fresh) for part in value]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, np.ndarray):
        if _changeable(value):
            value = value if fresh and value.base is None else value.copy()
            value.setflags(write=False)
    elif isinstance(value, set):
        value = frozenset(value)
    elif not hasattr(value, "__dataclass_fields__") and isinstance(value, Mapping):
        value = ReadOnlyDict({key: read_only(part, fresh) for key, part in value.items()})
    return value


def _changeable(array: Any) -> bool:
    """Whether numbers can be written into an array, or into one of which it is a view."""
    return isinstance(array, np.ndarray) and (array.flags.writeable or _changeable(array.base))


class Frozen:
    """A base of frozen dataclasses whose containers are frozen too, in copies and pickles as well.

    A copy has the fields alone: what was derived from them, such as a hash of text, may differ in another process.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        self.__setstate__(self.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({name: read_only(value) for name, value in state.items()})


class derived(cached_property[_Returned]):
    """A cached property whose containers are read-only."""

    def __init__(self, compute: Callable[[Any], _Returned]) -> None:
        super().__init__(wraps(compute)(lambda instance: read_only(compute(instance), fresh=True)))


_EXPECTED = {
    "missing": "is required",
    "unexpected_keyword_argument": "is not a field here",
    "unexpected_positional_argument": "is one positional value too many",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_type": "expected a whole number",
    "bool_type": "expected True or False",
    "string_type": "expected text",
    "dict_type": "expected a mapping, such as a dict",
    "mapping_type": "expected a mapping, such as a dict",
    "string_too_short": "expected text that is not empty",
}


def _expected(error: Mapping[str, Any]) -> str:
    """Say in pipelab's words what pydantic expected."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "greater_than":
        return f"expected more than {context['gt']:g}"
    if kind == "greater_than_equal":
        return f"expected at least {context['ge']:g}"
    if kind == "less_than_equal":
        most = context["le"]
        return f"expected at most {f'{most:,}' if isinstance(most, int) else f'{most:g}'}"
    if kind in ("dataclass_exact_type", "dataclass_type"):
        return f"expected {context['class_name']}"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    return _EXPECTED.get(kind, error["msg"])


def _problems(error: Mapping[str, Any], fields: tuple[str, ...]) -> list[tuple[str, object, str]]:
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, InvalidValue):  # raised by the class's own __post_init__
        return list(raised.problems)
    path = list(error["loc"])
    if path and isinstance(path[0], int) and path[0] < len(fields):  # given by position
        path[0] = fields[path[0]]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    field = "".join(parts).lstrip(".") or "value"
    value = None if error["type"] == "missing" else error["input"]
    expected = _expected(error)
    if error["type"] == "unexpected_keyword_argument":
        expected += f"; {nearest(field, fields)}"
    return [(field, value, expected)]


@overload
def checked(cls: type[_Class]) -> type[_Class]: ...
@overload
def checked(cls: None = None, *, eq: bool = True) -> Callable[[type[_Class]], type[_Class]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def checked(cls: type | None = None, *, eq: bool = True) -> Any:
    """Make `cls` a frozen dataclass that checks its fields; `dataclasses.replace` checks again.

    Parameters
    ----------
    cls : type
        A class written as a dataclass; its `__post_init__` may raise `InvalidValue` too.
    eq : bool
        False where the class defines its own equality (arrays have no single truth value).
    """
    if cls is None:
        return partial(checked, eq=eq)
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", allow_inf_nan=False)
    made = pydantic_dataclass(cls, frozen=True, eq=eq, config=config)
    plain_init = made.__init__

    @wraps(plain_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plain_init(self, *args, **kwargs)
        except ValidationError as error:
            names = tuple(made.__dataclass_fields__)
            problems = [p for one in error.errors() for p in _problems(one, names)]
            raise InvalidValue(cls.__name__, problems) from None
        Frozen.__post_init__(self)

    # By name, since a type checker takes the assignment for a mistake.
    for method in (__init__, Frozen.__getstate__, Frozen.__setstate__):
        setattr(made, method.__name__, method)
    return made


def described(words: str) -> WrapValidator:
    """Say in words what is expected, whichever rule is broken; it stands last in `Annotated`.

    Where a part of the value breaks one, such as an entry of a mapping, that part is named instead.
    """

    def check(value: Any, rules: Callable[[Any], Any]) -> Any:
        try:
            return rules(value)
        except ValidationError as error:
            if any(one["loc"] for one in error.errors()):
                raise
            raise ValueError(f"expected {words}") from None

    return WrapValidator(check)


def checked_arguments(
    function: Callable[_Parameters, _Returned],
) -> Callable[_Parameters, _Returned]:
    """Check a function's arguments when it is called, as `checked` does a class's fields.

    Only parameters whose annotation is one of the types above, or another `Annotated`, are looked
    at; defaults are taken as they are. No value comes from a file here: "3" is no number.

    Raises
    ------
    InvalidValue
        Of the function returned, with all arguments that do not fit.

    Examples
    --------
    >>> @checked_arguments
    ... def mean(total: Number, count: Count = 1) -> float:
    ...     return total / count
    >>> mean(np.float32(3), count=np.int8(2))
    1.5
    >>> mean(3, count="2")
    Traceback (most recent call last):
    pipelab.errors.InvalidValue: mean: count = '2': expected a whole number
    """
    signature = inspect.signature(function)
    rules = {name: one.annotation for name, one in signature.parameters.items()}
    real = SimpleNamespace(__annotations__={n: r for n, r in rules.items() if type(r) is not str})
    plain = rules | get_type_hints(real)  # as readers of a signature want it: no rules for pydantic
    looked_at = {name for name in plain if plain[name] != rules[name]}

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
        bound = signature.bind(*args, **kwargs)
        problems: list[tuple[str, object, str]] = []
        for name in [name for name in bound.arguments if name in looked_at]:
            try:
                bound.arguments[name] = checked_value("", name, bound.arguments[name], rules[name])
            except InvalidValue as error:
                problems += error.problems
        if problems:
            raise InvalidValue(function.__name__, problems)
        return function(*bound.args, **bound.kwargs)

    shown = [one.replace(annotation=plain[name]) for name, one in signature.parameters.items()]
    setattr(call, "__signature__", signature.replace(parameters=shown))  # noqa: B010 - as above
    return call


# What only code gives, so that text and booleans are refused anyway: pydantic checks long lists at once.
_Amounts = list[Annotated[float, Ge(0), AllowInfNan(False)]]
_PositiveAmounts = list[Annotated[float, Gt(0), AllowInfNan(False)]]
_rules: Callable[[Any], TypeAdapter] = cache(TypeAdapter)


@cache
def _whole(least: int, most: int) -> Any:
    return Annotated[int, Ge(least), Le(most)]


def checked_value(what: str, field: str, value: Any, kind: Any) -> Any:
    """Return `value`, converted from NumPy's to Python's, if it fits one of the types above.

    Raises
    ------
    InvalidValue
        In the name of `what`, the function or class that was called.

    Examples
    --------
    >>> checked_value("gantt", "window", np.float32(0.5), Number)
    0.5
    >>> checked_value("gantt", "memory", 1, Flag)
    Traceback (most recent call last):
    pipelab.errors.InvalidValue: gantt: memory = 1: expected True or False
    """
    try:
        return _rules(kind).validate_python(python_value(value), strict=True)
    except ValidationError as error:
        placed = ({**one, "loc": (field, *one["loc"])} for one in error.errors())
        raise InvalidValue(what, [p for one in placed for p in _problems(one, ())]) from None


def whole_number(what: str, field: str, value: Any, least: int = 1, most: int = 10**18) -> int:
    """Return `value` as an int; True, 2.5, "3" and None are not whole numbers.

    >>> whole_number("schedule", "ranks", np.int8(4))
    4
    """
    return checked_value(what, field, value, _whole(least, most))


def is_list(value: Any) -> bool:
    """Whether `value` holds several values in an order; text, mappings, sets and single numbers do not.

    >>> is_list((1, 2)), is_list("ab"), is_list(np.array(3))
    (True, False, False)
    """
    if isinstance(value, list | tuple):  # most values, and quick to tell
        return True
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set)


def is_real(value: Any) -> bool:
    """Whether `value` is a number, and finite as a float; booleans do not count as numbers.

    >>> is_real(10**300), is_real(10**400), is_real(True)
    (True, False, False)
    """
    if type(value) is float:  # most numbers, and quick to tell
        return isfinite(value)
    try:
        return isinstance(value, _REAL) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an int beyond all floats
        return False


def amounts(
    what: str,
    field: str,
    values: Sequence[float],
    length: int | None = None,
    positive: bool = False,
) -> list[float]:
    """Return finite numbers of at least 0, or above 0, as floats; `length` of them, if given.

    >>> amounts("split", "costs", [1, np.float32(0.5)])
    [1.0, 0.5]
    """
    if not is_list(values):
        raise InvalidValue(what, [(field, values, "expected a list of numbers")])
    kind = _PositiveAmounts if positive else _Amounts
    numbers = checked_value(what, field, [python_value(value) for value in values], kind)
    if length is not None and len(numbers) != length:
        raise InvalidValue(what, [(field, f"{len(numbers)} values", f"expected {length}")])
    return numbers


def python_value(value: Any) -> Any:
    """Convert a NumPy number to Python's own, which prints as a number and fits into JSON.

    >>> python_value(np.float64(0.1)), python_value(None)
    (0.1, None)
    """
    return value.item() if isinstance(value, np.generic) else value


def given(value: _Class | None) -> _Class:
    """`value` itself, where the code knows that there is one.

    >>> given(0.5)
    0.5
    """
    if value is None:
        raise PipelabError(
            "a value is missing that is always there: a mistake in pipelab, not in your input"
        )
    return value


def instance(
    what: str, field: str, value: Any, kind: type | UnionType | tuple[type, ...], remedy: str
) -> Any:
    """`value` itself, if it is one of these; `remedy` says how to get one."""
    if not isinstance(value, kind):
        raise InvalidValue(what, [(field, value, f"expected {remedy}")])
    return value
