"""How large a schedule may be: what is listed and timed action by action must end within seconds and a few GB."""

from pipelab.errors import TooLarge

MOST_DEFECTS = 1_000  # sentences that are written about one schedule
_MOST_ROUNDS = 1_000_000  # each costs some 15 µs, whatever it holds
_MOST_CELLS = 40_000_000  # of rounds times ranks; about 2 GB


def check_grid(rounds: int, ranks: int) -> None:
    """Refuse a grid that would take minutes or more memory than there is.

    Raises
    ------
    TooLarge
    """
    if rounds > _MOST_ROUNDS or rounds * ranks > _MOST_CELLS:
        expected = f"at most {_MOST_ROUNDS:,} and {_MOST_CELLS:,} cells are timed; take fewer microbatches or ranks"
        raise TooLarge(
            f"{rounds:,} rounds or more of actions on {ranks:,} ranks: {expected}",
            {"rounds": rounds, "ranks": ranks},
        )
