"""The reward source `reasoning-gym`: the library's own scorers, where they are safe to hand text that a model wrote.

A scorer is offered only after reading it: it may compare texts, parse JSON or numbers, and simulate moves. Scorers
that evaluate the answer as Python (`eval`, sympy's `parse_expr`) are never called, nor are some that accept anything
or whose cost the answer decides. `SAFE` was read in reasoning_gym 0.1.25; a test looks through the sources of the
installed one.

A task carries the seed of its item, not the item: the item is made again here, and compared with the task's question.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# reasoning_gym is only partly annotated.

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Evidence, Limits, Task, Verdict
from assay_tasks.gym import FACT, item_of, open_dataset

EVALUATES = "its scorer evaluates the answer as Python"
REFUSED = {
    "binary_matrix": EVALUATES,
    "composite": "its scorer hands the answer on to others",
    "countdown": EVALUATES,
    "game_of_life_halting": "its scorer takes any text for a yes",
    "intermediate_integration": EVALUATES,
    "n_queens": EVALUATES,
    "polynomial_multiplication": EVALUATES,
    "propositional_logic": "its scorer recurses as deep as the answer is nested",
    "puzzle24": EVALUATES,
    "rubiks_cube": "its scorer repeats a move as often as the answer says",
    "simple_integration": EVALUATES,
    "spiral_matrix": EVALUATES,
    "string_insertion": EVALUATES,
}
"""Generators without a scorer here, and why."""
SAFE = frozenset(  # one name per line would be a page of its own
    """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
    bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip
    color_cube_rotation complex_arithmetic count_bits count_primes course_schedule cryptarithm decimal_arithmetic
    decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki
    game_of_life gcd graph_color group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu knight_swap
    knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
    manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering number_format number_sequence
    number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations pool_matrix
    power_function prime_factorization products quantum_lock ransom_note rearc rectangle_count rotate_matrix
    rotten_oranges rush_hour self_reference sentence_reordering shortest_path simple_equations simple_geometry sokoban
    spell_backward string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals
    tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
    """.split()  # noqa: SIM905
)
"""Generators whose scorer only compares, parses JSON or numbers, or simulates moves."""
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
MAX_ANSWER_CHARS = 20_000


class GymScorerOptions(Options):
    """Options of the reward source `reasoning-gym`."""

    answer: Literal["tag", "last_line", "whole"] = "tag"
    """Where the answer stands: inside the last `<answer>` tag, on the last line that is not blank, or the whole
    text."""


class GymScorer:
    """Scores answers to tasks of the source `reasoning_gym` by the library's own scorers."""

    limits = Limits(timeout_s=10.0, memory_mib=1024, limit_fault="candidate", concurrency=8)

    def __init__(self, options: GymScorerOptions) -> None:
        """A scorer that finds answers as `options` say."""
        self.options = options
        self._datasets: dict[str, Any] = {}

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        return [self._verdict(candidate.task, candidate.rollout.text) for candidate in batch]

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def check_task(self, task: Task) -> str | None:
        """Why this task cannot be scored here, or None."""
        made_by = task.facts.get(FACT)
        if not isinstance(made_by, dict) or not isinstance(made_by.get("dataset"), str):
            return "the task is not from the task source 'reasoning_gym'; use another source, for example math or exact"
        name = str(made_by["dataset"])
        if name in SAFE:
            return None
        why = REFUSED.get(name, "its scorer has not been read")
        return f"reasoning_gym's {name!r} has no safe scorer: {why}; use = 'math' where the reference is the answer"

    def _verdict(self, task: Task, text: str) -> Verdict:
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain(problem, fault="ours")
        answer = self._answer(text)
        if answer is None:
            return Verdict.abstain(f"the response has no {'<answer> tag' if self.options.answer == 'tag' else 'text'}")
        if len(answer) > MAX_ANSWER_CHARS:
            return Verdict.abstain(f"the answer has {len(answer):,} characters, more than {MAX_ANSWER_CHARS:,}")
        made_by = task.facts[FACT]
        assert isinstance(made_by, dict)
        dataset, item = self._item(made_by)
        if item["question"] != made_by.get("question"):
            return Verdict.abstain("the library now makes another question from this seed", fault="ours")
        value = float(dataset.score_answer(answer, item))
        if not math.isfinite(value):
            return Verdict.abstain("the scorer's number is not finite", fault="ours")
        shown = answer if len(answer) <= 200 else answer[:200] + "..."
        return Verdict.score(
            min(1.0, max(0.0, value)),
            evidence=Evidence(
                kind="answer",
                summary=f"{shown!r}; reference {task.reference!r}",
                data={"answer": answer, "scorer": str(made_by["dataset"])},
            ),
        )

    def _answer(self, text: str) -> str | None:
        if self.options.answer == "tag":
            tagged = TAGGED.findall(text)
            return str(tagged[-1]).strip() if tagged else None
        if self.options.answer == "whole":
            return text.strip() or None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None

    def _item(self, made_by: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        name, seed, index = str(made_by["dataset"]), int(made_by["seed"]), int(made_by["index"])
        key = json.dumps([name, seed, made_by["options"]], sort_keys=True)
        if key not in self._datasets:
            self._datasets[key] = open_dataset(name, made_by["options"], seed=seed, size=index + 1)
        return self._datasets[key], item_of(self._datasets[key], index, name)


def build_scorer(options: GymScorerOptions, _context: BuildContext) -> GymScorer:
    """The scorer; the library is loaded with the first task."""
    return GymScorer(options)
