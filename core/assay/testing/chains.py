"""Chains of small operations with known errors: a task on which a reward model can be proved without any download.

A problem is a start and some operations, `7+3*7-4=`; a solution has one step per operation, `7+3=0`, `0*7=0`, `0-4=6`,
a line each, and its last result is the answer. Operations are invertible (modulo 10), so an error almost always
reaches the answer; `collapse` mixes in ones that are not, by which a wrong prefix may still end right (the leak).

The scripted policy slips at random, and it has *misconceptions*: some facts come out as one fixed wrong value most of
the time. They matter: independent slips are cured by voting, so that only systematic errors tell a reward model from a
majority vote. The oracle knows every wrong step by construction.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from assay.contracts import Message, Reward, RewardPart, Rollout, RolloutRequest, Task

Domain = Literal["digits", "letters", "order"]
"""Digits modulo 10 (`7*3=1`); ten letters that are shifted (`b>3=e`); three letters whose places are swapped
(`abc~12=bac`)."""
DOMAINS: tuple[Domain, ...] = ("digits", "letters", "order")
LETTERS = "abcdefghij"
ORDERS = ("abc", "acb", "bac", "bca", "cab", "cba")
_OPERATION = re.compile(r"[-+*<>~]\d+")
_STEP = re.compile(r"([0-9a-j]{1,3})([-+*<>~]\d+)=([0-9a-j]{1,3})")


class Problem(NamedTuple):
    """A start and what is done to it."""

    start: str
    operations: tuple[str, ...]

    @property
    def prompt(self) -> str:
        """The problem as text."""
        return f"{self.start}{''.join(self.operations)}="

    @classmethod
    def read(cls, prompt: str) -> Problem:
        """The inverse of `prompt`."""
        operations = tuple(_OPERATION.findall(prompt))
        return cls(prompt[: -1 - sum(map(len, operations))], operations)


def apply(state: str, operation: str) -> str:
    """The right result of one operation."""
    kind, number = operation[0], int(operation[1:])
    if kind == "~":
        first, second = number // 10 - 1, number % 10 - 1
        places = list(state)
        places[first], places[second] = places[second], places[first]
        return "".join(places)
    if kind in "<>":
        return LETTERS[(LETTERS.index(state) + (number if kind == ">" else -number)) % 10]
    value = int(state)
    return str((value + number if kind == "+" else value - number if kind == "-" else value * number) % 10)


def solve(problem: Problem) -> str:
    """The right answer."""
    state = problem.start
    for operation in problem.operations:
        state = apply(state, operation)
    return state


@dataclass(frozen=True)
class Chains:
    """A world of problems, one policy's habits in it, and the truth."""

    seed: int = 0
    lengths: tuple[int, int] = (4, 6)
    """Fewest and most operations."""
    collapse: float = 0.0
    """Share of operations of the digits that are not invertible (times 2 or 5)."""
    domains: tuple[Domain, ...] = ("digits",)
    slip: float = 0.03
    """Chance of a random wrong result."""
    misconceived: float = 0.12
    """Share of facts that the policy has a fixed wrong value for."""
    stubborn: float = 2 / 3
    """Chance that such a fact comes out as that value."""
    _habits: dict[tuple[str, str], str | None] = field(
        default_factory=dict[tuple[str, str], "str | None"], compare=False
    )

    def task(self, number: int) -> Task:
        """Problem number `number`; equal numbers give equal problems."""
        draw = random.Random(f"{self.seed}:problem:{number}")  # noqa: S311 # a task, not a secret
        domain = self.domains[number % len(self.domains)]
        length = draw.randint(*self.lengths)
        start = draw.choice(_states(domain))
        problem = Problem(start, tuple(self._operation(draw, domain) for _ in range(length)))
        return Task(
            id=f"chain-{number}",
            messages=(Message(role="user", content=problem.prompt),),
            reference=solve(problem),
            facts={"domain": domain},
        )

    def continued(self, prompt: str, prefix: str, seed: int) -> str:
        """What the policy writes after `prefix` (whole lines, or nothing)."""
        draw = random.Random(seed)  # noqa: S311 # a sample, not a secret
        problem = Problem.read(prompt)
        done = [match.group(3) for match in _STEP.finditer(prefix)]
        state = done[-1] if done else problem.start
        lines: list[str] = []
        for operation in problem.operations[len(done) :]:
            result = self._result(state, operation, draw)
            lines.append(f"{state}{operation}={result}")
            state = result
        return "\n".join(lines)

    def answer(self, request: RolloutRequest, version: int) -> str:
        """The policy as the answers of a `ScriptedEngine`."""
        last = request.task.messages[-1]
        prefix = last.content if last.role == "assistant" else ""
        return self.continued(request.task.prompt, prefix, request.sampling.seed)

    def misconception(self, state: str, operation: str) -> str | None:
        """The fixed wrong value that the policy has for a fact, or None."""
        key = (state, operation)
        if key not in self._habits:
            draw = random.Random(f"{self.seed}:fact:{state}{operation}")  # noqa: S311 # a habit, not a secret
            wrong = _other(apply(state, operation), draw) if draw.random() < self.misconceived else None
            self._habits[key] = wrong
        return self._habits[key]

    def _result(self, state: str, operation: str, draw: random.Random) -> str:
        right, fixed = apply(state, operation), self.misconception(state, operation)
        stubborn, slips = draw.random() < self.stubborn, draw.random() < self.slip
        if fixed is not None and stubborn:
            return fixed
        return _other(right, draw) if slips else right

    def _operation(self, draw: random.Random, domain: Domain) -> str:
        if domain == "order":
            return draw.choice(("~12", "~13", "~23"))
        if domain == "letters":
            return draw.choice("<>") + str(draw.randint(1, 9))
        if draw.random() < self.collapse:
            return draw.choice(("*2", "*5"))
        return draw.choice((f"+{draw.randint(1, 9)}", f"-{draw.randint(1, 9)}", f"*{draw.choice((3, 7, 9))}"))


