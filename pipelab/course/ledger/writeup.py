"""What the joint-ILP write-up claims, in its order, and what is computed for each claim.

Random problems are seeded and need two stages or more; brute force says what is true of each.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from math import comb, prod
from typing import Any, cast

import numpy as np

from pipelab.candidates import list_allocations, list_connections
from pipelab.cluster import GPU, Cluster
from pipelab.course.ledger.claims import Claim, ComputedClaim, Trial, entries_beside, tried
from pipelab.course.ledger.type_count import average_link
from pipelab.engine.answers import Result
from pipelab.engine.classes import gpu_classes
from pipelab.engine.formulations.candidates import StageCandidates, enumerate_candidates
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.methods.joint import gigabytes, joint_lp_bound, joint_program, joint_size
from pipelab.engine.methods.single_gpu import single_gpu_size
from pipelab.engine.solving import solve
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import Evaluation, StageReport, evaluate
from pipelab.exhaustive import list_placements
from pipelab.fields import given
from pipelab.hardware.known_models import load_model
from pipelab.hardware.roofline import Roofline
from pipelab.joint_ilp import state_families
from pipelab.placement import Placement
from pipelab.problem import Model, Problem
from pipelab.writeup.cases_csv import author_settings, cases, load_case
from pipelab.writeup.linear_rates import LinearThroughput, with_link_units

NEEDED = 16  # random problems
TYPES = ("A100", "V100", "H100", "RTX4090", "L20", "A10", "A40", "T4")


# What several rows need, each computed when first needed and then kept


@cache
def once(question: Callable, *arguments: Any, **options: Any) -> Any:
    """Compute `question(*arguments, **options)` the first time only; `reproduce` forgets what was kept."""
    return question(*arguments, **options)


def case(name: str, per_stage: int = 1, **rules: Any) -> Problem:
    """A bundled case with this number of GPUs per stage."""
    return once(load_case, name, max_gpus_per_stage=per_stage, **rules)


def tiny() -> Problem:
    """The write-up's own example: tiny with two GPUs per stage."""
    return case("tiny", 2)


def slow(problem: Problem) -> Problem:
    """Slow all links down to an eighth."""
    return replace(problem, cluster=problem.cluster.scaled_bandwidth(1 / 8))


def with_model(problem: Problem, **changes: Any) -> Problem:
    """Change fields of a problem's model."""
    return replace(problem, model=replace(cast(Model, problem.model), **changes))


def best(name: str, per_stage: int = 1, **rules: Any) -> Result:
    """The proven optimum of a case."""
    return once(solve, case(name, per_stage, **rules), "aggregated")


def optimum(name: str, per_stage: int = 1, **rules: Any) -> float:
    """Its rate, tokens/s."""
    return given(best(name, per_stage, **rules).throughput)


def best_of_all(problem: Problem) -> float:
    """The best rate of all placements, each tried."""
    return once(solve, problem, "exhaustive").throughput


def joint(problem: Problem, **options: Any) -> Result:
    """The joint ILP's answer."""
    return once(solve, problem, "joint", **options)


def heuristic(problem: Problem, **options: Any) -> Result:
    """The failed heuristic's answer."""
    return once(solve, problem, "type_count", **options)


def predicted(problem: Problem, **options: Any) -> float:
    """The rate it predicts, tokens/s."""
    return heuristic(problem, **options).details["predicted"]


def size(name: str, per_stage: int = 1, **rules: Any) -> dict[str, int]:
    """What the joint ILP of a case would consist of."""
    return once(joint_size, case(name, per_stage, **rules))


def original(segments: str = "as_run") -> dict[str, int]:
    """What the original MILP of medium consists of, as its author ran it or as the text has it."""
    return once(single_gpu_size, case("medium"), segments)


def linear(problem: Problem) -> LinearThroughput:
    """Return the write-up's cost model, which its cases have."""
    return cast(LinearThroughput, problem.costs)


