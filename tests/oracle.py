"""A slower, independent truth: brute force from the raw numbers, and random small problems.

Nothing here calls pipelab's cost model, candidates or evaluator. The formulas are written out
once more from the write-up.
"""

import dataclasses
from functools import lru_cache
from itertools import combinations

import numpy as np

import pipelab as pl
import roofline_oracle
from pipelab.costs import LayerTimes
from pipelab.problem import CostModel, StageCost, StageTables


def line(problem, gpu_type, layers):
    """Slope and height at 0 of what a GPU yields, as a function of its batch."""
    c = problem.costs.coefficients[gpu_type]
    return (
        c.per_sequence,
        c.per_token * problem.workload.sequence_length + c.per_layer * layers + c.constant,
    )


def theta(slope, base, batch):
    return max(1.0, slope * batch + base)


def activations(problem):
    w, m = problem.workload, problem.model
    elements = (
        3 * w.batch_size * w.sequence_length * m.d_model
        + w.batch_size * w.sequence_length * m.d_hidden
    )
    return problem.costs.activation_overhead * elements * m.bytes_per_element / 1024**3


def shares(problem, gpus, layers):
    """Batch per GPU; balanced by plain bisection on the common finishing time. `layers` counts their work."""
    total = problem.workload.batch_size
    if problem.batch_split == "even" or len(gpus) == 1:
        return [total / len(gpus)] * len(gpus)
    lines = [line(problem, problem.cluster.gpus[g].type, layers) for g in gpus]
    time = common_finish(tuple(sorted(lines)), total)
    return [finished(slope, base, time, total) for slope, base in lines]


def finished(slope, base, time, total):
    """Largest b with b / θ(b) ≤ time."""
    low, high = 0.0, float(total)
    for _ in range(60):  # to 1e-18 of the batch
        middle = (low + high) / 2
        fast_enough = middle <= time * theta(slope, base, middle)
        low, high = (middle, high) if fast_enough else (low, middle)
    return low


@lru_cache(maxsize=100_000)  # sets of the same types ask the same
def common_finish(lines, total):
    low, high = 0.0, float(total)
    for _ in range(60):
        time = (low + high) / 2
        enough = sum(finished(slope, base, time, total) for slope, base in lines) >= total
        low, high = (low, time) if enough else (time, high)
    return high


def stage(problem, gpus, span):
    """Rate of a stage that holds the layers in `span`, or None where it does not fit in memory."""
    model = problem.model
    if isinstance(problem.costs, TableCosts):
        cost = problem.costs.stage(
            model, problem.workload, [problem.cluster.gpus[g] for g in gpus], span, "even"
        )
        return cost.throughput or None
    if isinstance(problem.costs, pl.hardware.Measured):
        return measured(problem, gpus, span)
    if isinstance(problem.costs, pl.Roofline):
        return roofline_oracle.stage(problem, [problem.cluster.gpus[g] for g in gpus], span)
    weight = sum(model.weight_factors[i] if model.weight_factors else 1.0 for i in span)
    layers = sum(model.work_factors[i] if model.work_factors else 1.0 for i in span)
    if isinstance(problem.costs, LayerTimes):
        return additive(problem, gpus, weight, layers)
    batch = shares(problem, gpus, layers)
    total = problem.workload.batch_size
    for g, b in zip(gpus, batch, strict=True):
        need = weight * model.layer_weight_gb + activations(problem) * b / total
        if need > problem.cluster.gpus[g].memory_gb * (1 + 1e-9):
            return None
    lines = [line(problem, problem.cluster.gpus[g].type, layers) for g in gpus]
    rates = [theta(*of_gpu, b) for of_gpu, b in zip(lines, batch, strict=True)]
    if len(gpus) == 1:
        return rates[0]
    if problem.batch_split == "even":
        return max(1.0, problem.costs.efficiency * len(gpus) * min(rates))
    return max(1.0, problem.costs.efficiency * sum(rates))


def additive(problem, gpus, weight, work):
    """Times add up; an even share of the batch takes as even a share of the time."""
    need = weight * problem.model.layer_weight_gb + problem.costs.reserved_gb
    if any(need > problem.cluster.gpus[g].memory_gb * (1 + 1e-9) for g in gpus):
        return None
    alone = [work * problem.costs.ms_per_layer[problem.cluster.gpus[g].type] / 1000 for g in gpus]
    if problem.batch_split == "even":
        return tokens_of(problem.workload) * len(gpus) / max(alone)
    return tokens_of(problem.workload) * sum(1 / seconds for seconds in alone)


