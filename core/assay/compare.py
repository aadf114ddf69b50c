"""Two runs side by side: paired differences, flips, pass@k against k, and fitted compute curves.

Everything here reads finished run folders and computes; nothing is drawn or judged again. Held-out answers are compared
where both runs kept some (`answers/`, written by `evaluate`); otherwise the rollouts of training.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from assay import runs
from assay.errors import ConfigError
from assay.reports.compute_curve import ComputeCurve, fit_compute_curve
from assay.reports.metrics import CORRECT_FROM
from assay.reports.statistics import Interval, mean_interval, pass_at_k
from assay.store import RunStore

ANSWERS = "answers"
"""Folder of a run with its held-out answers, one file per evaluation."""


class Judged(NamedTuple):
    """One answer of a run."""

    task: str
    sample: int
    """Place among the answers of the same task."""
    value: float | None
    """The reward; None where it is masked."""
    text: str


class Flip(NamedTuple):
    """An item that one run gets right and the other wrong."""

    task: str
    sample: int
    first: str
    """Text of the first run's answer."""
    second: str


class PassAt(NamedTuple):
    """Unbiased pass@k of both runs over the tasks that have at least k scored answers in both."""

    k: int
    tasks: int
    first: Interval
    second: Interval


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common and where they differ; differences are second minus first."""

    first: Path
    second: Path
    answers: str
    """Which answers were compared."""
    by: Literal["task", "sample"]
    pairs: int
    """Items with a reward in both runs."""
    means: tuple[float, float] | None
    """Mean reward of those items in each run."""
    difference: Interval | None
    """Mean of the paired differences with its 95 % interval; pairs of one task count as one."""
    gained: list[Flip] = field(default_factory=list[Flip])
    """Wrong in the first, right in the second."""
    lost: list[Flip] = field(default_factory=list[Flip])
    """Right in the first, wrong in the second."""
    unpaired: tuple[int, int] = (0, 0)
    """Items that only one run has with a reward."""
    pass_at: list[PassAt] = field(default_factory=list[PassAt])
    crossover: int | None = None
    """Smallest k at which the first run's pass@k is at least the second's, where the second is ahead below it."""
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict[str, "tuple[Any, Any]"])
    """Config keys with different values."""
    plugins: dict[str, tuple[str | None, str | None]] = field(
        default_factory=dict[str, "tuple[str | None, str | None]"]
    )
    """Plugins with different versions."""
    curves: tuple[ComputeCurve | None, ComputeCurve | None] | None = None
    """Fitted compute curves, where asked for; None for a run with too few points."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON; intervals as [value, low, high]."""
        curves = None if self.curves is None else [None if c is None else c._asdict() for c in self.curves]
        return {
            "first": str(self.first),
            "second": str(self.second),
            "answers": self.answers,
            "by": self.by,
            "pairs": self.pairs,
            "means": self.means,
            "difference": self.difference,
            "gained": [flip._asdict() for flip in self.gained],
            "lost": [flip._asdict() for flip in self.lost],
            "unpaired": self.unpaired,
            "pass_at": [row._asdict() for row in self.pass_at],
            "crossover": self.crossover,
            "settings": self.settings,
            "plugins": self.plugins,
            "curves": curves,
        }


def compare(
    first: Path,
    second: Path,
    *,
    by: Literal["task", "sample"] = "task",
    pass_at: Sequence[int] = (),
    fit: bool = False,
) -> Comparison:
    """The comparison of two run folders.

    `by = "task"` pairs the mean reward of each task, `"sample"` pairs answers of a task by their place. `pass_at` are
    the k of pass@k; `fit` fits each run's reward against its sampled tokens (`fit_compute_curve`).

    Raises:
        ConfigError: a folder holds no judged answers, the two share no task, or a task has fewer answers than k.
    """
    for k in pass_at:
        if k < 1:
            raise ConfigError(f"--pass-at {k}: k must be at least 1")
    names, (left, right) = _answers_of(first, second)
    pairs = _paired(left, right, by)
    if not pairs:
        raise ConfigError(
            f"{first.name} and {second.name}: no task has a reward in both runs; compare runs over the same tasks"
        )
    differences: dict[str, list[float]] = {}
    for (task, _), (a, b) in pairs.items():
        differences.setdefault(task, []).append(b - a)
    table = [_pass_at(left, right, k) for k in pass_at]
    texts = _texts(left), _texts(right)
    return Comparison(
        first,
        second,
        names,
        by,
        len(pairs),
        means=(_mean([a for a, _ in pairs.values()]), _mean([b for _, b in pairs.values()])),
        difference=mean_interval([_mean(values) for values in differences.values()]),
        gained=_flips(pairs, texts, gained=True),
        lost=_flips(pairs, texts, gained=False),
        unpaired=(len(_keys(left, by)) - len(pairs), len(_keys(right, by)) - len(pairs)),
        pass_at=table,
        crossover=crossover(table),
        settings=_changed(_flat(_settings(first)), _flat(_settings(second))),
        plugins=_changed(_plugins(first), _plugins(second)),
        curves=(_curve(first), _curve(second)) if fit else None,
    )


