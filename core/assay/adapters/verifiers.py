"""assay's rewards as reward functions of PrimeIntellect's verifiers (written for and tested with 0.4.0).

Plugged by config, the function's file named in the task's `rewards`:

    # my_rewards.py                       [env.taskset.task.rewards.math]  fn = "my_rewards.py:math"
    from assay.adapters import verifiers
    math = verifiers.reward("math")

or called by a task's own `@vf.reward` method: `return await math(task=self.data, trace=trace)`.

What we caused is raised: verifiers then keeps `None` for every reward of the trace and the error beside it, which is
how it writes that scoring did not run. What the candidate caused gets its declared score.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from assay.adapters.judging import Judge
from assay.contracts import Message, Rollout, Task, Turn
from assay.errors import ConfigError, JudgingError
from assay.remote.answers import answer_of
from assay.remote.items import messages_of, task_of
from assay.rows import first_known
from assay.scoring import REFERENCES

RewardFunction = Callable[[Any, Any], Coroutine[Any, Any, float]]


def reward(
    *rewards: str | Mapping[str, Any],
    reference: str | None = None,
    workers: int = 2,
    timeout_s: float | None = None,
) -> RewardFunction:
    """An asynchronous reward function `(task, trace) -> float` of verifiers.

    `task` is the task's data: `reference` names its field with the gold answer (default the first of reference, answer,
    gold, solution, target), its other own fields are the facts. The last branch's messages after the prompt are the
    rollout. Raises `ConfigError` for a wrong entry; the function raises `JudgingError` where there is no reward.
    """
    where = f"verifiers.reward({', '.join(repr(item) for item in rewards)})"
    judge = Judge(rewards, where=where, workers=workers, timeout_s=timeout_s)

    async def assay_reward(task: Any, trace: Any) -> float:
        """The reward of one trace."""
        known = _task(task, reference, where)
        rollout = _rollout(trace, judge.next_id(), known, where)
        answer = answer_of((await judge.ajudge([(known, [rollout])]))[0].reward)
        if answer.reward is None:
            raise JudgingError(f"{where}: no reward for this trace: {answer.reason}")
        return answer.reward

    return assay_reward


def _task(data: Any, reference: str | None, where: str) -> Task:
    base: Any = next((kind for kind in type(data).__mro__ if kind.__name__ == "TaskData"), None)
    common: Any = () if base is None else base.model_fields
    own = {name: value for name, value in data.model_dump(mode="json").items() if name not in common}
    gold = reference or first_known(own, REFERENCES)
    if reference is not None and reference not in own:
        raise ConfigError(
            f"{where}: the task has no field {reference!r}; it has {', '.join(own) or 'none of its own'}. "
            "Name the field of the gold answer with reference="
        )
    said: Any = data.prompt or ()
    prompt = said if isinstance(said, str) else [_plain(message) for message in said]
    messages = messages_of(prompt, where=where) if prompt else (Message(role="user", content=""),)
    if data.system_prompt:
        messages = (Message(role="system", content=data.system_prompt), *messages)
    facts = {name: value for name, value in own.items() if name != gold}
    return task_of(
        [message.model_dump() for message in messages],
        reference=own.get(gold) if gold is not None else None,
        facts=facts,
        where=where,
    )


def _rollout(trace: Any, rollout_id: str, task: Task, where: str) -> Rollout:
    branches = trace.branches
    nodes: list[Any] = list(branches[-1].nodes) if branches else []
    first = next((index for index, node in enumerate(nodes) if node.sampled), len(nodes))
    turns: list[Turn] = []
    for node in nodes[first:]:
        message = messages_of([_plain(node.message)], where=where)[0]
        turns.append(Turn(role=message.role, text=message.content, trainable=bool(node.sampled)))
    while turns and turns[-1].role != "assistant":
        turns.pop()  # what came after the last answer is not the answer
    return Rollout(
        id=rollout_id,
        task_id=task.id,
        group_id=task.id,
        turns=tuple(turns) or (Turn(text=""),),
        finish="length" if trace.is_truncated else "stop",
    )


def _plain(message: Any) -> dict[str, Any]:
    return message if isinstance(message, dict) else message.model_dump(mode="json")  # pyright: ignore[reportUnknownVariableType]
