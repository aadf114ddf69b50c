"""Tasks from the library `reasoning_gym`: about a hundred generators of questions.

Its item i is made from the seed `seed + i`, so two data sets with different seeds share most of their items.
Splitting is therefore by the question's text (`part`, `held_out`), and a question that came before is left out.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# reasoning_gym is only partly annotated.

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from assay.component import BuildContext
from assay.contracts import Task
from assay.errors import ConfigError, did_you_mean
from assay_tasks.framing import FramingOptions
from assay_tasks.split import SplitOptions, normalized

FACT = "reasoning_gym"
INSTALL = "python -m pip install 'assay[gym]'"


class GymOptions(FramingOptions, SplitOptions):
    """Options of the task source `reasoning_gym`."""

    dataset: str = Field(min_length=1)
    """Name of the generator, for example `chain_sum`."""
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """The generator's own options, for example `{ min_terms = 3, max_terms = 3, max_digits = 1 }`."""
    size: int = Field(default=500, ge=1)
    """Items that are generated; questions that come twice are then left out, so that there may be fewer tasks."""
    seed: int = Field(default=0, ge=0)
    """Seed of item 0; item i has the seed `seed + i`."""
    question: str = "question"
    """What is asked: `question`, or a text field of the item's metadata (for `chain_sum` also `expression`)."""
    start: int = Field(default=0, ge=0)
    """Tasks of this part that are passed over."""
    limit: int | None = Field(default=None, ge=1)
    """Most tasks; default all."""


class GymTasks:
    """The distinct questions of one generator; the items are made on first use."""

    def __init__(self, options: GymOptions, dataset: Any) -> None:
        """Tasks from `dataset`, a data set of the library."""
        self.options = options
        self.dataset = dataset
        self._tasks: list[Task] | None = None

    def __len__(self) -> int:
        """Number of tasks; generates them."""
        return len(self.tasks())

    def tasks(self) -> list[Task]:
        """All tasks in the generator's order.

        Raises:
            ConfigError: the generator breaks, or its items lack the field named by `question`.
        """
        if self._tasks is None:
            self._tasks = self._generate()
        return self._tasks

    def _generate(self) -> list[Task]:
        options = self.options
        wanted = None if options.limit is None else options.start + options.limit
        asked: set[str] = set()
        tasks: list[Task] = []
        for index in range(options.size):
            item = item_of(self.dataset, index, options.dataset)
            question = _text(item, options.question, options.dataset)
            if normalized(question) in asked or not options.offers(question) or options.shows(question):
                continue
            asked.add(normalized(question))
            tasks.append(self._task(index, item, question))
            if len(tasks) == wanted:
                break
        return tasks[options.start :]

    def _task(self, index: int, item: Mapping[str, Any], question: str) -> Task:
        options = self.options
        made_by: dict[str, JsonValue] = {
            "dataset": options.dataset,
            "options": options.options,
            "seed": options.seed,
            "index": index,
            "question": item["question"],
        }
        return Task(
            id=f"{options.dataset}-{options.seed}-{index}",
            messages=options.frame(question),
            reference=str(item["answer"]),
            facts={FACT: made_by},
            tags=(options.dataset,),
        )


def build_gym(options: GymOptions, _context: BuildContext) -> GymTasks:
    """The tasks of a generator; raises `ConfigError` for an unknown generator or option."""
    dataset = open_dataset(options.dataset, options.options, seed=options.seed, size=options.size)
    return GymTasks(options, dataset)


def open_dataset(name: str, options: Mapping[str, JsonValue], *, seed: int, size: int) -> Any:
    """A data set of the library.

    Raises:
        ConfigError: the library is missing, it has no generator of this name, or it refuses the options.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"tasks 'reasoning_gym': the library is missing ({error}); install it with: {INSTALL}"
        ) from error
    known = sorted(DATASETS)
    if name not in DATASETS:
        raise ConfigError(
            f"tasks.dataset: reasoning_gym has no generator named {name!r}; it has {len(known)}, for example "
            f"{', '.join(known[:3])}.{did_you_mean(name, known)}"
        )
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(json.dumps(dict(options))))
    except (AssertionError, TypeError, ValueError) as error:
        fields = sorted(set(DATASETS[name][1].__dataclass_fields__) - {"seed", "size"})
        raise ConfigError(
            f"tasks.options: reasoning_gym's {name!r} refuses {dict(options)}: {error or 'a check of its own failed'}; "
            f"its options: {', '.join(fields)}"
        ) from error


def item_of(dataset: Any, index: int, name: str) -> Mapping[str, Any]:
    """Item `index` of a data set; raises `ConfigError` where the generator breaks."""
    try:
        return dataset[index]
    except Exception as error:  # noqa: BLE001, RUF100 - a hundred generators of others, each with errors of its own
        raise ConfigError(
            f"tasks.dataset: reasoning_gym's {name!r} cannot make item {index}: {type(error).__name__}: {error}; "
            "change its options or its seed"
        ) from error


def _text(item: Mapping[str, Any], field: str, name: str) -> str:
    value = item["question"] if field == "question" else item["metadata"].get(field)
    if isinstance(value, str) and value.strip():
        return value
    texts = sorted(key for key, entry in item["metadata"].items() if isinstance(entry, str))
    raise ConfigError(
        f"tasks.question: items of {name!r} have no text field {field!r}; they have question, {', '.join(texts)}."
        f"{did_you_mean(field, ['question', *texts])}"
    )