def rate(name: str, gpu_type: str, layers: int, gpus: int = 1) -> float:
    """tokens/s of one stage of this number of GPUs of a type."""
    problem = case(name, gpus)
    chosen = [gpu for gpu in problem.cluster.gpus if gpu.type == gpu_type][:gpus]
    return problem.stage_cost(chosen, range(layers)).throughput


def limitless(per_stage: int) -> int:
    """GPU sets of at most this number of the demo's GPUs, memory aside."""
    roomy = with_model(case("demo", per_stage), layers=1, layer_weight_gb=0.001)
    return once(count_candidates, roomy)["allocations"]


def with_ms(big_m: str) -> float:
    """What the joint ILP proves of tiny with links ÷ 8: with Ms that are large enough, or with the author's."""
    return round(joint(slow(tiny()), big_m=big_m).details["solver_objective"], 6)


def efficiency(factor: float) -> float:
    """tiny's optimum with another factor in place of 0.85."""
    problem = replace(tiny(), costs=replace(linear(tiny()), efficiency=factor))
    return once(solve, problem, "aggregated").throughput


def three_heterogeneous() -> Problem:
    """Three heterogeneous GPUs that are all needed, on slow links."""
    links = {("A100", "V100"): 100, ("A100", "T4"): 12, ("V100", "T4"): 12}
    memory = {"A100": 60, "V100": 32, "T4": 32}
    three = Cluster.from_counts({"A100": 1, "V100": 1, "T4": 1}, memory, links)
    problem = with_model(tiny(), layer_weight_gb=25)
    return replace(problem, cluster=three, name="three heterogeneous GPUs")


def claimed_without(*families: str) -> float:
    """Compute the rate that the joint ILP claims on three heterogeneous GPUs without some families of rows."""
    import cvxpy as cp

    problem = three_heterogeneous()
    allocations = list_allocations(problem)
    rows, variables = state_families(problem, allocations, list_connections(problem, allocations))
    for family in families:
        del rows[family]
    return float(cp.Problem(cp.Maximize(variables["t"]), [*rows.values()]).solve(solver=cp.HIGHS))


def sets_meant(problem: Problem) -> int:
    """How many sets of GPUs the heuristic's answer may mean."""
    of_type = Counter(gpu.type for gpu in problem.cluster.gpus)
    return prod(comb(of_type[s.gpu_type], s.number) for s in heuristic(problem).details["stages"])


def random_problem(number: int) -> Problem:
    """Two to four GPUs, two to four layers, every link with a speed of its own; GPUs hold one to five layers."""
    rng = np.random.default_rng(number)
    gpus, weight = int(rng.integers(2, 5)), float(rng.uniform(5, 20))
    # four layers on four GPUs take SCIP as long as all others
    layers = int(rng.integers(2, 4 if gpus == 4 else 5))
    memory = 2 + weight * rng.choice([1, 2, 3, 5], gpus)
    pool = tuple(GPU(str(rng.choice(TYPES)), float(gb)) for gb in memory)
    cluster = Cluster(pool, rng.uniform(10, 100, (gpus, gpus)))
    problem = with_model(tiny(), layers=layers, layer_weight_gb=weight)
    return replace(problem, cluster=cluster, name=f"random problem {number}")


def random_problems() -> list[Problem]:
    """The first that have a placement, and whose best one has several stages."""
    found = []
    for problem in map(random_problem, range(9 * NEEDED)):
        answer = once(solve, problem, "exhaustive").placement
        if answer is not None and len(answer) > 1:
            found.append(problem)
        if len(found) == NEEDED:
            return found
    wanted = f"expected {NEEDED} with several stages"
    raise InvalidValue("the ledger", [("random problems", len(found), wanted)])


def same(one: float | None, other: float | None, within: float = 1e-9) -> bool:
    """Whether two rates are equal."""
    return one is not None and other is not None and abs(one - other) <= within * abs(other)


def evaluator_accepts(problem: Problem, placement: Placement) -> bool:
    """Whether it is a placement."""
    try:
        evaluate(problem, placement)
    except InvalidPlacement:
        return False
    return True


