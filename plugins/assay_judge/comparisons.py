"""`judge-pairwise` and `judge-listwise`: a model compares the answers of one group with one another.

Judges prefer a place (the first, the last) whatever stands in it. So every pair is asked twice with the places
swapped, and every list in several orders; what is won only in one place is half a win.
"""

import random
import string
from collections.abc import Sequence

from pydantic import Field

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Verdict
from assay.protocols import RewardSource
from assay_judge.framing import without_reasoning
from assay_judge.source import Asked, JudgeSource, conversation, empty_response, groups_of, reference_text
from assay_judge.votes import UnreadableError, VoteOptions, read_object

_WINS = {"A": 1.0, "B": 0.0, "tie": 0.5}


class CompareOptions(VoteOptions):
    """What the answers are compared by."""

    question: str = "Which answer solves the task better? If a reference is given, it is right."
    """What better means."""
    show_reference: bool = True
    """Show the task's reference to the judge where there is one."""
    think: bool = True
    """Leave out reasoning in `<think>` tags."""


class PairwiseOptions(CompareOptions):
    """Who is compared with whom."""

    opponents: int | None = Field(default=None, ge=1)
    """Each answer meets so many of those after it in the group, round and round; None is every other answer."""


class ListwiseOptions(CompareOptions):
    """In how many orders a list is shown."""

    orders: int = Field(default=2, ge=1, le=24)
    """The given order, its reverse, then shuffles that depend on the seed alone."""


