"""The ledger: every verdict as recorded, every value computed, and a row that pretends is found out."""

import ast
import csv
import io
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pipelab as pl
from pipelab import course
from pipelab.course import published_layer_assignment, published_orders, published_scheduler
from pipelab.course.ledger import KINDS, VERDICTS, Claim, claims, clock, writeup_lessons
from pipelab.course.ledger.book import FAILED, enter
from pipelab.course.ledger.claims import reading, shown
from pipelab.course.ledger.comparisons import (
    Trial,
)  # fmt: skip
from pipelab.course.ledger.documents import DOCUMENTS, section_of
from pipelab.course.ledger.shared_results import SharedResults
from pipelab.course.n13 import plot_verdicts
from pipelab.engine.methods.joint import joint_size
from pipelab.engine.solvers import scip
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.io.command_line import app

DESK = SharedResults()  # keeps what the honest ledger asked the solvers


@pytest.fixture(scope="module")
def ledger():
    return pl.reproduce(shared=DESK)


def test_every_verdict_is_as_recorded(ledger):
    assert [(e.document, e.number, e.claim.says, e.verdict, e.error) for e in ledger.changed] == []
    assert {d: sum(c.values()) for d, c in ledger.counts.items()} == {
        "pmetal": 16, "scheduler": 26, "boostr": 17, "write-up": 110,
    }  # fmt: skip
    assert set(ledger.totals) == set(VERDICTS)


def test_numbers_statements_and_readings_are_counted_apart(ledger):
    assert sum(map(len, KINDS.values())) == len(VERDICTS)  # no verdict belongs to two kinds
    for kind, verdicts in KINDS.items():
        of_kind = ledger.only(kind=kind)
        assert len(of_kind) == ledger.kinds[kind] == sum(ledger.totals[v] for v in verdicts) > 20
        assert {e.verdict for e in of_kind} == set(verdicts)
    assert sum(ledger.kinds.values()) == len(ledger)
    for entry in ledger.only(kind="reading"):
        assert (entry.value, entry.row()["computed"], entry.row()["compared"]) == (None, "–", "")


def test_a_general_statement_is_tried_on_a_range(ledger):
    """More than a handful, except where all inputs that a test speaks of were tried."""
    for entry in ledger.only(kind="statement"):
        if entry.verdict == "holds on what was tried":
            assert entry.value.of >= 6, entry.claim.says
            assert entry.value.held == entry.value.of
        elif isinstance(entry.value, Trial):
            assert entry.value.whole or entry.value.counterexample, entry.claim.says
    assert ledger.find("Not guaranteed | Global").value.of >= 16


def test_what_was_decided_wrongly_once(ledger):
    """Verdicts that rested on one case, on an opinion, or on a claim that the document does not make."""
    verdicts = {
        "Not guaranteed | Global": "holds on what was tried",
        "working solver that finds provably optimal": "does not hold",
        "Linear is Better": "no verdict",
        "GPUs are fungible resources": "holds",
        "which 3? gpu_0,1,2": "no verdict",
        "Must assign each segment": "no verdict",
        "Critical Factor": "no verdict",
        "ILP without heuristics": "no verdict",
        "Single GPU/segment | Timeout": "wrong",
        "W passes are scheduled into pipeline bubbles": "holds on what was tried",
        "For 3+ nodes": "does not hold",
        "For 2 nodes": "holds on what was tried",
    }
    assert {says: ledger.find(says).verdict for says in verdicts} == verdicts
    assert shown(ledger.find("working solver").value) == "220, 301.784"
    assert ledger.find("For 2 nodes").known == (20, 10)
    words = [e.claim.says for e in ledger]
    invented = (
        "misleads",
        "the truth on every case",
        "and the optimum stays",
        "as others do it",
        "more chunks",
    )
    assert [w for w in words for text in invented if text in w] == []
    assert len({(e.document, e.claim.says, e.claim.stated) for e in ledger}) == len(ledger)


def test_every_table_row_and_test_of_the_documents_has_its_row(ledger):
    """What the first edition left out."""
    for says in (
        "Problem Scope", "GPU Assignment", "Network Modeling | Exact GPU pairs", "Exact bottleneck", "Pure MILP",
        "Load Imbalance", "synchronization overhead", "1. Layer Coverage", "2. GPU Exclusivity",
        "4. Network Connection Logic", "batch_size=100", "Hierarchical Decomposition", "Real System Integration",
        "Formulation First", "Validate Incrementally", 'Question "Solutions"', "sched_first.is_first_stage",
        "MicroBatch::new", "e.to_string()",
    ):  # fmt: skip
        ledger.find(says)


