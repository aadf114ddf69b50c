"""assay's rewards in OpenRLHF: the `reward_func` of a Python file (call shapes of OpenRLHF 0.11.2).

    # my_rewards.py                                          --reward.remote_url my_rewards.py
    from assay.adapters import openrlhf
    reward_func = openrlhf.reward("math", "length:0.1")

OpenRLHF decodes prompt and response together and keeps special tokens; the response is what follows the prompt, without
the tokens that end it. OpenRLHF knows no missing reward. What we caused therefore ends the call with an error (which
OpenRLHF logs, and the update then fails for want of a reward), unless `masked=` names a number; `masked` in the logs
then counts such answers. For rewards over HTTP, `assay serve` has the route that `--reward.remote_url http://...` asks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.adapters.judging import Judge
from assay.contracts import Rollout, Task
from assay.errors import ConfigError
from assay.remote.items import response_in, rollout_of, task_of
from assay.remote.unscored import stand_in, told

RewardFunction = Callable[..., dict[str, Any]]


def reward(
    *rewards: str | Mapping[str, Any], masked: float | None = None, workers: int = 2, timeout_s: float | None = None
) -> RewardFunction:
    """A `reward_func(queries, prompts, labels)` that gives `rewards`, `scores` and `extra_logs`.

    The label is the task's reference. The values are float32 tensors of shape (N,); `extra_logs` has `masked`,
    `declared` and, per source, `SOURCE/scored`, `SOURCE/abstained` and `SOURCE/failed`, each 0 or 1 and always the same
    keys. `rewards`, `workers` and `timeout_s` are those of `assay.score`; `masked` is the reward of an answer that we
    could not judge, which without it is an error. Raises `ConfigError` for a wrong entry.
    """
    where = f"openrlhf.reward({', '.join(repr(item) for item in rewards)})"
    masked = stand_in(masked, where=where)
    judge = Judge(rewards, where=where, workers=workers, timeout_s=timeout_s)

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: object) -> Any:
        """The rewards of `queries`, each a prompt with its response, in order."""
        import torch  # the trainer's own

        groups = _groups(queries, prompts, labels, judge)
        judged = judge.judge(groups)
        answers = [told(item.reward, item.judgements, judge.labels, masked=masked, where=where) for item in judged]
        scores = torch.tensor([answer.score for answer in answers], dtype=torch.float32)
        logs = {name: torch.tensor([answer.flags[name] for answer in answers]) for name in answers[0].flags}
        return {"rewards": scores, "scores": scores.clone(), "extra_logs": logs}

    return reward_func


def _groups(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], judge: Judge
) -> list[tuple[Task, list[Rollout]]]:
    if not len(queries) == len(prompts) == len(labels) or len(queries) == 0:
        raise ConfigError(
            f"{judge.where}: {len(queries)} queries, {len(prompts)} prompts and {len(labels)} labels; as many of each, "
            "and one at least"
        )
    groups: list[tuple[Task, list[Rollout]]] = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        response = response_in(query, prompt)
        if response is None:
            raise ConfigError(
                f"{judge.where}: a query does not begin with its prompt; found {query[:60]!r} for {prompt[:60]!r}; "
                "both must be decoded by the same tokenizer"
            )
        task = task_of(prompt, reference=label, facts={}, where=judge.where)
        groups.append((task, [rollout_of(response, rollout_id=judge.next_id(), task=task, where=judge.where)]))
    return groups
