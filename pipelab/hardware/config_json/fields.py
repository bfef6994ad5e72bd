"""The fields of a `config.json`, each checked when it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, shown
from pipelab.io.whole_files import named


@dataclass(frozen=True)
class Config:
    """The fields of a configuration; null is the same as absent."""

    path: Path
    values: Mapping[str, Any]

    def error(self, key: str, expected: str) -> InvalidData:
        """An error that names file, field, value and what was expected."""
        found = shown(self.values[key]) if key in self.values else "is missing"
        return InvalidData(f"{named(self.path)}, field {key!r}: {found}: {expected}")

    def refused(self, what: str, reason: str) -> InvalidData:
        """An error for a model that `Transformer` cannot hold."""
        instead = "describe a similar model with pl.Transformer(…), if an estimate will do"
        return InvalidData(f"{named(self.path)}: {what} is not supported: {reason}; {instead}")

    def get(self, key: str, default: Any = None) -> Any:
        """Any value; the default where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= 10**9:
            raise self.error(key, f"expected a whole number from {least} to 10^9")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value
