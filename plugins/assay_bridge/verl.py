"""`verl-reward`: a `compute_score(data_source, solution_str, ground_truth, extra_info)` written for verl (0.9.1).

| the function | the verdict |
|---|---|
| a finite number, or a table with a finite `score` | scored; the other keys are evidence |
| `None`, NaN, infinity, something else | failed: verl knows no missing score |
| an exception, a hang, a crash | failed |
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import Field, JsonValue

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Task, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay_bridge.function import Asked, BridgedSource, BridgeOptions, called, finite, load, plain

HOST = ("data_source", "solution_str", "ground_truth", "extra_info")


class VerlOptions(BridgeOptions):
    """Where the function is, and how it is called."""

    data_source: str | None = None
    """What the function gets as `data_source`; default the task's fact of that name, else its first tag, else empty."""
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments, verl's `reward_kwargs`."""


class VerlSource(BridgedSource):
    """Calls a `compute_score` for one response."""

    def __init__(self, function: Callable[..., Any], options: VerlOptions, fingerprint: str) -> None:
        """Check that the function asks for nothing that verl does not give."""
        super().__init__(options, fingerprint)
        self.function, self.options = function, options
        self.asked = Asked(function, options.path)
        unknown = [name for name in self.asked.required if name not in (*HOST, *options.kwargs)]
        if unknown:
            raise ConfigError(
                f"{options.path}: the function asks for {unknown[0]!r}, which verl does not give; found "
                f"{', '.join(self.asked.names)}. Give it in kwargs, or write compute_score({', '.join(HOST)})"
            )

    def check_task(self, task: Task) -> str | None:
        """A sentence where the function asks for a ground truth and the task has none."""
        if task.reference is None and "ground_truth" in self.asked.required:
            return "the task has no reference, which compute_score gets as ground_truth"
        return None

    async def ask(self, candidate: Candidate) -> Verdict:
        """The verdict that the function's score comes to."""
        task = candidate.task
        given = task.facts.get("extra_info")
        extra = dict(given) if isinstance(given, dict) else dict(task.facts)
        extra.setdefault("question", task.prompt)
        offered = {
            "data_source": self._data_source(task),
            "solution_str": candidate.rollout.text,
            "ground_truth": task.reference,
            "extra_info": extra,
            **self.options.kwargs,
        }
        answer = await called(self.function, self.asked.chosen(offered))
        if not isinstance(answer, Mapping):
            number = finite(answer, "the function")
            return Verdict.score(number, evidence=Evidence(kind="verl", summary=f"{number:g}"))
        table = cast("Mapping[str, Any]", answer)
        if "score" not in table:
            raise ValueError(f"the function gave a table without 'score'; it has {', '.join(map(str, table))}")
        number = finite(table["score"], "the function's score")
        more = {str(key): plain(value) for key, value in table.items() if key != "score"}
        return Verdict.score(number, evidence=Evidence(kind="verl", summary=f"{number:g}", data=more or None))

    def _data_source(self, task: Task) -> str:
        if self.options.data_source is not None:
            return self.options.data_source
        return str(task.facts.get("data_source", task.tags[0] if task.tags else ""))


def build_verl(options: VerlOptions, context: BuildContext) -> RewardSource:
    """The source of `options.path`; raises `ConfigError` where there is no such function."""
    function, fingerprint = load(options.path, context)
    return VerlSource(function, options, fingerprint)