def test_the_numbers_that_matter_are_there(ledger):
    """A few rows by their words, with what is known to come out: rows cannot silently change their subject."""
    wanted = {
        "Correct Joint ILP: 301.78": (301.784, 301.784),
        "Heuristic Hybrid: 452.68": 452.676,
        "Variables: ~690K": (9_887_608_011, 9_887_608_011),
        "1.7M constraints": 1_568_029,
        "Allocations: 345,465": 345_465,
        "H100 processes 100 samples → 810": 810.424,
        "Network connections": 312_210,
    }
    assert {says: ledger.find(says).value for says in wanted} == {
        says: pytest.approx(value, rel=1e-6) for says, value in wanted.items()
    }


def test_an_entry_says_itself_in_a_notebook(ledger):
    assert "so the verdict is: does not hold." in ledger.find("For 3+ nodes")._repr_html_()
    assert "(A reading, without a verdict.)" in ledger.find("Critical Factor")._repr_html_()
    entry = replace(ledger.entries[0], claim=replace(ledger.entries[0].claim, says="a < b"))
    assert "“a &lt; b”" in entry._repr_html_()


# Perturbations of what lies under the rows. Each must leave the honest rows computable, and none
# knows a row.


def _another_solver(monkeypatch):
    """One that answers half as much again, more of everything, and with other GPUs; it repeats honest answers so."""
    honest = pl.solve

    def solve(*arguments, **options):
        result = DESK.once(honest, *arguments, **options)
        details = {k: v * 1.5 if isinstance(v, float) else v for k, v in result.details.items()}
        details["solver_status"] = f"not {result.status}"
        details["stages"] = tuple(
            replace(s, number=s.number + 1) for s in result.details.get("stages", ())
        )
        more = {
            n: None if getattr(result, n) is None else 1.5 * getattr(result, n)
            for n in ("throughput", "bound", "seconds")
        }
        if result.placement:
            last = len(result.problem.cluster) - 1
            more["placement"] = pl.Placement.of(
                [(result.problem.model.layers - 1, (last,)), (1, (last - 1,))]
            )
        return replace(
            result, **more, details=details, size={k: v + 1 for k, v in result.size.items()}
        )

    monkeypatch.setattr(pl, "solve", solve)


def _other_cases(monkeypatch, change):
    honest = pl.load_case
    monkeypatch.setattr(pl, "load_case", lambda name, **options: change(honest(name, **options)))


def _one_layer_more(monkeypatch):
    _other_cases(
        monkeypatch, lambda p: replace(p, model=replace(p.model, layers=p.model.layers + 1))
    )


def _faster_gpus(monkeypatch):
    honest = LinearThroughput.gpu_throughput
    monkeypatch.setattr(
        LinearThroughput, "gpu_throughput", lambda *a, **k: 1.25 * honest(*a, **k) + 3
    )


def _other_batch_and_factor(monkeypatch):
    def change(p):
        return replace(
            p, workload=replace(p.workload, batch_size=3), costs=replace(p.costs, efficiency=0.5)
        )

    _other_cases(monkeypatch, change)


def _reversed_pool(monkeypatch):
    def change(p):
        gpus = (*p.cluster.gpus[::-1], p.cluster.gpus[0])
        return replace(p, cluster=pl.Cluster(gpus, np.full((len(gpus),) * 2, 250.0)))

    _other_cases(monkeypatch, change)


def _different_links(monkeypatch):
    def change(p):
        i, j = np.indices((len(p.cluster),) * 2)
        return replace(p, cluster=pl.Cluster(p.cluster.gpus, 30 + (i == 0) * j + 1.0))

    _other_cases(monkeypatch, change)


def _heavy_layers(monkeypatch):
    _other_cases(monkeypatch, lambda p: replace(p, model=replace(p.model, layer_weight_gb=1000)))


def _other_settings(monkeypatch):
    monkeypatch.setattr(
        writeup_lessons, "author_settings", lambda name: {"gap": 0.5, "seconds": 1.0}
    )


def _slow_forwards(monkeypatch):
    honest = pl.simulate

    def slowed(schedule, costs, **options):
        twice = np.atleast_1d(costs.forward) * 2
        return honest(
            schedule,
            replace(costs, forward=tuple(twice) if len(twice) > 1 else float(twice[0])),
            **options,
        )

    monkeypatch.setattr(pl, "simulate", slowed)


