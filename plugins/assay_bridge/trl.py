"""`trl-reward`: a function `f(prompts, completions, **columns) -> list[float | None]` written for TRL (1.16).

| the function | the verdict |
|---|---|
| a finite number | scored |
| `None`, TRL's "does not apply" | abstained, ours: masked |
| NaN, infinity, something else, another number of values | failed |
| an exception, a hang, a crash | failed |
| a column that it asks for and the task has not | abstained, ours, with the column's name |
"""

from collections.abc import Callable, Sequence
from typing import Any

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Rollout, Task, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay_bridge.function import Asked, BridgedSource, BridgeOptions, called, finite, load, plain

REFERENCES = ("answer", "solution", "ground_truth", "reference", "gold", "target", "label", "labels", "answers")
HOST = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


class TrlOptions(BridgeOptions):
    """Where the function is, and how it is called."""

    reference: str | None = None
    """The function's argument that gets the task's reference; default the first of answer, solution, ground_truth,
    reference, gold, target, label, labels, answers that it asks for. All facts of the task are columns of their own."""
    messages: bool = False
    """Whether prompt and completion are lists of messages, as with a conversational data set, instead of text."""


class TrlSource(BridgedSource):
    """Calls a TRL reward function with a batch of one."""

    def __init__(self, function: Callable[..., Any], options: TrlOptions, fingerprint: str) -> None:
        """Read which columns the function asks for."""
        super().__init__(options, fingerprint)
        self.function, self.options = function, options
        self.asked = Asked(function, options.path)
        self.reference = options.reference or next((name for name in REFERENCES if name in self.asked.names), None)
        if options.reference is not None and not (self.asked.takes_all or options.reference in self.asked.names):
            raise ConfigError(
                f"{options.path}: the function has no argument {options.reference!r}; it has "
                f"{', '.join(self.asked.names)}. Name the argument of the gold answer in reference"
            )

    def check_task(self, task: Task) -> str | None:
        """The column that the function asks for and the task has not, or None."""
        have = self._columns(task)
        missing = [name for name in self.asked.required if name not in HOST and name not in have]
        if missing:
            return (
                f"the function asks for the column {missing[0]!r}, which this task has not; it has "
                f"{', '.join(have) or 'none'}; name the argument of the gold answer in reference"
            )
        return None

    async def ask(self, candidate: Candidate) -> Verdict:
        """The verdict that the function's one value comes to."""
        notes: dict[str, Any] = {}
        token_ids = candidate.rollout.turns[-1].token_ids
        if "completion_ids" in self.asked.required and token_ids is None:
            return Verdict.abstain("the function asks for token ids, which this rollout has not", fault="ours")

        def note(name: object, value: object) -> None:
            notes[str(name)] = plain(value)

        offered: dict[str, Any] = {
            "prompts": [self._prompt(candidate.task)],
            "completions": [self._completion(candidate.rollout)],
            "trainer_state": None,
            "log_extra": note,
            "log_metric": note,
            **{name: [value] for name, value in self._columns(candidate.task).items()},
        }
        if token_ids is not None:
            offered["completion_ids"] = [list(token_ids)]
        answer = await called(self.function, self.asked.chosen(offered))
        value = _only(answer)
        if value is None:
            return Verdict.abstain("the function gave None: it does not apply", fault="ours")
        number = finite(value, "the function")
        return Verdict.score(number, evidence=Evidence(kind="trl", summary=f"{number:g}", data=notes or None))

    def _columns(self, task: Task) -> dict[str, Any]:
        columns: dict[str, Any] = dict(task.facts)
        if self.reference is not None and task.reference is not None:
            columns[self.reference] = task.reference
        return columns

    def _prompt(self, task: Task) -> Any:
        if self.options.messages:
            return [{"role": message.role, "content": message.content} for message in task.messages]
        return "\n\n".join(message.content for message in task.messages)

    def _completion(self, rollout: Rollout) -> Any:
        if self.options.messages:
            return [{"role": turn.role, "content": turn.text} for turn in rollout.turns]
        return rollout.text


def build_trl(options: TrlOptions, context: BuildContext) -> RewardSource:
    """The source of `options.path`; raises `ConfigError` where there is no such function."""
    function, fingerprint = load(options.path, context)
    return TrlSource(function, options, fingerprint)


def _only(answer: Any) -> Any:
    to_list = getattr(answer, "tolist", None)
    values = to_list() if callable(to_list) else answer
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"the function gave a {type(answer).__name__} instead of a list of rewards")
    if len(values) != 1:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"the function gave {len(values)} rewards for 1 completion")  # pyright: ignore[reportUnknownArgumentType]
    return values[0]  # pyright: ignore[reportUnknownVariableType]
