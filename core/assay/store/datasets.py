"""A stored run as a data set that another trainer reads.

What has no score is never a number here either: a rollout or a group that a form cannot hold is left out, and counted
with the reason.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from assay.contracts import StepScore, Task
from assay.errors import ConfigError, StoreError
from assay.store.sqlite import RunStore, StoredRollout

Form = Literal["trl", "trl-preference", "trl-unpaired", "trl-prm", "verl", "openrlhf"]
SUFFIXES: dict[Form, str] = {
    "trl": "trl.jsonl",
    "trl-preference": "trl-preference.jsonl",
    "trl-unpaired": "trl-unpaired.jsonl",
    "trl-prm": "trl-prm.jsonl",
    "verl": "verl.parquet",
    "openrlhf": "openrlhf.jsonl",
}
"""Form to the end of the file's name; a `.parquet` file holds a table, any other JSON lines."""
Row = dict[str, Any]


class Choice(NamedTuple):
    """What the forms with labels go by."""

    threshold: float = 0.5
    """A reward or a step's score from this value on is called good."""
    source: str | None = None
    """The source whose step scores are taken; default the first that scored steps."""


class Written(NamedTuple):
    """What an export did."""

    rows: int
    left_out: dict[str, int]
    """Reason to the number of rollouts or groups that have no row."""


def export_dataset(store: RunStore, target: str | Path, form: Form, choice: Choice | None = None) -> Written:
    """Write the run's data set of one form to `target`.

    Raises `ConfigError` where nothing fits the form, `StoreError` where a table is asked for without pyarrow.
    """
    left_out: Counter[str] = Counter()
    rows = list(_FORMS[form](store, choice or Choice(), left_out))
    if not rows:
        why = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) or "the run has no rollout"
        raise ConfigError(f"{store.folder}: nothing to write as {form}: {why}")
    if Path(target).suffix == ".parquet":
        _write_table(rows, Path(target))
    else:
        with Path(target).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return Written(len(rows), dict(left_out))


def _tasks(store: RunStore) -> Iterator[Task]:
    seen: set[str] = set()
    for entry in store.rollouts():
        if entry.task.id not in seen:
            seen.add(entry.task.id)
            yield entry.task


def _groups(store: RunStore) -> Iterator[list[StoredRollout]]:
    groups: dict[str, list[StoredRollout]] = {}
    for entry in store.rollouts():
        groups.setdefault(entry.rollout.group_id, []).append(entry)
    yield from groups.values()


def _prompts(store: RunStore, _choice: Choice, _left_out: Counter[str]) -> Iterator[Row]:
    """TRL's prompt-only form; further columns reach the reward functions."""
    for task in _tasks(store):
        facts = {name: value for name, value in task.facts.items() if name not in ("prompt", "reference")}
        yield {"prompt": _messages(task), "reference": task.reference, **facts}


def _preferences(store: RunStore, _choice: Choice, left_out: Counter[str]) -> Iterator[Row]:
    """TRL's explicit prompt, best and worst response of each group by reward."""
    for group in _groups(store):
        scored = [(entry.reward.value, entry) for entry in group if entry.reward and entry.reward.value is not None]
        if len(scored) < 2:
            left_out["groups with fewer than two scored rollouts"] += 1
            continue
        best, worst = (choose(scored, key=lambda pair: pair[0]) for choose in (max, min))
        if best[0] == worst[0]:
            left_out["groups whose rewards are all equal"] += 1
            continue
        yield {
            "prompt": _messages(best[1].task),
            "chosen": _answer(best[1]),
            "rejected": _answer(worst[1]),
            "chosen_reward": best[0],
            "rejected_reward": worst[0],
        }


def _unpaired(store: RunStore, choice: Choice, left_out: Counter[str]) -> Iterator[Row]:
    """TRL's unpaired preference: one response and whether it is good."""
    for entry in store.rollouts():
        if entry.reward is None or entry.reward.value is None:
            left_out["rollouts without a score"] += 1
            continue
        good = entry.reward.value >= choice.threshold
        yield {"prompt": _messages(entry.task), "completion": _answer(entry), "label": good}


def _steps(store: RunStore, choice: Choice, left_out: Counter[str]) -> Iterator[Row]:
    """TRL's stepwise supervision: the texts of the scored steps and whether each is good."""
    for entry in store.rollouts():
        steps = _scored_steps(entry, choice.source)
        if not steps:
            left_out["rollouts without step scores"] += 1
            continue
        text = entry.rollout.text
        yield {
            "prompt": entry.task.prompt,
            "completions": [text[step.span.start : step.span.end] for step in steps],
            "labels": [step.value >= choice.threshold for step in steps],
        }


def _verl(store: RunStore, _choice: Choice, _left_out: Counter[str]) -> Iterator[Row]:
    """The columns that verl reads; the data source is the task's first tag."""
    for index, task in enumerate(_tasks(store)):
        facts = {name: value if _is_plain(value) else json.dumps(value) for name, value in task.facts.items()}
        yield {
            "data_source": task.tags[0] if task.tags else "assay",
            "prompt": _messages(task),
            "ability": "",
            "reward_model": {"style": "rule", "ground_truth": _text(task.reference)},
            "extra_info": {**facts, "index": index, "prompt": task.prompt},
        }


def _openrlhf(store: RunStore, _choice: Choice, _left_out: Counter[str]) -> Iterator[Row]:
    """OpenRLHF's prompts: `--input_key input --label_key label --apply_chat_template`."""
    for task in _tasks(store):
        yield {"input": _messages(task), "label": _text(task.reference), "datasource": (*task.tags, "assay")[0]}


_FORMS: dict[Form, Callable[[RunStore, Choice, Counter[str]], Iterator[Row]]] = {
    "trl": _prompts,
    "trl-preference": _preferences,
    "trl-unpaired": _unpaired,
    "trl-prm": _steps,
    "verl": _verl,
    "openrlhf": _openrlhf,
}


def _scored_steps(entry: StoredRollout, source: str | None) -> tuple[StepScore, ...]:
    for judgement in entry.judgements:
        if judgement.status == "scored" and judgement.verdict.steps and source in (None, judgement.source):
            return judgement.verdict.steps
    return ()


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in task.messages]


def _answer(entry: StoredRollout) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": entry.rollout.text}]


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _write_table(rows: list[Row], target: Path) -> None:
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{target}: Parquet needs the package 'pyarrow', which is not installed; install it with: "
            'python -m pip install "assay[data]", or name a .jsonl file with --out'
        ) from error
    arrow, parquet = cast("Any", pa), cast("Any", pq)
    try:
        table = arrow.Table.from_pylist(rows)
    except (ValueError, TypeError) as error:  # what pyarrow raises for values of several kinds
        told = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{target}: values of a column differ in kind ({told}); name a .jsonl file with --out"
        ) from error
    parquet.write_table(table, str(target))
