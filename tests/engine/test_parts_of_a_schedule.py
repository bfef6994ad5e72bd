"""Where the parts of a model lie in training: layers, embedding and head, counted one by one and apart from pipelab."""

from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest

import pipelab as pl
from pipelab.costs import LayerTimes, TrainingCost
from pipelab.engine.timeline import placement_timelines
from pipelab.engine.training.bounds import TRAINED_BY

FIELDS = TrainingCost._fields
GB = 1e9


class Listed(LayerTimes):
    """A table has what every layer takes and keeps: one row each, embedding in the first and head in the last."""

    def training_cost(self, problem, report, **recipe):
        rows = self.rows[list(report.stage.layers)]
        return TrainingCost(*rows[:, :-1].sum(axis=0), float(rows[:, -1].max()))


def random_schedule(rng):
    """Any stage on any rank, each of which has one at least; gradients in one or in two, in an order that runs."""
    ranks, microbatches = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    at = rng.permutation([*range(ranks), *rng.integers(0, ranks, int(rng.integers(0, 4)))]).tolist()
    split = rng.random() < 0.5
    rows = [[] for _ in range(ranks)]
    for low in range(0, microbatches, 2):  # two microbatches at a time
        some = range(low, min(low + 2, microbatches))
        for stage, rank in enumerate(at):
            rows[rank] += [f"{stage}F{m}" for m in some]
        for stage, rank in reversed(list(enumerate(at))):
            for m in some:
                rows[rank] += [f"{stage}I{m}", f"{stage}W{m}"] if split else [f"{stage}B{m}"]
    return pl.Schedule.of("any", rows, microbatches=microbatches, stage_rank=at)


def dealt(order, counts):
    """The layers of every stage: a rank's as equal as can be, the larger numbers first; the model's in sequence."""
    held, seen, sizes = Counter(order.stage_rank), Counter(), []
    for rank in order.stage_rank:
        each, more = divmod(counts[rank], held[rank])
        sizes.append(each + (seen[rank] < more))
        seen[rank] += 1
    ends = [0, *accumulate(sizes)]
    return [range(*pair) for pair in pairwise(ends)]


def fullest(order, rank, kept, rest):
    """Activations at the fullest moment of a rank, in the order of what it does."""
    now = most = 0.0
    for action in order.actions[rank]:
        for part in action.parts or (action,):
            stage = part.stage
            now += {"F": kept[stage], "W": -rest[stage]}.get(part.kind, 0.0)
            most = max(most, now)
            now -= kept[stage] if part.kind in ("I", "B") else 0.0
            now += rest[stage] if part.kind == "I" else 0.0
            most = max(most, now)
    return most