def pairs(candidates: StageCandidates) -> Iterator[tuple[int, int]]:
    """Pairs of allocations in layer order."""
    for a, b in combinations(range(len(candidates.start)), 2):
        yield (a, b) if candidates.start[a] <= candidates.start[b] else (b, a)


# From "Problem Evolution" to "The Joint Optimization Challenge"


def scenario(*gpus: int) -> Evaluation:
    """The scenario's layers 1-8, 9-12 and 13-14 on these numbers of H100, A10 and T4, ids in pool order.

    Links in tokens/s, where they are no bottleneck: what the demo's are was never published.
    """
    sets = (tuple(range(10 * i, 10 * i + n)) for i, n in enumerate(gpus))
    stages = zip((8, 4, 2), sets, strict=True)
    problem = case("demo", 4, link_units="tokens")
    return once(evaluate, problem, Placement.of(list(stages)))


def growth_with_gpus() -> object:
    medium = case("medium")
    types, numbers = medium.cluster.kinds, medium.cluster.kind_count
    counts = {gpu.type: 2 * int(n) for gpu, n in zip(types, numbers, strict=True)}
    cluster = Cluster.from_counts(counts, {gpu.type: gpu.memory_gb for gpu in types}, 600)
    twice = single_gpu_size(replace(medium, cluster=cluster))
    return 2 * original("all")["variables"], twice["variables"]


def weak_gpus_limit() -> object:

    def slowest(per_stage: int) -> str:
        stages = given(best("medium", per_stage).evaluation).stages
        stage = min(stages, key=lambda stage: stage.throughput)
        return f"{len(stage.stage.gpus)}×{stage.gpu_types[0]}"

    return slowest(1), slowest(2)


def must_use_every_type() -> object:
    heavy = (with_model(case("demo"), layer_weight_gb=gb) for gb in (2, 5))
    return tuple(len(given(once(solve, p, "aggregated").placement)) for p in heavy)


def slowest_of_the_scenario() -> object:
    alone = scenario(1, 1, 1)
    return alone.stages[int(alone.bottlenecks[0].split()[1]) - 1].gpu_types[0]


def scenario_is_optimal() -> object:
    three_h100 = Placement.of([(8, (0,)), (4, (1,)), (2, (2,))])
    faster = once(evaluate, case("demo", 4, link_units="tokens"), three_h100)
    stages = given(best("demo", 4).evaluation).stages
    types = ", ".join(f"{len(s.stage.gpus)}×{s.gpu_types[0]}" for s in stages)
    return ComputedClaim((scenario(1, 2, 4).throughput, faster.throughput), known=(types,))


def slowest_gpu_of_a_stage() -> object:
    two = rate("tiny", "A100", 4, 2)
    return two, two / 2 / linear(case("tiny")).efficiency


def links_differ() -> object:
    problem = slow(case("small"))
    cuts = [Placement.of([(6, (0,)), (6, (v100,))]) for v100 in (4, 6)]
    return tuple(evaluate(problem, placement).throughput for placement in cuts)


def memory_of_each_gpu() -> object:
    pool = {gpu.type: gpu for gpu in tiny().cluster.kinds}

    def fits(types: tuple[str, str], layers: int, weight: int) -> bool:
        cluster = Cluster(tuple(pool[t] for t in types), np.full((2, 2), 400.0))
        problem = with_model(tiny(), layers=layers, layer_weight_gb=weight)
        one_stage = Placement.of([(layers, (0, 1))])
        return evaluator_accepts(replace(problem, cluster=cluster), one_stage)

    found = []
    sizes = product(range(1, tiny().model.layers + 1), range(2, 21, 2))
    for (layers, weight), one, other in product(sizes, pool, pool):
        each = all(fits((gpu, gpu), layers, weight) for gpu in (one, other))
        what = f"{one} and {other}, {layers} layers of {weight} GB"
        found.append((what, fits((one, other), layers, weight) == each))
    return tried(found)


def both_at_once() -> tuple[float, float]:
    return optimum("small"), once(solve, case("small"), "even").throughput


# "Failed Attempt: Heuristic Hybrid Solver"


