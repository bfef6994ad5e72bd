"""What every notebook must come to: statements about its own variables, and the titles of its figures."""

import nbformat

# Statements that must hold in the notebook's own variables once it has run.
RESULTS = {
    "00_start_here.ipynb": [
        # the data are those of all notebooks
        "problem == replace(course.three_sites(), name=problem.name)",
        "round(weight) == 141 and max(free.values()) < weight < sum(free.values())",
        "best_rule.method == 'proportional' and abs(best_rule.throughput - 10240 / 3) < 1e-6",
        "round(result.throughput / best_rule.throughput, 2) == 1.85 and result.in_flight == 16",
        "(slowest, list(most.values()), fit) == (324, [19, 3, 2], 77)",
        # the answer to the first prediction
        "pl.solve(replace(problem, cluster=cluster.with_counts({'A100-SXM-40': 3, 'L4': 4}))).throughput"
        " == 2048000 / 374 and 80 - (3 * 19 + 4 * 4) == 7",
        "(round(alone.throughput), round(pairs.throughput)) == (6341, 6693)",
        # "a factor of 1.85 … is far beyond these errors"
        "len(others) > 200 and 0.03 < errors.median() < others.median() < 0.1 and others.max() < 0.5",
        # "37% of an A100's memory and 11% of its speed", "wait more than 60% of the time", "33.6 MB"
        "int(100 * MEMORY['T4'] / MEMORY['A100-SXM-40']) == 37",
        "round(MS['A100-SXM-40'] / MS['T4'], 2) == 0.11 and f'{1000 * problem.tensor_gb():.1f}' == '33.6'",
        "min(1 - len(s.layers) * MS['A100-SXM-40'] / 600 for s in best_rule.placement.stages if s.gpus[0] < 3) > 0.6",
    ],
    "01_splitting_layers.ipynb": [
        "agree == 300 and min(excess) > -1e-9 and max(excess) > 0.5",
        # the notebook's rules and its program are the package's
        "round(best[11, 80]) == 324 and [len(part) for part in exact] == [19, 19, 19, 3, 4, 4, 4, 2, 2, 2, 2]",
        # with T4s of 180 ms, and with 9 GB reserved, as the text says
        "(slower := [v * (150 / 180 if gpu.type == 'T4' else 1) for v, gpu in zip(speeds, gpus)])",
        "round(pl.splits.bottleneck(pl.splits.split_proportional(80, slower), work, slower)) == 360",
        "(best := pl.splits.split_minmax(work, 11, speeds=slower, memory=needs, limits=limits))",
        "round(pl.splits.bottleneck(best, work, slower)) == 340",
        "[sum(sum(needs[i] for i in part) > gb - 9 for part, gb in zip(split, memory)) for split in"
        " (splits['by speed'], pl.splits.split_minmax(work, 11, speeds=speeds, memory=needs,"
        " limits=[gb - 9 for gb in memory]))]"
        " == [1, 0]",
        "[round(slowest(part)) for part in splits.values()] == [1065, 615, 324]",
        "round(as_listed, 1) == 762.9 and abs(in_other_order - 2048000 / 324) < 1e-6 and orders == 11550",
    ],
    "02_exhaustive_search.ipynb": [
        "len(tried) == count(16, 5) == 225005 and problem.costs.ms_per_layer == MS",
        "len(winner.gpus) == 4 and 4 not in winner.gpus and per_second == len(tried) / seconds",
        "len(set(listed.values())) == 1",
        "abs(in_best_order['by speed'] - 2048000 / 340) < 1e-6 and rule == 'by speed' and 0.99 < beaten < 1",
        # what the reader should see: no rule comes nearer to the best with a faster link
        "(fast := {(a, b): t / (10 if {a, b} & {4} and {a, b} & {2, 3} else 1) for (a, b), t in link.items()})",
        "max(rate(*by_rule(rule, sites), fast) for rule in RULES for sites in ORDERS) < 2048000 / 330",
        # branch and bound: the example by hand, and every search proves the same
        "round(8 * MS['A100-SXM-40']) == 77 and round(rest_ms(56, {1, 2, 3, 4})) == 353",
        "round(with_t4 / 225005, 2) == 0.94",
        "{ms for ms, _ in searches.values()} == {1000 * 2048 / best}",
        "[n for _, n in searches.values()] == [778641, 3704, 498, 50]",
        "all(77 < count(80, n + 1) / count(80, n) < 165 for n in range(1, 11))",
        "abs(stopped.bound - 2048000 / 9.6) < 1e-6",
        "1.06 < divided(problem) / stopped.throughput < 1.065",
        "hopeless.placement is None and hopeless.details['tried'] == 0",
    ],
    "03_one_gpu_per_stage.ipynb": [
        "[round(step.ms) for step in steps.values()] == [459, 567, 567, 729, 729]",
        # the ring: nothing crosses the slow line
        "all((a > 5) == (b > 5) for a, b in ring.links) and not set(range(6, 8)) & {g for x in chain.links for g in x}",
        "round(max(pl.evaluate(worse, pl.Placement.of([(unordered.layers[g], (g,)) for g in order])).throughput"
        " for order in ((2, 3, 4, 5, 0, 1, 6, 7), (6, 7, 0, 1, 2, 3, 4, 5))), 1) == 762.9",
        # the relaxation has fractions, also of rings; each bound is above the one before
        "any(0.01 < x < 0.99 for x in relaxed.x.values()) and any((h, g) in relaxed.x for g, h in relaxed.x)",
        "[round(least) for least in ladder.values()] == [444, 514, 567, 729]",
        "logged.status == 'optimal' and abs(logged.ms - logged.at_least) < 1e-6 and 100 < logged.nodes < 2000",
        # too large an M: a solver's tolerance switches its rows off, and the ring is back
        "course.ask_scip(worse, *FAMILIES, ends, places(10**9)).ms < final.ms - 1",
        "stopped.status != 'optimal' and stopped.bound >= bound(problem) - 1e-6 and sizes['variables'] == 2540006",
        "late.status == 'nodelimit' and gap > 0.01 and late.at_least < late.ms",
    ],
    "04_a_failed_heuristic.ipynb": [
        "(len(mixes), len(held), over) == (99, 44, 27) and round(max(held), 2) == 2.24 and min(held) > 1 - 1e-9",
        # "up to 28 %, and for four L4s with four T4s a factor of 2.2"
        "sum(1.12 < r < 1.285 for r in held) == 9 and sum(r > 1.285 for r in held) == 1",
        # what the notebook writes is what the package has
        "all(predicted[mix] == kit or abs(predicted[mix] - kit) < 1e-6"
        " for mix in mixes for kit in [course.n04.predict_by_counts(pool(mix))])",
        # what its choice yields, and the stage of the first exercise
        "round(yielded) == 5461 < possible[3, 4, 4] < predicted[3, 4, 4] and sorted(named.gpus) == [*range(11)]",
        "round(2_048_000 / (12 * MS[L4] / 4)) == 8428",
        "'at most 69 of 80 layers' in pl.solve(problem, 'type_count').reason",
        # an A100 more: right at once
        "predicted[1, 4, 4] == possible[1, 4, 4] > 2 * possible[0, 4, 4]",
    ],
    "solutions/02_exhaustive_search.ipynb": [
        "distinct(16, [2, 2, 1]) == 56613",
    ],
    "05_joint_ilp.ipynb": [
        "np.allclose([a.rate for a in allocations], [a.rate for a in list_allocations(problem)])",
        "pairs == [c[:2] for c in pl.candidates.list_connections(problem, list_allocations(problem))]",
        "abs(alone.throughput - 3200) < 1e-9 and (len(allocations), len(connections)) == (117, 1250)",
        # the variables of the write-up's program, and of ours
        "sizes['blocks of 16']['variables'] == 2 * (117 + 1250) + 1 == 2735 and 117 + 1250 + 1 == 1368",
        # six families suffice: twelve, the kit's own solver and the evaluator agree
        "(kit := pl.solve(problem, 'joint', form='tight')).status == 'optimal'",
        "abs(kit.throughput - best.claim) < 1e-4",
        # the gain with blocks of 16 layers and with single ones, as the text says
        "f'{gain:.1%} {finely:.1%}' == '33.3% 2.9%'",
        "abs(bounds['tight'] - 4098) < 1 and 2.8 < bounds['big-M'] / bounds['tight'] < 3",
        "len(searches['tight']) < 10 < len(tree) < 60",
        "{round(one.ms) for one in tried.values()} == {391} and {one.status for one in tried.values()} == {'optimal'}",
        "tried['in order', False].nodes < 0.6 * tried['as they are', False].nodes",
        "last['variables'] == 9887608011 and abs(in_cvxpy - without_links.claim) < 1e-3",
    ],
    "06_taming_the_explosion.ipynb": [
        # "Five T4s are the fewest with which pairs gain"
        "[[round(pl.solve(replace(problem, max_gpus_per_stage=k, cluster=problem.cluster.with_counts("
        "{A100: 3, L4: 4, T4: n}))).throughput) for k in (1, 2)] for n in (3, 4, 5, 6)]"
        " == [[6024, 6024], [6321, 6321], [6321, 6341], [6341, 6693]]",
        "(len(rates), len(tried), len(stages)) == (65, 6, 7) and all(most(m, after) <= c for m, c in costs.items())",
        # the rates that the notebook writes are those of the cost model
        "all(np.allclose([2_048_000 / (n * ms_of(mix)) for n in range(1, room_of(mix) + 1)], [r for r in own if r])"
        " for mix, own in __import__('pipelab.counting').counting.rates_of_mixes(problem).items())",
        # no larger stage helps these GPUs; with six T4s, pairs do
        "{round(answers[g, (3, 4, 4)].throughput, 3) for g in (1, 2, 3, 4)} == {round(best, 3)}",
        "[round(best_rate((3, 4, n))[0], 1) for n in range(2, 9)]"
        " == [6023.5, 6023.5, 6321.0, 6340.6, 6692.8, 6692.8, 6826.7]",
        "course.joint_size(problem)['variables'] == 47919253",  # "48 million"
        "round(pl.evaluate(linked, placed(stages, best)).throughput) == 763 and len(walk) == 11",
        "abs(far.throughput - 2048000 / 364.5) < 1e-6 and pl.certificate(far).by == 'links'",
        # prices do not suffice, whole stages do
        "whole.by == 'whole stages' and whole.most_layers == 79 and abs(whole.rate - 2048000 / 289) < 1e-6",
        "abs(sum(n * p for n, p in zip((3, 7, 3), prices(whole.rate, (3, 7, 3)))) - 80) < 1e-6",
        "len(held) == 4 * 8 * 4 and whole.check() == sum(n > 0 or not any(case) for case, n in held.items())",
        "[round(p.throughput / best, 2) for p in curve.points if len(p.placement.gpus) == 6] == [0.83]",
        "searches[-1]['status'] == 'feasible' and all(row['status'] == 'optimal' for row in searches[:-1])",
    ],
    "07_pipeline_schedules.ipynb": [
        "(gpipe.makespan, one_f_one_b.makespan, chunked.makespan, agree) == (33, 33, 28.5, 600)",
        "pl.lower_bound(ones, 8, 4, split_backward=False) == 33 and max(chunked.peak_memory) == 5.5",
        "by_place == {'GPipe': [57] * 4, '1F1B': [51, 53, 55, 57]} and bounds == [48, 51, 54, 57]",
        "(by_message['GPipe'][3], by_message['1F1B'][3], many - few) == (36, 41, 150)",
        # as the text says of slow stages: but for the last rank's, some order is faster and meets the bound
        "[pl.best_schedule(slowed(r), 8, 4, split_backward=False).makespan for r in range(3)] == bounds[:3]",
        "[a - b for a, b in zip(by_message['GPipe'], by_message['LoopedBFS'])][::5] == [4.5, 2.5]",
        "first.bubble_fraction > 0.4 and max(sum(slowed(0).forward[1:]) * 8, 24) / first.makespan < 0.5",
        # what the reader should see in the explorer
        "[by_message[n][-1] - by_message[n][0] for n in ('1F1B', 'GPipe')] == [16, 6]",
        "(one := pl.StageCosts(1, 1, 1, comm=1)) and run('1F1B', 4, 32, one).peak_in_flight == (4, 3, 2, 1)",
        "run('1F1B', 4, 32, one).makespan - run('GPipe', 4, 32, one).makespan == 46",
        "[max(range(4), key=[a.stage for a in t.critical_path].count) for t in (first, last)] == [0, 3]",
        # eager 1F1B: 2(p - r) - 1 forwards before the first backward, and as many held; 1F1B has p - r
        "[row.index(f'{r}B0') for r, row in enumerate(rows)] == list(eager.peak_in_flight) == [7, 5, 3, 1]",
        "[row.index(('B', 0)) for row in in_turns(one_f_one_b_late)] == [4, 3, 2, 1]",
    ],
    "solutions/07_pipeline_schedules.ipynb": [
        "(mine, end(fastest)) == (24, 21)",  # as 07 says of its own solution
    ],
    "08_zero_bubble.ipynb": [
        "(one_f_one_b.makespan, zbh1.makespan, zbh2.makespan, zbh2.span, second) == (33, 27, 27, 24, 24)",
        "proven.status == 'optimal' and proven.makespan == pl.lower_bound(ones, 8, 4) == 27",
        # every point of the front is proven, and ZB-H2 is its first one without a bubble
        "(lines['makespan'], lines['span']) == ([27] * 5, [27, 26, 25, 24, 24])",
        "runs['ZBV'][1].iteration_time == 24 and max(runs['ZBV'][1].peak_memory) == 4",
        "equal == 36",
        # the first is optimal in all digits that are printed, and the others are near it
        "round(searched[0]['no order below'], 4) == searched[0]['ZB-2p'] and len(searched) == 6",
        "all(-5e-5 < row['ZB-2p'] - row['no order below'] < 0.004 for row in searched)",
        "(rule.makespan, other.makespan, in_flight.makespan, in_memory.makespan) == (761, 725, 725, 761)",
        "pl.lower_bound(profile, 8, 4) == other.makespan and in_flight.status == in_memory.status == 'optimal'",
        "abs(uneven['ZBH1'][0]) < 1e-9 and uneven['1F1B'][0] > 20 and uneven['1F1B'][-1] < 15",
        # "about 2 % at all of them, but single draws far more"
        "all(1.9 < more < 2.7 for more in uneven['ZBH1'][1:]) and draws == 24",
        "all(low < 0.1 and high > 1.8 * more for more, (low, high) in zip(uneven['ZBH1'][1:], ranges['ZBH1'][1:]))",
        "abs(uneven['ZBH2'][0]) < 1e-9 and sorted(uneven['ZBH2']) == uneven['ZBH2'] and uneven['ZBH2'][-1] > 2",
        # what the reader should see in the explorer
        "[round(run('ZBH2', costs=pl.StageCosts(1, 1, w)).span - 8 * (2 + w), 9) for w in (0.5, 1, 2)] == [3, 0, 0]",
        "[round(run('InterleavedZeroBubble', costs=pl.StageCosts(1, 1, 1, comm=c)).bubble_ratio, 2)"
        " for c in (0, 0.5)] == [0.06, 0.5]",
        "[run('ZBH1', costs=pl.StageCosts(1, 1, 1, weight_activation=w)).peak_memory for w in (0, 1)]"
        " == [(4, 3, 2, 1), (4, 4, 4, 4)]",
        "max(other.peak_memory) > 1.5 * max(rule.peak_memory) and max(rule.peak_in_flight) == 4",
    ],
    "solutions/08_zero_bubble.ipynb": [
        "ends == [58, 52]",
        "'no order takes less' in str(course.check('08.2', mine))",
    ],
    "09_real_gpus.ipynb": [
        # "about 1.1 ms", "about 11 ms", and 17 in the table of 00
        "1.05 < read_ms < 1.15 and 11 < prompt_ms < 11.5 and stated['A100-SXM-40'] == 17",
        "(engine.pcie_allreduce_us, engine.allreduce_us, engine.allreduce_hop_us) == (40, 10, 1)",
        # nothing was fitted to the H200: both GPUs are off alike, and stages are as long as their layers
        "(long := stages.query(\"phase == 'decode' and batch == 1 and tokens == 4096\")['error']).max() < -0.1",
        "stages.query('batch == 128')['error'].min() > 0.1 and 0 < spread.max() < 0.02",
        # "What you should see": with these contexts, as the controls draw them
        "[course.plot_layer_times(roof.running('vLLM'), llama, {k: (pl.GPU(k, 40), [pl.Workload(c, b, 'decode')"
        " for b in sizes])}).layout.title.text.split(' new')[0].split(' ')[-1] for k, c in"
        " (('T4', 512), ('T4', 2048), ('T4', 8192), ('H100-SXM', 512), ('H100-SXM', 2048))]"
        " == ['128', '386', 'throughout', '459', 'throughout']",
        "all(0.75 < predicted[kind] / stated[kind] < 1.3 for kind in stated)",
        "alone['weights'] > 100 * alone['computing']",
        # on an A100, each sequence reads for longer than it computes, so no number of them helps
        "alone['keys and values'] > alone['computing']",
        "len(measured) >= 69 and measured['error'].abs().median() < 0.06 < held_out['error'].abs().median() < 0.09",
        "len(held_out) == 267 and (held_out['error'] < 0).mean() > 0.65 and -0.3 < low < -0.2 and 0.1 < high < 0.2",
        "(measured['measured'][old & (measured['phase'] == 'decode')] < 80).all()",
        # only decode notices the launches
        "(as_today['error'] - measured['error'])[old & (measured['phase'] == 'decode')].max() < -0.1",
        "(as_today['error'] - measured['error'])[old & measured['what'].str.contains('8192: 2 x')].min() > -0.02",
        # and prefill large all-reduces among four GPUs and more
        "(as_today['error'] - measured['error'])[old & measured['what'].str.contains('8192: 4 x')].max() < -0.1",
        "[row['ways cut, chosen'] for row in ways] == [4, 4, 2, 1, 1]",
        "0.82 < arithmetic < 0.9 and 0.82 < memory < 0.9",
        "not {*worst['gpu_type']} & {*stated} and worst['error'].abs().min() > 0.25",
        "len(flips) == 3 and len(found.scenarios) == 9 and 0.05 < found.worst.loss < 0.06",
        "found.worst.gpu_type == 'L4' and three_sites.max_gpus_per_stage == 1",
    ],
    "solutions/09_real_gpus.ipynb": [
        "of('T4', 512) < of('T4', 2048) and of('A100-SXM-40', 8192) == float('inf')",
    ],
    "10_from_placement_to_timeline.ipynb": [
        "not pl.score(full, result).valid and second.predicted_rate < 0.9 * result.throughput",
        "found.status == 'optimal' and len(rounds) > 4 and isclose(found.throughput, best.throughput)",
        "by_size[0]['tokens/s'] < by_size[1]['tokens/s'] < by_size[2]['tokens/s'] > by_size[3]['tokens/s']",
        "problem.max_gpus_per_stage == 1 and len(final.placement) == len(plan) == 22",
        # "every A100 has time for another layer, but no memory": with one of an L4's
        "(shifted := [pl.Placement.of([(len(s.layers) + (s.gpus == (g,)) - (s.gpus == (9,)), s.gpus)"
        " for s in plan.stages]) for g in range(4)])",
        "not any(pl.score(tight, of).valid for of in shifted)",
        "all(isclose(pl.evaluate(problem, of).rate, best.throughput) for of in shifted)",
        # "several placements attain the optimum, some with fewer in flight"
        "(fewer := pl.evaluate(problem, pl.Placement.of([(n, (g,)) for n, gs in"
        " ((2, range(4, 8)), (1, [8]), (3, range(12, 24)), (9, range(3)), (8, [3])) for g in gs])))",
        "isclose(fewer.throughput, best.throughput) and fewer.in_flight < m",
        "waits[0]['s per token'] < 0.5 * waits[-1]['s per token']",
        # none has memory for what a full pipeline takes, and the one of lowest latency yields least
        "all(row['in flight'] < row['needs in flight'] and row['attainable'] < row['full pipeline']"
        " for row in compromises)",
        "sorted(row['full pipeline'] for row in compromises)[-2] == compromises[0]['full pipeline']",
        "0.3 < share < 0.8 and [row['in flight, mixed'] for row in phases] == [18, 20]",
        # mixing brings about 60 on either placement, and the placement about 50 either way
        "[round(row['mixed'] - row['in turns'], -1) for row in phases] == [60, 60]",
        "[round(phases[1][way] - phases[0][way], -1) for way in ('in turns', 'mixed')] == [50, 50]",
        # half the context changes a stage's time by some 5 %, and sixteen average out; a prompt's part changes much
        "-0.06 < min(halved) < max(halved) < -0.03 and min(lengths.values()) > 0.99",
        "alone[0] < -0.3 and doubled[1] > 0.6",
        # more in flight make up for passes that vary
        "0.7 < passes[m] < 0.8 and 0.87 < passes[m + 5] < 0.94 and abs(passes[2 * m] - 1) < 0.02",
        # a pass without prompts is one of decode by the kit, and one prompt alone a prefill
        "isclose(pass_seconds(0, 4), 32 * (roof.layer_times(small, pl.Workload(2048, 4, 'decode'), a100)['layer']),"
        " rel_tol=0.07) and isclose(pass_seconds(2048, 0), 32 * of_prompt['layer'], rel_tol=0.04)",
        # earlier and with longer waits for continuous batching, with short ones in chunks
        "three_ways[2].seconds < three_ways[1].seconds < 0.8 * three_ways[0].seconds",
        "[round(1000 * way.longest_wait) for way in three_ways] == [13, 151, 21]",
        "three_ways[2].longest_wait < pass_seconds(256, 0) + pass_seconds(0, 3)",
        # M/D/1: the formula holds, half wait less than the mean, one in a hundred several times as long
        "all(abs(row['mean, s'] / row['mean by the formula, s'] - 1) < 0.06 for row in queues)",
        "isclose(at_90['mean by the formula, s'], 4.5 * prompt_seconds)",
        "4 < at_90['99 of 100 wait at most, s'] / at_90['mean, s'] < 5",
        "queues[0]['half wait at most, s'] < 1e-6",
    ],
    "solutions/10_from_placement_to_timeline.ipynb": [
        "in_flight([lane.seconds for lane in placed.lanes]) == placed.in_flight_needed",
    ],
    "11_deployments.ipynb": [
        "one.status == best.status == 'optimal' and 1.3 < best.throughput / one.throughput < 1.32",
        # "all GPUs together cost 18% more than the optimum"
        "round(sum(n * best.details['dual_prices'][kind] for kind, n in have.items()) / best.throughput, 2) == 1.18",
        # the single pipeline that is drawn: the A100's eight layers fill its memory and half of its time
        "(len(run.stages), len(cluster), one.problem.workload.batch_size, run.in_flight) == (11, 11, 48, 10)",
        "(first := run.stages[0]).gpu_types == ('A100-SXM-40',) and len(first.stage.layers) == 8",
        "0.5 < run.throughput / first.throughput < 0.55",
        # with another layer there it is as fast, but has no memory for ten in flight
        "(nine := pl.Placement.of([(9, [0]), (2, [5]), *((len(s.layers), s.gpus) for s in plan.stages[2:])]))",
        "isclose(pl.evaluate(one.problem, nine).throughput, one.throughput)",
        "not pl.score(one.problem.with_in_flight(10), nine).valid",
        "{mix: round(x) for mix, x in zip(rate, chosen.x) if x > 0.5} == {(0, 1, 6): 1, (0, 3, 0): 1, (1, 0, 0): 1}",
        "[(len(p.placement), p.workload.batch_size) for p in best.pipelines] == [(7, 48), (1, 80), (3, 48)]",
        "at == {'T4': 7, 'L4': 3, 'T4, batch of 16': 2, 'L4, batch of 16': 1} and shares['T4'][0] == 0",
        # with fractions a little more than with whole pipelines
        "isclose(fractions, rounds[-1]['bound']) and 15 < fractions - best.throughput < 25",
        "all(added['proven']) and added['type'][added['gain_per_usd_per_hour'].idxmin()] == 'L4'",
        "[*(added['gain_tokens_per_s'] > added['dual_price_tokens_per_s'])] == [True, False, False]",
        "all(abs(added['gain_tokens_per_s'] / added['dual_price_tokens_per_s'] - 1) < 0.17)",
        # the answers to "Change it"
        "(tried := [pl.deploy(replace(problem, cluster=cluster.with_counts(have | {'T4': n}), workload=load),"
        " batches=[2**k for k in range(10)]) for n, load in ((0, decode), (6, pl.Workload(2048, 16)))])",
        "[sorted(len(p.placement) for p in of.pipelines for _ in range(p.count)) for of in tried]"
        " == [[1, 4], [1, 2, 2, 2, 4]]",
        "0.13 < tried[1].throughput / pl.solve(tried[1].problem, batches=[2**k for k in range(10)]).throughput - 1"
        " < 0.14",
        "[row['pipelines'] for row in gains] == [3, 4, 2, 1] and gains[3]['more'] == '0.0%'",
        "[row['sequences in flight'] for row in sequences] == [480, 512, 176]",
        # "three engines start plans that are equally fast"; the other two leave out the L4
        "len({started[name].throughput for name in ('vLLM', 'SGLang', 'llama.cpp')}) == 1",
        "sizes_of(any_plan) == '1, 1, 1, 1, 4'",
        "all(max(started[e].placement.gpus) < 4 for e in ('TensorRT-LLM', 'transformers'))",
        # two pools are ahead under strict limits, behind under lax ones
        "all(d.status == 'optimal' for row in within.values() for d in row) and max(ahead) < min(behind)",
        "best_within(5, pools=True).status == 'infeasible'",
        "sequences[2]['pipelines'] == 7 and round(sequences[2]['tokens/s']) == 2622",
    ],
    "solutions/11_deployments.ipynb": [
        "greedy < divided(rates, 4)",
    ],
    "12_training.ipynb": [
        "round(kept / (2 * d)) == 20 and f'{one:.2f}' == '0.69'",
        # "145 GB", "1.79 TFLOP", "2,368 TFLOP", "923 TFLOP/s", "2.6 s"
        "round(sum(state.values())) == 145 and f'{G / 1e12:.2f}' == '1.79' and round(products / 1e6) == 218",
        "round(6e-12 * llama.parameters() * m * s) == 2368 and round(peak) == 923 and f'{2368 / peak:.1f}' == '2.6'",
        "f'{1000 * G / (h100.fp16_tflop_per_s * 1e12):.1f}' == '1.8'",
        # "recomputing there costs as much time as recomputing everywhere", nearly; "35%"
        "seconds['the last stage'] > 0.97 * seconds['all stages']",
        "0.3 < seconds['all stages'] / seconds['nothing'] - 1 < 0.4",
        # moving one layer from the last A40 to an A100 fits, and is faster
        "(moved := pl.timeline_of(problem, pl.Placement.of([(9, (0,)), (8, (1,)), (8, (2,)), (7, (3,))])))",
        "not moved.shortfall and moved.timeline.iteration_time < seconds['nothing']",
        "[f'{x:.2f}' for x in first['measured']] == ['3.15', '3.79', '2.83'] and len(layers) == 24",
        # "about once, and not four times"
        "0.5 < min(moves) and max(moves) < 1.1 and max(moves) < 0.3 * megatron.activation_moves",
        # "eight layers take an A40 more than twice as long as an A100": the even cut's ranks 2 and 3
        "sum(step.stages[2][:3]) > 2 * sum(step.stages[1][:3])",
        # "At 8,192 both A40s do … From 12,288 on the last A40 does not fit even with full recomputation"
        "(at := lambda tokens, how: pl.timeline_of(replace(problem, workload=replace(load, sequence_length=tokens)),"
        " even, recompute=how).shortfall.count('needs'))",
        "(at(2048, 'none'), at(8192, 'none'), at(8192, 'full'), at(12288, 'full')) == (0, 2, 0, 1)",
    ],
    "solutions/12_training.ipynb": [
        "recomputed_layers(6, 4, 0, 1, 20) == 2 and mfu_of(8, 2, 12, 4, 312, 8) / mfu_of(8, 2, 12, 3, 312, 0) == 0.75",
    ],
    "13_reproducing_the_write_up.ipynb": [
        # four of the six wrong numbers stand in one section, as the text says
        "sum(ledger.only('wrong').data['section'] == 'write-up: problem') == 4",
        "[ledger_rule(*each) for each in pairs] == ['exact', 'rounded', 'rounded', 'rounded', 'wrong']",
        # the write-up's own cases
        "abs(four_stages.throughput - 133.116) < 1e-9 and abs(everything.throughput - 301.784) < 1e-9",
        "sized['as_run'] == {'segments': 5740, 'connections': 312210, 'variables': 630291, 'rows': 1568029}",
        "abs(heuristic[True] - 452.676) < 1e-4 and abs(heuristic[False] - 301.784) < 1e-4",
        "[w for w, number in counted.items() if number == 345465] == [2.0]",
        # "half a printed digit", "cut off"; by hand 95 and 151 GB
        "[round(x) for x in later['needs_gb'][[0, 4]]] == [96, 151] and not later['fits'][[0, 2, 4, 6]].any()",
        "yields(50, 4, 1) < yields(100, 4, 1) and yields(100, 4, 2) < 800",
        "abs(yields(2, 1, 2) / yields(2, 1, 1) - 1.644) < 1e-3 and units == {'transfers': 100, 'tokens': 211.52}",
        # none of the four best results of the author's table fits, and eight A100s hold 128 prompts
        "(said_of_roofline := later['said_tokens_per_s'] / later['tokens_per_s']).min().round(2) == 0.27",
        "said_of_roofline.max().round(2) == 0.33",
        "((later['said_over_formula'] - 0.3).abs() < 1e-6).all()",
    ],
    "solutions/13_reproducing_the_write_up.ipynb": [
        "best == (1, 7, 6)",
        "gives_way == {'3 × A10': (10, 9)}",
    ],
    "15_a_pipeline_that_runs.ipynb": [
        "{n: r.simulated.makespan for n, r in runs.items()} == {'GPipe': 660, '1F1B': 660, 'ZB-H1': 540}",
        "all(0 < r.excess < 0.5 and r.transit > 0 and r.startup > 0 for r in runs.values())",
        # no wait ends early, and nothing starts before what it waits for has ended
        "all(min(p['work too long, ms'], p['between actions, ms']) > 0 for p in parts.values())",
        # "on rank 0 … 1,020 ms, against 1,140 on rank 3", "GPipe loses 80 ms, 1F1B far more"
        "(stages := lambda r: [40 if rank == r else 20 for rank in range(4)])",
        "[pl.simulate(slow.measured.schedule, pl.StageCosts(*[stages(r)] * 3)).makespan for r in (0, 2, 3)]"
        " == [1020, 1100, 1140] and slow.simulated.makespan == 1100",
        "(far := pl.StageCosts(20, 20, 20, comm=[0, 40, 0]))",
        "[pl.simulate(runs[n].measured.schedule, far).makespan - 660 for n in ('GPipe', '1F1B')] == [80, 320]",
        "[linked[n].simulated.makespan - runs[n].simulated.makespan for n in LATE] == [40, 160, 120]",
        "circle_found[0].startswith('deadlock: 2B0 on rank 2 waits for 3B0 on rank 3') and len(circle_found) == 2",
        # two neighbours send to each other
        "any('sends F' in a and 'sends B' in b for a, b in zip(sends, sends[1:]))",
        "large.measured.makespan > runs['GPipe'].measured.makespan",
        # what is computed takes no less than the work of all ranks on these cores
        "0.1 < cores <= 4.5 and shared >= 0.999 * 4 * 8 * 60 / cores and 0.3 < busy.measured.makespan / shared < 3",
    ],
    "solutions/15_a_pipeline_that_runs.ipynb": [
        "': right' in str(verdict)",
        "mine.simulated.makespan == 980 and 0 < mine.excess < 0.5",
    ],
    "16_flows.ipynb": [
        # one pipeline and one deployment; the flow has the fast GPU's three layers, and both slow ones for the fourth
        "isclose(one_of_three.throughput, 25_000) and isclose(several_of_three.throughput, 25_000)",
        # an L4 with two layers, by both profiles
        "(round(hetero.rates['L4'][2]), round(single.rates['L4'][2])) == (4239, 3626)",
        "[len(own.stage.layers) for own in held if 0 in own.stage.gpus] == [3]",
        # the answers to "Change it"
        "[of_three(**change).layout.title.text.split('<')[0] for change in ({'link': 17_000}, {'link': 16_000},"
        " {'fast_memory': 4}, {'slow_ms': 1})] == [f'three GPUs: {n} tokens/s on 2 ways, proven best'"
        " for n in ('33,333', '32,000', '37,500', '50,000')]",
        # sequences in a pass: 240 decode passes and a prompt of 750 tokens by Helix's times, 990 tokens by its rate
        "[round(240 * ms[f'Llama-2-70B layer, {decode}'] / (1e6 * 0.99 / single.rates[node][k] / k"
        " - 0.75 * ms[f'Llama-2-70B layer, prefill{prompt}'])) for node, k, decode, prompt in"
        " (('A100', 8, 'decode, 2 streams: A100-40', ': A100-40'), ('L4', 3, 'decode, 2 streams: L4', ': L4'),"
        " ('T4', 2, 'decode of 2: t4', ' 1000 tokens: t4'))"
        " for ms in [pl.hardware.against_measured().set_index('what')['measured']]] == [6, 13, 11]",
        "all(of.reported_bound > 20 * of.reported for of in clusters) and round(single.reported_bound) == 78062",
        "[sum(max(of.rates[m]) for m in of.machines) for of in clusters][:2] == [152, 152]",
        "{one.status for one in in_one} == {'optimal'} and round(in_one[1].throughput) == 903",
        "isclose(in_one[0].throughput, no_flow_beats(single)) and table[0]['Helix'] < 0.64 * in_one[0].throughput",
        "0.74 < in_one[1].throughput / geo.reported < 0.76",
        "(round(slow.min()), round(slow.max())) == (610, 916) and in_one[1].throughput < 916",
        # no site holds the model; three links or more at each of two crossings
        "[sum(max(geo.rates[m]) for m, s in zip(geo.machines, geo.sites, strict=True) if s == site)"
        " for site in ('r1', 'r2', 'r3')] == [48, 46, 58]",
        "len({(row['from'], row['to']) for row in between}) == 2 and len(between) >= 6",
        "[*alone.values()] == [84, 80, 80]",
        "best_hetero.throughput > 5970 and best_hetero.bound < 6060 and best_hetero.gap < 0.015",
        # the smallest cut, and the stage that is in none as small
        "max_flow(four, rates, links, 4) == cuts[0]['tokens/s'] == 60",
        # the certificate: 80 for all nodes, and what shares a layer pays more than 1
        "prices == {'A100': 8, 'L4': 3, 'T4': 2} and sum(prices[m] for m in geo.machines) == geo.layers == 80",
        "on_one_node == 1 and min(on_two, on_three) > 1.09",
        "in_one[2].throughput < by_blocks < best_hetero.throughput and by_blocks > 5_890",
        "1.02 < flow.throughput / pipeline.throughput < 1.05 and 0.08 < flow.gap < 0.2",
        "across.throughput > 1.3 * apart.throughput and apart.count == few.count == 3",
        "far[1]['ms per pass'] > 3 * far[2]['ms per pass'] and few.throughput > 0.9 * across.throughput",
        "0.9 < kept[1]['ms per pass'] / kept[0]['ms per pass'] < 0.95",
    ],
    "solutions/16_flows.ipynb": [
        "(moved, stuck) == (6, 2)",
        "least == 3 and nobody == 0 and needed == [2, 2, 1]",
    ],
    "17_what_to_rent.ipynb": [
        "(len(mixes), len(asked), len(fitting)) == (14, 392, 247)",
        # the highest rate of a mix, batch and number in flight is also the shortest wait
        "all(isclose(row['wait_ms'] / 1000, pl.solve(rented(row['batch'], 1, **{t: row[t] for t in names if row[t]}))"
        ".evaluation.seconds_per_pass, rel_tol=1e-6) for row in alone.to_dict('records'))",
        # "an A100 with 64 sequences a round takes 37 ms, with 16 it takes 19 ms"; three times as many on an H100
        "[round(alone[(alone['A100-SXM-40'] == 1) & (alone['batch'] == b)]['wait_ms'].item()) for b in (64, 16)]"
        " == [37, 19] and [most_at_once[as_mix[t]] for t in ('H100', 'A100', 'A10')] == [192, 64, 16]",
        # "At an equal batch the A100 is the cheapest"
        "all(min(by_size, key=lambda t: by_size[t][b]) == 'A100-SXM-40' for b in (8, 16, 32, 64))",
        # "an H100 holds 224 sequences too, and not 256; its rate alone is still below 5,000"
        "pl.solve(rented(224, 1, **{'H100-SXM': 1})).throughput < 5000",
        "pl.solve(rented(256, 1, **{'H100-SXM': 1})).status == 'infeasible'",
        "{*facts['price_date']} == {'2025-10'} and all('Lambda' in source for source in facts['price_source'])",
        # each step of the promise is a larger batch on one H100
        "[(dict(row[names]), row['batch']) for ms in (10, 15, 50, 75)"
        " for row in [keeping(ms).loc[keeping(ms)['usd_per_million'].idxmin()]]]"
        " == [({'H100-SXM': 1, 'A100-SXM-40': 0, 'A10': 0}, b) for b in (16, 32, 192, 192)]",
        "keeping(15)['H100-SXM'].min() == 1 and keeping(5).empty and order == ['H100', 'A100', 'A10']",
        # all that is rented is one pipeline of two types; pl.deploy finds none cheaper without a promise
        "usd == 3.74 and in_words(chosen) == '1 × (1 H100 + 1 A10)'",
        "4500 < (k := keeping(50))[(k[names].sum(axis=1) == 1) & (k['H100-SXM'] == 1)]['rate'].item() < 5000",
        # the answers to "Change it"
        "[in_words(fewest(load, 50)[1]) for load in (1500, 2000, 4000, 5000)] == ['1 × (1 A100)',"
        " '1 × (1 A10); 1 × (1 A100)', '1 × (1 H100)', '1 × (1 H100 + 1 A10)']",
        "['H100' in in_words(fewest(5000, 25, price | {'A100-SXM-40': a})[1]) for a in (0.6, 0.59)] == [True, False]",
        "sum('A10;' in (w := in_words(fewest(load, 50)[1]) + ';') or 'A10)' in w for load in loads) < len(loads) / 2",
        # proven among which batches
        "round(fewest(4000, 50, largest=64)[0], 2) == 3.33 and round(fewest(4000, 50)[0], 2) == 2.99",
        # whole machines of eight
        "(in_machines(5000, 15), round(in_machines(5000, 50), 2)) == (8 * price['H100-SXM'], 3.87)",
        "['H100' in in_words(fewest(5000, 50, price | {t: (1 + c) * price[t]})[1])"
        " for t in names for c in (-0.3, 0.3)] == [True, False, False, True, True, False]",
    ],
    "solutions/17_what_to_rent.ipynb": [
        "copies > fewest_dollars(offers, 11) and rates[0] == 0 < rates[1] < rates[2] == rates[3]",
    ],
    "18_training_placement.ipynb": [
        "before.shortfall.count('needs') == 1 and 0.55 < ratio < 0.6",
        "isclose(by_message['simulated'][0], by_message['formula'][0]) and 4 < late > 2 * 3 * 0.3",
        # every order of two types, every cut of 32 layers
        "len(every) == 2 * 1 + 4 * 31 + 6 * 465 + 6 * 4495 and 1500 < len(fitting) < 2000",
        # "No schedule takes less than 18 s"
        "pl.simulate(pl.schedule('1F1B', 3, 4), pl.StageCosts(1, 1, 1)).makespan == 18",
        "[name for name, step in trained.items() if step.shortfall] == ['even', 'equal parameters']",
        "sorted(seconds, key=seconds.get)[2] == 'best forward' and seconds['even'] > 1.5 * seconds['proven']",
        # "its choice takes 1.2% longer …, 5.2% with 4, and 14.2% where a message takes 0.1 s"
        "[f'{x:.1%}' for x in chosen.values()] == ['1.2%', '5.2%', '14.2%']",
        # "AMP and Metis choose as Alpa does" on one network; with two sites they cross once
        "[losses['Alpa'][n] == losses['AMP, Metis'][n] for n in losses['Alpa']] == [True, True, False]",
        "f\"{losses['AMP, Metis']['two sites']:.1%}\" == '8.8%'",
        "choice_of(with_messages, apart)[0] == ('A40', 'A40', 'A100-SXM-80', 'A100-SXM-80')",
        "[types[s.gpus[0]] for s in pl.solve(apart, objective='step_time', schedule='1F1B').placement.stages]"
        " == list(choice_of(with_messages, apart)[0])",
        "sum(link < 1 for link in links_of(apart, placed(*choice_of(by_alpa, apart)))) == 2",
        "losses['nnScaler']['4 microbatches'] > losses['Alpa']['4 microbatches'] > 0.05",
        # nothing fits under ZB-H2 and GPipe
        "pl.solve(problem, objective='step_time', schedule='GPipe').status == 'infeasible'",
        "pl.solve(problem, objective='step_time', schedule='ZBH2').status == 'infeasible'",
        "rules['schedule'].tolist()[0] == 'ZBH1' and rules['fits'].tolist() == [True] * 2 + [False] * 7",
        # over all pairs it is ZB-H1 as well, "on a placement of its own"
        "any_rule.schedule == 'ZBH1' and any_rule.placement == zbh1.placement != found.placement",
        "recomputed['auto'].recompute == ('full', 'none', 'none', 'none')",
        "0.1 < 1 - one_only / again < 0.12",
        # every other placement is ruled out by its bound
        "best.status == 'optimal' and joint < bounds[1][0] and spare > -1e-9",
        # "no order takes less than 4.638 s"
        "[f'{bound:.3f}' for bound, *where in bounds if placed(*where) == found.placement] == ['4.638']",
        # "more than a quarter of the first A40's memory"; five layers on both A40s
        "0.25 < found.step.timeline.peak_memory[0] / gb['A40'] < 0.3",
        "[types[s.gpus[0]] for s in found.placement.stages if len(s.layers) == 5] == ['A40', 'A40']",
    ],
    "solutions/18_training_placement.ipynb": [
        "counts == {1: 24, 2: 6, 3: 2, 4: 1} and needed == [1, 2, 4]",
    ],
    "19_thirty_two_gpus.ipynb": [
        # the same law as the kit's, and what is said of the divisions of 32 GPUs
        "isclose(sum(by_kit.stages[3][:3]), 8 * layer(1) + head, rel_tol=1e-3)",
        "len(ways) == 15 and ways[:2] == [alone, pairs] and step_of(uneven[0]) == alone['step, s']",
        "isclose(alone['step, s'], 8.53, abs_tol=0.005) and alone['GB'] > 160 and round(alone['GB, ZeRO 1']) == 75",
        # "16 copies of two GPUs. They need 84 GB of 86, and the 32 copies twice as much"; "50 GB, not 84"
        "round(pairs['GB']) == 84 and round(memory) == 86 and isclose(alone['GB'], 2 * pairs['GB'], rel_tol=0.01)",
        "choices[\"Megatron's advice: as few cuts as memory allows\"][0] == pairs and round(best['GB']) == 50",
        # the row of ZeRO has the memory under ZeRO, and every division in the table fits
        "round(with_zero['GB']) == 75 and all(row['GB'] <= memory for row, _ in choices.values())",
        # "among eight GPUs a quarter of the time goes there"
        "0.2 < 32 * 64 * 4 * all_reduce(8, 2 * s * d, node) / equal(4, 8)['step, s'] < 0.27",
        # by hand: 0.14 s twice, 0.36 s, together 0.64 s; 3.7 s in one ring; 38 ms
        "(gradients := 4 * llama.parameters())",
        "f'{all_reduce(8, gradients, node) / 2:.2f} {all_reduce(4, gradients / 8, network):.2f}' == '0.14 0.36'",
        "f'{two_levels(32, 1, gradients):.2f} {all_reduce(32, gradients, network):.1f}' == '0.64 3.7'",
        "round(32 * 4 * 1000 * all_reduce(8, 2 * s * d, node)) == 37",
        # "as much work as two or three layers"
        "2 < head / layer(1) < 3.5 and (best['copies'], best['tensor'], best['stages'], cut) == (8, 2, 2, [17, 15])",
        "alone['step, s'] < best['step, s'] < pairs['step, s'] < staged['step, s'] < 0.9 * in_stages['step, s']",
        "isclose(better.timeline.iteration_time, staged['step, s'], rel_tol=0.01)",
        # no cut into four is quicker by much
        "(of_four := [cut for cut in product(range(5, 12), repeat=4) if sum(cut) == 32])",
        "staged['step, s'] < 1.002 * min(divided(8, 1, cut)['step, s'] for cut in of_four)",
        # what the reader should see
        "(first := lambda **links: min((best_cut(row['copies'], row['tensor'], **links)[0] for row in ways), key=lambda"
        " row: (row['GB, ZeRO 1'] > memory, row['step, s'])))",
        "(found := lambda **links: tuple(first(**links)[part] for part in ('copies', 'tensor', 'stages')))",
        "[found(network=1e9 * x) for x in (1, 7, 8, 18, 19, 100)]"
        " == [(4, 2, 4)] * 2 + [(8, 2, 2)] * 2 + [(32, 1, 1)] * 2",
        "[found(node=1e9 * x) for x in (20, 40, 140, 200)] == [(8, 1, 4)] * 2 + [(16, 1, 2), (32, 1, 1)]",
        "{found(network=1e9 * x, hidden=1) for x in (1, 3, 25)} == {(32, 1, 1)}",
        # one card for eight GPUs; the kit's ring over a node's 200 GB/s, and 169 GB without ZeRO
        "in_nodes == first(network=network / 8) and found(network=network / 8) == (4, 2, 4)",
        "alone_shared['step, s'] > 1.2 * in_nodes['step, s'] and round(alone_shared['gradients, s'], 1) == 3.2",
        "isclose(kit_alone.timeline.iteration_time, divided(32, 1, [32], hidden=1)['step, s']"
        " + 2 * 31 / 32 * 4 * llama.parameters() / 200e9, rel_tol=1e-3) and '168.7 GB' in kit_alone.shortfall",
    ],
    "solutions/19_thirty_two_gpus.ipynb": [
        "needed[0] == float('inf') and needed[1:] == sorted(needed[1:], reverse=True)",
        "round(each_microbatch / once, 9) == 8 and round(once, 1) == 0.6",
    ],
    "14_reading_other_schedulers.ipynb": [
        "(len(panics), len(equal_layers), found) == (348, 840, ([1, 2], 2))",
        "(uneven, upside_down, not_least) == ((7, 5), (3, [2, 1]), ([2, 2, 1],))",
        # the searches behind the ledger come to the same smallest inputs as the text
        "(ends(published.clock_interleaved(2, 2, 2)) - 6) / 6 == 0.75 and f'{4.5 / 10.5:.1%}' == '42.9%'",
        # the answers to "Change it"
        "all(ends(published.clock_zero_bubble(p, n * p)) - ends(pl.schedule('ZBH1', p, n * p)) == p - 1"
        " for p in range(1, 7) for n in (1, 6))",
        "all(ends(make(p, n * p, 2)) - ends(pl.schedule('Interleaved1F1B', p, n * p))"
        " == 1.5 * (p - 1) * (p * n) ** each"
        " for make, each in ((published.scheduler_interleaved, 0), (published.clock_interleaved, 1))"
        " for p in range(1, 7) for n in (1, 6))",
        "counts(impossible) and ends(impossible) is None and len(agree) == len(kit) == 176",
        "[order for order, row in failures.items() if not any(row.values())] == ['scheduler, GPipe', 'boostr, 1F1B']",
        "failures['scheduler, 1F1B']['holds no more'] == (1, 2) and failures['scheduler, 1F1B']['no later'] is None",
        "all(failures[f'{who}, interleaved']['no later'] == (2, 2) for who in ('scheduler', 'boostr'))",
        "failures['boostr, zero bubble']['no later'] == (2, 2) and by_comparing == 4",
        # "every order runs to its end"
        "not any(row['counts'] or row['runs'] for row in failures.values())",
        "among_small is None and among_powers == (2, [2**63] * 2)",
    ],
    "solutions/14_reading_other_schedulers.ipynb": [
        "(len(orders), runnable) == (576, 26)",
        "len(cut([1] * 80, 11)) == 11",
    ],
    "solutions/05_joint_ilp.ipynb": [
        "[len(result.placement) for result in around] == [3, 2] and around[0].throughput > around[1].throughput",
        "claim < alone * (1 - 1e-3)",
    ],
    # what is predicted of the labs' problems
    "lab_schedule.ipynb": [
        # the warm-up: what 1F1B takes and what is possible, with room for three and with less
        "(best := [pl.best_schedule(pl.StageCosts(*warm_up[:3], weight_activation=0.5), 3, memory=room)"
        " for room in ([3, 3, 3], [3, 2, 2])])",
        "first.makespan == 13 and [(b.value, b.status) for b in best] == [(11, 'optimal'), (12, 'optimal')]",
        "(rule := __import__('pipelab.course.lab_schedule', fromlist=['']))",
        "(kinds := ('forward', 'back', 'weight', 'kept', 'room', 'microbatches'))",
        "(shorts := [(*warm_up[:4], room, 3) for room in ([3, 3, 3], [3, 2, 2])])",
        "[drawn(rule._first_ready(type(problems[0])(**dict(zip(kinds, of)))), *of).makespan for of in shorts]"
        " == [11, 13]",
        "(lab := __import__('pipelab.course.checks', fromlist=['']).EXERCISES['lab_schedule'])",
        "round(100 * sum(1 - lab.best(p) / lab.baseline(p) for p in problems) / len(problems)) == 16",
    ],
    "lab_pricing.ipynb": [
        "(lab := __import__('pipelab.course.checks', fromlist=['']).EXERCISES['lab_pricing'])",
        "[round(end(map(lab.baseline, problems))) for end in (min, max)] == [7, 25]",
        "[round(end(map(lab.best, problems)), 1) for end in (min, max)] == [0.1, 6.1]",
        # the small instance: what the optimum is, what the baseline has, and what its prices prove
        "(of := __import__('pipelab.course.lab_pricing', fromlist=['']))",
        "(given := type(problems[0])(**small)) and of.generated(given).chosen == [(1, 1), (1, 1)]",
        "of.bound(given, [12.5, 7.5]) == 40 == 2 * of.rate(given, (1, 1)) and 37.5 == sum(of.rate(given, mix)"
        " for mix in one_type_each(**small)[0])",
        "[of._cheapest(given, [12.5, 7.5], step) for step in (50, 40)] == [(20, (1, 1)), (25, (2, 0))]",
    ],
    "lab_placement.ipynb": [
        "(lab := __import__('pipelab.course.checks', fromlist=['']).EXERCISES['lab_placement'])",
        "(times := [lab.best(p) / lab.baseline(p) for p in problems])",
        "len(times) == 10 and [round(end(times), 1) for end in (min, max)] == [2.2, 11.9]",
    ],
    "lab_roofline.ipynb": [
        "(lab := __import__('pipelab.course.checks', fromlist=['']).EXERCISES['lab_roofline'])",
        "len(problems) == 12 and max(map(lab.best, problems)) < 4",
    ],
}

