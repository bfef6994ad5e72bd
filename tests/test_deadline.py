"""One deadline for a whole solve: whatever is being done, it ends within a second, and what was found is kept."""

import threading
import time

import pytest

from pipelab.deadline import NEVER, Deadline, Ended, deadline_of


def test_a_stop_comes_before_the_time_limit_and_both_are_named():
    stop = threading.Event()
    assert Deadline(3600, stop).reason is None
    over = Deadline(0, stop)
    with pytest.raises(Ended) as ended:
        over.check()
    assert ended.value.reason == over.reason == "time limit"
    stop.set()
    assert over.reason == Deadline(None, stop).called_off == "stop"


def test_part_of_a_deadline_never_lasts_longer_than_the_whole():
    whole = Deadline(10)
    assert whole.within(1).left <= 1 < whole.left <= 10
    assert whole.within(3600).end <= whole.end + 1e-3
    assert (NEVER.within(5).limited, NEVER.limited, NEVER.seconds_left) == (True, False, None)
    stop = threading.Event()
    part = Deadline(None, stop).within(5)
    stop.set()
    assert part.reason == "stop"


def test_ctrl_c_is_noted_and_not_raised():
    import signal

    with deadline_of(None) as deadline:
        assert deadline.reason is None
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
        assert deadline.reason == "interrupt"
