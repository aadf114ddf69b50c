"""Draws the completions that labels need and no more, over the prefixes of many problems at once.

Every solution is a small coroutine: it asks its plan for a prefix, has its node's next wave drawn and judged, and goes
on. Many of them run at once, so that the engine's batch stays full; the completions of one wave are one group, whose
prompt an engine computes once. Nothing is decided by time: which completions are drawn follows from the verdicts alone,
so an interrupted run that goes on ends with the same labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from assay.contracts import Reward, Rollout, RolloutRequest, Sampling, Task, Turn
from assay.errors import EngineError
from assay.labels.cost import Cost, cost
from assay.labels.decisions import AtLeast, State
from assay.labels.log import CompletionLog
from assay.labels.nodes import (
    Completion,
    Node,
    Result,
    Solution,
    Trie,
    attempt_seed,
    in_audit,
    pass_rates,
    problem_key,
)
from assay.labels.plans import Mode, Plan, plan_for
from assay.protocols import RolloutEngine
from assay.reports.statistics import Interval
from assay.together import one_error, together

T = TypeVar("T")
IN_FLIGHT = 128
"""Solutions that are worked on at once."""
RIGHT_FROM = 0.5
"""A response is right where the verdict source's reward is at least this."""


class Judge(Protocol):
    """What judges completions: a panel."""

    async def judge(self, task: Task, rollout: Rollout, /) -> Reward:
        """The reward of one rollout."""
        ...


