"""Solutions cut into steps, and the prefixes that they share: identical prefixes of one problem are one node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from assay.contracts import Message, Rollout, Task, Turn
from assay.labels.decisions import Counts, Rule, State
from assay.reports.statistics import Interval, wilson
from assay.steps import Piece

Result = Literal["right", "wrong", "truncated", "abstained", "failed"]
"""What became of one completion: judged; cut off at the token limit; the verdict source abstained; it, or the engine,
failed."""


class Completion(NamedTuple):
    """One completion of a prefix, as it is stored."""

    result: Result
    text: str
    tokens: int
    """Tokens that were made; characters where the engine gives no token ids."""
    prompt_tokens: int
    version: int
    """Policy version that made it."""


@dataclass(frozen=True)
class Solution:
    """One response of the data, cut into steps."""

    line: int
    id: str
    task: Task
    text: str
    pieces: tuple[Piece, ...]
    """Its steps, at least one; they tile the text."""
    domain: str | None = None
    truncated: bool = False
    """Whether it was cut off; it then has no verdict."""

    @property
    def key(self) -> str:
        """Name of the whole solution, the same in every run."""
        return node_key(self.task, self.text)

    @property
    def steps(self) -> list[str]:
        """The steps' texts."""
        return [self.text[piece.start : piece.end] for piece in self.pieces]

    def prefix(self, length: int) -> str:
        """The text of the first `length` steps and of what stands behind them."""
        return self.text[: self.pieces[length - 1].stop]

    def left(self, length: int) -> int:
        """Characters behind the prefix of `length` steps."""
        return len(self.text) - self.pieces[length - 1].stop


@dataclass(eq=False)
class Node:
    """One prefix of one problem, and its completions by attempt number."""

    key: str
    task: Task
    """The problem."""
    prefix: str
    given: int = 0
    """Right solutions of the data that begin with it."""
    completions: dict[int, Completion] = field(default_factory=dict[int, Completion])

    def counts(self, first: int) -> Counts:
        """Counts over the attempts 0 to `first` - 1, all of which must be known."""
        known = [self.completions[attempt].result for attempt in range(first)]
        right = known.count("right")
        return Counts(right, right + known.count("wrong"), first, self.given)

    def missing(self, first: int) -> list[int]:
        """Attempts below `first` that were not drawn."""
        return [attempt for attempt in range(first) if attempt not in self.completions]

    def progress(self, rule: Rule) -> tuple[State, int]:
        """Replay `rule` over what is known: the state, and to how many attempts it wants to go (or went).

        The same completions give the same answer however often the work was interrupted.
        """
        spent = 0
        while (state := rule.state(self.counts(spent))) == "open":
            wanted = spent + rule.wave(self.counts(spent))
            if self.missing(wanted):
                return "open", wanted
            spent = wanted
        return state, spent

    def request_task(self) -> Task:
        """The problem with the prefix as an answer that is to be continued."""
        return self.task.model_copy(
            update={"messages": (*self.task.messages, Message(role="assistant", content=self.prefix))}
        )

    def judged(self, completion_id: str, text: str) -> Rollout:
        """The whole response that a completion makes, as a verdict source judges it."""
        return Rollout(
            id=completion_id, task_id=self.task.id, group_id=self.key, turns=(Turn(text=self.prefix + text),)
        )


@dataclass
class Trie:
    """All nodes by key."""

    nodes: dict[str, Node] = field(default_factory=dict[str, Node])

    def node(self, solution: Solution, length: int) -> Node:
        """The node of a solution's first `length` steps, made when it is first asked for."""
        prefix = solution.prefix(length)
        key = node_key(solution.task, prefix)
        if key not in self.nodes:
            self.nodes[key] = Node(key, solution.task, prefix)
        return self.nodes[key]

    def path(self, solution: Solution) -> Mapping[int, Node]:
        """Prefix length to node, for 1 to K-1 steps."""
        return {length: self.node(solution, length) for length in range(1, len(solution.pieces))}


def problem_key(task: Task) -> str:
    """What solutions of the same problem share: messages and reference."""
    text = task.model_dump_json(include={"messages", "reference"})
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def node_key(task: Task, prefix: str) -> str:
    """Name of a node, the same in every run."""
    text = f"{problem_key(task)}\0{prefix}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def attempt_seed(seed: int, key: str, attempt: int) -> int:
    """Seed in [0, 2^31) of one completion: by node and attempt alone, so that every mode sees the same draws."""
    digest = hashlib.blake2b(f"{seed}:{key}:{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def in_audit(seed: int, key: str, share: float) -> bool:
    """Whether a node is among the `share` that is drawn again with all completions."""
    digest = hashlib.blake2b(f"audit:{seed}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def pass_rates(solutions: Sequence[Solution], right: Mapping[str, bool]) -> dict[str, Interval]:
    """Problem key to the share of its judged solutions that are right, with its Wilson interval.

    `right` by solution id, unjudged ones absent.
    """
    found: dict[str, list[bool]] = {}
    for solution in solutions:
        if solution.id in right:
            found.setdefault(problem_key(solution.task), []).append(right[solution.id])
    return {key: wilson(sum(values), len(values)) for key, values in found.items()}