PROGRAM = (
    "partition_",
    "PipelineConfig",
    "PipelineBubbleStats",
    "MicroBatch",
    "StageRankOutOfRange",
)


def _other_seeds(
    which,
    modules=(published_layer_assignment, published_orders),
    prefixes=("assign_", "seed_", "scheduler_", "clock_"),
):
    """Every published function gets one argument changed, a number more or a list without its end."""

    def sabotage(monkeypatch):
        def changed(function):
            def call(*arguments, **options):
                given = list(arguments)
                usable = [i for i, a in enumerate(given) if isinstance(a, int | list)]
                if usable:
                    i = usable[min(which, len(usable) - 1)]
                    given[i] = given[i][:-1] if isinstance(given[i], list) else given[i] + 1
                return function(*given, **options)

            return call

        for module in modules:
            for name in list(vars(module)):
                if name.startswith(prefixes):
                    monkeypatch.setattr(module, name, changed(getattr(module, name)))

    return sabotage


def _other_schedules(monkeypatch):
    honest = pl.schedule
    monkeypatch.setattr(pl, "schedule", lambda name, p, m, *rest: honest(name, 2 * p, 2 * m, *rest))


def _other_cuts(monkeypatch):
    monkeypatch.setattr(
        pl, "split_minmax", lambda costs, stages, **options: pl.split_even(len(costs), stages)
    )


def _other_types(monkeypatch):
    other = {"V100": "H100", "H100": "V100", "T4": "A10"}

    def change(p):
        gpus = [replace(gpu, type=other.get(gpu.type, gpu.type)) for gpu in p.cluster.gpus]
        return replace(p, cluster=pl.Cluster(tuple(gpus), p.cluster.bandwidth_matrix()))

    _other_cases(monkeypatch, change)


def _a_joint_ilp_that_is_wrong(monkeypatch):
    """It alone: what is compared with it stays as it is."""
    honest = pl.solve

    def solve(problem, method="joint", **options):
        result = DESK.once(honest, problem, method, **options)
        if method != "joint" or not result.placement:
            return result
        details = result.details | {"solver_objective": 1.5 * result.details["solver_objective"]}
        return replace(result, throughput=1.5 * result.throughput, details=details)

    monkeypatch.setattr(pl, "solve", solve)


def _other_sizes(monkeypatch):
    honest = joint_size
    monkeypatch.setattr(
        course, "joint_size", lambda *a, **k: {name: n * n for name, n in honest(*a, **k).items()}
    )


def _backwards(order):
    rows = [[str(action) for action in reversed(row)] for row in order.actions]
    return pl.Schedule.of(order.name, rows, microbatches=order.microbatches)


def _orders_backwards(monkeypatch):
    for name in ("clock_interleaved", "clock_zero_bubble"):
        honest = getattr(published_orders, name)
        monkeypatch.setattr(
            published_orders, name, lambda *a, honest=honest: _backwards(honest(*a))
        )


def _orders_swapped(monkeypatch):
    one, other = published_orders.clock_1f1b, published_orders.clock_zero_bubble
    monkeypatch.setattr(published_orders, "clock_1f1b", other)
    monkeypatch.setattr(published_orders, "clock_zero_bubble", one)


SABOTAGES = [
    _a_joint_ilp_that_is_wrong, _another_solver, _other_sizes, _orders_backwards, _orders_swapped,
    _other_seeds(0), _other_seeds(1), _other_seeds(2), _other_seeds(3), _other_seeds(0, [published_scheduler], PROGRAM),
    _other_seeds(1, [published_scheduler], PROGRAM), _other_seeds(2, [published_scheduler], PROGRAM),
    _one_layer_more, _faster_gpus, _other_batch_and_factor, _reversed_pool, _different_links, _heavy_layers,
    _other_settings, _slow_forwards, _other_schedules, _other_cuts, _other_types,
]  # fmt: skip


def _asked(entries):
    """Every computation of some rows, a note's values as well: (document, number, claim, computation) → value."""
    both = {(d, n, c, c.compute): value for d, n, c, value, _ in entries if c.compute}
    return both | {(d, n, c, c.known): known for d, n, c, _, known in entries if c.known}


def _reacts(row, honest, shared) -> bool:
    """Whether another value comes out; an error is none."""
    try:
        return shown(row[3](shared)) != shown(honest)
    except Exception:
        return False


def _rows_that_never_react(rows, honest, monkeypatch):
    """Rows whose value stays the same, or is none, whatever is perturbed."""
    left = list(rows)
    for sabotage in SABOTAGES:
        with monkeypatch.context() as patched:
            sabotage(patched)
            shared = SharedResults()
            left = [row for row in left if not _reacts(row, honest[row], shared)]
    return left


