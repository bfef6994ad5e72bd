"""The ledger: what four documents claim, beside what is computed here and now.

`claims` says what a row is and when two things agree, `writeup` and `programs` list the rows, `book` has
the documents, computes all rows and shows them.
"""

from pipelab.course.ledger.book import AUTHORS_CODE, DOCUMENTS, Ledger, claims, reproduce
from pipelab.course.ledger.claims import KINDS, VERDICTS, Claim, agreement

__all__ = [
    "AUTHORS_CODE", "DOCUMENTS", "KINDS", "VERDICTS", "Claim", "Ledger",
    "agreement", "claims", "reproduce",
]  # fmt: skip