def which_three() -> object:

    def classes(gpu_type: str) -> int:
        """The most classes into which links divide the GPUs of a type, over cases with three or more of them."""
        found = []
        for name in cases():
            cluster = case(name).cluster
            mine = [i for i, gpu in enumerate(cluster.gpus) if gpu.type == gpu_type]
            if name != "demo" and len(mine) >= 3:  # the demo's links were never published
                found.append(len({int(c) for c in gpu_classes(cluster).of[mine]}))
        return max(found)

    return classes("H100"), classes("V100")


def meaningless_rows() -> object:
    two = Cluster.from_counts({"A100": 2}, 80, 400)
    problem = replace(with_model(tiny(), layer_weight_gb=25), cluster=two, max_gpus_per_stage=1)
    rates = (predicted(problem, rows=rows) for rows in ("as_written", "counting"))
    return tuple("infeasible" if r is None else f"{r:.6g} tokens/s" for r in rates)


def magic_formulas() -> object:
    alone = rate("tiny", "A100", 4, 2) / linear(case("tiny")).efficiency
    both = predicted(tiny()), predicted(tiny(), factor=False)
    return ComputedClaim(both, known=(both[0] / alone,))


def fungible_gpus() -> object:
    # two are needed; the fastest has slow links
    links = {("A100", "V100"): 12, ("A100", "L20"): 12, ("V100", "L20"): 400}
    three = Cluster.from_counts({"A100": 1, "V100": 1, "L20": 1}, 60, links)
    problem = replace(with_model(tiny(), layer_weight_gb=25), cluster=three, max_gpus_per_stage=1)
    both = [
        (predicted(each), once(solve, each, "aggregated").throughput)
        for each in (problem, with_link_units(problem, "tokens"))
    ]
    without = predicted(tiny(), factor=False), given(joint(tiny()).throughput)
    return ComputedClaim(both[0], known=(*both[1], *(round(each, 6) for each in without)))


# "Correct Joint ILP Formulation", from the idea to its size


def segment_9_14() -> object:
    stages = Placement.of([(8, (0,)), (14, (10, 11))])
    try:
        return f"{evaluate(case('demo', 3), stages).throughput}"
    except InvalidPlacement as error:
        return f"{error}"


def types_of_ids() -> object:
    gpus = case("demo").cluster.gpus
    sets = [dict.fromkeys(gpus[g].type for g in ids) for ids in ((0, 1, 2), (10, 11))]
    return ", ".join(", ".join(types) for types in sets)


def row_allows(by_layers: bool) -> Trial:
    """Where the other demand is met: pairs of tiny's allocations that a row allows exactly if the evaluator does."""
    candidates = once(enumerate_candidates, tiny())
    sets = [set(candidates.sets[s]) for s in candidates.set_of]
    spans = [range(*ends) for ends in zip(candidates.start, candidates.stop, strict=True)]
    found = []
    for a, b in pairs(candidates):
        apart = not sets[a] & sets[b]
        covered = sorted([*spans[a], *spans[b]]) == list(range(candidates.layers))
        allowed, others = (covered, apart) if by_layers else (apart, covered)
        if others:
            placement = candidates.placement(np.array((a, b)))
            accepted = evaluator_accepts(tiny(), placement)
            found.append((f"allocations {a} and {b}", allowed == accepted))
    return tried(found)


def connection_rows() -> object:
    candidates = once(enumerate_candidates, tiny())
    tail, head, found = candidates.tail, candidates.head, []
    for a, b in pairs(candidates):
        if evaluator_accepts(tiny(), candidates.placement(np.array((a, b)))):
            chosen = np.isin(tail, (a, b)) & np.isin(head, (a, b))
            between = list(zip(tail[chosen].tolist(), head[chosen].tolist(), strict=True))
            found.append((f"allocations {a} and {b}", between == [(a, b)]))
    return tried(found)


def linear_throughput() -> object:
    return once(joint_lp_bound, tiny(), "written", "as_written"), joint(tiny()).throughput


def big_m() -> object:
    return with_ms("valid"), with_ms("as_written"), round(best_of_all(slow(tiny())), 6)