def tokens_of(load):
    return load.batch_size * (load.sequence_length if load.phase == "prefill" else 1)


def pass_seconds(problem, gpus, span):
    """Time of one pass through a stage that fits: sequences stay whole, whoever has its turn."""
    load = problem.workload
    interval = tokens_of(load) / stage(problem, gpus, span)
    if isinstance(problem.costs, pl.Roofline):
        return roofline_oracle.way(problem, [problem.cluster.gpus[g] for g in gpus], span)[1]
    if isinstance(problem.costs, TableCosts):
        return interval
    if isinstance(problem.costs, pl.hardware.Measured):
        whole = dataclasses.replace(
            load, batch_size=roofline_oracle.whole(load.batch_size / len(gpus)) * len(gpus)
        )
        return tokens_of(whole) / measured(problem, gpus, span, whole)
    layers = sum(problem.model.work_factors[i] if problem.model.work_factors else 1.0 for i in span)
    turns, alone, rates = [], [], []
    for g, b in zip(gpus, shares(problem, gpus, layers), strict=True):
        of_gpu, turn = (
            line(problem, problem.cluster.gpus[g].type, layers),
            roofline_oracle.whole(b - 1e-9 * b),
        )
        rates.append(theta(*of_gpu, b))
        alone.append(b / rates[-1])
        turns.append(turn / theta(*of_gpu, turn) if turn else 0.0)
    if len(gpus) == 1:
        return interval
    # By as much as a turn takes longer than a share, where shares take what the stage's rate says.
    share = max(alone) if problem.batch_split == "even" else load.batch_size / sum(rates)
    return max(interval, interval * max(turns) / share)


def measured(problem, gpus, span, load=None):
    """Rate from a table of stage times, by one interpolation after the other; memory from another model."""
    if stage(dataclasses.replace(problem, costs=problem.costs.needs), gpus, span) is None:
        return None
    load = load or problem.workload
    share, slowest = load.batch_size / len(gpus), 0.0
    for g in gpus:
        table = problem.costs.milliseconds[problem.cluster.gpus[g].type]
        layers, batches = (sorted({key[i] for key in table}) for i in (0, 1))
        if not (layers[0] <= len(span) <= layers[-1] and batches[0] <= share <= batches[-1]):
            return None
        by_layers = [np.interp(share, batches, [table[n, b] for b in batches]) for n in layers]
        slowest = max(slowest, float(np.interp(len(span), layers, by_layers)))
    return tokens_of(load) / (slowest / 1000)


def link(problem, senders, receivers):
    matrix = problem.cluster.bandwidth_matrix()
    if isinstance(problem.costs, pl.hardware.Measured):  # times of stages alone were measured
        return link(dataclasses.replace(problem, costs=problem.costs.needs), senders, receivers)
    if isinstance(problem.costs, pl.Roofline):
        return roofline_oracle.link(problem, min(matrix[i][j] for i in senders for j in receivers))
    w, m = problem.workload, problem.model
    gigabyte = 1024**3 if isinstance(problem.costs, pl.writeup.LinearThroughput) else 10**9
    tensor = w.batch_size * w.sequence_length * m.d_model * m.bytes_per_element / gigabyte
    rate = min(matrix[i][j] for i in senders for j in receivers) / tensor
    in_transfers = problem.costs.link_units == "transfers"
    return rate if in_transfers else rate * w.batch_size * w.sequence_length


def message_seconds(problem, senders, receivers):
    """Until the last of all pairs of GPUs has the whole tensor; links in tokens."""
    late = problem.cluster.latency_matrix()
    tokens = tokens_of(problem.workload)
    return max(
        tokens / link(problem, [i], [j]) + late[i][j] / 1000 for i in senders for j in receivers
    )


def gpu_sets(problem):
    n = len(problem.cluster)
    for k in range(1, min(problem.max_gpus_per_stage, n) + 1):
        for s in combinations(range(n), k):
            types = {problem.cluster.gpus[g].type for g in s}
            if not problem.same_type_stages or len(types) == 1:
                yield s