class _Comparison(JudgeSource):
    """Judges whole groups: the answers that are not blank, each text once."""

    def __init__(self, options: CompareOptions, context: BuildContext) -> None:
        super().__init__(options, context, scope="group")
        self.compare_options = options

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order; the candidates of a group are compared with one another."""
        verdicts: dict[int, Verdict] = {}
        for indices in groups_of(batch):
            found = await self._group([batch[index] for index in indices])
            verdicts.update(zip(indices, found, strict=True))
        return [verdicts[index] for index in range(len(batch))]

    async def _group(self, candidates: Sequence[Candidate]) -> list[Verdict]:
        answers = [self._answer(candidate) for candidate in candidates]
        texts = list(dict.fromkeys(answer for answer in answers if answer.strip()))
        if not texts:
            return [empty_response() for _ in candidates]
        if len([answer for answer in answers if answer.strip()]) < 2:
            alone = Verdict.abstain(
                "group_too_small", fault="ours", evidence="there is no other answer to compare with"
            )
            return [alone if answer.strip() else empty_response() for answer in answers]
        if len(texts) == 1:
            verdict = Verdict.score(0.5, evidence="all answers of the group are the same text")
            return [verdict if answer.strip() else empty_response() for answer in answers]
        by_text = dict(zip(texts, await self._compare(candidates[0], texts), strict=True))
        return [by_text[answer] if answer.strip() else empty_response() for answer in answers]

    def _answer(self, candidate: Candidate) -> str:
        text = candidate.rollout.text
        return without_reasoning(text) if self.compare_options.think else text

    async def _compare(self, candidate: Candidate, texts: Sequence[str]) -> Sequence[Verdict]:
        raise NotImplementedError

    def _task(self, candidate: Candidate, mark: str) -> str:
        reference = reference_text(candidate.task) if self.compare_options.show_reference else ""
        parts = [self.shown("TASK", conversation(candidate.task), mark)]
        if reference:
            parts.append(self.shown("REFERENCE", reference, mark))
        return "\n\n".join(parts)

    def _mark(self, candidate: Candidate, *texts: str) -> str:
        return self.mark(*texts, conversation(candidate.task), reference_text(candidate.task))


class Pairwise(_Comparison):
    """In [0, 1]: the share of its comparisons that an answer wins; a tie, or a win in one place only, is a half."""

    def __init__(self, options: PairwiseOptions, context: BuildContext) -> None:
        """Open the asker of the options."""
        super().__init__(options, context)
        self.options = options

    async def _compare(self, candidate: Candidate, texts: Sequence[str]) -> Sequence[Verdict]:
        pairs = pairs_of(len(texts), self.options.opponents)
        questions = [
            self._question(candidate, texts[first], texts[second])
            for a, b in pairs
            for first, second in ((a, b), (b, a))
        ]
        votes = await self.votes(questions, _read_winner)
        wins: list[list[float]] = [[] for _ in texts]
        swayed = [0] * len(texts)
        for index, (a, b) in enumerate(pairs):
            straight, swapped = votes.found[2 * index], votes.found[2 * index + 1]
            if not self.enough(straight) or not self.enough(swapped):
                continue
            for_a = (sum(straight) / len(straight), 1 - sum(swapped) / len(swapped))
            wins[a].append(sum(for_a) / 2)
            wins[b].append(1 - sum(for_a) / 2)
            if (for_a[0] - 0.5) * (for_a[1] - 0.5) < 0:
                swayed[a] += 1
                swayed[b] += 1
        return [
            Verdict.score(
                sum(won) / len(won),
                evidence=(
                    Evidence(
                        kind="judge",
                        summary=f"{sum(won):g} of {len(won)} comparisons won; {swayed[index]} turned with the places",
                        data={"won": sum(won), "of": len(won), "swayed": swayed[index]},
                    ),
                    votes.usage,
                ),
            )
            if won
            else votes.unreadable()
            for index, won in enumerate(wins)
        ]

    def _question(self, candidate: Candidate, a: str, b: str) -> Asked:
        mark = self._mark(candidate, a, b)
        answers = (self.shown("ANSWER A", a, mark), self.shown("ANSWER B", b, mark))
        shown = "\n\n".join((self._task(candidate, mark), *answers))
        form = '{"reason": "one or two sentences", "winner": "A" or "B" or "tie"}'
        return Asked(f"Compare two answers.\n\n{shown}\n\n{self.options.question}", mark, form)


class Listwise(_Comparison):
    """In [0, 1]: 1 for the answer that is ranked first in every order, 0 for the one that is always last."""

    def __init__(self, options: ListwiseOptions, context: BuildContext) -> None:
        """Open the asker of the options."""
        super().__init__(options, context)
        self.options = options

    async def _compare(self, candidate: Candidate, texts: Sequence[str]) -> Sequence[Verdict]:
        if len(texts) > len(string.ascii_uppercase):
            large = Verdict.abstain("group_too_large", fault="ours", evidence=f"{len(texts)} answers; at most 26")
            return [large] * len(texts)
        orders = orders_of(len(texts), self.options.orders, self.options.seed)
        questions = [self._question(candidate, [texts[index] for index in order]) for order in orders]
        votes = await self.votes(questions, lambda text, mark: _read_ranking(text, mark, len(texts)))
        places: list[list[int]] = [[] for _ in texts]
        for order, rankings in zip(orders, votes.found, strict=True):
            for ranking in rankings:
                for place, shown_as in enumerate(ranking):
                    places[order[shown_as]].append(place)
        if not all(self.enough(rankings) for rankings in votes.found):
            return [votes.unreadable()] * len(texts)
        last = len(texts) - 1
        return [
            Verdict.score(
                1 - sum(mine) / len(mine) / last,
                evidence=(
                    Evidence(
                        kind="judge",
                        summary=f"places {', '.join(str(place + 1) for place in mine)} of {len(texts)}",
                        data=[place + 1 for place in mine],
                    ),
                    votes.usage,
                ),
            )
            for mine in places
        ]

    def _question(self, candidate: Candidate, texts: Sequence[str]) -> Asked:
        mark = self._mark(candidate, *texts)
        names = string.ascii_uppercase[: len(texts)]
        answers = [self.shown(f"ANSWER {name}", text, mark) for name, text in zip(names, texts, strict=True)]
        shown = "\n\n".join((self._task(candidate, mark), *answers))
        form = '{"reason": "one or two sentences", "ranking": ["best letter", "...", "worst letter"]}'
        question = f"{self.options.question} Rank all {len(texts)} answers, the best first."
        return Asked(f"Compare {len(texts)} answers.\n\n{shown}\n\n{question}", mark, form)


def pairs_of(count: int, opponents: int | None) -> list[tuple[int, int]]:
    """The pairs (a, b) with a before b that meet: all of them, or each with so many that follow it in a ring."""
    reach = count - 1 if opponents is None else min(opponents, count - 1)
    found = {tuple(sorted((a, (a + step) % count))) for a in range(count) for step in range(1, reach + 1)}
    return sorted((a, b) for a, b in found)


def orders_of(count: int, orders: int, seed: int) -> list[list[int]]:
    """So many orders of `count` places: the given one, its reverse, then seeded shuffles."""
    found = [list(range(count)), list(range(count))[::-1]]
    generator = random.Random(seed)  # noqa: S311 # an order, not a secret
    while len(found) < orders:
        shuffled = list(range(count))
        generator.shuffle(shuffled)
        found.append(shuffled)
    return found[:orders]


def _read_winner(text: str, mark: str) -> float:
    winner = read_object(text, mark).get("winner")
    if not isinstance(winner, str) or winner not in _WINS:
        raise UnreadableError(f"winner is {winner!r}; expected A, B or tie")
    return _WINS[winner]


def _read_ranking(text: str, mark: str, count: int) -> list[int]:
    ranking = read_object(text, mark).get("ranking")
    names = string.ascii_uppercase[:count]
    if not isinstance(ranking, list) or sorted(map(str, ranking)) != sorted(names):  # pyright: ignore[reportUnknownArgumentType]  # JSON
        raise UnreadableError(f"ranking is {ranking!r}; expected each of {names} once")
    return [names.index(str(name)) for name in ranking]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # JSON


def build_pairwise(options: PairwiseOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token."""
    return Pairwise(options, context)


def build_listwise(options: ListwiseOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` for a missing token."""
    return Listwise(options, context)