PRETENDERS = [
    Claim("", "a number typed in", "7", lambda shared: 7, "", "exact"),
    Claim(
        "",
        "asks, and ignores the answer",
        "7",
        lambda shared: shared.size("tiny", 2) and 7,
        "",
        "exact",
    ),
    Claim(
        "",
        "asks, and corrects the answer",
        "4",
        lambda shared: shared.case("tiny").model.layers * 0 + 4,
        "",
        "exact",
    ),
    reading("", "an answer with a number typed in", "it is {}", lambda shared: (7,)),
]


def test_every_value_follows_from_what_is_computed(ledger, monkeypatch):
    pretenders = [enter("none", i, claim, SharedResults()) for i, claim in enumerate(PRETENDERS)]
    honest = _asked(
        [(e.document, e.number, e.claim, e.value, e.known) for e in (*ledger, *pretenders)]
    )
    still = _rows_that_never_react(honest, honest, monkeypatch)
    assert [(d, n, c.says) for d, n, c, _ in still if d != "none"] == []
    # and they are found out
    assert [c.says for d, _, c, _ in still if d == "none"] == [c.says for c in PRETENDERS]


def _digits(constant):
    """Significant digits of a number, or of the longest one in a text."""
    if isinstance(constant, str):
        return max(
            (len(d.replace(".", "").strip("0")) for d in re.findall(r"\d[\d.]*", constant)),
            default=0,
        )
    if isinstance(constant, int | float) and not isinstance(constant, bool):
        return len(re.sub(r"e.*|[-.]", "", repr(constant)).strip("0"))
    return 0


def _constants(tree):
    """Numbers anywhere in a module, and texts in its functions and lambdas but for docstrings."""
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
            own = body[1:] if documented else body
            texts |= {n for part in own for n in ast.walk(part) if isinstance(n, ast.Constant)}
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and (n in texts or not isinstance(n.value, str))
    ]


ALLOWED_IN_NOTES = {"1,000", "1024"}  # an input, and a unit in the text


def test_no_computation_holds_a_long_number():
    """Inputs have up to three digits; what is claimed is text of its row, which no computation gets to see.

    And what a note says of a computed number, it takes from `known`.
    """
    checked = 0
    for path in Path(clock.__file__).parent.glob("*.py"):
        found = _constants(ast.parse(path.read_text(encoding="utf-8")))
        assert [c for c in found if _digits(c) > 3] == [], path
        checked += len(found)
    assert checked > 500
    for _, _, claim in claims():
        typed = re.findall(r"\d[\d.,]*\d", claim.note)
        assert [
            n for n in typed if _digits(n) > 2 and n.strip(".,") not in ALLOWED_IN_NOTES
        ] == [], claim.note
    assert [_digits(x) for x in (301.784, 9_887_608_011, "317950", 60_000, 1e-9, 0.85)] == [
        6,
        10,
        5,
        1,
        1,
        2,
    ]


def test_readings_and_assumptions_give_their_reasons(ledger):
    for entry in ledger:
        if entry.verdict in ("no verdict", "only under an unstated assumption"):
            assert len(entry.row()["remark"].split()) >= 6, entry.claim.says
        assert "{}" not in entry.row()["remark"]
        assert bool(entry.claim.known) == ("{}" in entry.claim.note)
        assert entry.claim.says
        assert entry.claim.place
        assert entry.claim.how or entry.claim.kind == "reading"


def test_a_row_that_cannot_be_computed_is_not_as_recorded():
    def broken(shared):
        raise pl.InvalidValue("here", [("x", 1, "expected 2")])

    entry = enter("none", 1, Claim("", "", "7", broken, "", "exact"), SharedResults())
    assert (entry.verdict, entry.changed, entry.row()["computed"]) == (FAILED, True, "–")
    assert "expected 2" in entry.row()["remark"]


def test_filters(ledger):
    fails = ledger.only("does not hold", "boostr")
    assert {(e.verdict, e.document) for e in fails} == {("does not hold", "boostr")}
    assert (
        0
        < len(fails)
        < len(ledger.only("does not hold"))
        < len(ledger.only(kind="statement"))
        < len(ledger)
    )
    with pytest.raises(pl.UnknownName, match="did you mean 'number'"):
        ledger.only(kind="numbers")
    with pytest.raises(pl.UnknownName, match="did you mean 'wrong'"):
        ledger.only("wrng")
    with pytest.raises(pl.UnknownName, match="no entry says"):
        ledger.find("nothing of the kind")
    with pytest.raises(pl.UnknownName, match="did you mean 'boostr'"):
        claims(["bostr"])


