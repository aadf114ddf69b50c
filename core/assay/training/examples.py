"""Examples from a file or a stored run: read and checked as a whole, then split so that no problem is in both halves.

Guaranteed: a row that cannot be read is an error with file and line, or counted where the config says `skip`; a row
that is left out (nothing to learn from, too long) is counted by its reason; the same data, seed and config give the
same halves in the same order.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from assay import runs
from assay.config.fit import ExampleData
from assay.errors import ConfigError
from assay.protocols import ChoosesExamples, Encoder, Example, Objective, RewardObjective
from assay.rows import BadRowError, Row, column, read_rows
from assay.store import RunStore
from assay.training.group_rows import SampledEncoder, groups_of, rows_of_group


@dataclass(frozen=True)
class ExampleSet:
    """What training learns from and what it is measured on."""

    trained: Sequence[Example]
    held_out: Sequence[Example]
    problems: tuple[int, int]
    """Different problems in either half."""
    rows: int
    """Rows that were found."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """Reason to the number of rows or examples that are in neither half."""
    held_rows: Sequence[Mapping[str, Any]] = ()
    """The rows that the held-out examples were read from, one per example."""

    @property
    def digest(self) -> str:
        """A hash of every example, so that a resumed run can tell that the data is still the same."""
        total = hashlib.sha256()
        for example in (*self.trained, None, *self.held_out):
            facts = None if example is None else (example.sequences, example.weight, dict(example.facts))
            total.update(json.dumps(facts, sort_keys=True, default=repr).encode("utf-8", "surrogatepass"))
        return total.hexdigest()[:16]


def batch_of(data: ExampleSet, step: int, size: int, *, seed: int) -> list[Example]:
    """The examples of a step (from 0): each pass has an order of its own that depends on the seed alone."""
    per_epoch = -(-len(data.trained) // size)
    epoch, place = divmod(step, per_epoch)
    order = list(range(len(data.trained)))
    random.Random(f"{seed}:{epoch}").shuffle(order)  # noqa: S311 (an order, not a secret)
    return [data.trained[index] for index in order[place * size : (place + 1) * size]]


class _Found(NamedTuple):
    problem: str
    example: Example
    row: Mapping[str, Any]


class Labels(NamedTuple):
    """How the labels of a half are spread, and what answering the more frequent one always would get."""

    true: int
    of: int
    steps: bool
    """Whether the labels are those of steps instead of whole responses."""

    @property
    def majority(self) -> float:
        """Accuracy of always answering the more frequent label."""
        return max(self.true, self.of - self.true) / self.of


def labels_of(examples: Sequence[Example]) -> Labels | None:
    """The labels in the facts of examples (`label`, or `labels` of steps), or None where they have none."""
    told = [example.facts.get("label") for example in examples]
    whole = [label for label in told if isinstance(label, bool | int | float)]
    if whole:
        return Labels(sum(label >= 0.5 for label in whole), len(whole), steps=False)
    found = [cast("Sequence[float | None]", example.facts.get("labels") or ()) for example in examples]
    steps = [label for labels in found for label in labels if label is not None]
    return Labels(sum(label >= 0.5 for label in steps), len(steps), steps=True) if steps else None


def read_examples(
    data: ExampleData,
    objective: Objective,
    encoder: Encoder,
    *,
    seed: int,
    base_dir: Path,
    runs_dir: Path,
    longest: int | None = None,
    where: str = "data",
) -> ExampleSet:
    """The two halves of `data` as `objective` reads it.

    Args:
        data: the config's table.
        objective: reads rows.
        encoder: texts to token ids.
        seed: decides which problems are held out.
        base_dir: what a relative path is relative to.
        runs_dir: where a run is looked for.
        longest: most tokens that the model can take; longer examples are left out.
        where: the table's place in messages.

    Raises:
        ConfigError: a file or row cannot be read, nothing is left to learn from, or only one problem is left to split.
    """
    left_out: Counter[str] = Counter()
    found: list[_Found] = []
    rows = 0
    if data.use == "run":
        source = _run_rows(data, objective, encoder, runs_dir, where)
    else:
        source = _file_rows(data, encoder, base_dir)
    for row, place, encode in source:
        rows += 1
        try:
            if isinstance(row, BadRowError):
                raise row
            examples = _read(objective, row, encode)
        except ConfigError as error:
            if data.on_bad_row == "skip":
                left_out["unreadable"] += 1
                continue
            raise ConfigError(str(error) if isinstance(error, BadRowError) else f"{place}: {error}") from error
        if not examples:
            left_out["nothing to learn from"] += 1
        for example in examples:
            if _too_long(example, data.max_tokens, longest):
                left_out["too long"] += 1
            elif any(not prompt for prompt, _ in example.sequences):
                raise ConfigError(f"{place}: the prompt is empty; give it a text")
            else:
                found.append(_Found(_problem(row, example, data.split_by, rows, place), example, row))
    return _chosen(_split(found, data, rows, dict(left_out), seed=seed, where=where), objective)


def _chosen(found: ExampleSet, objective: Objective) -> ExampleSet:
    """The set with the part of its trained half that the objective keeps."""
    if not isinstance(objective, ChoosesExamples):
        return found
    kept = objective.choose(found.trained)
    dropped = len(found.trained) - len(kept)
    left_out = {**found.left_out, **({"not chosen": dropped} if dropped else {})}
    return replace(found, trained=kept, left_out=left_out)


def _read(objective: Objective, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
    if isinstance(objective, RewardObjective):
        return objective.read_all(row, encode)
    example = objective.read(row, encode)
    return () if example is None else (example,)


_Source = Iterator[tuple[Any, str, Encoder]]


def _file_rows(data: ExampleData, encoder: Encoder, base_dir: Path) -> _Source:
    path = base_dir / Path(data.path).expanduser()
    for row in read_rows(path):
        place = f"{data.path}:{row.line}"
        named: Any = row
        if isinstance(row, Row):
            try:
                named = {**row.data, **{name: column(row, own, path=data.path) for name, own in data.columns.items()}}
            except BadRowError as error:
                named = error
        yield named, place, encoder


def _run_rows(data: ExampleData, objective: Objective, encoder: Encoder, runs_dir: Path, where: str) -> _Source:
    folder = runs.find_run(data.path, runs_dir)
    with RunStore.open(folder, read_only=True) as store:
        groups = groups_of([(entry.task, entry.rollout, entry.reward) for entry in store.rollouts()])
    if not groups:
        raise ConfigError(f"{where}: run {folder.name!r} has no judged rollouts; name a run of kind 'rlvr'")
    seen: set[str] = set()
    for group in groups:
        encode: Any = encoder
        if objective.kind != "prm":  # a reward model is given texts when it scores, so it learns from their own tokens
            encode = SampledEncoder(encoder)
            encode.add(group.task, group.rollouts)
        for row in rows_of_group(group, objective.layout, data):
            text = json.dumps(row, sort_keys=True)
            if text not in seen:  # the same answer in another step of the run
                seen.add(text)
                yield row, f"run {folder.name}, task {group.task.id!r}", encode


def _too_long(example: Example, *limits: int | None) -> bool:
    most = min((limit for limit in limits if limit is not None), default=None)
    return most is not None and any(len(prompt) + len(response) > most for prompt, response in example.sequences)


def _problem(row: Mapping[str, Any], example: Example, split_by: str | None, number: int, place: str) -> str:
    """What must not stand in both halves."""
    if split_by is not None:
        if split_by not in row:
            raise ConfigError(
                f"{place}: column {split_by!r} is missing, by which data.split_by splits; found {', '.join(row)}"
            )
        value = row[split_by]
        return _normal(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt:
        return _normal(prompt)
    return repr(example.sequences[0][0]) if example.sequences[0][0] else f"row {number}"


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _split(
    found: Sequence[_Found],
    data: ExampleData,
    rows: int,
    left_out: Mapping[str, int],
    *,
    seed: int,
    where: str,
) -> ExampleSet:
    counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
    if not found:
        raise ConfigError(
            f"{where}: nothing to learn from in {data.path!r}; {rows:,} rows{f', left out: {counts}' if counts else ''}"
        )
    problems = sorted({each.problem for each in found})
    held = 0
    if data.holdout:
        if len(problems) < 2:
            raise ConfigError(
                f"{where}.holdout: one problem cannot be split; {len(found):,} examples share it. Set holdout = 0, or "
                "name another column in split_by"
            )
        held = min(max(1, round(data.holdout * len(problems))), len(problems) - 1)
    random.Random(f"{seed}:holdout").shuffle(problems)  # noqa: S311 (a split, not a secret)
    apart = set(problems[:held])
    return ExampleSet(
        trained=[each.example for each in found if each.problem not in apart],
        held_out=[each.example for each in found if each.problem in apart],
        problems=(len(problems) - held, held),
        rows=rows,
        left_out=left_out,
        held_rows=[each.row for each in found if each.problem in apart],
    )