def _every(problem, timed):
    """List (rate, GPU ids used, number of stages, seconds of one pass) of every placement that fits."""
    sets, total = list(gpu_sets(problem)), problem.model.layers
    spans = [(a, b) for a in range(total) for b in range(a + 1, total + 1)]
    held = {(s, a, b): (stage(problem, s, range(a, b)), 0.0) for s in sets for a, b in spans}
    held = {key: value for key, value in held.items() if value[0] is not None}
    if timed:
        held = {
            (s, a, b): (rate, pass_seconds(problem, s, range(a, b)))
            for (s, a, b), (rate, _) in held.items()
        }
    hops = {}

    def hop(senders, receivers):
        if (senders, receivers) not in hops:
            late = message_seconds(problem, senders, receivers) if timed else 0.0
            hops[senders, receivers] = link(problem, senders, receivers), late
        return hops[senders, receivers]

    def extend(done, used, last, slowest, stages, seconds):
        if done == total:
            yield slowest, used, stages, seconds
            return
        for s in sets:
            if not used & set(s):
                through, sent = hop(last, s) if last else (np.inf, 0.0)
                for end in range(done + 1, total + 1):
                    if (s, done, end) in held:
                        rate, takes = held[s, done, end]
                        least = min(slowest, through, rate)
                        more = stages + 1, seconds + takes + sent
                        yield from extend(end, used | set(s), s, least, *more)

    return extend(0, frozenset(), None, np.inf, 0, 0.0)


def placements(problem):
    """List (throughput, GPU ids used, number of stages) of every placement that fits."""
    return ((rate, used, stages) for rate, used, stages, _ in _every(problem, timed=False))


def passes(problem):
    """List (throughput, GPU ids used, seconds of one pass) of every placement that fits; links in tokens."""
    return ((rate, used, seconds) for rate, used, _, seconds in _every(problem, timed=True))


def attained(problem):
    """List `passes` with the throughput that the number in flight allows, where the workload has one."""
    number, tokens = problem.workload.in_flight, tokens_of(problem.workload)
    for rate, used, seconds in passes(problem):
        yield rate if number is None else min(rate, number * tokens / seconds), used, seconds


def best(problem):
    """Return the throughput of the best placement by trying them all; None if there is none."""
    return max((rate for rate, _, _ in placements(problem)), default=None)


def random_problem(seed, layers=5, gpus=4, unlike=False, twins=False, **fixed):
    """A small problem in which, over many seeds, every rule binds: memory, links, one GPU, one layer.

    `unlike`: layers differ from one another. `twins`: few kinds of GPU and few speeds of link, so
    that some GPUs are interchangeable and some links tie.
    """
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, gpus + 1)), int(rng.integers(1, layers + 1))
    names = ["A", "B", "C"]
    coefficients = {
        name: pl.writeup.Coefficients(
            -rng.uniform(0, 0.01),
            rng.uniform(0, 6),
            rng.uniform(-14, 3) * (0.4 if unlike else 1),
            rng.uniform(80, 200),
        )
        for name in names
    }
    costs = pl.writeup.LinearThroughput(
        coefficients, efficiency=float(rng.choice([0.6, 0.85, 1.0]))
    )
    if twins:
        names = names[: int(rng.integers(1, 3))]
    weight, batch, length = (
        float(rng.uniform(0.5, 3)),
        int(rng.choice([1, 4, 16])),
        int(rng.choice([64, 512])),
    )
    model = pl.Model("random", m, 1024, int(rng.integers(256, 4096)), weight)
    if unlike:
        weights, work = rng.choice([0.5, 1.0, 1.5, 2.5], (2, m))
        model = dataclasses.replace(
            model,
            weight_factors=tuple(weights) if rng.random() < 0.8 else None,
            work_factors=tuple(work) if rng.random() < 0.8 else None,
        )
    workload = pl.Workload(length, batch)
    # Memory in layers: some GPUs hold none, some hold all.
    activation = costs.activation_gb(model, workload)
    room = rng.choice([0.7, 1.1, 2.1, 3.1, 6.1], n) * weight + activation * rng.choice(
        [0.4, 1.0], n
    )
    if twins:
        room = rng.choice(np.unique(room)[:2], n)
    pool = tuple(pl.GPU(str(rng.choice(names)), float(memory)) for memory in room)
    options = {
        "max_gpus_per_stage": int(rng.integers(1, 4)),
        "same_type_stages": bool(rng.random() < 0.2),
        "link_units": str(rng.choice(["transfers", "tokens"], p=[0.8, 0.2])),
        "batch_split": str(rng.choice(["even", "balanced"], p=[0.7, 0.3])),
    }
    options.update(fixed)
    costs = dataclasses.replace(costs, link_units=options.pop("link_units"))
    # Links about as fast as stages, in whichever unit they are counted, every direction its own.
    tensor = batch * length * model.d_model * model.bytes_per_element / 2**30
    rates = rng.uniform(20, 400, (n, n))
    if twins:  # GPUs in one or two nodes, links by node
        node, speeds = rng.integers(0, 2, n), rng.uniform(20, 400, (2, 2))
        rates = speeds[np.ix_(node, node)]
    bandwidth = rates * tensor / (1 if costs.link_units == "transfers" else batch * length)
    return pl.Problem(
        pl.Cluster(pool, bandwidth), model, workload, costs, name=f"random {seed}", **options
    )