def crossover(table: Sequence[PassAt]) -> int | None:
    """The smallest k at which the first run has caught up after the second was ahead at a smaller k, or None."""
    ahead = False
    for row in sorted(table):
        if ahead and row.first.value >= row.second.value:
            return row.k
        ahead = ahead or row.second.value > row.first.value
    return None


# -- reading -------------------------------------------------------------------------------------------------------


def _answers_of(first: Path, second: Path) -> tuple[str, tuple[list[Judged], list[Judged]]]:
    """Held-out answers after the last evaluation where both runs kept some, else the rollouts of training."""
    files = [sorted((folder / ANSWERS).glob("*.jsonl")) for folder in (first, second)]
    if all(files):
        last = [found[-1] for found in files]
        names = f"held-out answers after steps {int(last[0].stem)} and {int(last[1].stem)}"
        return names, (list(_held_out(last[0])), list(_held_out(last[1])))
    found = [list(_training(folder)) for folder in (first, second)]
    return "rollouts of the log", (found[0], found[1])


def _held_out(path: Path) -> Iterator[Judged]:
    seen: dict[str, int] = {}
    for line in runs.read_lines(path):
        task, rollout = line["task"]["id"], line["rollout"]
        text = rollout["turns"][-1]["text"] if rollout["turns"] else ""
        yield Judged(task, _next(seen, task), line["rewards"]["accuracy"]["value"], text)


def _training(folder: Path) -> Iterator[Judged]:
    seen: dict[str, int] = {}
    with RunStore.open(folder, read_only=True) as store:
        for entry in store.rollouts():
            value = None if entry.reward is None else entry.reward.value
            yield Judged(entry.task.id, _next(seen, entry.task.id), value, entry.rollout.text)


def _next(seen: dict[str, int], task: str) -> int:
    seen[task] = seen.get(task, -1) + 1
    return seen[task]


def _settings(folder: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads((folder / runs.CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / runs.CONFIG}: cannot be read: {error}") from error


def _plugins(folder: Path) -> Mapping[str, str]:
    with RunStore.open(folder, read_only=True) as store:
        return store.info.plugins


def _curve(folder: Path) -> ComputeCurve | None:
    """The fitted curve of a run's training reward against the tokens sampled so far."""
    tokens, points = 0.0, list[tuple[float, float]]()
    for line in runs.read_lines(folder / runs.METRICS):
        tokens += (line.get("length") or 0.0) * line["rollouts"]
        if line.get("reward") is not None and tokens > 0:
            points.append((tokens, line["reward"]))
    return fit_compute_curve(points)


# -- comparing -----------------------------------------------------------------------------------------------------

_Key = tuple[str, int]


def _keys(answers: Sequence[Judged], by: Literal["task", "sample"]) -> dict[_Key, float]:
    """Reward by item, masked ones left out; an item is a task, or a task and a place."""
    found: dict[_Key, list[float]] = {}
    for answer in answers:
        if answer.value is not None:
            found.setdefault((answer.task, 0 if by == "task" else answer.sample), []).append(answer.value)
    return {key: _mean(values) for key, values in found.items()}


def _paired(
    left: Sequence[Judged], right: Sequence[Judged], by: Literal["task", "sample"]
) -> dict[_Key, tuple[float, float]]:
    ours, theirs = _keys(left, by), _keys(right, by)
    return {key: (value, theirs[key]) for key, value in ours.items() if key in theirs}


def _texts(answers: Sequence[Judged]) -> dict[_Key, str]:
    return {(answer.task, answer.sample): answer.text for answer in answers}


def _flips(
    pairs: Mapping[_Key, tuple[float, float]], texts: tuple[Mapping[_Key, str], Mapping[_Key, str]], *, gained: bool
) -> list[Flip]:
    return [
        Flip(*key, texts[0].get(key, ""), texts[1].get(key, ""))
        for key, (a, b) in pairs.items()
        if (a >= CORRECT_FROM) != (b >= CORRECT_FROM) and (b > a) == gained
    ]


def _pass_at(left: Sequence[Judged], right: Sequence[Judged], k: int) -> PassAt:
    ours, theirs = _right(left), _right(right)
    tasks = [task for task in ours if len(ours[task]) >= k and len(theirs.get(task, ())) >= k]
    if not tasks:
        most = max((min(len(ours[task]), len(theirs.get(task, ()))) for task in ours), default=0)
        raise ConfigError(
            f"--pass-at {k}: no task has {k} scored answers in both runs; the most is {most}. Raise evaluate.samples"
        )
    shares = [[pass_at_k(len(side[task]), sum(side[task]), k) for task in tasks] for side in (ours, theirs)]
    return PassAt(k, len(tasks), mean_interval(shares[0]), mean_interval(shares[1]))


def _right(answers: Sequence[Judged]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for answer in answers:
        if answer.value is not None:
            found.setdefault(answer.task, []).append(answer.value >= CORRECT_FROM)
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[prefix + key] = value
    return found


def _changed(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = [*ours, *(key for key in theirs if key not in ours)]
    changed = {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}
    return json.loads(json.dumps(changed, default=str))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
