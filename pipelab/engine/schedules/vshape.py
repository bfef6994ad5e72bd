"""DualPipeV, phase by phase as torch lists it, on stages laid out as a V; ZB-V is `pipelab.schedules.zb_v`."""

from collections import Counter, deque

from pipelab.schedules import Action, Schedule


class _Rank:
    """Writes down the actions of one rank; every kind of work counts its own microbatches."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)  # down the ranks and back
        self.next: Counter[tuple[int, str]] = Counter()
        self.owed: deque = deque()  # weight gradients put off, oldest first
        self.actions: list[Action] = []

    def _take(self, chunk: int, kind: str) -> Action:
        # Input gradient and full backward are the same step of a microbatch and share their count.
        counter = chunk, "B" if kind == "I" else kind
        self.next[counter] += 1
        return Action(self.stages[chunk], kind, self.next[counter] - 1)

    def do(self, chunk: int, kinds: str) -> None:
        """Append one action for each character of `kinds`."""
        self.actions += [self._take(chunk, kind) for kind in kinds]

    def together(self, forward_chunk: int) -> None:
        """A forward of one chunk at the same time as a full backward of the other."""
        self.actions.append(
            Action.pair(self._take(forward_chunk, "F"), self._take(1 - forward_chunk, "B"))
        )

    def put_off(self, chunk: int) -> None:
        """An input gradient whose weight gradient comes later, by `pay`."""
        self.do(chunk, "I")
        self.owed.append(self.actions[-1])

    def pay(self) -> None:
        """The oldest weight gradient that was put off."""
        stage, _, microbatch, _ = self.owed.popleft()
        self.actions.append(Action(stage, "W", microbatch))


def dualpipev(ranks: int, microbatches: int) -> Schedule:
    """DualPipeV; needs at least 2p microbatches."""
    rows = [_one_rank(rank, ranks, microbatches) for rank in range(ranks)]
    return Schedule.of("DualPipeV", rows)


def _one_rank(rank: int, ranks: int, microbatches: int) -> list[Action]:
    hops = ranks - rank - 1
    r = _Rank(rank, ranks)
    r.do(0, "F" * (2 * hops))
    for _ in range(rank + 1):
        r.do(0, "F")
        r.do(1, "F")
    for _ in range(hops):
        r.do(1, "IWF")
    for i in range(microbatches - 2 * ranks + rank + 1):
        # apart, the last rank's first backward reaches its neighbour sooner
        if i == 0 and hops == 0:
            r.do(0, "F")
            r.do(1, "B")
        else:
            r.together(0)
        r.together(1)
    for _ in range(hops):
        r.do(1, "B")
        r.together(1)
    # From the middle of the cool-down on, the backward is split so that weight gradients fill the
    # gaps.
    for i in range(2 * (rank + 1)):
        chunk = 1 if i % 2 == 0 else 0
        if i < rank + 1:
            r.do(chunk, "B")
        else:
            r.put_off(chunk)
    for _ in range(hops):
        r.pay()
        r.put_off(0)
    for _ in range(rank + 1):
        r.pay()
    return r.actions
