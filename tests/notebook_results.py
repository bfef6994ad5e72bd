"""What every notebook must come to: statements about its own variables, and the titles of its figures."""

import nbformat

# Statements that must hold in the notebook's own variables once it has run.
RESULTS = {
    "00_start_here.ipynb": [
        "round(weights) == 141 and max(pool['all of them, GB']) < weights < sum(pool['all of them, GB'])",
        "spread.throughput == 819.2 and spread.bottlenecks == ('link 7→8',)",
        "listed['even'].placement is None and {listed[r].throughput for r in RULES[1:]} == {819.2}",
        "best_rule.method == 'proportional' and abs(best_rule.throughput - 10240 / 3) < 1e-6",
        "result.status == 'optimal' and abs(result.throughput - 2048000 / 342) < 1e-6",
        "abs(result.throughput / best_rule.throughput - 1.754) < 1e-3",  # "a factor of 1.75"
        "(slowest, list(most.values()), fit) == (342, [18, 4, 2], 78)",
        "pairs.status == 'optimal' and 0.05 < pairs.throughput / result.throughput - 1 < 0.06",
        "0.03 < errors.median() < 0.1",
        "own_result.status == 'optimal' and [len(s.layers) for s in own_result.placement.stages] == [10] * 4 + [40]",
        "abs(four_stages.throughput - 133.116) < 1e-9 and abs(tiny_result.throughput - 301.784) < 1e-9",
    ],
    "01_splitting_layers.ipynb": [
        "(agree, tried) == (300, 300) and min(excess) > -1e-9 and max(excess) > 0.5",
        "round(best[11, 80]) == 342 and [len(part) for part in exact] == [18, 19, 19, 4, 4, 4, 4, 2, 2, 2, 2]",
        "[round(slowest(part)) for part in splits.values()] == [852, 600, 960, 960, 360]",
        "as_listed == 819.2 and abs(in_other_order - 2048000 / 342) < 1e-6 and orders == 11550",
        # the answer of the first exercise is not on the page
        "not any('right' in str(pl.check('01.1', x)) for x in (as_listed, in_other_order))",
        "(len(failed), len(cases)) == (348, 840)",
        "failures['by_flops'].arguments == ([1, 2], 2) and 'index out of bounds' in failures['by_flops'].what",
        "failures['even'].arguments == (1, 2) and failures['bandwidth_aware'] is not None",
        "len(faults) > 10 and all(faults.values())",
    ],
    "02_exhaustive_search.ipynb": [
        "by_stages == {1: 10, 2: 126, 3: 180, 4: 24}",
        "result.status == 'optimal' and abs(result.throughput - 301.784) < 1e-9",
        "(result.details['tried'], early.details['tried'], tried) == (340, 5, measured.size['placements'])",
        "result.reason == 'all 340 placements were tried'",
        "early.reason.startswith('5 of 340 placements were tried')",
        "per_second == tried / measured.seconds",
        # it is not told
        "not any('right' in str(pl.check('02.1', n)) for n in table['placements'])",
        "stopped.status == 'feasible' and stopped.stopped_by == 'time limit'",
    ],
    "03_one_gpu_per_stage.ipynb": [
        "abs(bound(problem) - 2048000 / 342) < 1e-6 and eleven.status == 'optimal'",
        "nothing.ms == 0 and sum(nothing.layers) == 0 and heavy.layers[:2] == [25, 25]",
        "[round(step.ms) for step in steps.values()] == [0, 480, 560, 560, 720, 728]",
        "abs(above - 2048000 / 560) < 1e-6 and sum(ring.layers[6:]) == 8 and sum(chain.layers[6:]) == 0",
        # the ring: nothing crosses the slow line
        "all((a > 5) == (b > 5) for a, b in ring.links) and not set(range(6, 8)) & {g for x in chain.links for g in x}",
        "pl.evaluate(worse, one_order).throughput == 819.2",
        "abs(theirs.throughput - 2048000 / 728) < 1e-6 and abs(write_ups.throughput - 5120) < 1e-6",
        "stopped.status != 'optimal' and stopped.bound >= bound(problem) - 1e-6 and sizes['variables'] == 2461062",
        "late.status == 'timelimit' and gap > 0.01 and late.at_least < late.ms",
        "pairs.status == 'optimal' and abs(pairs.throughput - 2048000 / 324) < 1e-6",
        # the answer of the third exercise is not on the page
        "not any('right' in str(pl.check('03.3', x)) for x in (bound(problem), above, pairs.throughput))",
        "sized['as_run'] == {'segments': 5740, 'connections': 312210, 'variables': 630291, 'rows': 1568029}",
        "abs(as_run.throughput - 262.336) < 1e-9",
        "full.throughput <= full.bound and abs(full.bound - 264.236) < 1e-9",
    ],
    "04_a_failed_heuristic.ipynb": [
        "abs(heuristic.details['predicted'] - 452.676) < 1e-4",
        "abs(without.details['predicted'] - joint.throughput) < 1e-4",
        "reach == 63 and (demo.details['misfits'], demo.details['real_misfits']) == (76, 114)",
        "pl.evaluate(hard, as_promised).throughput == 48",
        "abs(kept.throughput - 169.168) < 1e-9 and pl.solve(in_tokens, 'joint').throughput == kept.throughput",
        "which['transfers'][4] > which['transfers'][6] and which['tokens'][4] == which['tokens'][6]",
        "abs(truth.throughput - 134.616) < 1e-9 and abs(promise.details['predicted'] - 169.168) < 1e-4",
        "len(shares) == 8 and all(s['single_gpu'] == s['joint'] == 1 for s in shares.values()) and lost",
        "abs(mended - 169.168) < 1e-4",
        "all(s.get('exhaustive') in (1, None) for s in shares.values())",
        "all(c.results['joint'].status == c.results['single_gpu'].status == 'optimal' for c in comparisons.values())",
    ],
    "glossary.ipynb": [],
    "data.ipynb": [],
    "solutions/01_splitting_layers.ipynb": [
        "'right' in str(pl.check('01.1', mine))",
        "'right' in str(pl.check('01.2', reach)) and 'right' in str(pl.check('01.3', split))",
    ],
    "solutions/02_exhaustive_search.ipynb": [
        "'right' in str(pl.check('02.1', mine))",
        "'right' in str(pl.check('02.2', alike))",
    ],
    "solutions/03_one_gpu_per_stage.ipynb": [
        "'right' in str(pl.check('03.1', no_rings)) and 'right' in str(pl.check('03.2', sharper))",
        "'right' in str(pl.check('03.3', at_best))",
    ],
    "solutions/04_a_failed_heuristic.ipynb": [
        "'right' in str(pl.check('04.1', mine))",
        "'right' in str(pl.check('04.2', gb_per_s))",
        "abs(reached / wanted - 1) < 1e-9 and abs(optimum / wanted - 1) < 1e-9",
    ],
    "05_joint_ilp.ipynb": [
        "all(abs(v - 301.784) < 1e-4 for v in by_cvxpy.values()) and len(by_cvxpy) == 2",
        "result.status == 'optimal' and abs(result.throughput - 301.784) < 1e-9",
        "abs(hard_result.throughput - 48) < 1e-9",
        "abs(as_written.details['solver_objective'] - 220) < 1e-4",
        "abs(valid.throughput - 301.784) < 1e-9 and said[0] == 'optimal' and abs(said[1] - 220) < 1e-4",
        "abs(bounds.loc['tiny', 'LP bound as written'] - 329.0797) < 1e-4",
        "abs(bounds.loc['tiny, heavy layers', 'LP bound, tight'] - 241.9406) < 1e-4",
        "abs(faulty[1].throughput - 193.147) < 1e-3 and abs(rows[1]['unlike GPUs'] - 64.56) < 1e-9",
        "set(link_bound['without']) == set(stage_bound['without']) and (stage_bound['verdict'] != 'holds').any()",
        "watched.status == 'optimal' and abs(watched.throughput - 215.52) < 1e-9",
        "sizes['demo, 3']['variables'] == 9887608011",
    ],
    "06_taming_the_explosion.ipynb": [
        "len(classes) == 3 and joint['allocations'] == 345465 and len(rates.composition) == 9",
        "result.status == 'optimal' and abs(result.throughput - 287.04) < 1e-9",
        "proof.by == 'dual prices' and float(proof.total_price) == 45 and proof.check() == 560",
        "[pl.certificate(a).by for a in (by_two, by_three)] == ['whole stages', 'links']",
        "all(abs(a.throughput / b.throughput - 1) < 1e-9 and b.status == 'optimal' for a, b in both)",
        "len(answers) == 20 and all(a.status == 'optimal' for a in answers.values())",
        "abs(answers['demo', 3].throughput - 1046.5812) < 1e-9 and abs(tokens.throughput - 375.8768) < 1e-9",
        "written / counted > 1000 and (runs['status'] == 'feasible').any()",
        "min(len(a.placement) for a, _ in both) > 1 and len(one_stage) == 16",
        # what is shown is not what is asked for
        "'not yet' in str(pl.check('06.1', proof.left_over))",
        "curve.complete and len(curve.points) > 3",
        "early.stopped_by == 'gap limit' and early.bound >= 300 and early.gap <= 0.1",
    ],
    "solutions/06_taming_the_explosion.ipynb": [
        "'right' in str(pl.check('06.1', left))",
        "'right' in str(pl.check('06.2', gpus))",
    ],
    "07_pipeline_schedules.ipynb": [
        "(gpipe.makespan, one_f_one_b.makespan, chunked.makespan, zbh1.makespan) == (33, 33, 28.5, 27)",
        "(zbh2.makespan, zbh2.span, second) == (27, 24, 24)",
        "by_place['GPipe'] == [57] * 4 and by_place['1F1B'] == [51, 53, 55, 57]",
        "by_place['ZBH1'] == by_place['ZBH2'] == bounds == [48, 49, 50, 51]",
        "(by_message['GPipe'][3], by_message['1F1B'][3], many - few) == (36, 41, 150)",
        "equal == 36 and f'{naive:.4f}' == '0.2304'",
        "all(row['printed'] == row['some waits dropped'] < row['every wait kept'] for row in interleaved)",
        "[row['every wait kept'] for row in interleaved][:2] == ['0.1090', '0.0847']",
        "[row['makespan'] for row in orders[:4]] == ['33 / 33', '33 / 33', '33 / 28.5', '33 / 33']",
        "[row['makespan'] for row in orders[4:]] == ['10.5 / 7.5', '64.5 / 28.5', '80.25 / 26.25', '30 / 27']",
        "orders[1]['claim'] == 'fraction 0.1667' and orders[1]['peak_in_flight'] == '5 4 3 2 / 4 3 2 1'",
        "[(d['p'], d['m']) for d in deadlocks] == [(None, None), (2, 3), (2, 2), (2, 2)]",
        "(len(panics), len(equal_layers), len(ours), worst) == (348, 840, 0, [8, 5])",
        "(told, wanted, len(refusals)) == (32, 63, 8) and all('Invalid' in row['ours'] for row in refusals)",
        "(rule.makespan, possible) == (761, 725) and fits == [False, True, False, False]",
        "[round(held, 2) for held in by_share[share]] == [4, 3.94, 3.88, 3.82] and by_share[0] == (4, 3, 2, 1)",
        "zbh1.peak_memory == by_share[share] and len(faults) > 20 and all(faults.values())",
        "(asked := pl.course.exercises.EXERCISES['07.2']).costs() == unlike and asked.memory == room",
    ],
    "solutions/07_pipeline_schedules.ipynb": [
        "'right' in str(pl.check('07.1', message)) and abs(message - 0.8) < 1e-9",
        "'no order takes less' in str(pl.check('07.2', mine)) and [t.makespan for t in tried] == [56, 54, 52]",
    ],
    "08_from_placement_to_timeline.ipynb": [
        "by_hand == llama.parameters() == 70553706496 and (models['off_by'] == 0).all() and len(models) == 9",
        "abs(20 * rates['roofline'][-1] / rates['roofline'][0] - 1) < 0.02",
        "rates['write-up'][-1] > rates['write-up'][0]",
        "abs(T / roof.pass_seconds(llama, decode, a100, range(1, 2)) - 1) < 1e-9",
        "measured['error'].abs().median() < 0.08 and eager['error'][8] > -0.2 > measured['error'][8]",
        "result.status == paired.status == best.status == 'optimal' and result.seconds < 10",
        "abs(result.throughput - 923.2966) < 1e-3 and paired.throughput == result.throughput",
        "len(result.placement.stages[0].layers) == 2 and len(result.placement.stages[-1].layers) == 1",
        "(needed, second.in_flight_needed, n) == (23, 21, 21) and found.status == 'optimal' and len(found.rounds) > 6",
        "abs(found.steady_rate / best.throughput - 1) < 1e-9 and found.steady_rate < 0.8 * result.throughput",
        "by_size[1]['status'] == 'optimal' and abs(by_size[1]['tokens/s'] - found.steady_rate) < 1e-9",
        "best_size['sequences'] == 20 and best_size['in flight'] == 18 and abs(best_size['tokens/s'] - 727.86) < 0.01",
        "placed.reaches_predicted_rate and final.reaches_predicted_rate",
        "abs(final.steady_rate / best.throughput - 1) < 1e-6",
        "abs(best.throughput - 690.5167) < 1e-3 and not pl.score(full, result).valid",
        "all(c.results['single_gpu'].status == 'optimal' for c in (whole, part)) and len(methods) == 9",
        "part.results['exhaustive'].throughput == part.results['aggregated'].throughput",
        "0.5 < shares['24 GPUs, Llama-3-70B']['proportional'] < 0.9 and whole.optimum == best.throughput",
        "len(chosen.placement.gpus) == 4 and len(verdict.misfits) == 4 and dreamt.share < 0.6",
        "front.complete and len(front.points) == 3 and cheap.idxmin() == 1 and abs(cheap[1] - 7.2828) < 1e-3",
        "cheapest.status == 'optimal' and abs(cheapest.objective.value - cheap.min()) < 1e-9",
        "abs(as_new - 253.08) < 0.01 and abs(with_prompts / cheap[0] - (1 + as_new / 256)) < 1e-9",
        "abs(offers[-1]['reached'] / offers[-1]['promised'] - 1) < 1e-6",
        "offers[5]['reached'] < offers[5]['promised']",
        "offers[5]['usd/million'] == least < 0.9 * cheap.min()",
        "waits[0]['s per token'] < 0.5 * waits[-1]['s per token'] and quick.complete and len(quick.points) == 8",
        "[row['ways cut, chosen'] for row in ways] == [4, 4, 4, 1, 1]",
        "ways[0]['layers cut'] > 3 * ways[0]['batch shared'] and ways[-1]['layers cut'] < ways[-1]['batch shared']",
        "json.loads(saved.read_text())['throughput_tokens_per_s'] == best.throughput",
    ],
    "solutions/08_from_placement_to_timeline.ipynb": [
        "'right' in str(pl.check('08.1', sequences)) and sequences == 127",
        "'right' in str(pl.check('08.2', usd)) and cheapest.status == 'optimal'",
        "usd > front.points[-1].objective.value",
    ],
    "09_reproducing_the_write_up.ipynb": [
        "ledger.changed == () and len(ledger) == 169 and kinds == {'number': 53, 'statement': 91, 'reading': 25}",
        "totals['wrong'] == 6 and max(shares, key=shares.get) == 'scheduler'",
        "[NUMBERS.agrees(*pair) for pair in pairs] == ['exact', 'rounded', 'rounded', 'rounded', 'wrong']",
        "[w for w, number in counted.items() if number == 345465] == [2.0]",
        "rule == {'tiny': 200, 'demo': 690930} and sizes['demo']['variables'] == 9887608011",
        "abs(balanced.throughput - 268.124) < 1e-9 and abs(alone.throughput - 810.424) < 1e-9",
        "clock.bubble_fraction == 3 / 11 and abs(formula - 3 / 18) < 1e-7",
        "[entry.verdict for entry in caught.values()] == ['wrong', 'wrong', 'does not hold']",
        "len(wrong) == totals['wrong'] + totals['does not hold']",
    ],
    "solutions/09_reproducing_the_write_up.ipynb": [
        "'right' in str(pl.check('09.1', weight)) and gives_way == {'3 × A10': (10, 9)}",
        "'right' in str(pl.check('09.2', sequences)) and abs(rate(sequences) - 400) < 1e-9",
    ],
    "solutions/00_start_here.ipynb": [
        "'right' in str(pl.check('00.1', by_speed))",
        "'right' in str(pl.check('00.2', rate))",
    ],
    "solutions/05_joint_ilp.ipynb": [
        "'right' in str(pl.check('05.1', factor))",
        "'right' in str(pl.check('05.2', weight))",
        "claim < 301.784 and stages == [1, 2]",
    ],
}

