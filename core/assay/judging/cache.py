"""What makes two candidates the same to a source, and the verdicts of those already judged.

The key is the content: everything of task and rollout that a verifier can see, except what only names the rollout
(its id, its group, its seed, its log-probs, the weights that made it). Two equal completions of one task are therefore
one piece of work, and an edited gold, fact, option or text is another.
"""

import hashlib
import json
from collections import OrderedDict

from assay.contracts import Candidate, Rollout, Task, Verdict


def digest(data: str | bytes) -> str:
    """32 hexadecimal digits that name `data`."""
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class ContentKeys:
    """Keys of candidates; the part that a task contributes is computed once per task object."""

    def __init__(self, max_tasks: int = 4096) -> None:
        """Remember up to `max_tasks` tasks."""
        self.max_tasks = max_tasks
        self._tasks: OrderedDict[int, tuple[Task, str]] = OrderedDict()

    def key(self, candidate: Candidate) -> str:
        """The content key of a candidate."""
        parts = [self._task_key(candidate.task), _rollout_key(candidate.rollout)]
        parts += [_rollout_key(other) for other in candidate.group]
        return digest("\0".join(parts))

    def _task_key(self, task: Task) -> str:
        known = self._tasks.get(id(task))
        if known is not None and known[0] is task:
            return known[1]
        key = digest(task.model_dump_json())
        self._tasks[id(task)] = (task, key)
        if len(self._tasks) > self.max_tasks:
            self._tasks.popitem(last=False)
        return key


def _rollout_key(rollout: Rollout) -> str:
    turns = [(turn.role, turn.text, turn.trainable, turn.token_ids) for turn in rollout.turns]
    return f"{rollout.finish}{rollout.sampling.max_new_tokens}{json.dumps(turns)}"


class VerdictCache:
    """The last `max_entries` verdicts by source and content; only decisions that would come out the same again."""

    def __init__(self, max_entries: int = 20_000) -> None:
        """Keep up to `max_entries` verdicts."""
        self.max_entries = max_entries
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    def get(self, fingerprint: str, key: str) -> Verdict | None:
        """The verdict of this content by this source, if it is known."""
        verdict = self._verdicts.get((fingerprint, key))
        if verdict is not None:
            self._verdicts.move_to_end((fingerprint, key))
        return verdict

    def put(self, fingerprint: str, key: str, verdict: Verdict) -> None:
        """Remember a verdict, unless it failed or its abstention was our doing: that may pass."""
        if verdict.status == "failed" or verdict.fault == "ours":
            return
        self._verdicts[fingerprint, key] = verdict
        if len(self._verdicts) > self.max_entries:
            self._verdicts.popitem(last=False)
