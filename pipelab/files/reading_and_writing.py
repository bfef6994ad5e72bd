"""Files are written whole or not at all; what the system refuses is one sentence that names path, reason and remedy."""

import errno
import json
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue, shown
from pipelab.fields import instance

_ROOM = "make room on its disk, or give a path on another one"
_REMEDY = {
    "ENOSPC": _ROOM,
    "EDQUOT": _ROOM,
    "EFBIG": _ROOM,
    "EACCES": "give a path where you may {verb}",
    "EPERM": "give a path where you may {verb}",
    "EROFS": "give a path where you may {verb}",
    "EEXIST": "a part of this path is a file; give one below a folder",
    "ENOTDIR": "a part of this path is a file; give one below a folder",
    "EISDIR": "expected the path of a file, not of a folder",
    "ENAMETOOLONG": "expected a shorter path",
    "ELOOP": "its symbolic links lead in a circle; remove one of them",
    "EPIPE": "the reading program has exited; restart both",
}


def named(path: str | Path) -> str:
    """Show a path; one that is very long, or cannot be printed, in quotes and shortened.

    >>> named("plan.csv"), named("a\\0b")
    ('plan.csv', "'a\\\\x00b'")
    """
    text = str(path)
    return text if text.isprintable() and len(text) <= 200 else shown(text)


def refused(path: str | Path, verb: str, error: Exception) -> InvalidData:
    """Turn what the system said about a path into an error that names path, reason and remedy.

    Parameters
    ----------
    path : str or Path
    verb : {"read", "write"}
        What was tried.
    error : OSError, UnicodeError or ValueError
        The last if no file can have this name.
    """
    done = {"read": "read", "write": "written"}[verb]
    if isinstance(error, UnicodeDecodeError):
        return InvalidData(f"{named(path)}: cannot be read as text ({error}): expected UTF-8")
    if not isinstance(error, OSError):
        expected = "expected a path without such characters"
        return InvalidData(f"{named(path)}: cannot be {done}: {expected}")
    reason = error.strerror or str(error)
    remedy = _REMEDY.get(errno.errorcode.get(error.errno or 0, ""), "expected the path of a file")
    return InvalidData(f"{named(path)}: cannot be {done} ({reason}): {remedy.format(verb=verb)}")


def path_of(what: str, path: Any, field: str = "path") -> Path:
    """Return an argument as a path; `what` is the function that was called."""
    instance(what, field, path, (str, os.PathLike), "a path, as text or pathlib.Path")
    if path == "":  # pathlib takes it for the current folder
        expected = "expected a path that is not empty; '.' is the current folder"
        raise InvalidValue(what, [(field, path, expected)])
    # `os.path` leaves a "~name" as it is if there is no such user; `Path.expanduser` raises.
    return Path(os.path.expanduser(path))


def is_special(path: Path) -> bool:
    """Whether it is neither a regular file nor a folder: a device, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def read_text(path: Path) -> str:
    """Read the text of a file in UTF-8, without a byte order mark.

    Raises
    ------
    InvalidData
        It does not exist, cannot be read, or is not text.
    """
    if is_special(path):
        expected = "a device or a pipe; expected the path of a file"
        raise InvalidData(f"{named(path)}: cannot be read: {expected}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except FileNotFoundError:
        raise InvalidData(f"{named(path)}: {_not_there(path)}") from None
    except (OSError, ValueError) as error:
        raise refused(path, "read", error) from None


def read_json(path: Path) -> Any:
    """Read a file as JSON.

    Raises
    ------
    InvalidData
        It is not there, cannot be read, or is not JSON.
    """
    return json_of(path, read_text(path))


def json_of(path: Path, text: str) -> Any:
    """Parse the text of a file, or a part of it, as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200]
        raise InvalidData(f"{named(path)}: cannot be read as JSON ({reason})") from None


def _not_there(path: Path) -> str:
    """Say why there is no file, and which files with this suffix the folder has."""
    if path.is_symlink():
        return f"is a symbolic link to {named(os.readlink(path))}, which is not there; remove the link, or repair it"
    others = sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))
    kind = f"{path.suffix[1:].upper()} file" if path.suffix else "file"
    return f"there is no such file; the folder has {', '.join(others[:20]) if others else f'no {kind}'}"


def write_to(what: str, path: Any, content: str | bytes) -> Path:
    """Replace a file in one step, and return its path: a reader sees the old content or the new, never a part.

    The mode is kept; a new file gets the mode of any other (the umask's). Of a symbolic link the
    target is replaced. A hard link is cut: the file's other names keep the old content. What is no
    regular file (a device, a pipe) is written to.

    Parameters
    ----------
    what : str
        The function that was called with the path.
    path : str or Path
    content : str or bytes

    Raises
    ------
    InvalidValue
        `path` is not a path, or is empty.
    InvalidData
        Nothing can be written there; the old file is as it was.
    """
    path = path_of(what, path)
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        expected = f"{error}; expected text that UTF-8 knows"
        raise InvalidData(f"{named(path)}: cannot be written: {expected}") from None
    try:
        _replace(path, data)
    except (OSError, ValueError) as error:  # ValueError: a character that no path has
        raise refused(path, "write", error) from None
    return path


def _replace(path: Path, data: bytes) -> None:
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_special(target):
        target.write_bytes(data)
        return
    with suppress(FileNotFoundError):
        os.stat(path)  # links that lead in a circle
        if not os.access(target, os.W_OK):  # the folder alone would let it be replaced
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # short: the name itself may be as long as names can be
    made = target.with_name(f".pipelab-{secrets.token_hex(8)}")
    try:
        made.write_bytes(data)
        if target.exists():
            shutil.copymode(target, made)
        os.replace(made, target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