def slowest_type() -> object:
    problem, found = tiny(), []

    def together(layers: int, *types: str) -> float:
        gpus = [GPU(t, 80) for t in types]
        return problem.stage_cost(gpus, range(layers)).throughput

    for one, other, layers in product(TYPES, TYPES, range(1, problem.model.layers + 1)):
        slower = min(together(layers, one, one), together(layers, other, other))
        equal = same(together(layers, one, other), slower)
        found.append((f"{one} and {other}, {layers} layers", equal))
    return tried(found)


def cases_of_each_size() -> Iterator[tuple[str, dict[str, int], int]]:
    """Published cases with one to three GPUs per stage: in words, the joint ILP's size, and GPU sets."""
    for name, most in product(cases(), (1, 2, 3)):
        gpus = len(case(name).cluster)
        sets = sum(comb(gpus, k) for k in range(1, most + 1))
        yield f"{name} with {most} GPUs per stage", size(name, most), sets


def variables_of_a_and_e() -> object:
    trial = tried(
        (where, found["variables"] == 2 * (found["allocations"] + found["connections"]) + 1)
        for where, found, _ in cases_of_each_size()
    )
    return ComputedClaim(trial, known=(2 * size("demo", 3)["connections"],))


def allocations_at_most() -> object:
    trial = tried(
        (where, found["allocations"] <= found["segments"] * sets)
        for where, found, sets in cases_of_each_size()
    )
    demo = size("demo", 3)
    return ComputedClaim(trial, known=(demo["allocations"], demo["segments"] * limitless(3)))


def rows_of_layers_and_gpus() -> object:
    flat = with_model(case("demo", 3), layers=1)
    counts = count_candidates(flat)
    parts = sum(counts[part] for part in ("layers", "gpus", "connections"))
    return parts, joint_size(flat)["rows"]


# "Implementation and Results": what came out for tiny and for the demo


def only_stage() -> StageReport:
    """The one stage of the joint ILP's answer for tiny."""
    return given(joint(tiny()).evaluation).stages[0]


def these_gpus_only() -> object:
    least = optimum("tiny", 2) * (1 - 1e-9)
    rates = [evaluate(tiny(), placement).throughput for placement in list_placements(tiny())]
    return sum(rate >= least for rate in rates), 1


def realistic_rate() -> object:
    # by the physical model: tiny's layers, as wide as they are there, on two real A100
    model = replace(load_model("Llama-2-7B"), layers=tiny().model.layers)
    gpus = [GPU("A100-SXM-80", 80)] * 2

    def by_roofline(phase: Any) -> float:
        workload = replace(tiny().workload, phase=phase)
        return Roofline().stage(model, workload, gpus, range(model.layers), "even").throughput

    real = min(by_roofline("prefill"), by_roofline("decode"))
    return real / predicted(tiny()), real / only_stage().throughput


def two_instead_of_three() -> object:
    two, three = size("demo", 2), size("demo", 3)
    known = three["allocations"], two["allocations"], two["variables"]
    return ComputedClaim((limitless(3), 2 * limitless(2)), known=known)


def one_type_only() -> object:
    mixed, one_type = size("demo", 3), size("demo", 3, same_type_stages=True)
    rates = optimum("demo", 3), optimum("demo", 3, same_type_stages=True)
    known = one_type["variables"], *rates
    return ComputedClaim((mixed["allocations"], one_type["allocations"]), known=known)


# The lessons, the comparison of approaches, the outlook and the conclusion


def classes(name: str) -> int:
    """Classes of interchangeable GPUs in a case."""
    return len({int(c) for c in gpu_classes(case(name).cluster).of})


def named_gpus() -> object:
    most = (1, 2, 3, 4)
    named = [joint(case("tiny", k), form="tight").throughput for k in most]
    counted = [optimum("tiny", k) for k in most]
    return tuple(tuple(round(given(r), 9) for r in rates) for rates in (named, counted))


def linear_is_better() -> object:
    settings = [once(author_settings, name) for name in cases()]
    gaps = [found["gap"] for found in settings if "gap" in found]
    return min(gaps), max(gaps)


