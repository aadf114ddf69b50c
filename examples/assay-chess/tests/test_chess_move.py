"""The suite that every verifier passes, on this package's cases, and the sentence that a person reads."""

from collections.abc import Callable

from assay import Verdict
from assay.testing import reward_suite

test_chess_move = reward_suite("chess-move")


def test_the_evidence_names_the_move_and_what_was_wanted(assay_verdict: Callable[..., Verdict]) -> None:
    start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    verdict = assay_verdict("chess-move", "Move: g1f3", reference=["e4", "d4"], facts={"fen": start})
    assert verdict.evidence[0].summary == "Nf3; wanted e4, d4"
