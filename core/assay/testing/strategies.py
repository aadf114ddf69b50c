"""Hypothesis strategies of the contracts, for property tests of sources, combinations and stores.

Import it where hypothesis is installed; `assay.testing` itself does not need it.
"""

from typing import Any

from hypothesis import strategies as st

from assay.contracts import Candidate, Evidence, Message, Rollout, Task, Turn, Verdict
from assay.testing.hostile import hostile_texts

IDS = st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
"""Names that are safe in files and addresses."""


def texts(*, max_size: int = 200) -> st.SearchStrategy[str]:
    """Responses: any text, and now and then one of the hostile ones, shortened."""
    hostile = [text[:max_size] for _, text in hostile_texts(huge=max_size)]
    return st.text(max_size=max_size) | st.sampled_from(hostile)


def json_values(*, max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """JSON values: references and facts as a data file may hold them."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=max_leaves,
    )


def tasks(reference: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Task]:
    """Tasks with one user message; the reference is drawn from `reference`, any JSON by default."""
    return st.builds(
        Task,
        id=IDS,
        messages=st.text(max_size=80).map(lambda content: (Message(role="user", content=content),)),
        reference=reference if reference is not None else json_values(),
        facts=st.dictionaries(IDS, json_values(max_leaves=3), max_size=2),
        tags=st.lists(IDS, max_size=2).map(tuple),
    )


def rollouts(text: st.SearchStrategy[str] | None = None, *, group_id: str = "g") -> st.SearchStrategy[Rollout]:
    """Rollouts of one turn, with ids of their own."""
    turns = (text if text is not None else texts()).map(lambda said: (Turn(text=said),))
    return st.builds(Rollout, id=IDS, task_id=IDS, group_id=st.just(group_id), turns=turns)


def candidates(
    reference: st.SearchStrategy[Any] | None = None, text: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Candidate]:
    """Candidates whose rollout belongs to their task."""

    def joined(pair: tuple[Task, Rollout]) -> Candidate:
        task, rollout = pair
        return Candidate(task=task, rollout=rollout.model_copy(update={"task_id": task.id}))

    return st.tuples(tasks(reference), rollouts(text)).map(joined)


def verdicts(low: float = 0.0, high: float = 1.0) -> st.SearchStrategy[Verdict]:
    """Scored and abstained verdicts as a source may return them; values lie in [low, high]."""
    evidence = st.lists(st.builds(Evidence, summary=st.text(max_size=20)), max_size=2).map(tuple)
    reason = st.text(min_size=1, max_size=20)
    scored = st.builds(Verdict.score, st.floats(low, high), evidence=evidence)
    abstained = st.builds(Verdict.abstain, reason, fault=st.sampled_from(["candidate", "ours"]), evidence=evidence)
    return scored | abstained