def problem_scope() -> object:
    answers = joint(tiny()), once(solve, case("tiny"), "single_gpu")
    placements = [given(answer.placement) for answer in answers]
    return tuple(max(len(stage.gpus) for stage in p.stages) for p in placements)


def pure_milp() -> object:
    integer = once(joint_program, tiny())[0].integer
    whole = int(sum(integer))
    both = whole, len(integer) - whole
    return ComputedClaim((min(both), 0), known=both)


def average_bandwidth() -> object:
    matrix = tiny().cluster.bandwidth_matrix()
    links = [
        tiny().link_throughput(matrix[i, j])
        for i, j in np.argwhere(~np.eye(len(matrix), dtype=bool))
    ]
    return average_link(tiny()), float(sum(links) / len(links))


def pairs_of_gpus(per_stage: int) -> Trial:
    """Connections of small's first layers, each as fast as the slowest pair of its GPUs."""
    problem = with_model(case("small", per_stage), layers=2)
    candidates = once(enumerate_candidates, problem)
    matrix = problem.cluster.bandwidth_matrix()
    tensor_gib = problem.tensor_gb() * 1e9 / 2**30  # as the write-up has it
    found = []
    rates = candidates.link_throughput
    for tail, head, link in zip(candidates.tail, candidates.head, rates, strict=True):
        senders, receivers = (candidates.sets[candidates.set_of[a]] for a in (tail, head))
        slowest = min(float(matrix[i, j]) for i, j in product(senders, receivers))
        equal = same(float(link), slowest / tensor_gib)
        found.append((f"GPUs {senders} to {receivers}", equal))
    return tried(found)


def linear_in_the_batch() -> object:
    problem, found = case("tiny"), []
    for gpu, layers in product(TYPES, range(1, problem.model.layers + 1)):
        rates = [
            float(linear(problem).gpu_throughput(gpu, problem.workload, batch, layers))
            for batch in (10, 20, 30, 40)
        ]
        steps = np.diff(rates)
        found.append((f"{gpu}, {layers} layers", bool(np.allclose(steps, steps[0]))))
    return tried(found)


def exact_bottleneck() -> object:
    found = []
    for problem in random_problems():
        answer = joint(problem)
        recomputed = evaluate(problem, given(answer.placement)).throughput
        # SCIP's tolerance
        equal = same(answer.details["solver_objective"], recomputed, within=1e-5)
        found.append((problem.name, equal))
    return tried(found)


def remaining_challenge() -> object:
    demo = case("demo", 3)
    types = demo.cluster.kinds
    memory = {gpu.type: gpu.memory_gb for gpu in types}
    half = Cluster.from_counts({gpu.type: 5 for gpu in types}, memory, 400)
    halved = joint_size(replace(demo, cluster=half))["variables"]
    return halved, size("demo", 3)["variables"], classes("demo")


def first_lines() -> dict[str, Any]:
    """Give what notebook 13 has defined where it says that lines can be pasted, by name."""
    import pipelab as pl
    from pipelab import course

    cases_of_the_text = {"tiny": tiny(), "demo": case("demo", 3), "medium": case("medium")}
    return {"pl": pl, "course": course, "comb": comb, "replace": replace} | cases_of_the_text


def computed_by(line: str = "None", literally: str = "None", known: str = "()") -> ComputedClaim:
    """Compute a row from the expressions that `writeup.toml` has for it."""
    names = globals() | {"gigabytes": gigabytes} | first_lines()
    return ComputedClaim(*(eval(text, names) for text in (line, known, literally)))


def _claim(name: str, said: dict[str, str]) -> Claim:
    texts = {field: said.pop(field) for field in ("line", "literally", "known") if field in said}
    function = said.pop("compute", name)
    compute = partial(computed_by, **texts) if texts else globals()[function]
    return Claim(**{"how": texts.get("line", ""), **said}, compute=compute)


CLAIMS = [_claim(name, said) for name, said in entries_beside(__file__).items()]
