"""A command line's output, also where it cannot be written: a full disk, a closed pipe."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast

from pipelab.io.whole_files import refused

_LEFT = 141  # as a shell reports a closed pipe: 128 and the number of SIGPIPE


class _OutputFailed(Exception):
    """Standard output takes no more. Not an OSError: typer would end with status 1 and without a word."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__(str(error))


class _Output:
    """Standard output, whose failures are distinguished from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _OutputFailed(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _OutputFailed(error) from None


def heard(run: Callable[[], int | str | None]) -> int | str | None:
    """The exit status of `run`, or what there is to say where its output could not be written."""
    # arrows and Greek letters, whatever the terminal's code page
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # and not what a program put in its place
            # a file's name may be no text at all
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:  # closed by the parent process
        return run()
    output = sys.stdout = cast(TextIO, _Output(sys.stdout))
    try:
        status = run()
        output.flush()  # what was written may only now meet a full disk
    except _OutputFailed as failed:
        _mute(output)
        left = isinstance(failed.error, BrokenPipeError)
        return _LEFT if left else say(refused("standard output", "write", failed.error))
    return status


def say(message: object, status: int = 2) -> int:
    """Say it on standard error, and return the exit status."""
    try:
        print(f"pipelab: {message}", file=sys.stderr, flush=True)
    except OSError:  # standard error is closed
        _mute(sys.stderr)
    return status


def _mute(stream: TextIO) -> None:
    """What is still to be written goes nowhere, so that Python's own flush at the end does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
