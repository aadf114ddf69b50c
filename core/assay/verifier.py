"""`@verifier("name")`: a function of one task and one rollout becomes a registered reward source."""

from collections.abc import Callable, Sequence
from typing import Any

from assay.component import BuildContext, Component, Options
from assay.contracts.batch import Candidate
from assay.contracts.limits import Isolation, Limits
from assay.contracts.rollout import Rollout
from assay.contracts.task import Task
from assay.contracts.verdict import Fault, Verdict
from assay.protocols import RewardSource

VerifierFunction = Callable[[Task, Rollout], Verdict]


class NoOptions(Options):
    """The config of a component that has no options."""


class FunctionSource:
    """A reward source made of one synchronous function of a task and a rollout."""

    def __init__(self, function: VerifierFunction, limits: Limits) -> None:
        """Wrap `function`; `limits` are what the source declares."""
        self.function = function
        self.limits = limits

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [self.function(candidate.task, candidate.rollout) for candidate in batch]

    async def aclose(self) -> None:
        """Nothing to let go of."""


def verifier(
    name: str,
    *,
    summary: str = "",
    isolation: Isolation = "process",
    value_range: tuple[float, float] = (0.0, 1.0),
    timeout_s: float = 5.0,
    memory_mib: int | None = 1024,
    deterministic: bool = True,
    limit_fault: Fault = "ours",
) -> Callable[[VerifierFunction], Component[Any, RewardSource]]:
    """A decorator that turns `f(task, rollout) -> Verdict` into a component named `name`.

    The component runs in a killable worker process unless `isolation` says otherwise; a worker rebuilds it from its
    name, so the function needs no pickling. `value_range` are the lowest and highest value that it may return.
    """
    limits = Limits(
        value_range=value_range,
        timeout_s=timeout_s,
        memory_mib=memory_mib,
        deterministic=deterministic,
        limit_fault=limit_fault,
    )

    def decorate(function: VerifierFunction) -> Component[Any, RewardSource]:
        def build(_options: Any, _context: BuildContext) -> RewardSource:
            return FunctionSource(function, limits)

        line = (function.__doc__ or "").strip().partition("\n")[0]
        return Component(name, NoOptions, build, summary=summary or line, isolation=isolation)

    return decorate
