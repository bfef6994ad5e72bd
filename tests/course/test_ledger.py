"""The ledger: every verdict as recorded, every value computed, and a row that pretends is found out."""

import csv
import io
import re
import signal
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from typer.testing import CliRunner

import pipelab as pl
from pipelab.cli.command_line import app
from pipelab.course import n13
from pipelab.course.ledger import (
    DOCUMENTS,
    VERDICTS,
    Claim,
    claims,
    programs,
    published_programs,
    writeup,
)
from pipelab.course.ledger.claims import Trial, shown
from pipelab.engine.methods.joint import joint_size
from pipelab.engine.solvers import scip
from pipelab.writeup.linear_rates import LinearThroughput

honest_solve = cache(pl.solve)


@pytest.fixture(scope="module")
def computed():
    """The ledger, and what every row came to; what was solved is kept for the perturbations below."""
    kept, real = [], Claim.computed

    def noted(claim):
        kept.append((claim, real(claim)))
        return kept[-1][1]

    with pytest.MonkeyPatch.context() as patched:
        _replace(patched, "solve", honest_solve)
        patched.setattr(Claim, "computed", noted)
        return pl.course.reproduce(), kept


@pytest.fixture(scope="module")
def ledger(computed):
    return computed[0]


@pytest.fixture(scope="module")
def found(computed):
    """Pairs of a row and what it computes."""
    return computed[1]


def _value(found, says):
    return next(each.value for claim, each in found if says in claim.says)


def test_every_verdict_is_as_recorded(ledger):
    assert ledger.changed.data.to_dict("records") == []
    assert Counter(ledger.data["document"]) == {
        "pmetal": 10,
        "scheduler": 10,
        "boostr": 10,
        "write-up": 110,
    }
    assert set(ledger.data["verdict"]) == set(VERDICTS)
    last = ledger.data.groupby("document", sort=False)["row"].last()
    assert dict(last) == Counter(ledger.data["document"])


def test_a_general_statement_is_tried_on_a_range(ledger, found):
    """More than a handful."""
    for (claim, each), verdict in zip(found, ledger.data["verdict"], strict=True):
        if verdict == "holds on what was tried":
            assert each.value.of >= 6, claim.says
            assert each.value.held == each.value.of
        elif isinstance(each.value, Trial):
            assert each.value.counterexample, claim.says
    assert _value(found, "Not guaranteed | Global").of >= 16


def test_every_number_of_the_write_up_has_a_line_to_paste(ledger):
    """Below the first cells of notebook 13, whose names `first_lines` has, it gives what the ledger shows."""
    numbers = ledger.only(document="write-up", kind="number").data
    for row in numbers.to_dict("records"):
        value = eval(row["how"], writeup.first_lines())
        assert shown(value) == row["computed"] or row["verdict"] == "machine-dependent", row["how"]
    assert len(numbers) == 34


def test_the_numbers_that_matter_are_there(found):
    """A few rows by their words, with what is known to come out: rows cannot silently change their subject."""
    wanted = {
        "Correct Joint ILP: 301.78": (301.784, 301.784),
        "Heuristic Hybrid: 452.68": 452.676,
        "Allocations: 345,465": 345_465,
        "H100 processes 100 samples → 810": 810.424,
    }
    for says, value in wanted.items():
        assert _value(found, says) == pytest.approx(value, rel=1e-6), says


# Perturbations of what lies under the rows, by the name whose meaning changes. Each must leave the honest rows
# computable, and none knows a row.


def _another_solver(*arguments, **options):
    """One that answers half as much again, more of everything, and with other GPUs."""
    result = honest_solve(*arguments, **options)
    details = {k: v * 1.5 if isinstance(v, float) else v for k, v in result.details.items()}
    details["solver_status"] = f"not {result.status}"
    stages = [replace(s, number=s.number + 1) for s in result.details.get("stages", ())]
    rates = {name: getattr(result, name) for name in ("throughput", "bound", "seconds")}
    more = {name: value and 1.5 * value for name, value in rates.items()}
    if result.placement:
        last, layers = len(result.problem.cluster) - 1, result.problem.model.layers
        more["placement"] = pl.Placement.of([(layers - 1, (last,)), (1, (last - 1,))])
    sizes = {name: n + 1 for name, n in result.size.items()}
    return replace(result, **more, details=details | {"stages": tuple(stages)}, size=sizes)


def _a_joint_ilp_that_is_wrong(problem, method="joint", **options):
    """It alone: what is compared with it stays as it is."""
    result = honest_solve(problem, method, **options)
    if method != "joint" or not result.placement:
        return result
    details = result.details | {"solver_objective": 1.5 * result.details["solver_objective"]}
    return replace(result, throughput=1.5 * result.throughput, details=details)


def _reversed_pool(problem):
    gpus = (*problem.cluster.gpus[::-1], problem.cluster.gpus[0])
    return replace(problem, cluster=pl.Cluster(gpus, np.full((len(gpus),) * 2, 250.0)))


