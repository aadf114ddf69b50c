"""What says whether a solution's answer is right; on real text a verifier such as `math` stands here."""

from assay import Rollout, Task, Verdict
from assay.testing.chains import answer_of


def right(task: Task, rollout: Rollout) -> Verdict:
    """1 for the task's answer in the last line, 0 for another; nothing to judge where there is none."""
    found = answer_of(rollout.text)
    if found is None:
        return Verdict.abstain("the last line is no step")
    return Verdict.score(float(found == task.reference), evidence=f"the last line says {found}")
