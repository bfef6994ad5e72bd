"""What several test files share."""

import dataclasses
import gc
import signal
from collections import Counter
from datetime import timedelta

import joblib
import pytest
from hypothesis import HealthCheck, settings

import pipelab as pl
from lab_server import lab_server
from lab_session import one_page

# as in a job that a shell's script runs in the background
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# hypothesis tries the same few examples in every run; with `-m nightly` many, and others each time,
# of which one that fails is printed so that it can be repeated.
EVERY_RUN = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=timedelta(seconds=60),  # far more than any takes; a hang is a failure
    suppress_health_check=list(HealthCheck),
)
settings.register_profile("every run", EVERY_RUN)
settings.register_profile("night", EVERY_RUN, max_examples=1000, derandomize=False, print_blob=True)


def pytest_xdist_auto_num_workers(config):
    """Take one worker more than there are cores: many tests wait, for processes, pauses or a browser."""
    return 1 + joblib.cpu_count()


def _at_night(config):
    return config.getoption("markexpr") == "nightly"


def pytest_configure(config):
    """Choose how many examples are tried."""
    settings.load_profile("night" if _at_night(config) else "every run")


# Numbered cases are random problems: every run has the first few, and the one at night the rest.
# `@pytest.mark.daily(n)` at a test whose cases take long has fewer of them in every run, and
# `@pytest.mark.quick(n)` says how many of a test's cases are in the fast subset.
DAILY = 4
WAITS = {"installed", "computed"}  # fixtures: a wheel, built and unpacked; every claim, computed
SLOW_EXAMPLES = {  # in docstrings, where no marker can stand
    "pipelab.course.n03.rows_of_03",
    "pipelab.course.n09.plot_sensitivity",
    "pipelab.course.n17.helix_flow",
    "pipelab.course.n13.author_results",
    "pipelab.engine.speed_scenarios.sensitivity",
    "pipelab.hardware.relative_bands.relative_band",
}


def _mark_by_case(items):
    """Give `slow` to the cases that the fast subset leaves out, and `nightly` to those left for the night."""
    cases, numbered = Counter(), Counter()
    for item in items:
        name, _, case = item.nodeid.partition("[")
        cases[name] += 1
        quick, daily = item.get_closest_marker("quick"), item.get_closest_marker("daily")
        most = daily.args[0] if daily else DAILY
        parts = case.rstrip("]").split("-")
        others = [part for part in parts if not part.isdecimal()]
        series = name, *others
        numbered[series] += 1
        # one number: a random problem, counted apart for every other parameter
        nightly = len(others) == len(parts) - 1 and numbered[series] > most
        nightly = nightly or item.get_closest_marker("nightly")
        waits = item.get_closest_marker("browser") or WAITS & set(getattr(item, "fixturenames", ()))
        waits = waits or item.name in SLOW_EXAMPLES
        if waits or nightly or (quick and cases[name] > quick.args[0]):
            item.add_marker(pytest.mark.slow)
        if nightly:
            item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without collecting garbage: all that comes lasts, and nobody looks through it again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_modifyitems(config, items):
    """Browser tests come first: they take longest, and `--dist worksteal` then gives them to one process.

    It deals out the tests in one run after the other and lets an idle process take from another's
    end. So two browsers share the cores only at the end, if at all, and what a file sets up once is
    set up once.
    """
    _mark_by_case(items)
    if _at_night(config):
        for item in items:
            test = getattr(item, "obj", None)
            if hasattr(test, "hypothesis") or item.get_closest_marker("examples"):
                item.add_marker(pytest.mark.nightly)
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


@pytest.fixture(scope="session")
def jupyterlab():
    """One JupyterLab for all browser tests; each has a kernel of its own."""
    with lab_server() as server:
        yield server


@pytest.fixture(scope="module")
def page(jupyterlab):
    """One page for the browser tests of a file, which show their notebooks on it one after the other.

    Not for the whole run: while Playwright is at work, asyncio thinks that its loop runs in this
    thread.
    """
    with one_page(jupyterlab) as opened:
        yield opened


@pytest.fixture
def tiny():
    """The write-up's tiny case with two GPUs per stage."""
    return pl.load_case("tiny", max_gpus_per_stage=2)


@pytest.fixture
def two_stages(tiny):
    """tiny with layers so heavy that an A100 holds two: a placement needs two stages."""
    return dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=25))


@pytest.fixture
def long_solve():
    """Seven GPUs of small, heavy layers, slow links: SCIP improves after a second and proves for minutes."""
    small = pl.load_case("small")
    slower = small.cluster.scaled_bandwidth(1 / 8).with_counts({"A100": 2, "V100": 3, "H100": 2})
    heavy = dataclasses.replace(small.model, layers=8, layer_weight_gb=30.0)
    return dataclasses.replace(small, cluster=slower, model=heavy)
