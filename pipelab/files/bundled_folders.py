"""Where the notebooks and the data lie: in the clone, or bundled with the installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def in_clone() -> bool:
    """Return whether pipelab runs from a clone of its repository (an editable install)."""
    clone = _PACKAGE.parent
    return (clone / "pyproject.toml").is_file() and (clone / "notebooks").is_dir()


def _folder(name: str) -> Path:
    return _PACKAGE.parent / name if in_clone() else _PACKAGE / "_bundled" / name


def data_dir() -> Path:
    """Return the folder of the bundled data."""
    return _folder("data")


def notebooks_dir() -> Path:
    """Return the folder of the bundled notebooks."""
    return _folder("notebooks")


def notebook_files() -> dict[str, Path]:
    """Return every notebook, and the page about the data, by names such as "solutions/05_joint_ilp"; solutions last."""
    root = notebooks_dir()
    files = {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in root.rglob("*")
        if path.suffix in (".ipynb", ".md") and ".ipynb_checkpoints" not in path.parts
    }
    return {name: files[name] for name in sorted(files, key=lambda name: ("/" in name, name))}