class TableCosts(CostModel):
    """A cost model without a formula: random rates, random misfits, gaps between the sizes that fit.

    `slowest`: mixed stages are as fast as the slowest of the pure stages of their size, and fit
    where all of those do.
    """

    gpu_types = ("A", "B", "C")

    def __init__(
        self,
        seed,
        slowest,
        values=(20.0, 50.0, 80.0, 120.0, 170.0, 230.0),
        link_units="tokens",
    ):
        self.seed, self.slowest, self.values, self.link_units = seed, slowest, values, link_units

    def memory_parts(self, problem, gpu, layers):
        return {"weights": problem.model.weight_gb(layers), "activations": 0.5}

    def mixes_as_slowest(self, problem):
        return self.slowest

    def link_throughput(self, problem, bandwidth_gb_per_s):
        tokens = problem.workload.tokens if self.link_units == "tokens" else 1
        return bandwidth_gb_per_s / problem.tensor_gb() * tokens

    def rate(self, mixture, span):
        """`mixture`: sorted type names; `span`: (layers, weight, work). 0 where it does not fit."""
        if self.slowest and len(set(mixture)) > 1:
            return min(self.rate((t,) * len(mixture), span) for t in set(mixture))
        rng = np.random.default_rng(
            [self.seed, *map(ord, "".join(mixture)), *(round(4 * x) for x in span)]
        )
        return 0.0 if rng.random() < 0.35 else float(rng.choice(self.values))

    def stage(self, model, workload, gpus, layers, batch_split):
        layers = range(layers) if isinstance(layers, int) else layers
        mixture = tuple(sorted(g.type for g in gpus))
        rate = self.rate(
            mixture,
            (len(layers), model.weight_gb(layers) / model.layer_weight_gb, model.work(layers)),
        )
        need = tuple(g.memory_gb / 2 if rate else g.memory_gb * 2 for g in gpus)
        return StageCost(rate, (workload.batch_size / len(gpus),) * len(gpus), need)

    def stage_tables(self, model, workload, kinds, composition, batch_split):
        s = model.spans
        spans = list(zip(s.layers.tolist(), s.weight.tolist(), s.work.tolist(), strict=True))
        mixtures = [
            tuple(sorted(t for k, n in zip(kinds, c, strict=True) for t in [k.type] * n))
            for c in composition
        ]
        rate = np.array([[self.rate(m, span) for span in spans] for m in mixtures])
        memory = (
            np.where(rate[:, None] > 0, 0.5, 2.0)
            * np.array([k.memory_gb for k in kinds])[None, :, None]
        )
        return StageTables(rate, np.where((composition > 0)[:, :, None], memory, 0.0))


def wild_problem(seed, orders=30.0):
    """A small problem whose stage and link rates spread over so many orders of magnitude, some of them equal."""
    rng = np.random.default_rng(seed)
    n, layers = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    values = 10.0 ** rng.uniform(-orders / 2, orders / 2, 6)
    costs = TableCosts(seed, slowest=bool(seed % 2), values=tuple(values.tolist()))
    model, load = pl.Model("wild", layers, 1024, 1024, 1.0), pl.Workload(128, 1)
    pool = tuple(pl.GPU(str(rng.choice(costs.gpu_types)), 40.0) for _ in range(n))
    own = 10.0 ** rng.uniform(-orders / 2, orders / 2, (n, n))
    links = np.where(rng.random((n, n)) < 0.3, rng.choice(values, (n, n)), own)
    per_token = load.batch_size * model.d_model * model.bytes_per_element / 1e9
    return pl.Problem(
        pl.Cluster(pool, links * per_token), model, load, costs,
        max_gpus_per_stage=int(rng.integers(1, 3)), same_type_stages=False, name=f"wild {seed}",
    )  # fmt: skip


def heavier(problem, layer_weight_gb):
    """A problem with layers of so many GB."""
    model = dataclasses.replace(problem.model, layer_weight_gb=layer_weight_gb)
    return dataclasses.replace(problem, model=model)