# By day these run in JupyterLab: a solver's progress, formulas, Gantt charts. At night all do.
IN_JUPYTERLAB = ("05", "07")

# How many figures a notebook shows, those of explorers among them.
FIGURES = {
    "00_start_here.ipynb": 9,
    "01_splitting_layers.ipynb": 6,
    "02_exhaustive_search.ipynb": 4,
    "03_one_gpu_per_stage.ipynb": 10,
    "04_a_failed_heuristic.ipynb": 4,
    "06_taming_the_explosion.ipynb": 10,
    "05_joint_ilp.ipynb": 9,
    "07_pipeline_schedules.ipynb": 13,
    "08_zero_bubble.ipynb": 8,
    "09_real_gpus.ipynb": 6,
    "10_from_placement_to_timeline.ipynb": 10,
    "11_deployments.ipynb": 8,
    "12_training.ipynb": 5,
    "13_reproducing_the_write_up.ipynb": 2,
    "14_reading_other_schedulers.ipynb": 6,
    "15_a_pipeline_that_runs.ipynb": 7,
    "16_flows.ipynb": 4,
    "17_what_to_rent.ipynb": 6,
    "18_training_placement.ipynb": 7,
    "19_thirty_two_gpus.ipynb": 3,
}


def with_statements(path, name):
    """The notebook, with one cell more that asserts its results."""
    notebook = nbformat.read(path, as_version=4)
    asserts = "\n".join(f"assert {statement}, {statement!r}" for statement in RESULTS.get(name, ()))
    notebook.cells.append(nbformat.v4.new_code_cell(asserts))
    return notebook


def check_figure(title, axes, kinds, annotations):
    """A title that states something, and axes that say what they count."""
    assert len(title.split()) >= 4, title
    # Rows of names and panels with a title of their own need none; everything else says what it
    # counts.
    assert any(axes) or "heatmap" in kinds or annotations, title