def test_csv_and_html_hold_every_row(ledger):
    rows = list(csv.DictReader(io.StringIO(ledger.csv())))
    assert [row["it says"] for row in rows] == [e.claim.quotation for e in ledger]
    assert [row["kind"] for row in rows] == [e.claim.kind for e in ledger]
    page = ledger.html()
    assert page.count("<tr class=") == len(ledger)
    assert "{num_stages}" in page
    assert "<script" not in page
    markup = replace(ledger.entries[0], claim=replace(ledger.entries[0].claim, says="a <b> & c"))
    assert "a &lt;b&gt; &amp; c" in replace(ledger, entries=(markup,)).html()
    filters = re.findall(r"<label for='[^']*'>([^<(]*) \((\d+)\)</label>", page)
    assert ("wrong", str(ledger.totals["wrong"])) in filters
    assert ("does not hold", str(ledger.totals["does not hold"])) in filters
    ids = re.findall(r" id='([^']*)'", page)
    assert len(ids) == len(set(ids))


def test_every_section_has_its_bar(ledger):
    figure = plot_verdicts(ledger)
    sections = [section for document in DOCUMENTS.values() for section in document.sections]
    assert all(list(trace.y) == sections for trace in figure.data)
    for section in ("pmetal", "write-up: results"):
        rows = [entry for entry in ledger if entry.section == section]
        drawn = sum(trace.x[sections.index(section)] for trace in figure.data if section in trace.y)
        assert drawn == len(rows) > 10
    assert ledger.find("Balanced pipeline").section == "write-up: problem"
    with pytest.raises(pl.InvalidValue, match="expected a row of the document"):
        section_of("boostr", 1000)
    assert sum(sum(trace.x) for trace in figure.data) == len(ledger)
    wrong, fails, kinds = ledger.totals["wrong"], ledger.totals["does not hold"], ledger.kinds
    assert figure.layout.title.text.startswith(
        f"{wrong} of {kinds['number']} numbers are wrong, {fails} of {kinds['statement']} statements do not hold"
    )
    for kind, axis in zip(KINDS, ("x", "x2", "x3"), strict=True):
        assert sum(sum(trace.x) for trace in figure.data if trace.xaxis == axis) == kinds[kind]


def test_a_row_that_could_not_be_computed_is_in_the_figure(ledger):
    broken = replace(
        ledger, entries=tuple(replace(e, verdict=FAILED) for e in ledger.only("wrong"))
    )
    (bar,) = plot_verdicts(broken).data
    assert (bar.name, sum(bar.x)) == (FAILED, len(broken))


def _cli(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_command_ends_in_1_when_a_verdict_changes(monkeypatch):
    assert _cli("boostr").exit_code == 0
    first, *rest = clock.CLAIMS
    monkeypatch.setattr(clock, "CLAIMS", (replace(first, expected="holds"), *rest))
    done = _cli("boostr")
    assert done.exit_code == 1
    assert "CHANGED boostr 1" in done.stdout
    assert "recorded holds, now does not hold" in done.stdout
    assert f"1 of {len(clock.CLAIMS)} verdicts not as recorded" in done.stdout


def test_the_command_writes_files_and_standard_output(tmp_path):
    done = _cli("boostr", "--csv", "-", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == len(clock.CLAIMS)
    assert "every verdict is as recorded" in done.stderr
    assert "100%" in done.stderr  # the progress bar
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert _cli("boostr", "--html", "-").stdout.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bostr",), "did you mean 'boostr'"),
        (("boostr", "--csv", "-", "--html", "-"), "at most one on standard output"),
        (("boostr", "--csv", "."), "expected the path of a file"),
    ],
)
def test_what_the_command_refuses(arguments, message):
    done = _cli(*arguments)
    # main() makes one sentence and status 2 of it
    assert isinstance(done.exception, pl.PipelabError)
    assert message in str(done.exception)


def test_an_interrupt_in_a_solve_ends_the_ledger(monkeypatch):
    """The solve itself ends calmly; its row must not be called changed, nor the next one begun."""
    real, entered = scip.run, []

    def pressed(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    monkeypatch.setattr(scip, "run", pressed)
    with pytest.raises(KeyboardInterrupt):
        pl.reproduce(["write-up"], shared=SharedResults(), on_entry=entered.append)
    assert not any(entry.changed for entry in entered)
