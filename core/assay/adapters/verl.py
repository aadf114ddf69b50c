"""assay's rewards in verl: a `compute_score` and a reward manager (call shapes of verl 0.9.1).

    # my_rewards.py                                    reward.custom_reward_function.path=my_rewards.py
    from assay.adapters import verl
    compute_score = verl.reward("math", "length:0.1")

or without a file: `reward.custom_reward_function.path=pkg://assay.adapters.verl`, with
`+reward.custom_reward_function.reward_kwargs={rewards:[math]}`.

verl knows no missing reward: its scores become one tensor, and a NaN there spoils the whole group. What we caused
therefore ends the call with an error, unless `masked=` names a number; the key `masked` then tells such answers apart.
Every answer has the same keys, since verl makes one column of each: `score`, `masked`, `declared`, and per source
`SOURCE/scored`, `SOURCE/abstained`, `SOURCE/failed`.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from assay.adapters.judging import Judge, Judged
from assay.contracts import Rollout, Task
from assay.errors import ConfigError
from assay.remote.items import rollout_of, task_of
from assay.remote.unscored import stand_in, told
from assay.rows import first_known
from assay.scoring import PROMPTS

Score = dict[str, float]
_judges: dict[str, "_Scorer"] = {}
_judges_lock = threading.Lock()


class ComputeScore(Protocol):
    """A function as verl calls it."""

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping[str, Any] | None = None
    ) -> Score:
        """The score of one response and the facts beside it."""
        ...


class _Scorer:
    """One list of rewards, asked one response at a time."""

    def __init__(
        self,
        rewards: Sequence[str | Mapping[str, Any]],
        masked: float | None,
        workers: int,
        timeout_s: float | None,
        where: str,
    ) -> None:
        self.where, self.masked = where, stand_in(masked, where=where)
        self.judge = Judge(rewards, where=where, workers=workers, timeout_s=timeout_s)

    def item(self, data_source: str, text: str, truth: object, extra: Mapping[str, Any]) -> tuple[Task, list[Rollout]]:
        """The task and the rollout; the data source is the task's tag, `extra_info` holds prompt and facts."""
        prompt = first_known(extra, PROMPTS)
        facts = {name: value for name, value in extra.items() if name != prompt}
        task = task_of(
            extra[prompt] if prompt is not None else "",
            reference=truth,
            facts=facts,
            tags=(str(data_source),),
            where=self.where,
        )
        return task, [rollout_of(text, rollout_id=self.judge.next_id(), task=task, where=self.where)]

    def told(self, judged: Judged) -> Score:
        """The answer in verl's form."""
        answer = told(judged.reward, judged.judgements, self.judge.labels, masked=self.masked, where=self.where)
        return {"score": answer.score, **answer.flags}


def reward(
    *rewards: str | Mapping[str, Any], masked: float | None = None, workers: int = 2, timeout_s: float | None = None
) -> ComputeScore:
    """A `compute_score` for `reward.custom_reward_function`; verl runs it in threads of its own.

    `rewards`, `workers` and `timeout_s` are those of `assay.score`; `masked` is the score of an answer that we could
    not judge, which without it is an error. The `data_source` is the task's tag, for `when = { tag = ... }`; the prompt
    is looked for in `extra_info`, whose other values are the task's facts. Raises `ConfigError` for a wrong entry.
    """
    scorer = _Scorer(rewards, masked, workers, timeout_s, f"verl.reward({_listed(rewards)})")

    def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: Mapping[str, Any] | None = None,
        **_: object,
    ) -> Score:
        """The score of one response and the facts beside it."""
        item = scorer.item(data_source, solution_str, ground_truth, extra_info or {})
        return scorer.told(scorer.judge.judge([item])[0])

    return compute_score


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    *,
    rewards: Sequence[str | Mapping[str, Any]],
    masked: float | None = None,
    workers: int = 2,
    timeout_s: float | None = None,
    **_: object,
) -> Score:
    """As what `reward` returns, with its arguments as verl's `reward_kwargs`; equal arguments share one judge."""
    if isinstance(rewards, str):
        raise ConfigError(f"verl.compute_score: rewards is one text; write rewards=[{rewards!r}]")
    chosen = [item if isinstance(item, str) else dict(item) for item in rewards]
    key = json.dumps([chosen, masked, workers, timeout_s], sort_keys=True, default=str)
    with _judges_lock:
        if key not in _judges:
            _judges[key] = _Scorer(chosen, masked, workers, timeout_s, f"verl.compute_score({_listed(chosen)})")
        scorer = _judges[key]
    item = scorer.item(data_source, solution_str, ground_truth, extra_info or {})
    return scorer.told(scorer.judge.judge([item])[0])