# Of the notebooks that are also run in a browser: titles of their figures, bars drawn in all of
# them.
FIGURES = {
    "00_start_here.ipynb": (
        [
            "819.2 tokens/s: the link from GPU 6 to GPU 7 takes 2,500 ms",
            "3,413.3 tokens/s: GPUs 7, 8, 9 take 600 ms",
            "5,988.3 tokens/s: GPUs 0, 1 take 342 ms",
            "Llama-3-70B, 11 GPUs: 6110.27 tokens/s in 11 stages, proven optimal",
            "proportional comes nearest and loses",
            "6,321.0 tokens/s: GPUs 0, 1, 2 take 324 ms",
            "10 notebooks: 5.2 hours for the learner",
            "2,565.2 tokens/s: GPUs 1, 2, 3, 4 take 798 ms",
        ],
        None,
    ),
    "01_splitting_layers.ipynb": (
        [
            "by speed: 360 ms for the slowest stage; by memory takes 67% more, by FLOPs and by bandwidth 2.7",
            "80 layers on 11 GPUs take 342 ms; the path back reads 18 + 19 + 19",
            "exact: 342 ms for the slowest stage; by speed takes 5% more",
            "exact: 342 ms for the slowest stage; by speed takes 5% more, by memory 1.8 times as much",
            "819.2 tokens/s: ",
            "5,988.3 tokens/s: ",
        ],
        None,
    ),
    "02_exhaustive_search.ipynb": (
        ["tiny: 301.784 tokens/s", "placements, 3 per stage: beyond a year of search"],
        2,
    ),
    "03_one_gpu_per_stage.ipynb": (
        [
            "At 5,000.0 tokens/s ",
            "At 5,988.3 tokens/s 81 layers fit: enough",
            "At 3,657.1 tokens/s 80 layers fit: enough",
            "Claimed: 0 ms. But 80 layers are on no GPU",
            "Claimed: 4,266.7 tokens/s. But GPUs 0, 1 cannot hold that many layers",
            "Claimed: 3,657.1 tokens/s. But no GPU sends to another",
            "819.2 tokens/s: the link from GPU 1 to GPU 6 takes 2,500 ms",
            "Claimed: 3,657.1 tokens/s. But GPUs ",
            "Claimed: 2,844.4 tokens/s. But ",
            "2,813.2 tokens/s, and the evaluator agrees",
            "5,988.3 tokens/s, and the evaluator agrees",
            "2,813.2 tokens/s, and the evaluator agrees",
            "6,321.0 tokens/s: GPUs 0, 1, 2 take 324 ms",
        ],
        None,
    ),
    "04_a_failed_heuristic.ipynb": (
        [
            "three unlike GPUs: 134.616 tokens/s in 2 stages",
            "Methods without a proof keep 23% to 100% of the optimum, least on 2 H100, 6 T4",
        ],
        47,
    ),
    "06_taming_the_explosion.ipynb": (
        [
            "10 GPUs are 4 classes of interchangeable ones",
            "medium: 11 subproblems settle 90 possible rates",
            "medium: 287.04 tokens/s in 8 stages",
            "At 271.04 tokens/s all GPUs are good for 45 of 80 layers: 35 short",
            "your mix: 196.452 tokens/s in 5 stages",
            "medium, 65 GPUs: 287.04 tokens/s in 8 stages, proven optimal",
            "No rule of thumb finds a placement that fits",
            "medium: 443.5 tokens/s at most",
            "demo: 1047 tokens/s at most",
            "demo, heavy ends:",
            "63 problems, the slowest solved in",
            "s, 1 stopped early after 60 s",
        ],
        None,
    ),
    "05_joint_ilp.ipynb": (
        [
            "tiny: 301.784 tokens/s in 1 stage",
            "three unlike GPUs: 48 transfers/s in 3 stages",
            "Slow links make the claim fall to 36% of the truth",
            "small, heavy layers: 215.52 tokens/s",
            "small, heavy layers: 215.52 tokens/s in 3 stages",
            "small, heavy layers, joint: ",  # within its 20 seconds proven or not
            "tokens/s in ",
            "Connections, not allocations, fill the model: 14,310 for each allocation of demo, 3",
        ],
        None,  # the watched placement is as good as its time allows
    ),
    "07_pipeline_schedules.ipynb": (
        [
            "GPipe: 75.0% of all ranks' time is idle",
            "GPipe: 27.3% of all ranks' time is idle",
            "GPipe and 1F1B end at 33",
            "1F1B: one chain of work, without a gap, decides the makespan",
            "1F1B never holds more than 4 of 8 microbatches, its last rank 1",
            "Interleaved1F1B ends at 28.5, 14% before 1F1B",
            "ZBH1 ends at 27, 18% before 1F1B",
            "Both end at 27; in ZBH2 every rank is busy 24 on end",
            "A second step of ZB-H2 takes 24 more, its span, not its makespan of 27",
            "GPipe does not care which rank is slow; to 1F1B the first is 6 better than the last",
            "1F1B, rank 0 slow ends at 51, 11% before 1F1B, rank 3 slow",
            "InterleavedZeroBubble and ZBV are fastest; message time 1: ZBH2 is",
            "Messages of 0.5 take 1F1B from 33 to 41",
            "Interleaved1F1B ends at 28.5, 56% before boostr's interleaved",
            "ZBH1 ends at 27, 10% before boostr's zero bubble",
            "ZBH2: 11.1% of all ranks' time is idle",
        ],
        None,  # hundreds of bars, which test_gantt.py counts
    ),
    "08_from_placement_to_timeline.ipynb": (
        [
            "20 layers on a GPU instead of 1: write-up +18%, roofline -95%",
            "Computing overtakes reading at 165 new tokens (A100, prefill) or only at 716 (A100, decode)",
            "Predicted times: median error 5.5%; 1 of 12 is off by more than 20%",
            "Llama-3-70B: 923.297 tokens/s in 23 stages",
            "Llama-3-70B: 23 microbatches in flight reach 923.297 tokens/s",
            "Llama-3-70B: 690.517 tokens/s in 24 stages",
            "Llama-3-70B, 21 in flight: 690.517 tokens/s once the pipeline is full",
            "Methods without a proof keep 40% to 72% of the optimum, least on 3 GPUs, Llama-3-8B",
            "Llama-3-70B, by the write-up's coefficients: 247.52 tokens/s in 4 stages",
            "Llama-3-70B: 690.5 tokens/s at most",
            "more tokens/s than the lowest-latency",
            "Llama-3-8B, 10 GPUs: ",
            "proportional comes nearest and loses 28%",
            "tokens/s once the pipeline is full",
            "microbatches in flight reach",
        ],
        None,
    ),
    "09_reproducing_the_write_up.ipynb": (
        [
            "6 of 53 numbers are wrong, 35 of 91 statements do not hold",
            "demo: 268.124 tokens/s in 3 stages",
            "The scheduler's 1F1B idles 27.3%; its formula, and its test, say 16.7%",
        ],
        None,
    ),
}


def with_statements(path, name):
    """The notebook, with one cell more that asserts its results."""
    notebook = nbformat.read(path, as_version=4)
    asserts = "\n".join(f"assert {statement}, {statement!r}" for statement in RESULTS[name])
    notebook.cells.append(nbformat.v4.new_code_cell(asserts))
    return notebook


def check_figure(title, axes, kinds, annotations):
    """A title that states something, and axes that say what they count."""
    assert len(title.split()) >= 4, title
    # Rows of names and panels with a title of their own need none; everything else says what it
    # counts.
    assert any(axes) or "heatmap" in kinds or annotations, title
