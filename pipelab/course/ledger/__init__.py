"""The ledger: what four documents claim, beside what is computed here and now.

`comparisons` says when two things agree, `claims` what a row is, `shared_results` keeps what
several rows need, `trials` puts general sentences to the test, one file per document or section lists the rows,
`book` computes them, `pages` writes them out. `documents` has the four sources with their
addresses.
"""

from pipelab.course.ledger.book import Entry, Ledger, reproduce
from pipelab.course.ledger.claims import KINDS, VERDICTS, Claim
from pipelab.course.ledger.documents import AUTHORS_CODE, DOCUMENTS, claims
from pipelab.course.ledger.pages import verdict_counts

__all__ = [
    "AUTHORS_CODE", "DOCUMENTS", "KINDS", "VERDICTS", "Claim", "Entry", "Ledger", "claims", "reproduce",
    "verdict_counts",
]  # fmt: skip