def _other_types(problem):
    other = {"V100": "H100", "H100": "V100", "T4": "A10"}
    gpus = [replace(gpu, type=other.get(gpu.type, gpu.type)) for gpu in problem.cluster.gpus]
    return replace(problem, cluster=pl.Cluster(tuple(gpus), problem.cluster.bandwidth_matrix()))


def _other_batch_and_factor(problem):
    load, costs = replace(problem.workload, batch_size=3), replace(problem.costs, efficiency=0.5)
    return replace(problem, workload=load, costs=costs)


def _heavy_layers(problem):
    return replace(problem, model=replace(problem.model, layer_weight_gb=1000))


def _one_layer_more(problem):
    return replace(problem, model=replace(problem.model, layers=problem.model.layers + 1))


def _other_cases(change):
    honest = pl.load_case
    return {"load_case": lambda name, **options: change(honest(name, **options))}


def _other_argument(function, which):
    """One argument changed, a number more or a list without its end."""

    def call(*arguments, **options):
        given = list(arguments)
        usable = [i for i, a in enumerate(given) if isinstance(a, int | list)]
        if usable:
            i = usable[min(which, len(usable) - 1)]
            given[i] = given[i][:-1] if isinstance(given[i], list) else given[i] + 1
        return function(*given, **options)

    return call


def _other_programs(which, prefixes=("assign_", "seed_", "scheduler_", "clock_")):
    found = vars(published_programs).items()
    return {n: _other_argument(f, which) for n, f in found if n.startswith(prefixes)}


PROGRAM = (
    *("PipelineScheduler", "PipelineClock"),
    *("scheduler_bubble_", "scheduler_memory_", "scheduler_microbatches"),
)


def _backwards(function):
    def orders(*arguments):
        order = function(*arguments)
        rows = [[str(action) for action in reversed(row)] for row in order.actions]
        return pl.Schedule.of(order.name, rows, microbatches=order.microbatches)

    return orders


def _faster_gpus(*arguments, honest=LinearThroughput.gpu_throughput, **options):
    return 1.25 * honest(*arguments, **options) + 3


def _twice_the_ranks(honest, name, ranks, microbatches, *rest):
    return honest(name, 2 * ranks, 2 * microbatches, *rest)


# Those first that cost little and that most rows notice.
SABOTAGES = [
    {"solve": _another_solver},
    {"solve": _a_joint_ilp_that_is_wrong},
    {"joint_size": lambda *a, **k: {name: n * n for name, n in joint_size(*a, **k).items()}},
    _other_programs(0),
    _other_programs(1),
    _other_programs(0, PROGRAM),
    _other_cases(_one_layer_more),
    {
        "clock_interleaved": _backwards(published_programs.clock_interleaved),
        "clock_zero_bubble": _backwards(published_programs.clock_zero_bubble),
    },
    {
        "clock_1f1b": published_programs.clock_zero_bubble,
        "clock_zero_bubble": published_programs.clock_1f1b,
    },
    {"gpu_throughput": _faster_gpus},
    *map(_other_cases, (_other_batch_and_factor, _reversed_pool, _heavy_layers, _other_types)),
    {"author_settings": lambda name: {"gap": 0.5, "seconds": 1.0}},
    {"schedule": partial(_twice_the_ranks, pl.schedule)},
    {"split_minmax": lambda costs, stages, **_: pl.splits.split_even(len(costs), stages)},
]


def _replace(monkeypatch, name, other):
    """Give a name another meaning wherever rows compute."""
    places = [writeup, programs, n13, published_programs, LinearThroughput, pl, pl.course]
    places = [place for place in places if hasattr(place, name)]
    assert places, name
    for place in places:
        monkeypatch.setattr(place, name, other)


def _parts(found):
    """A row's computations as text: its value, and those in its remark."""
    return {"value": shown(found.value), "known": shown(found.known)}


def _changed(claim, honest):
    """The computations of a row that come out differently; none if the row is an error."""
    try:
        now = _parts(claim.computed())
    except Exception:
        return set()
    return {part for part in honest if now[part] != honest[part]}


def _rows_that_never_react(found, monkeypatch):
    """Rows whose value, or whose values in the remark, stay the same whatever is perturbed."""
    honest = [(claim, _parts(each)) for claim, each in found]
    left = {
        (n, part)
        for n, (_, parts) in enumerate(honest)
        for part, text in parts.items()
        if text not in ("None", "")
    }
    for sabotage in SABOTAGES:
        with monkeypatch.context() as patched:
            for name, other in sabotage.items():
                _replace(patched, name, other)
            writeup.once.cache_clear()
            for n in {n for n, _ in left}:
                left -= {(n, part) for part in _changed(*honest[n])}
    writeup.once.cache_clear()
    return [honest[n][0].says for n, _ in sorted(left)]


