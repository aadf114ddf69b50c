"""The outcome of a chain as a reward in a local file: 1 for the right last result, 0 for another or for none."""

from assay import Evidence, Rollout, Task, Verdict
from assay.testing.chains import answer_of


def right_answer(task: Task, rollout: Rollout) -> Verdict:
    """Whether the solution ends with the task's reference."""
    found = answer_of(rollout.text)
    note = Evidence(kind="answer", summary=f"found {found!r}, wanted {task.reference!r}")
    return Verdict.score(float(found == task.reference), evidence=note)