def reward_manager(
    *rewards: str | Mapping[str, Any], masked: float | None = None, workers: int = 2, timeout_s: float | None = None
) -> type[Any]:
    """A reward manager class for `reward.reward_manager` with `source=importlib`; arguments as for `reward`.

    It has what verl calls: `run_single` (a coroutine, so that answers are judged together), `init_class` and
    `assemble_rm_scores`.
    """
    scorer = _Scorer(rewards, masked, workers, timeout_s, f"verl.reward_manager({_listed(rewards)})")

    class AssayRewardManager:
        """Judges verl's answers with assay."""

        def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: object) -> None:
            """`tokenizer` decodes the responses; a `compute_score` from the config has no place beside it."""
            if compute_score is not None and _is_custom(config):
                raise ConfigError(
                    f"{scorer.where}: reward.custom_reward_function is set as well, and only one can judge; leave out "
                    "one of them"
                )
            self.tokenizer = tokenizer

        @classmethod
        def init_class(cls, config: Any, tokenizer: Any) -> None:
            """Nothing is shared by the instances but the judge."""

        async def run_single(self, data: Any) -> dict[str, Any]:
            """The score of the last sequence of `data` (a `DataProto`), as `reward_score` and `reward_extra_info`."""
            item = data[-1:][0]
            response = item.batch["responses"]
            length = int(item.batch["attention_mask"][-response.shape[-1] :].sum())
            text: str = self.tokenizer.decode(response[:length], skip_special_tokens=True)
            columns = item.non_tensor_batch
            extra = dict(columns.get("extra_info") or {})
            extra.update(dict(columns.get("tool_extra_fields") or {}))
            # As verl's own managers do, so that a source finds the same facts behind either.
            extra["num_turns"] = columns.get("__num_turns__")
            extra["rollout_reward_scores"] = columns.get("reward_scores") or {}
            if first_known(extra, PROMPTS) is None and columns.get("raw_prompt") is not None:
                extra["prompt"] = list(columns["raw_prompt"])
            truth = columns["reward_model"]["ground_truth"]
            group = scorer.item(columns["data_source"], text, truth, extra)
            score = scorer.told((await scorer.judge.ajudge([group]))[0])
            return {"reward_score": score["score"], "reward_extra_info": score}

        @classmethod
        def assemble_rm_scores(cls, data: Any, scores: list[float]) -> Any:
            """Shape of `responses` (N, T): each score on the last valid token of its response, 0 elsewhere."""
            prompt_length = data.batch["prompts"].shape[1]
            lengths = data.batch["attention_mask"][:, prompt_length:].sum(dim=1)
            found = data.batch["responses"].new_zeros(data.batch["responses"].shape).float()
            for row, score in enumerate(scores):
                found[row, lengths[row] - 1] = score
            return found

    return AssayRewardManager


def _is_custom(config: Any) -> bool:
    custom: Any = config.reward.get("custom_reward_function") if hasattr(config, "reward") else None
    return bool(custom and custom.get("path"))


def _listed(rewards: Sequence[str | Mapping[str, Any]]) -> str:
    return ", ".join(repr(item) for item in rewards)
