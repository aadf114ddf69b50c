"""A run's own rewards as data: the judged rollouts of one prompt become rows of an objective's layout.

The rows hold texts, as a file's rows do, and the encoder gives the token ids that were sampled: nothing that a policy
wrote is tokenised a second time. Masked rewards, rollouts of several turns and empty ones are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from assay.config.fit import GroupExamples
from assay.contracts import Message, Rollout, ScoredGroup, Task
from assay.contracts.batch import APART
from assay.errors import ConfigError
from assay.protocols import Encoder, RowLayout

Ids = tuple[int, ...]
Row = dict[str, Any]


def rows_of_group(
    group: ScoredGroup, layout: RowLayout, choice: GroupExamples, *, explanations: Sequence[Rollout] = ()
) -> list[Row]:
    """The rows that a group makes; none where it teaches nothing (all equal, none good).

    Args:
        group: one task with its rollouts and rewards.
        layout: what the objective reads (`Objective.layout`).
        choice: what counts as good, which gap is needed, what is chosen in a pair.
        explanations: answer-conditioned texts of the same task, for `chosen = "explanation"`.

    Raises:
        ConfigError: the layout cannot be made of whole responses' rewards, or a reference is needed and missing.
    """
    prompt = prompt_of(group.task)
    ranked = _ranked(group)
    if layout == "texts":
        good = [rollout.text for value, rollout in ranked if value >= choice.good_from]
        return [{"prompt": prompt, "response": text} for text in list(dict.fromkeys(good))[: choice.keep]]
    if layout == "responses":
        return [
            {"prompt": prompt, "response": rollout.text, "label": value >= choice.good_from, "reward": value}
            for value, rollout in ranked
        ]
    if layout == "pairs":
        return [{"prompt": prompt, **pair} for pair in _pairs(group.task, ranked, choice, explanations)]
    if layout == "ranked":
        if not ranked or ranked[0][0] - ranked[-1][0] <= choice.least_gap:
            return []
        return [{"prompt": prompt, "responses": list(dict.fromkeys(rollout.text for _, rollout in ranked))}]
    raise ConfigError(
        "objective: it learns from judged steps, and a run's rewards judge whole responses; label the steps first: "
        "assay label"
    )


def _pairs(
    task: Task, ranked: Sequence[tuple[float, Rollout]], choice: GroupExamples, explanations: Sequence[Rollout]
) -> list[Row]:
    """Pairs as `chosen` and `rejected`; best against worst with the difference of their rewards as `gap`."""
    if choice.chosen == "reference":
        if not isinstance(task.reference, str) or not task.reference:
            raise ConfigError(
                f'task {task.id!r}: chosen = "reference" needs a text to prefer; the reference is {task.reference!r}'
            )
        gold = task.reference
        texts = dict.fromkeys(rollout.text for _, rollout in ranked)
        return [{"chosen": gold, "rejected": text} for text in texts if text != gold]
    if choice.chosen == "explanation":
        wrong = [rollout.text for value, rollout in ranked if value < choice.good_from]
        texts = [told.text for told in explanations if wrong and _usable(told) and told.text != wrong[-1]]
        return [{"chosen": text, "rejected": wrong[-1]} for text in texts]
    if len(ranked) < 2 or (gap := ranked[0][0] - ranked[-1][0]) <= choice.least_gap:
        return []
    return [{"chosen": ranked[0][1].text, "rejected": ranked[-1][1].text, "gap": gap}]


def _ranked(group: ScoredGroup) -> list[tuple[float, Rollout]]:
    """Usable rollouts with their rewards, the best first; equal rewards keep rollout order."""
    scored = [
        (value, rollout)
        for value, rollout in zip(group.values, group.rollouts, strict=True)
        if value is not None and _usable(rollout)
    ]
    return sorted(scored, key=lambda pair: -pair[0])


def _usable(rollout: Rollout) -> bool:
    return len(rollout.turns) == 1 and bool(rollout.turns[0].token_ids) and bool(rollout.text)


def prompt_of(task: Task) -> str | list[dict[str, str]]:
    """The task's prompt as a row holds it: the text of a single user message, else the messages."""
    messages: Sequence[Message] = task.messages
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    return [{"role": message.role, "content": message.content} for message in messages]


class SampledEncoder:
    """An `Encoder` that knows the token ids which prompts and responses really had when they were sampled."""

    def __init__(self, encoder: Encoder) -> None:
        """Texts that were not sampled go to `encoder`."""
        self._encoder = encoder
        self._prompts: dict[str, Ids] = {}
        self._responses: dict[tuple[str, str], Ids] = {}

    def add(self, task: Task, rollouts: Sequence[Rollout]) -> None:
        """Remember the ids of a task's rollouts."""
        key = _key(prompt_of(task))
        for rollout in rollouts:
            if rollout.prompt_ids:
                self._prompts.setdefault(key, rollout.prompt_ids)
            if _usable(rollout):
                self._responses.setdefault((key, rollout.text), rollout.turns[0].token_ids or ())

    @property
    def fingerprint(self) -> str:
        """That of the encoder behind it."""
        return self._encoder.fingerprint

    def __call__(self, prompt: Any, response: str, /) -> tuple[Ids, Ids]:
        """(prompt ids, response ids), the sampled ones where there are any."""
        key = _key(prompt)
        before, after = self._prompts.get(key), self._responses.get((key, response))
        if before is None or after is None:
            plain = self._encoder(prompt, response)
            before, after = before or plain[0], after or plain[1]
        return before, after

    def offsets(self, response: str) -> tuple[tuple[int, int], ...]:
        """Those of the text's own tokens; raises `ConfigError` where other tokens were sampled."""
        found = self._encoder.offsets(response)
        sampled = {ids for (_, text), ids in self._responses.items() if text == response}
        if sampled - {self._encoder("", response)[1]}:
            raise ConfigError(
                "objective: it needs each token's characters, and other tokens than the text's own were sampled"
            )
        return found

    def ids(self, text: str) -> Ids:
        """The ids of a text alone."""
        return self._encoder.ids(text)


def _key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=dict)


def members(group: ScoredGroup) -> tuple[ScoredGroup, list[Rollout]]:
    """The group without its explanations, and the explanations."""
    apart = [(reward.channels.get(APART) or 0.0) > 0 for reward in group.rewards]
    own = [index for index, is_apart in enumerate(apart) if not is_apart]
    alone = ScoredGroup(
        task=group.task,
        rollouts=tuple(group.rollouts[index] for index in own),
        rewards=tuple(group.rewards[index] for index in own),
    )
    return alone, [rollout for rollout, is_apart in zip(group.rollouts, apart, strict=True) if is_apart]


def groups_of(rollouts: Sequence[tuple[Task, Rollout, Any]]) -> list[ScoredGroup]:
    """Groups by group id, in order of arrival, of (task, rollout, reward) triples; unrewarded ones are left out."""
    members: dict[str, list[tuple[Task, Rollout, Any]]] = {}
    for task, rollout, reward in rollouts:
        if reward is not None:
            members.setdefault(rollout.group_id, []).append((task, rollout, reward))
    return [
        ScoredGroup(task=group[0][0], rollouts=tuple(r for _, r, _ in group), rewards=tuple(w for _, _, w in group))
        for group in members.values()
    ]
