"""Schedules by definition: random orders and costs, what every action needs, when it ends and what a rank holds.

Nothing here calls the engine's simulation or the front's.
"""

import pipelab as pl
from pipelab.schedules import Action


def random_costs(stages, random):
    """Forward, both gradients and comm in eighths, whose sums are exact; a third of the links are free."""
    cost = lambda: random.randrange(33) / 8  # noqa: E731
    comm = [cost() * (random.random() < 0.67) for _ in range(stages - 1)]
    return [*([cost() for _ in range(stages)] for _ in range(3)), comm]


def random_schedule(random):
    """Any stages on any ranks, in any order in which the actions can be run one after the other.

    Each is as likely as another to be next; of a stage and a microbatch the backward is split or
    not, and some forwards run together with a backward of the same rank.
    """
    ranks, stages = random.randint(1, 4), random.randint(1, 6)
    microbatches = random.randint(1, 5)
    holder = [*range(ranks), *(random.randrange(ranks) for _ in range(stages))]
    holder = holder[:stages]
    random.shuffle(holder)
    rows = [[] for _ in range(max(holder) + 1)]
    split = {(s, m): random.random() < 0.5 for s in range(stages) for m in range(microbatches)}
    able = [Action(0, "F", m) for m in range(microbatches)]
    while able:
        action = able.pop(random.randrange(len(able)))
        partners = [
            other
            for other in able
            if {action.kind, other.kind} == {"F", "B"}
            and holder[other.stage] == holder[action.stage]
        ]
        one = [action]
        if partners and random.random() < 0.5:
            one = sorted([action, random.choice(partners)], key=lambda part: "FB".index(part.kind))
            able.remove(one[1] if one[0] is action else one[0])
        rows[holder[action.stage]].append(Action.pair(*one) if len(one) == 2 else action)
        for stage, kind, m, _ in one:
            if kind == "W":
                continue
            if kind == "I":
                able.append(Action(stage, "W", m))
            forward = kind == "F" and stage < stages - 1
            following = stage + 1 if forward else stage if kind == "F" else stage - 1
            if following >= 0:
                backward = "I" if split[following, m] else "B"
                able.append(Action(following, "F" if forward else backward, m))
    return pl.Schedule.of("random", rows, microbatches=microbatches, stage_rank=holder)


def halves(action):
    return [str(part) for part in action.parts or (action,)]


def all_sources(schedule):
    """For every action's text what it needs, as text, and the link between (None within a rank)."""
    parts = [part for row in schedule.actions for one in row for part in one.parts or (one,)]
    known, found = set(map(str, parts)), {}
    for stage, kind, batch, _ in parts:
        last = stage == schedule.stages - 1
        wanted = {
            "F": [(stage - 1, "F")],
            "W": [(stage, "I")],
            "B": [(stage, "F")] if last else [(stage + 1, "B"), (stage + 1, "I")],
        }["B" if kind == "I" else kind]
        mine = found.setdefault(f"{stage}{kind}{batch}", {})
        for other, code in wanted:
            if f"{other}{code}{batch}" in known:
                across = schedule.stage_rank[other] != schedule.stage_rank[stage]
                mine[f"{other}{code}{batch}"] = min(stage, other) if across else None
    return found


def simulated(schedule, costs, queued):
    """When every action ends, rank by rank and message by message; how long each rank works and waits for messages.

    `queued`: messages from one rank to another travel one at a time. A wait is for a message alone
    from the moment when all work that is waited for has ended.
    """
    took = {"F": costs.forward, "I": costs.backward_input, "W": costs.backward_weight}
    took["B"] = [i + w for i, w in zip(costs.backward_input, costs.backward_weight, strict=True)]
    needed = all_sources(schedule)
    # The action on another rank that needs an output, and the link between.
    sent = {
        s: (t, over) for t, made in needed.items() for s, over in made.items() if over is not None
    }
    rank_of = {half: r for r, row in enumerate(schedule.actions) for a in row for half in halves(a)}
    end, arrival, line, todo = {}, {}, {}, [list(row) for row in schedule.actions]
    free, work, waits = ([0.0] * schedule.ranks for _ in range(3))
    while any(todo):
        for rank, row in enumerate(todo):
            while row and all(s in end for half in halves(row[0]) for s in needed[half]):
                action = row.pop(0)
                made = [source for half in halves(action) for source in needed[half].items()]
                there = [end[s] if over is None else arrival[s] for s, over in made]
                length = sum(took[p.kind][p.stage] for p in action.parts or (action,))
                length *= costs.overlap if action.parts else 1
                start = max([free[rank], *there])
                waits[rank] += start - max([free[rank], *(end[s] for s, _ in made)])
                free[rank], work[rank] = start + length, work[rank] + length
                for half in halves(action):
                    end[half] = free[rank]
                    if half in sent:
                        way = rank, rank_of[sent[half][0]]
                        begun = max(end[half], line.get(way, 0.0)) if queued else end[half]
                        arrival[half] = line[way] = begun + costs.comm[sent[half][1]]
    return end, work, waits


def peaks(schedule, share):
    """The most that each rank holds, counted along its order; `share`: what W needs of an activation."""
    found = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            kinds = [part.kind for part in action.parts or (action,)]
            held += kinds.count("F")
            peak = max(peak, held)
            held += share * (kinds.count("I") - kinds.count("W"))
            held -= kinds.count("B") + kinds.count("I")
        found.append(peak)
    return tuple(found)
