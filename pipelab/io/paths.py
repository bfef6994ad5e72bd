"""Where the notebooks and the data lie: in the clone, or bundled with the installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def in_clone() -> bool:
    """Return whether pipelab runs from a clone of its repository (an editable install)."""
    return (_PACKAGE.parent / "pyproject.toml").is_file() and (
        _PACKAGE.parent / "notebooks"
    ).is_dir()


def _folder(name: str) -> Path:
    return _PACKAGE.parent / name if in_clone() else _PACKAGE / "_bundled" / name


def data_dir() -> Path:
    """Return the folder of the bundled data."""
    return _folder("data")


def notebooks_dir() -> Path:
    """Return the folder of the bundled notebooks."""
    return _folder("notebooks")
