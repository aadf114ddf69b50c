"""Checks that an answer ends in a chess move that is legal, and the move that was asked for."""

from typing import Any

from assay import Component, RewardSource, Rollout, Task, Verdict, hookimpl, verifier


@verifier("chess-move", summary="the last 'Move:' is a legal move that gives mate, or the reference move")
def chess_move(task: Task, rollout: Rollout) -> Verdict:
    """Score the move after the last `Move:` in the position of the task's fact `fen` (or in its reference's `fen`).

    1 for a move of the reference (one move or a list, in SAN or UCI), or for mate where there is no reference; 0 for
    another legal move and for one that is not legal; abstain where the text names no move.
    """
    import chess  # here and not above: listing the plugin must not load it

    try:
        board = chess.Board(str(task.facts["fen"]))
        wanted = _moves(board, task.reference)
    except (KeyError, ValueError) as error:
        return Verdict.abstain(f"the task's position or reference is unreadable: {error}", fault="ours")
    _, found, rest = rollout.text.rpartition("Move:")
    words = rest.split()
    if not found or not words:
        return Verdict.abstain("the text has no 'Move:' with a move after it")
    said = words[0].rstrip(".")
    try:
        (move,) = _moves(board, said)
    except ValueError:
        return Verdict.score(0.0, evidence=f"{said[:20]!r} is no legal move here")
    if wanted:
        good = move in wanted
        return Verdict.score(float(good), evidence=f"{board.san(move)}; wanted {', '.join(map(board.san, wanted))}")
    after = board.copy()
    after.push(move)
    return Verdict.score(float(after.is_checkmate()), evidence=f"{board.san(move)}; mate: {after.is_checkmate()}")


def _moves(board: Any, said: Any) -> list[Any]:
    """The moves that a text or a list names in this position; raises `ValueError` for one that is not legal."""
    import chess

    moves: list[Any] = []
    for text in [said] if isinstance(said, str) else said or []:
        try:
            move = board.parse_san(text)
        except ValueError:
            move = chess.Move.from_uci(text.lower())
        if move not in board.legal_moves:
            raise ValueError(f"{text!r} is not legal")
        moves.append(move)
    return moves


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer this package's verifiers."""
    return [chess_move]
