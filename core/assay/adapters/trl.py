"""assay's rewards as reward functions of TRL (written for and tested with 1.16).

    from assay.adapters import trl
    GRPOTrainer(model=..., reward_funcs=[trl.reward("math", "length:0.1")], train_dataset=...)

| a reward of assay | what TRL gets |
|---|---|
| a number | that number |
| no answer, an unreadable one (candidate) | the declared score, default the worst |
| bad gold, timeout, crash, judge down (ours) | `None`: TRL leaves the answer out of its group's baseline, advantage 0 |

TRL adds up the functions of `reward_funcs` and skips a `None` among them, which makes another reward of that answer;
sources that belong together therefore stand in one `trl.reward(...)`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from assay.adapters.judging import Judge, Judged, grouped
from assay.contracts import Judgement, Rollout, Task
from assay.errors import ConfigError
from assay.remote.items import rollout_of, task_of
from assay.rows import first_known
from assay.scoring import REFERENCES

HOST_ARGUMENTS = ("trainer_state", "log_extra", "log_metric", "environments")
"""What TRL hands over beside the columns of the data set."""
Completion = str | Sequence[Mapping[str, Any]]


class TrlReward:
    """A reward function of TRL; it may be called from any thread and pickled."""

    def __init__(
        self,
        rewards: Sequence[str | Mapping[str, Any]],
        *,
        reference: str | None,
        workers: int,
        timeout_s: float | None,
    ) -> None:
        """See `reward`."""
        self.where = f"trl.reward({', '.join(repr(item) for item in rewards)})"
        self.judge = Judge(rewards, where=self.where, workers=workers, timeout_s=timeout_s)
        self.reference = reference
        self.__name__ = "_".join(["assay", *(entry.name for entry in self.judge.entries)])
        """The name of its columns in TRL's logs."""

    def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Any
    ) -> list[float | None]:
        """One reward per completion, in order; `None` where our part failed or a gold cannot be read."""
        groups, places = self._groups(prompts, completions, columns)
        return self._told(self.judge.judge(groups), places, columns)

    def close(self) -> None:
        """End the workers."""
        self.judge.close()

    def _groups(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], columns: Mapping[str, Any]
    ) -> tuple[list[tuple[Task, list[Rollout]]], list[int]]:
        data = {name: column for name, column in columns.items() if name not in (*HOST_ARGUMENTS, "completion_ids")}
        for name, column in {"completions": completions, **data}.items():
            if len(column) != len(prompts):
                raise ConfigError(
                    f"{self.where}: column {name!r} has {len(column)} values for {len(prompts)} prompts; one per prompt"
                )
        reference = self._reference(data)
        ids = columns.get("completion_ids")
        tasks: list[Task] = []
        rollouts: list[Rollout] = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            row = {name: column[index] for name, column in data.items()}
            gold = row.pop(reference) if reference is not None else None
            task = task_of(prompt, reference=gold, facts=row, tags=_tags(row.pop("tags", ())), where=self.where)
            tasks.append(task)
            rollouts.append(
                rollout_of(
                    completion,
                    rollout_id=self.judge.next_id(),
                    task=task,
                    token_ids=None if ids is None else ids[index],
                    where=self.where,
                )
            )
        return grouped(tasks, rollouts)

    def _reference(self, data: Mapping[str, Any]) -> str | None:
        if self.reference is not None and self.reference not in data:
            have = ", ".join(data) or "no column beside the prompt"
            raise ConfigError(
                f"{self.where}: column {self.reference!r} is missing; the data set has {have}. "
                "Name the column of the gold answer with reference="
            )
        return self.reference or first_known(data, REFERENCES)

    def _told(self, judged: Sequence[Judged], places: Sequence[int], columns: Mapping[str, Any]) -> list[float | None]:
        """The values in TRL's order; counts, means and verdicts go to TRL's log."""
        ordered = [item for _, item in sorted(zip(places, judged, strict=True), key=lambda pair: pair[0])]
        log_metric = cast("Callable[[str, float], None] | None", columns.get("log_metric"))
        log_extra = cast("Callable[[str, list[Any]], None] | None", columns.get("log_extra"))
        for source in self.judge.labels:
            verdicts = [_of(source, item.judgements) for item in ordered]
            if log_extra is not None:
                log_extra(f"{self.__name__}/{source}", [_shown(verdict) for verdict in verdicts])
            if log_metric is not None:
                values = [verdict.value for verdict in verdicts if verdict is not None and verdict.value is not None]
                if values:
                    log_metric(f"{self.__name__}/{source}/mean", sum(values) / len(values))
                for status in ("scored", "abstained", "failed"):
                    count = sum(verdict is not None and verdict.status == status for verdict in verdicts)
                    log_metric(f"{self.__name__}/{source}/{status}", float(count))
        return [item.reward.value for item in ordered]


class AsyncTrlReward(TrlReward):
    """As `TrlReward`, for TRL's own event loop: several such functions are judged at once."""

    async def __call__(  # type: ignore[override] # TRL asks whether `__call__` is a coroutine function
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Any
    ) -> list[float | None]:
        """One reward per completion, in order; `None` where our part failed or a gold cannot be read."""
        groups, places = self._groups(prompts, completions, columns)
        return self._told(await self.judge.ajudge(groups), places, columns)


def reward(
    *rewards: str | Mapping[str, Any],
    reference: str | None = None,
    workers: int = 2,
    timeout_s: float | None = None,
) -> TrlReward:
    """A reward function for `reward_funcs`, for example `trl.reward("math", "length:0.1")`.

    `rewards` are names as after `-r`, or tables as in a config. `reference` names the data set's column of the gold
    answer (default the first of reference, answer, gold, solution, target); `tags` is a column of names that
    `when = { tag = ... }` routes by; all other columns are the task's facts. `workers` and `timeout_s` are those of
    `assay.score`. The log gets, per source and batch, the mean of the scored, and how many were scored, abstained and
    failed; the table of completions gets each verdict. Raises `ConfigError` for a wrong entry.
    """
    return TrlReward(rewards, reference=reference, workers=workers, timeout_s=timeout_s)


def areward(
    *rewards: str | Mapping[str, Any],
    reference: str | None = None,
    workers: int = 2,
    timeout_s: float | None = None,
) -> AsyncTrlReward:
    """As `reward`, as an asynchronous reward function."""
    return AsyncTrlReward(rewards, reference=reference, workers=workers, timeout_s=timeout_s)


def _of(source: str, judgements: Sequence[Judgement]) -> Judgement | None:
    return next((judgement for judgement in judgements if judgement.source == source), None)


def _shown(judgement: Judgement | None) -> str:
    if judgement is None:
        return "not asked"
    if judgement.value is not None:
        return f"{judgement.value:g}"
    return f"{judgement.status} ({judgement.verdict.fault}): {judgement.reason}"


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(tag) for tag in cast("Sequence[object]", value)) if isinstance(value, list | tuple) else ()