PRETENDERS = [
    Claim(section="none", place="", recorded=recorded, compute=compute, says=says, remark="{}")
    for says, recorded, compute in (
        ("a number typed in", "exact", lambda: 7),
        ("asks, and ignores the answer", "exact", lambda: writeup.size("tiny", 2) and 7),
        ("asks, and corrects it", "exact", lambda: writeup.case("tiny").model.layers * 0 + 4),
        ("an answer with a number typed in", "no verdict", lambda: (7,)),
    )
]


@pytest.mark.parametrize(
    "documents",
    [("boostr",), pytest.param((*DOCUMENTS,), marks=pytest.mark.nightly)],
    ids=["one", "all"],
)
def test_every_value_follows_from_what_is_computed(documents, found, monkeypatch):
    rows = [(claim, each) for claim, each in found if claim.document in documents]
    pretenders = [(claim, claim.computed()) for claim in PRETENDERS]
    still = _rows_that_never_react([*rows, *pretenders], monkeypatch)
    assert still == [claim.says for claim in PRETENDERS]  # they are found out, and nothing else


def test_readings_and_assumptions_give_their_reasons(ledger, found):
    for (claim, each), row in zip(found, ledger.data.to_dict("records"), strict=True):
        if row["verdict"] in ("no verdict", "only under an unstated assumption"):
            assert row["remark"], claim.says
        assert (each.literally is not None) == claim.remark.startswith("Assuming "), claim.says
        assert claim.remark.count("{}") == len(each.known), claim.says
        assert bool(claim.how and claim.stated) == (claim.kind != "reading"), claim.says


def test_filters(ledger):
    fails = ledger.only("does not hold", "boostr")
    pairs = zip(fails.data["verdict"], fails.data["document"], strict=True)
    assert set(pairs) == {("does not hold", "boostr")}
    for ask, told in (
        (lambda: ledger.only(kind="numbers"), "did you mean 'number'"),
        (lambda: ledger.only("wrng"), "did you mean 'wrong'"),
        (lambda: ledger.find("nothing of the kind"), "no entry says"),
        (lambda: claims(["bostr"]), "did you mean 'boostr'"),
    ):
        with pytest.raises(pl.errors.UnknownName, match=told):
            ask()


def test_csv_and_html_hold_every_row(ledger):
    rows = list(csv.DictReader(io.StringIO(ledger.csv())))
    told = [(f"“{claim.says}”", claim.kind) for claim in claims()]
    assert [(row["it says"], row["kind"]) for row in rows] == told
    page = ledger.html()
    assert page.count("<tr class=") == len(ledger)
    assert "<script" not in page
    markup = replace(ledger, data=ledger.data.head(1).assign(place="a <b> & c"))
    assert "a &lt;b&gt; &amp; c" in markup.html()
    filters = re.findall(r"<label for='[^']*'>([^<(]*) \((\d+)\)</label>", page)
    assert {(v, str(n)) for v, n in Counter(ledger.data["verdict"]).items()} <= set(filters)
    ids = re.findall(r" id='([^']*)'", page)
    assert len(ids) == len(set(ids))


def _cli(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.slow
def test_the_command_ends_in_1_when_a_verdict_changes(monkeypatch):
    assert _cli("boostr").exit_code == 0
    at = next(n for n, claim in enumerate(programs.CLAIMS) if claim.document == "boostr")
    changed = replace(programs.CLAIMS[at], recorded="holds")
    rows = [*programs.CLAIMS[:at], changed, *programs.CLAIMS[at + 1 :]]
    monkeypatch.setattr(programs, "CLAIMS", rows)
    done = _cli("boostr")
    assert done.exit_code == 1
    assert "CHANGED boostr 1" in done.stdout
    assert "recorded holds, now does not hold" in done.stdout
    assert f"1 of {len(claims(['boostr']))} verdicts not as recorded" in done.stdout


@pytest.mark.slow
def test_the_command_writes_files_and_standard_output(tmp_path):
    done = _cli("boostr", "--csv", "-", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == len(claims(["boostr"]))
    assert "every verdict is as recorded" in done.stderr
    assert "100%" in done.stderr  # the progress bar
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert _cli("boostr", "--html", "-").stdout.startswith("<!DOCTYPE html>")
    refused = _cli("boostr", "--csv", "-", "--html", "-").exception
    assert "at most one of them" in str(refused)


def test_an_interrupt_in_a_solve_ends_the_ledger(monkeypatch):
    """The solve itself ends calmly; its row must not be called changed, nor the next one begun."""
    real, row, begun, pressed_in = scip.run, Claim.row, [], []

    def pressed(*args, **options):
        pressed_in.append(begun[-1])
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    def noted(claim):
        begun.append(claim)
        return row(claim)

    monkeypatch.setattr(scip, "run", pressed)
    monkeypatch.setattr(Claim, "row", noted)
    with pytest.raises(KeyboardInterrupt):
        pl.course.reproduce(["write-up"])
    assert pressed_in
    assert {pressed_in[0]} == {*pressed_in, begun[-1]}
