"""Files are written whole or not at all; what the system refuses is one sentence that names path, reason and remedy."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from pipelab.errors import InvalidData, shown

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
    """A path as people write it; one that is very long, or cannot be printed, in quotes and shortened.

    >>> named("plan.csv"), named("a\\0b")
    ('plan.csv', "'a\\\\x00b'")
    """
    text = str(path)
    return text if text.isprintable() and len(text) <= 200 else shown(text)


def refused(path: str | Path, verb: str, error: Exception) -> InvalidData:
    """What the system said of a path, as an error of pipelab's own.

    Parameters
    ----------
    path : str or Path
    verb : {"read", "write"}
        What was tried.
    error : OSError, UnicodeError or ValueError
        The latter two where no file can have this name.
    """
    done = {"read": "read", "write": "written"}[verb]
    if not isinstance(error, OSError):
        return InvalidData(
            f"{named(path)}: cannot be {done}: expected a path without such characters"
        )
    reason = error.strerror or str(error)
    remedy = _REMEDY.get(errno.errorcode.get(error.errno or 0, ""), "expected the path of a file")
    return InvalidData(f"{named(path)}: cannot be {done} ({reason}): {remedy.format(verb=verb)}")


def is_file(path: Path) -> bool:
    """Whether there is such a file; not where the name is one that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; not where the name is one that no folder can have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def is_special(path: Path) -> bool:
    """Whether it is neither a regular file nor a folder: a device, a pipe."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def read_text(path: Path, what: str) -> str:
    """The text of a file in UTF-8, a byte order mark apart.

    Parameters
    ----------
    path : Path
    what : str
        Of what kind it is to be, such as "CSV".

    Raises
    ------
    InvalidData
        It is not there, cannot be read, or is no text.
    """
    if is_special(path):
        raise InvalidData(
            f"{named(path)}: cannot be read: a device or a pipe; expected the path of a file"
        )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except FileNotFoundError:
        raise InvalidData(f"{named(path)}: {_not_there(path)}") from None
    except UnicodeDecodeError as error:
        raise InvalidData(f"{named(path)}: cannot be read as {what} ({error})") from None
    except (OSError, ValueError) as error:
        raise refused(path, "read", error) from None


def _not_there(path: Path) -> str:
    """Why there is no file; the folder's other files of this kind may be what was meant."""
    if path.is_symlink():
        return f"is a symbolic link to {named(os.readlink(path))}, which is not there; remove the link, or repair it"
    others = (
        sorted(p.name for p in path.parent.glob(f"*{path.suffix}"))
        if is_folder(path.parent)
        else []
    )
    kind = f"{path.suffix[1:].upper()} file" if path.suffix else "file"
    return f"there is no such file; the folder has {', '.join(others[:20]) if others else f'no {kind}'}"


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part.

    Mode, and where the system lets us owner, are kept; a new file gets the mode of any other (the
    umask's). Of a symbolic link the target is replaced. A hard link is cut: the file's other names
    keep the old content. What is no regular file (a device, a pipe) is written to.

    Raises
    ------
    OSError, ValueError
        As the system has it: `refused` makes a sentence of it. The old file is as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        old = os.stat(path)  # of a link's target
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(path, "wb") as file:
            file.write(data)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    # the folder alone would let it be replaced
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # short: the name itself may be as long as names can be
    made = target.with_name(f".pipelab-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # A private file is never readable by others, not even while it is written.
    handle = os.open(made, flags, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if old is not None:
            _keep(old, made)
        os.replace(made, target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _keep(old: os.stat_result, made: Path) -> None:
    """Owner, group and mode of the file that is replaced."""
    new = os.stat(made)
    if hasattr(os, "chown") and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        # only root can change owners; a user who replaces another's file then owns it
        with suppress(OSError):
            os.chown(made, old.st_uid, old.st_gid)
    os.chmod(made, stat.S_IMODE(old.st_mode))
