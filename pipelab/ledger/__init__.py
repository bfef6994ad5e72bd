"""The ledger: what four documents claim, beside what is computed here and now.

`comparisons` says when two things agree, `claims` what a row is, `desk` keeps what several rows ask
for, one file per document or section lists the rows, `book` computes them, `pages` writes them out.
"""

from pipelab.ledger.book import Entry, Ledger, reproduce
from pipelab.ledger.claims import VERDICTS, Claim
from pipelab.ledger.documents import DOCUMENTS, claims
from pipelab.ledger.pages import verdict_counts

__all__ = ["DOCUMENTS", "VERDICTS", "Claim", "Entry", "Ledger", "claims", "reproduce", "verdict_counts"]
