"""Limits that the system sets, for tests of what happens beyond them."""

import contextlib
import signal


@contextlib.contextmanager
def full_disk(limit=1000):
    """No file may grow beyond so many bytes: as on a full disk, the system refuses the rest."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
