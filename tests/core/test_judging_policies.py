"""The pure policies of judging: batch forming, sharing a device, health, backoff, content keys."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from assay.contracts import Candidate, Limits, Sampling, Verdict
from assay.judging.batcher import Batcher, FairShare
from assay.judging.cache import ContentKeys, VerdictCache
from assay.judging.health import Health, backoff_s
from assay.testing.fakes import make_rollout, make_task


class BatcherMachine(RuleBasedStateMachine):
    """Any order of arrivals, pauses and returns: every item leaves once, and no batch breaks a limit."""

    limits = Limits(max_batch=4, max_wait_s=1.0, concurrency=2)

    def __init__(self) -> None:
        super().__init__()
        self.batcher: Batcher[tuple[int, int]] = Batcher(self.limits)
        self.now = 0.0
        self.waiting: dict[tuple[int, int], float] = {}
        self.left: set[tuple[int, int]] = set()
        self.count = 0

    @rule(tokens=st.integers(1, 50))
    def arrive(self, tokens: int) -> None:
        item = (self.count, tokens)
        self.count += 1
        self.batcher.add(item, tokens=tokens, now=self.now)
        self.waiting[item] = self.now

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.batcher.due(self.now))
    @rule()
    def take(self) -> None:
        oldest = min(self.waiting, key=lambda item: (self.waiting[item], item))
        batch = self.batcher.take()
        assert oldest in batch
        assert 1 <= len(batch) <= self.limits.max_batch
        if self.limits.max_tokens is not None and len(batch) > 1:
            assert len(batch) * max(tokens for _, tokens in batch) <= self.limits.max_tokens
            assert [tokens for _, tokens in batch] == sorted(tokens for _, tokens in batch)
        for item in batch:
            assert item not in self.left
            self.left.add(item)
            del self.waiting[item]

    @precondition(lambda self: self.batcher.out > 0)
    @rule()
    def come_back(self) -> None:
        self.batcher.done()

    @precondition(lambda self: bool(self.waiting))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.waiting)))
        self.batcher.discard(next(waiting for waiting in self.waiting if waiting is item or waiting == item))
        if len(self.batcher) < len(self.waiting):
            del self.waiting[item]

    @invariant()
    def limits_hold(self) -> None:
        assert self.batcher.out <= self.limits.concurrency
        assert len(self.batcher) == len(self.waiting)

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        if self.waiting and self.batcher.out < self.limits.concurrency:
            due_at = self.batcher.due_at()
            assert due_at is not None
            assert self.batcher.due(due_at)
            assert due_at <= min(self.waiting.values()) + self.limits.max_wait_s


class TokenBatcherMachine(BatcherMachine):
    """The same with a token budget."""

    limits = Limits(max_batch=4, max_tokens=60, max_wait_s=1.0, concurrency=2)


TestBatcher = BatcherMachine.TestCase
TestTokenBatcher = TokenBatcherMachine.TestCase
TestBatcher.settings = TestTokenBatcher.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(1, 200), st.integers(1, 32))
def test_items_that_wait_together_need_no_more_calls_than_batches(items: int, max_batch: int) -> None:
    batcher: Batcher[int] = Batcher(Limits(max_batch=max_batch, max_wait_s=0.0, concurrency=1000))
    for item in range(items):
        batcher.add(item, tokens=1, now=0.0)
    calls = 0
    while batcher.due(1.0):
        batcher.take()
        calls += 1
    assert calls == math.ceil(items / max_batch)


def test_a_token_budget_groups_equal_lengths() -> None:
    batcher: Batcher[int] = Batcher(Limits(max_batch=4, max_tokens=100, max_wait_s=0.0))
    for tokens in (10, 90, 11, 80, 12, 300, 13):
        batcher.add(tokens, tokens=tokens, now=0.0)
    batches: list[list[int]] = []
    while len(batcher):
        batches.append(batcher.take())
        batcher.done()
    assert batches == [[10, 11, 12, 13], [90], [80], [300]]


def test_a_shared_device_is_shared_by_weight() -> None:
    share = FairShare()
    share.join("light", 1.0)
    share.join("heavy", 3.0)
    turns = {"light": 0, "heavy": 0}
    for _turn in range(400):
        name = str(share.first(["light", "heavy"]))
        turns[name] += 1
        share.charge(name, 1.0)
    assert turns["heavy"] == pytest.approx(300, abs=2)


def test_a_source_that_joins_late_gets_no_credit() -> None:
    share = FairShare()
    share.join("old", 1.0)
    share.charge("old", 100.0)
    share.join("new", 1.0)
    served: list[object] = []
    for _ in range(10):
        name = share.first(["old", "new"])
        served.append(name)
        share.charge(name, 1.0)
    assert served.count("new") == 5


def test_a_source_that_was_idle_has_no_credit() -> None:
    share = FairShare()
    share.join("steady", 1.0)
    share.join("rare", 1.0)
    for _ in range(100):  # alone for a long time
        share.charge(share.first(["steady"]), 1.0)
    share.ask("rare")
    served: list[object] = []
    for _ in range(10):
        name = share.first(["steady", "rare"])
        served.append(name)
        share.charge(name, 1.0)
        share.ask(name)
    assert served.count("rare") in (5, 6)


@pytest.mark.parametrize(("threshold", "limit"), [(0.5, 25), (0.58, 29), (0.14, 7), (0.29, 14), (0.01, 0), (1.0, 50)])
def test_the_limit_of_failures_is_the_share_of_the_window(threshold: float, limit: int) -> None:
    assert Health(threshold=threshold).limit == limit


def test_the_26th_failure_of_50_is_one_too_many() -> None:
    health = Health(threshold=0.5)
    for _ in range(25):
        health.record("timed out")
    assert not health.unhealthy
    health.record("raised ValueError")
    assert health.unhealthy
    assert health.summary() == "26 of the last 26 verdicts failed (timed out 25, raised ValueError 1)"


@given(st.lists(st.booleans(), max_size=300), st.floats(0.05, 1.0))
def test_health_is_a_matter_of_the_last_fifty(failed: list[bool], threshold: float) -> None:
    health = Health(threshold=threshold)
    for failure in failed:
        health.record("failed" if failure else "")
    assert health.unhealthy == (sum(failed[-50:]) > int(threshold * 50))


def test_an_unhealthy_source_recovers_through_its_probes() -> None:
    health = Health(threshold=0.1, probe_every=5)
    for _ in range(50):
        health.record("down")
    judged = 0
    for _ in range(2000):
        if not health.unhealthy:
            break
        if health.probes():
            judged += 1
            health.record("")
    assert not health.unhealthy
    assert judged == 45


@given(st.integers(1, 40), st.floats(0, 1))
def test_pauses_grow_and_stay_bounded(attempt: int, jitter: float) -> None:
    pause_s = backoff_s(attempt, jitter)
    assert 0.05 <= pause_s <= 7.5
    assert backoff_s(attempt + 1, jitter) >= pause_s


def test_equal_content_has_one_key_and_any_difference_another() -> None:
    keys = ContentKeys()
    task = make_task(reference="4")
    same = [Candidate(task=task, rollout=make_rollout("x", name, group_id=group)) for name, group in ("ab", "cd")]
    seeded = same[0].rollout.model_copy(update={"sampling": Sampling(seed=9)})
    assert len({keys.key(candidate) for candidate in same} | {keys.key(Candidate(task=task, rollout=seeded))}) == 1
    others = [
        Candidate(task=task, rollout=make_rollout("y")),
        Candidate(task=make_task(reference="5"), rollout=make_rollout("x")),
        Candidate(task=make_task(reference="4", facts={"k": 1}), rollout=make_rollout("x")),
        Candidate(task=make_task("other", reference="4"), rollout=make_rollout("x")),
        Candidate(task=task, rollout=make_rollout("x").model_copy(update={"finish": "length"})),
        Candidate(task=task, rollout=make_rollout("x"), group=(make_rollout("x"), make_rollout("z"))),
    ]
    found = {keys.key(candidate) for candidate in [same[0], *others]}
    assert len(found) == 1 + len(others)


def test_only_decisions_that_would_come_out_the_same_are_cached() -> None:
    cache = VerdictCache(max_entries=2)
    cache.put("s", "failed", Verdict(status="failed", reason="x", fault="candidate"))
    cache.put("s", "ours", Verdict.abstain("judge is down", fault="ours"))
    assert (cache.get("s", "failed"), cache.get("s", "ours")) == (None, None)
    cache.put("s", "a", Verdict.score(1.0))
    cache.put("s", "b", Verdict.abstain("unreadable"))
    assert cache.get("s", "a") == Verdict.score(1.0)
    assert cache.get("other", "a") is None
    cache.put("s", "c", Verdict.score(0.0))
    assert cache.get("s", "b") is None  # the least recently used one made room
    assert cache.get("s", "a") is not None
