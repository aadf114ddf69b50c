"""Answers that need no understanding: what a trained model must beat before its accuracy means anything."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from assay.contracts import Rollout, Task, Turn

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def strategies(tasks: Sequence[Task], *, constants: int = 5, copies: int = 4) -> Iterator[tuple[str, list[str]]]:
    """(name, one answer per task): the commonest references as constants, and numbers of the prompt as they stand.

    Numbers are counted from the front and from the back, since solved examples may stand before the question.
    """
    references = Counter(str(task.reference) for task in tasks)
    for reference, _ in references.most_common(constants):
        yield f"always {reference}", [reference] * len(tasks)
    numbers = [NUMBER.findall(task.prompt) for task in tasks]
    for place in [*range(copies), *range(-copies, 0)]:
        name = f"copy number {place + 1}" if place >= 0 else f"copy number {-place} from the end"
        yield name, [found[place] if -len(found) <= place < len(found) else "" for found in numbers]
    yield "echo the prompt", [task.prompt for task in tasks]


def as_rollouts(name: str, tasks: Sequence[Task], answers: Sequence[str], *, template: str) -> list[Rollout]:
    """The answers as rollouts, each put into `template` at `{answer}`."""
    return [
        Rollout(
            id=f"strategy:{name}:{index}",
            task_id=task.id,
            group_id=f"strategy:{name}",
            turns=(Turn(text=template.replace("{answer}", answer)),),
        )
        for index, (task, answer) in enumerate(zip(tasks, answers, strict=True))
    ]
