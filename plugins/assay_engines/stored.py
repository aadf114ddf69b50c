"""Rollouts from a run that is done: for off-policy training and replay, with the log-probs that made them.

A request for the n-th turn of a task is answered by the n-th stored group of that task (after the last one, by the
first again), so that an order of tickets gives the same rollouts in any process and after any resume. Token ids,
log-probs, finish and the spans of weight versions are as they were stored; the versions are those of the stored run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts import Rollout, RolloutRequest, Task, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.protocols import RolloutEngine

if TYPE_CHECKING:
    from assay.training.model import PolicyModel

Groups = list[list[Rollout]]


class StoredOptions(Options):
    """Options of the engine `stored`."""

    path: str = Field(min_length=1)
    """The run whose rollouts are used: a folder relative to the config, a name in `runs`, or `latest`."""
    otherwise: dict[str, Any] | None = None
    """Engine (`use` and its options) that draws for tasks which the run does not have, held-out ones for example."""


class StoredEngine:
    """Answers requests from a run's rollouts; see the module."""

    replays = True
    """Its rollouts' versions are those of another run: the bound on staleness does not speak of them."""

    def __init__(self, path: str, pairs: Iterable[tuple[Task, Rollout]], otherwise: RolloutEngine | None) -> None:
        """Serve `pairs` of task and rollout, in order; raises `ConfigError` where there are none.

        Groups that a kill left smaller than the others are left out.
        """
        self.path = path
        self.otherwise = otherwise
        self._tasks: dict[str, Task] = {}
        groups: dict[tuple[str, str], list[Rollout]] = {}
        for task, rollout in pairs:
            self._tasks[task.id] = task
            groups.setdefault((task.id, rollout.group_id), []).append(rollout)
        self.group_size = max(map(len, groups.values()), default=0)
        """Responses in each stored group."""
        self._groups: dict[str, Groups] = {}
        for (task_id, _), members in groups.items():
            if len(members) == self.group_size:
                self._groups.setdefault(task_id, []).append(sorted(members, key=lambda rollout: rollout.id))
        if not self._groups:
            raise ConfigError(f"engine 'stored': run {path} has no rollouts; name a run that has drawn some")
        self._version = 0

    def first(self) -> Rollout:
        """Any one of the stored rollouts."""
        return next(iter(self._groups.values()))[0][0]

    @property
    def policy_version(self) -> int:
        """Version of the last weights that were pushed; stored rollouts keep the versions that made them."""
        return self._version

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream the stored rollouts at once, then what the other engine draws."""
        known = [request for request in requests if request.task.id in self._groups]
        strange = [request for request in requests if request.task.id not in self._groups]
        if strange and self.otherwise is None:
            raise EngineError(
                f"engine 'stored': run {self.path} has no rollouts of {len({r.task.id for r in strange}):,} tasks that "
                f"are asked for; first {strange[0].task.id!r}. Take tasks from the run, too (tasks = {{ use = 'stored' "
                "}), or name an engine for the rest: otherwise = { use = 'transformers' }"
            )
        for request in known:
            yield self._answer(request)
        if strange and self.otherwise is not None:
            async for rollout in self.otherwise.generate(strange):
                yield rollout

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Pause the other engine; stored rollouts take no time."""
        if self.otherwise is not None:
            await self.otherwise.pause(mode)

    async def push_weights(self, weights: WeightsRef) -> None:
        """Take note of the version, and hand the weights to the other engine."""
        self._version = weights.version
        if self.otherwise is not None:
            await self.otherwise.push_weights(weights)

    async def resume(self) -> None:
        """Go on after `pause`."""
        if self.otherwise is not None:
            await self.otherwise.resume()

    async def abort(self, ids: Collection[str]) -> None:
        """Abort what the other engine draws."""
        if self.otherwise is not None:
            await self.otherwise.abort(ids)

    async def aclose(self) -> None:
        """Close the other engine."""
        if self.otherwise is not None:
            await self.otherwise.aclose()

    def _answer(self, request: RolloutRequest) -> Rollout:
        if request.prompt_ids is not None:
            raise EngineError(
                f"engine 'stored': request {request.id!r} is to go on from token ids, and run {self.path} is over; "
                "remove engine.forced_stop"
            )
        stored = self._tasks[request.task.id]
        if stored.messages != request.task.messages:
            raise EngineError(
                f"engine 'stored': task {request.task.id!r} asks something else than in run {self.path}; "
                "use the run's own tasks: tasks = { use = 'stored' }"
            )
        if request.sample >= self.group_size:
            raise EngineError(
                f"engine 'stored': the groups of run {self.path} have {self.group_size} responses, more are asked for; "
                f"set engine.group_size to at most {self.group_size}"
            )
        groups = self._groups[request.task.id]
        rollout = groups[request.turn % len(groups)][request.sample]
        return rollout.model_copy(update={"id": request.id, "group_id": request.group_id})


def build_stored(options: StoredOptions, context: BuildContext) -> RolloutEngine:
    """The engine over a run; raises `ConfigError` where the run is missing or was drawn with another tokenizer."""
    if context.read_run is None:
        raise ConfigError("engine 'stored': stored runs cannot be read here; use it as the engine of a training run")
    otherwise = None
    if options.otherwise is not None:
        if context.open_engine is None or not isinstance(options.otherwise.get("use"), str):
            raise ConfigError("engine 'stored': otherwise: name an engine, for example { use = 'transformers' }")
        rest = {key: value for key, value in options.otherwise.items() if key != "use"}
        otherwise = context.open_engine(options.otherwise["use"], rest)
    engine = StoredEngine(options.path, context.read_run(options.path), otherwise)
    if context.policy is not None:
        _check_tokens(engine, context.policy)
    return engine


def _check_tokens(engine: StoredEngine, policy: PolicyModel) -> None:
    """Token ids mean something only to the tokenizer that made them."""
    turn = engine.first().turns[-1]
    if turn.token_ids is None:
        raise ConfigError(
            f"engine 'stored': the rollouts of run {engine.path} have no token ids, so nothing can be trained on them; "
            "name a run of an engine that reports them ('transformers' or 'vllm')"
        )
    text: str = policy.tokenizer.decode(list(turn.token_ids), skip_special_tokens=True)
    if turn.text.strip() not in text:
        raise ConfigError(
            f"engine 'stored': run {engine.path} was drawn with another tokenizer: its tokens read {text[:40]!r} with "
            f"this policy's, but the response was {turn.text[:40]!r}; train a policy of the same family"
        )
