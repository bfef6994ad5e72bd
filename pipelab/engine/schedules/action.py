"""One action of a schedule, written and read as torch writes it: `2F0` is stage 2, forward, microbatch 0."""

import re
from typing import NamedTuple

from pipelab.errors import InvalidValue, shown

__all__ = [
    "COMPUTE",
    "IDLE",
    "KINDS",
    "RECV_B",
    "RECV_F",
    "SEND_B",
    "SEND_F",
    "TRANSFERS",
    "Action",
    "B",
    "F",
    "I",
    "W",
]  # fmt: skip

# Codes under which arrays hold the kinds, and the names torch gives them.
F, I, B, W, SEND_F, RECV_F, SEND_B, RECV_B, IDLE = range(9)  # noqa: E741 (torch's letter for the input gradient)
KINDS = ("F", "I", "B", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "IDLE")
COMPUTE = (F, I, B, W)
TRANSFERS = (SEND_F, RECV_F, SEND_B, RECV_B)

_SINGLE = re.compile(r"([0-9]+)(SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)([0-9]+)")
_PAIR = re.compile(r"\( *([0-9]+F[0-9]+) *; *([0-9]+B[0-9]+) *\)OVERLAP_F_B")
_DIGITS = 12  # far more than a schedule may have, and few enough to count with


class Action(NamedTuple):
    """One thing that a rank does.

    Parameters
    ----------
    stage : int
        Counted from 0; -1 where the action belongs to no single stage (a pair, an idle tick).
    kind : str
        `"F"` forward, `"B"` full backward, `"I"` input gradient, `"W"` weight gradient, `"SEND_F"`,
        `"RECV_F"`, `"SEND_B"`, `"RECV_B"`, `"IDLE"`, or `"OVERLAP_F_B"` for a pair.
    microbatch : int
        Counted from 0; -1 where there is none.
    parts : tuple of Action
        Forward and backward of a pair that runs at the same time; empty otherwise.

    Examples
    --------
    >>> str(Action(2, "F", 0)), Action.parse("1SEND_B3").microbatch
    ('2F0', 3)
    >>> Action.parse("(3F0;4B1)OVERLAP_F_B").parts[1]
    Action(stage=4, kind='B', microbatch=1, parts=())
    """

    stage: int
    kind: str
    microbatch: int
    parts: tuple = ()

    @classmethod
    def pair(cls, forward: "Action", backward: "Action") -> "Action":
        """A forward and a full backward that one rank runs at the same time.

        Parameters
        ----------
        forward : Action
            Of kind "F".
        backward : Action
            Of kind "B".

        Returns
        -------
        Action
            Of kind "OVERLAP_F_B", with both as its `parts`.
        """
        return cls(-1, "OVERLAP_F_B", -1, (forward, backward))

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read an action; an empty cell is an idle tick.

        Parameters
        ----------
        text : str
            As torch writes it: `2F0`, `1SEND_B3`, `(3F0;4B1)OVERLAP_F_B`.

        Returns
        -------
        Action
            Of the kind that is written there.

        Raises
        ------
        InvalidValue
            The text is no action in torch's writing.

        References
        ----------
        torch.distributed.pipelining, whose action tables are written so.
        """
        text = (text if isinstance(text, str) else shown(text)).strip()
        if text in ("", "IDLE"):
            return cls(-1, "IDLE", -1)
        if match := _PAIR.fullmatch(text):
            return cls.pair(*(cls.parse(part) for part in match.groups()))
        if match := _SINGLE.fullmatch(text):
            if max(len(match[1]), len(match[3])) > _DIGITS:
                expected = f"expected stages and microbatches of at most {_DIGITS} digits"
                raise InvalidValue("Action", [("action", text, expected)])
            return cls(int(match[1]), match[2], int(match[3]))
        expected = (
            "expected stage, kind and microbatch, such as 2F0, 1SEND_B3 or (3F0;4B1)OVERLAP_F_B"
        )
        raise InvalidValue(
            "Action", [("action", text, f"{expected}; kinds: {', '.join(KINDS[:-1])}")]
        )

    def __str__(self) -> str:
        if self.parts:
            return "({};{})OVERLAP_F_B".format(*self.parts)
        return "IDLE" if self.kind == "IDLE" else f"{self.stage}{self.kind}{self.microbatch}"