@dataclass(frozen=True)
class LabelSettings:
    """How labels are made."""

    mode: Mode = "auto"
    samples: int = 16
    """N: most completions of one prefix."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    audit_share: float = 0.05
    """Share of the prefixes of wrong solutions that is drawn again with all N, to see what the mode misses."""
    pass_rate: tuple[float, float] = (1e-9, 1.0)
    """Only problems whose share of right solutions lies in this range have their wrong solutions labelled."""


@dataclass(frozen=True)
class Labelled:
    """One solution with its labels and the counts behind them."""

    solution: Solution
    right: bool
    labels: tuple[float | None, ...]
    """One per step: 1 right, 0 wrong, a share in the soft mode, None where nothing is known."""
    nodes: tuple[Node | None, ...]
    """The node of each step but the last, whose counts its own answer gives."""
    spent: tuple[int, ...]
    """Attempts that were looked at, per step."""
    states: Mapping[int, State]
    """What was found of each prefix length that was asked for."""

    @property
    def first_error(self) -> int | None:
        """Index of the first step labelled wrong; None where there is none, or where a step before it is unknown."""
        for index, label in enumerate(self.labels):
            if label is None:
                return None
            if label < 0.5:
                return index
        return None


@dataclass(frozen=True)
class Audit:
    """What all N completions say of prefixes that the mode decided, or never looked at, with fewer."""

    nodes: int = 0
    disagree: int = 0
    """Prefixes whose implied state differs from that of the same rule on all N completions."""
    closed: int = 0
    """Completions drawn at and behind the first dead prefix."""
    leaked: int = 0
    """Those of them that came out right: the chance that a wrong prefix still ends right."""


@dataclass
class LabelReport:
    """Everything that was made."""

    labelled: list[Labelled]
    unjudged: dict[str, Result]
    """Solutions without a verdict of their own, by what became of it."""
    skipped: list[Solution]
    """Wrong solutions of problems outside the range of pass rates (nobody solved them, by default)."""
    results: dict[str, int]
    """Result to number of completions."""
    cost: Cost
    audit: Audit

    @property
    def undecided(self) -> int:
        """Wrong solutions without a first error: the completions of a prefix could not be judged."""
        return sum(not found.right and found.first_error is None for found in self.labelled)


class Labeller:
    """Labels solutions by an engine and a judge; `log` keeps what was drawn."""

    def __init__(
        self,
        engine: RolloutEngine,
        judge: Judge,
        log: CompletionLog,
        settings: LabelSettings,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`progress` is called after each solution with how many are done, and of how many."""
        self._engine = engine
        self._judge = judge
        self._log = log
        self._settings = settings
        self._progress = progress
        self._trie = Trie()
        self._locks: dict[str, asyncio.Lock] = {}
        self._waves: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._behind: dict[str, tuple[Node, int]] = {}

    async def label(self, solutions: Sequence[Solution]) -> LabelReport:
        """The labels of `solutions`, in order; raises `EngineError` where the engine loses a request."""
        outcomes = await self._judge_all(solutions)
        right = {name: result == "right" for name, result in outcomes.items() if result in ("right", "wrong")}
        rates = pass_rates(solutions, right)
        known = [solution for solution in solutions if solution.id in right]
        for solution in known:
            for node in self._trie.path(solution).values():
                node.given += right[solution.id]
                node.completions.update(self._log.completions.get(node.key, {}))
        low, high = self._settings.pass_rate
        chosen = [s for s in known if right[s.id] or low <= rates[problem_key(s.task)].value <= high]
        for solution in chosen:
            for length, node in self._trie.path(solution).items():
                self._behind[node.key] = (node, solution.left(length))
        labelled = await self._label_all(chosen, right, rates)
        decided = self.cost()
        audit = await self._audit([found for found in labelled if not found.right])
        ids = {solution.id for solution in chosen}
        drawn = [c.result for node in self._trie.nodes.values() for c in node.completions.values()]
        return LabelReport(
            labelled=labelled,
            unjudged={name: result for name, result in outcomes.items() if name not in right},
            skipped=[solution for solution in known if solution.id not in ids],
            results={result: drawn.count(result) for result in dict.fromkeys(sorted(drawn))},
            cost=decided._replace(audited=self.cost().audited),
            audit=audit,
        )

    # ---- one solution ----

    async def _label_all(
        self, solutions: Sequence[Solution], right: Mapping[str, bool], rates: Mapping[str, Interval]
    ) -> list[Labelled]:
        slots = asyncio.Semaphore(IN_FLIGHT)
        done = 0

        async def one(solution: Solution) -> Labelled:
            nonlocal done
            async with slots:
                plan = plan_for(
                    self._settings.mode,
                    len(solution.pieces),
                    right=right[solution.id],
                    pass_rate=rates[problem_key(solution.task)].low,
                    samples=self._settings.samples,
                )
                found = await self._label_one(solution, plan, right=right[solution.id])
            done += 1
            self._progress(done, len(solutions))
            return found

        return await together([one(solution) for solution in solutions])

    async def _label_one(self, solution: Solution, plan: Plan, *, right: bool) -> Labelled:
        path = self._trie.path(solution)
        states: dict[int, State] = {}
        spent: dict[int, int] = {}
        while wanted := plan.wanted(states):
            found = await together([self._decide(path[length], plan) for length in wanted])
            for length, (state, used) in zip(wanted, found, strict=True):
                states[length], spent[length] = state, used
        labels = plan.labels(states)
        if self._settings.mode == "soft":
            labels[:-1] = [_share(path[length], spent[length]) for length in range(1, len(solution.pieces))]
        return Labelled(
            solution,
            right,
            tuple(labels),
            (*path.values(), None),
            tuple(spent.get(length, 0) for length in range(1, len(solution.pieces) + 1)),
            states,
        )

    async def _decide(self, node: Node, plan: Plan) -> tuple[State, int]:
        """Draw waves until the plan's rule is certain of a node; solutions that share it wait for one another."""
        async with self._locks.setdefault(node.key, asyncio.Lock()):
            while True:
                state, attempts = node.progress(plan.rule)
                if state != "open":
                    self._spent[node.key] = max(self._spent.get(node.key, 0), attempts)
                    return state, attempts
                await self._draw(node, attempts)
                self._spent[node.key] = max(self._spent.get(node.key, 0), attempts)

    # ---- drawing ----

    async def _draw(self, node: Node, first: int) -> None:
        """Draw and judge the missing attempts below `first`."""
        attempts = {f"{node.key}-{attempt}": attempt for attempt in node.missing(first)}
        task = node.request_task()
        requests = [
            RolloutRequest(
                id=name,
                task=task,
                group_id=node.key,
                sampling=self._settings.sampling.model_copy(
                    update={"seed": attempt_seed(self._settings.seed, node.key, attempt)}
                ),
            )
            for name, attempt in attempts.items()
        ]
        self._waves[node.key] = self._waves.get(node.key, 0) + 1

        async def keep(rollout: Rollout) -> None:
            result: Result = "truncated" if rollout.truncated else "failed"
            if rollout.finish == "stop":
                result = await self._result(node.task, node.judged(rollout.id, rollout.text))
            completion = _completion(rollout, result)
            self._log.completion(node.key, attempts[rollout.id], completion)
            node.completions[attempts[rollout.id]] = completion

        await _each(self._engine.generate(requests), keep)
        if node.missing(first):
            raise EngineError(
                f"the engine returned {len(attempts) - len(node.missing(first))} of {len(attempts)} completions of one "
                "prefix; every request must yield one"
            )

    async def _result(self, task: Task, rollout: Rollout) -> Result:
        reward = await self._judge.judge(task, rollout)
        statuses = {part.status for part in reward.parts}
        if "failed" in statuses or not reward.parts:
            return "failed"
        if "abstained" in statuses or reward.value is None:
            return "abstained"
        return "right" if reward.value >= RIGHT_FROM else "wrong"

    async def _judge_all(self, solutions: Sequence[Solution]) -> dict[str, Result]:
        slots = asyncio.Semaphore(4 * IN_FLIGHT)

        async def one(solution: Solution) -> Result:
            if solution.truncated:
                return "truncated"
            if (known := self._log.outcomes.get(solution.key)) is not None:
                return known
            rollout = Rollout(
                id=f"given-{solution.id}",
                task_id=solution.task.id,
                group_id=problem_key(solution.task),
                turns=(Turn(text=solution.text),),
            )
            async with slots:
                result = await self._result(solution.task, rollout)
            self._log.outcome(solution.key, result)
            return result

        found = await together([one(solution) for solution in solutions])
        return {solution.id: result for solution, result in zip(solutions, found, strict=True)}

    # ---- what it was worth ----

    def cost(self) -> Cost:
        """The cost so far; looks at every prefix."""
        return cost(self._behind.values(), self._spent, self._waves, self._settings.samples)

    async def _audit(self, wrong: Sequence[Labelled]) -> Audit:
        settings = self._settings
        if settings.mode == "soft":
            return Audit()
        rule = AtLeast(1 if settings.mode == "hard_exact" else min(2, settings.samples), settings.samples)
        chosen: dict[str, tuple[Node, bool, bool]] = {}
        for found in wrong:
            first = found.first_error
            if first is None:
                continue
            for length, node in self._trie.path(found.solution).items():
                if in_audit(settings.seed, node.key, settings.audit_share):
                    chosen[node.key] = (node, length <= first, length > first)
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def complete(node: Node) -> None:
            async with slots:
                if node.missing(settings.samples):
                    await self._draw(node, settings.samples)

        await together([complete(node) for node, _, _ in chosen.values()])
        states = [(rule.state(node.counts(settings.samples)), alive) for node, alive, _ in chosen.values()]
        behind = [node.counts(settings.samples) for node, _, dead in chosen.values() if dead]
        return Audit(
            nodes=len(chosen),
            disagree=sum(state in ("alive", "dead") and (state == "alive") != alive for state, alive in states),
            closed=sum(counts.attempts for counts in behind),
            leaked=sum(counts.successes for counts in behind),
        )


def _completion(rollout: Rollout, result: Result) -> Completion:
    turn = rollout.turns[-1]
    tokens = len(turn.token_ids) if turn.token_ids is not None else len(turn.text)
    versions = rollout.weight_versions
    version = versions[-1].version if versions else 0
    return Completion(result, rollout.text, tokens, len(rollout.prompt_ids or ()), version)


def _share(node: Node, spent: int) -> float | None:
    counts = node.counts(spent)
    return counts.successes / counts.attempts if counts.attempts else None


async def _each(rollouts: AsyncIterator[Rollout], keep: Callable[[Rollout], Coroutine[Any, Any, None]]) -> None:
    """Hand every rollout on as it comes, and wait until all are kept; the first error is raised as it is."""
    with one_error():
        async with asyncio.TaskGroup() as judging:
            async for rollout in rollouts:
                judging.create_task(keep(rollout))