def answer_of(text: str) -> str | None:
    """The answer that a solution ends with: the result of its last line; None where that is no step."""
    match = _STEP.fullmatch(text.rstrip().rpartition("\n")[2])
    return None if match is None else match.group(3)


def wrong_steps(prompt: str, steps: Sequence[str]) -> list[int]:
    """Indices of the steps that are wrong: another operation, another state than the one reached, or a wrong result.

    What is rightly computed from a wrong state is right; the first index is the first error.
    """
    problem = Problem.read(prompt)
    state, wrong = problem.start, list[int]()
    for index, step in enumerate(steps):
        match = _STEP.fullmatch(step.strip())
        operation = problem.operations[index] if index < len(problem.operations) else None
        if match is None or operation is None:
            wrong.append(index)
            continue
        before, done, result = match.groups()
        if before != state or done != operation or not _fits(state, result) or apply(state, operation) != result:
            wrong.append(index)
        state = result if _fits(state, result) else state
    return wrong


class ChainJudge:
    """The verdict source of the chains: 1 for the right answer, abstaining where none can be read."""

    async def judge(self, task: Task, rollout: Rollout, /) -> Reward:
        """The reward of one solution."""
        found = answer_of(rollout.text)
        if found is None:
            part = RewardPart(source="chain", weight=1.0, status="abstained", reason="no answer", fault="candidate")
            return Reward(rollout_id=rollout.id, value=None, parts=(part,), reason="no answer")
        value = float(found == task.reference)
        part = RewardPart(source="chain", weight=1.0, status="scored", value=value)
        return Reward(rollout_id=rollout.id, value=value, channels={"reward": value}, parts=(part,))


def sample_seed(*parts: object) -> int:
    """A seed in [0, 2^31) made of names and numbers."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _states(domain: Domain) -> Sequence[str]:
    return ORDERS if domain == "order" else LETTERS if domain == "letters" else "0123456789"


def _other(right: str, draw: random.Random) -> str:
    """A wrong value of the same kind."""
    values = ORDERS if len(right) == 3 else "0123456789" if right.isdigit() else LETTERS
    return draw.choice([value for value in values if value != right])


def _fits(state: str, result: str) -> bool:
    """Whether a result is of the state's kind."""
    return len(result) == len(state) and result.isdigit() == state.isdigit() and (len(state) == 1 or result in ORDERS)
