"""The ledger: what four documents claim, beside what is computed here and now.

`claims` says what a row is and when two things agree, `writeup` and `programs` list the rows, `evidence`
has the computations that several rows need, `book` computes all rows and shows them, `documents` has
the sources with their addresses.
"""

from pipelab.course.ledger.book import Ledger, claims, reproduce
from pipelab.course.ledger.claims import KINDS, VERDICTS, Claim, agreement
from pipelab.course.ledger.documents import AUTHORS_CODE, DOCUMENTS

__all__ = [
    "AUTHORS_CODE",
    "DOCUMENTS",
    "KINDS",
    "VERDICTS",
    "Claim",
    "Ledger",
    "agreement",
    "claims",
    "reproduce",
]