def steps(rng, monkeypatch, problem_of):
    """A step under every rule, and under schedules that no rule has: the order, layers of the parts, and the step."""
    named = [(name, int(rng.integers(1, 4)), int(rng.integers(4, 9))) for name in TRAINED_BY]
    for name, ranks, microbatches in [*named, *[("1F1B", 0, 0)] * 8]:
        try:
            order = pl.schedule(name, ranks, microbatches) if ranks else random_schedule(rng)
        except pl.errors.InvalidValue:
            continue
        most = max(Counter(order.stage_rank).values())
        counts = rng.integers(most, 2 * most + 2, order.ranks).tolist()
        problem = problem_of(sum(counts), order.ranks)
        placement = pl.Placement.of([(n, (rank,)) for rank, n in enumerate(counts)])
        with monkeypatch.context() as patch:
            patch.setattr(placement_timelines, "make_schedule", lambda *_, made=order: made)
            step = pl.timeline_of(problem, placement, order.microbatches, training=True)
        yield order, dealt(order, counts), problem, step


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(40))
def test_every_part_takes_and_keeps_what_its_layers_do(seed, monkeypatch):
    """Whatever the layers: durations of every part, and memory and step of every rank."""
    rng = np.random.default_rng(seed)

    def problem_of(layers, ranks):
        costs = Listed({"g": 1.0})
        object.__setattr__(costs, "rows", rng.random((layers, len(FIELDS))) + 0.1)
        model = pl.Model("listed", layers, 256, 1024, 0.001)
        cluster = pl.Cluster([pl.GPU("g", 1e6)] * ranks, np.ones((ranks, ranks)).tolist())
        return pl.Problem(cluster, model, pl.Workload(64, 1, "training"), costs)

    for order, parts, problem, step in steps(rng, monkeypatch, problem_of):
        rows = problem.costs.rows
        each = np.array([rows[list(layers)].sum(axis=0) for layers in parts])
        forward, back, weight, updates, state, kept, rest, _ = each.T
        costs = step.timeline.costs
        assert costs.forward == pytest.approx(forward)
        assert costs.backward_input == pytest.approx(back)
        assert costs.backward_weight == pytest.approx(weight)
        ranks = [np.flatnonzero(np.equal(order.stage_rank, rank)) for rank in range(order.ranks)]
        assert costs.optimizer == pytest.approx(max(updates[mine].sum() for mine in ranks))
        for rank, mine in enumerate(ranks):
            working = max(rows[i, -1] for part in mine for i in parts[part])
            assert step.stages[rank].state_gb == pytest.approx(state[mine].sum())
            need = state[mine].sum() + working + fullest(order, rank, kept, rest)
            assert step.memory_gb[rank] == pytest.approx(need)


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(40))
def test_embedding_and_head_lie_with_the_first_and_the_last_part(seed, monkeypatch):
    """Parameters and activations of transformers by hand; on one rank, tied embeddings are one matrix."""
    rng = np.random.default_rng(seed)
    d, f, heads, keys, size = 256, 512, 4, 2, 64
    vocab, sequence, tied = int(rng.choice([300, 5000])), 128, bool(rng.random() < 0.5)
    layer = d * size * (heads + 2 * keys) + heads * size * d + 3 * d * f + 2 * d

    def problem_of(layers, ranks):
        model = pl.hardware.Transformer(
            "small", layers, d, f, heads, keys, size, vocab, tied_embeddings=tied
        )
        cluster = pl.Cluster.from_counts({"H100-SXM": ranks}, {"H100-SXM": 80.0}, 50.0)
        load = pl.Workload(sequence, 1, "training")
        return pl.Problem(cluster, model, load, pl.Roofline())

    stored = sequence * (8 * d + 2 * (2 * heads * size + 2 * keys * size) + 8 * f) / GB
    logits = sequence * (4 * d + 4 * vocab) / GB
    for order, parts, problem, step in steps(rng, monkeypatch, problem_of):
        whole = pl.timeline_of(
            problem, pl.Placement.of([(problem.model.layers, (0,))]), 1, training=True
        )
        first, last = order.stage_rank[0], order.stage_rank[-1]
        kept = [stored * len(part) for part in parts]
        kept[-1] += logits
        assert step.timeline.costs.activation == pytest.approx(kept)
        assert sum(step.timeline.costs.forward) == pytest.approx(whole.timeline.costs.forward[0])
        alone = [t / len(part) for t, part in zip(step.timeline.costs.forward, parts, strict=True)]
        assert alone[:-1] == pytest.approx([min(alone)] * (len(alone) - 1))
        for rank in range(order.ranks):
            parameters = layer * len(step.placement.stages[rank].layers)
            parameters += vocab * d * (rank == first)
            parameters += vocab * d * (rank == last and not (tied and first == last))
            parameters += d * (rank == last)
            assert step.stages[rank].state_gb == pytest.approx(18 * parameters / GB)
            rest = step.timeline.costs.weight_activation
            need = fullest(order, rank, kept, rest) + 18 * parameters / GB
            assert step.memory_gb[rank] == pytest.approx(need)
