"""Labels on chains whose wrong steps are known, by a scripted policy whose draws are the same in every mode."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from assay.contracts import Message, Reward, Rollout, RolloutRequest, Sampling, Task
from assay.errors import EngineError
from assay.labels import CompletionLog, Labelled, Labeller, LabelReport, LabelSettings, Solution
from assay.labels.decisions import AnyOf
from assay.steps import SplitterOptions, split_steps
from assay.testing.chains import ChainJudge, Chains, sample_seed, wrong_steps
from assay.testing.scripted import ScriptedEngine

LINES = SplitterOptions(by="line")


def solution(name: str, task: Task, text: str) -> Solution:
    return Solution(1, name, task, text, split_steps(text, LINES))


def solutions(chains: Chains, problems: int, samples: int) -> list[Solution]:
    tasks = [chains.task(number) for number in range(problems)]
    return [
        solution(f"{task.id}-{sample}", task, chains.continued(task.prompt, "", sample_seed(task.id, sample)))
        for task in tasks
        for sample in range(samples)
    ]


def label(
    folder: Path,
    given: Sequence[Solution],
    settings: LabelSettings,
    *,
    engine: ScriptedEngine | None = None,
    judge: ChainJudge | None = None,
    chains: Chains | None = None,
    name: str = "log",
) -> LabelReport:
    made = engine or ScriptedEngine((chains or Chains()).answer)
    log = CompletionLog(folder / f"{name}.jsonl", {"seed": settings.seed})
    try:
        return asyncio.run(Labeller(made, judge or ChainJudge(), log, settings).label(given))
    finally:
        log.close()


def first_wrong(found: Labelled) -> int | None:
    wrong = wrong_steps(found.solution.task.prompt, found.solution.steps)
    return wrong[0] if wrong else None


def hits(report: LabelReport) -> int:
    """Wrong solutions whose first wrong step is the one that was labelled."""
    return sum(not found.right and found.first_error == first_wrong(found) for found in report.labelled)


def closed(found: Labelled, samples: int) -> list[float | None]:
    """What naive labels are up to and with the first prefix that no completion of all `samples` saved."""
    states = [AnyOf(samples).state(node.counts(samples)) for node in found.nodes if node is not None]
    dead = next((index for index, state in enumerate(states) if state == "dead"), len(states))
    return [1.0] * dead + [0.0] + [None] * (len(states) - dead)


@pytest.mark.parametrize("lengths", [(4, 6), (14, 18)])
def test_hard_exact_is_naive_closed_behind_its_first_dead_prefix(tmp_path: Path, lengths: tuple[int, int]) -> None:
    chains = Chains(seed=5, lengths=lengths, collapse=0.05, slip=0.02, misconceived=0.06)
    given = solutions(chains, 140 // lengths[1], 3)
    naive = label(tmp_path, given, LabelSettings(mode="soft", seed=1), chains=chains, name="naive")
    exact = label(tmp_path, given, LabelSettings(mode="hard_exact", seed=1), chains=chains, name="exact")
    full = {found.solution.id: found for found in naive.labelled}
    wrong = [found for found in exact.labelled if not found.right]
    assert len(wrong) >= 5
    assert [list(found.labels) for found in wrong] == [closed(full[found.solution.id], 16) for found in wrong]
    # The same draws: every completion of the exact mode is that of the naive one.
    drawn = [(node.key, node.completions) for found in wrong for node in found.nodes if node is not None]
    theirs = {node.key: node.completions for found in naive.labelled for node in found.nodes if node is not None}
    assert any(completions for _, completions in drawn)
    assert all(theirs[key][attempt] == each for key, found in drawn for attempt, each in found.items())


def test_auto_finds_as_many_first_errors_as_naive_with_a_fifth_of_the_tokens(tmp_path: Path) -> None:
    chains = Chains(seed=3, lengths=(5, 7), collapse=0.02)
    given = solutions(chains, 25, 4)
    naive = label(tmp_path, given, LabelSettings(mode="soft", seed=2), chains=chains, name="naive")
    auto = label(tmp_path, given, LabelSettings(mode="auto", seed=2), chains=chains, name="auto")
    by_hand = {found.solution.id: closed(found, 16) for found in naive.labelled}
    same = [found for found in auto.labelled if not found.right]
    theirs = sum(by_hand[found.solution.id].index(0.0) == first_wrong(found) for found in same)
    assert hits(auto) >= theirs > 0.8 * len(same)
    spent = sum(
        completion.tokens for f in naive.labelled for n in f.nodes if n for completion in n.completions.values()
    )
    assert spent >= 5 * auto.cost.decoded
    assert auto.cost.saving is not None
    assert auto.cost.saving >= 5


def test_right_solutions_cost_nothing_and_unsolved_problems_are_left_out(tmp_path: Path) -> None:
    chains = Chains(slip=0.0, misconceived=0.0)
    task = chains.task(0)
    right = solution("right", task, chains.continued(task.prompt, "", 0))
    engine = ScriptedEngine(chains.answer)
    report = label(tmp_path, [right], LabelSettings(), engine=engine)
    assert [found.labels for found in report.labelled] == [(1.0,) * len(right.pieces)]
    assert report.cost.completions == 0
    assert report.cost.saving is None
    other = chains.task(1)
    wrong = solution("wrong", other, "1+1=3\n3+1=5")
    report = label(tmp_path, [right, wrong], LabelSettings(), engine=engine)
    assert [skipped.id for skipped in report.skipped] == ["wrong"]
    kept = label(tmp_path, [right, wrong], LabelSettings(pass_rate=(0.0, 1.0)), engine=engine)
    assert [found.solution.id for found in kept.labelled] == ["right", "wrong"]


def test_equal_prefixes_of_a_problem_are_drawn_once(tmp_path: Path) -> None:
    chains = Chains(slip=0.0, misconceived=0.0)
    task = chains.task(0)
    lines = chains.continued(task.prompt, "", 0).split("\n")
    bad = [*lines[:-1], lines[-1][:-1] + str((int(lines[-1][-1]) + 1) % 10)]
    asked: Counter[str] = Counter()

    def answer(request: RolloutRequest, version: int) -> str:
        asked[request.id] += 1
        return chains.answer(request, version)

    given = [solution(name, task, "\n".join(bad)) for name in ("a", "b", "c")]
    report = label(tmp_path, given, LabelSettings(pass_rate=(0.0, 1.0), audit_share=0.0), engine=ScriptedEngine(answer))
    assert [found.first_error for found in report.labelled] == [len(lines) - 1] * 3
    assert set(asked.values()) == {1}
    # Every prefix but the whole is alive: two completions each, for all three solutions together.
    assert len(asked) == 2 * (len(lines) - 1)


class Moody(ChainJudge):
    """Abstains on, or fails at, answers whose last digit says so."""

    async def judge(self, task: Task, rollout: Rollout, /) -> Reward:
        reward = await super().judge(task, rollout)
        part = reward.parts[0]
        if rollout.text[-1] in "05" and rollout.id.startswith("given") is False:
            status = "abstained" if rollout.text[-1] == "0" else "failed"
            changed = part.model_copy(update={"status": status, "value": None, "reason": "moody", "fault": "ours"})
            return reward.model_copy(update={"value": None, "parts": (changed,)})
        return reward


def test_what_was_cut_off_or_not_judged_is_counted_apart_and_never_wrong(tmp_path: Path) -> None:
    chains = Chains(seed=8)
    given = solutions(chains, 12, 4)
    sampling = Sampling(max_new_tokens=24)
    settings = LabelSettings(mode="soft", sampling=sampling)
    report = label(tmp_path, given, settings, judge=Moody(), chains=chains)
    assert set(report.results) == {"abstained", "failed", "right", "truncated", "wrong"}
    found = next(f for f in report.labelled if any(n and n.counts(16).attempts < 16 for n in f.nodes))
    for node, value in zip(found.nodes[:-1], found.labels, strict=False):
        assert node is not None
        results = [completion.result for completion in node.completions.values()]
        judged = results.count("right") + results.count("wrong")
        assert value == (results.count("right") / judged if judged else None)


def test_a_solution_without_a_verdict_is_not_labelled(tmp_path: Path) -> None:
    task = Chains().task(0)
    silent = solution("silent", task, "I do not know.")
    cut = Solution(2, "cut", task, "1+1=2", split_steps("1+1=2", LINES), truncated=True)
    report = label(tmp_path, [silent, cut], LabelSettings())
    assert report.labelled == []
    assert report.unjudged == {"silent": "abstained", "cut": "truncated"}


def test_the_prefixes_of_many_problems_are_in_flight_together(tmp_path: Path) -> None:
    chains = Chains(seed=1)
    flying, most = set[str](), 0

    class Watched(ScriptedEngine):
        async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:  # pyright: ignore[reportIncompatibleMethodOverride]
            nonlocal most
            flying.update(request.task.prompt for request in requests)
            most = max(most, len(flying))
            await asyncio.sleep(0)
            async for rollout in super().generate(requests):
                yield rollout
            flying.difference_update(request.task.prompt for request in requests)

    engine = Watched(chains.answer, delay_s=0.001)
    label(tmp_path, solutions(chains, 40, 3), LabelSettings(), engine=engine)
    assert most >= 20


def test_an_audit_of_everything_counts_leaks(tmp_path: Path) -> None:
    chains = Chains(seed=4, collapse=0.3)
    given = solutions(chains, 15, 4)
    report = label(tmp_path, given, LabelSettings(audit_share=1.0), chains=chains)
    nodes = {n.key: n for f in report.labelled if not f.right and f.first_error is not None for n in f.nodes if n}
    assert report.audit.nodes == len(nodes)
    assert all(not node.missing(16) for node in nodes.values())
    assert 0 < report.audit.leaked < report.audit.closed
    assert report.cost.audited > 0


def test_an_engine_that_loses_a_request_is_told(tmp_path: Path) -> None:
    class Loses(ScriptedEngine):
        async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:  # pyright: ignore[reportIncompatibleMethodOverride]
            async for rollout in super().generate(requests[1:]):
                yield rollout

    chains = Chains(seed=1)
    with pytest.raises(EngineError, match=r"returned 0 of 1 completions of one prefix"):
        label(tmp_path, solutions(chains, 10, 4), LabelSettings(), engine=Loses(chains.answer))


def test_the_prefix_is_an_answer_that_goes_on(tmp_path: Path) -> None:
    chains = Chains(seed=1)
    seen: list[Message] = []

    def answer(request: RolloutRequest, version: int) -> str:
        seen.append(request.task.messages[-1])
        return chains.answer(request, version)

    label(tmp_path, solutions(chains, 5, 4), LabelSettings(), engine=ScriptedEngine(answer))
    assert seen
    assert {message.role for message in seen} == {"assistant"}
    assert all(message.content.endswith("\n") for message in seen)


def test_an_answer_of_a_broken_engine_is_failed_and_never_wrong(tmp_path: Path) -> None:
    class Broken(ScriptedEngine):
        async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:  # pyright: ignore[reportIncompatibleMethodOverride]
            async for rollout in super().generate(requests):
                yield rollout.model_copy(update={"finish": "error"})

    chains = Chains(seed=1)
    report = label(tmp_path, solutions(chains, 5, 4), LabelSettings(), engine=Broken(chains.answer))
    assert set(report.results) == {"failed"}
    unknown = [found for found in report.labelled if "unknown" in found.states.values()]
    assert report.undecided == len(unknown) > 0
    assert all(found.first_error is None and None in found.labels for found in unknown)
