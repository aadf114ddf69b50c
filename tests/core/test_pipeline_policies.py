"""Properties of the pure policies: admission, tickets, assembling, the watchdog and the overlap meter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from assay.contracts import Message, Reward, Rollout, Sampling, ScoredGroup, Task, Turn
from assay.pipeline import Admission, Assembler, Batch, Ticket, Tickets, Watchdog
from assay.pipeline.explain import conditioned
from assay.pipeline.groups import REFILL_LIMIT, TOO_FEW_SCORED
from assay.pipeline.overlap import Overlap
from assay.protocols import Decision


def make_task(name: str = "t0") -> Task:
    return Task(id=name, messages=(Message(role="user", content=f"question {name}"),), reference="1")


def make_rollout(ticket: Ticket, sample: int) -> Rollout:
    request = ticket.requests(sample + 1, Sampling(), seed=0)[sample]
    return Rollout(id=request.id, task_id=ticket.task.id, group_id=ticket.group_id, turns=(Turn(text="1"),))


class AdmissionMachine(RuleBasedStateMachine):
    """Whatever the order of starts, replacements and updates: nothing starts beyond the bound."""

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(groups_per_step=3, max_staleness=2)
        self.in_flight = 0

    @rule(count=st.integers(1, 20))
    def start(self, count: int) -> None:
        room = self.admission.room
        if count > room:
            with pytest.raises(ValueError, match="exceed the room"):
                self.admission.start(count)
        else:
            self.admission.start(count)
            self.in_flight += count

    @precondition(lambda self: self.in_flight > 0)
    @rule()
    def replace(self) -> None:
        before = self.admission.room
        self.admission.replace()
        self.in_flight -= 1
        assert self.admission.room == before + 1

    @precondition(lambda self: self.in_flight >= 3)
    @rule()
    def publish(self) -> None:
        self.admission.publish()
        self.in_flight -= 3

    @invariant()
    def bounded(self) -> None:
        bound = (self.admission.version + self.admission.max_staleness + 1) * self.admission.groups_per_step
        assert self.admission.room >= 0
        assert self.admission.started <= bound


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_short_batch_leaves_no_debt():
    admission = Admission(groups_per_step=4, max_staleness=0)
    admission.start(4)
    admission.replace()
    admission.publish()
    assert (admission.version, admission.started, admission.room) == (1, 4, 4)


@given(
    steps=st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), max_size=8),
    staleness=st.integers(0, 9),
)
def test_sampling_is_never_further_ahead_than_the_bound_and_never_by_less_than_one_step(
    steps: list[tuple[float, float, float, float]], staleness: int
):
    admission = Admission(groups_per_step=2, max_staleness=staleness)
    for sample_s, judge_s, train_s, publish_s in steps:
        admission.measured({"sample_s": sample_s, "judge_s": judge_s, "train_s": train_s, "publish_s": publish_s})
        assert min(1, staleness) <= admission.ahead <= staleness
    assert admission.room == 2 * (admission.ahead + 1)


@pytest.mark.parametrize(("made_s", "ahead"), [(0.0, 1), (6.6, 1), (6.7, 2), (13.4, 3), (26.8, 4), (1e9, 4)])
def test_sampling_is_as_far_ahead_as_the_times_of_the_phases_ask_for(made_s: float, ahead: int):
    admission = Admission(groups_per_step=1, max_staleness=4)
    assert admission.ahead == 4, "nothing is measured yet"
    took = {"sample_s": made_s / 2, "judge_s": made_s / 2, "train_s": 7.0, "publish_s": 3.0}
    for _ in range(5):
        admission.measured(took)
    admission.measured({**took, "train_s": 1e-9, "publish_s": 0.0})  # one odd step decides nothing
    assert admission.ahead == ahead


@pytest.mark.parametrize(("oldest", "fresh"), [(5, True), (4, True), (3, True), (2, False)])
def test_a_group_older_than_the_bound_is_stale(oldest: int, fresh: bool):
    admission = Admission(groups_per_step=1, max_staleness=2, version=4, started=5)
    assert admission.fresh(oldest, learning=5) is fresh


@given(count=st.integers(1, 9), seed=st.integers(0, 99), splits=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_tickets_draw_every_task_once_per_epoch_in_any_portions(count: int, seed: int, splits: list[int]):
    tasks = [make_task(f"t{index}") for index in range(count)]
    tickets = Tickets(tasks, seed=seed)
    taken = [ticket for split in splits for ticket in tickets.take(split)]
    assert [ticket.number for ticket in taken] == list(range(len(taken)))
    fresh = Tickets(tasks, seed=seed, next_number=len(taken) // 2)
    assert fresh.take(len(taken) - len(taken) // 2) == taken[len(taken) // 2 :]
    for epoch in range(len(taken) // count):
        drawn = {ticket.task.id for ticket in taken[epoch * count : (epoch + 1) * count]}
        assert len(drawn) == count


def test_requests_of_a_run_have_their_own_seeds():
    tickets = Tickets([make_task()], seed=3).take(50)
    seeds = [request.sampling.seed for ticket in tickets for request in ticket.requests(8, Sampling(), seed=3)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0


def decide_by_mean(group: ScoredGroup) -> Decision:
    values = [value for value in group.values if value is not None]
    if len(set(values)) == 1:
        return Decision("refill", "zero_variance")
    return Decision("keep", "")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), group_size=st.integers(2, 4), per_step=st.integers(1, 4), cap=st.sampled_from([0.0, 1.0, 3.0]))
def test_every_group_is_decided_once_and_batches_always_close(
    data: st.DataObject, group_size: int, per_step: int, cap: float
):
    assembler = Assembler(decide_by_mean, groups_per_step=per_step, min_scored=2, max_refill=cap)
    tickets = Tickets([make_task(f"t{index}") for index in range(5)], seed=0)
    batches: list[Batch] = []
    seen: list[int] = []
    outstanding: list[tuple[Ticket, int]] = []
    wanted = 3
    to_start = per_step * wanted
    for _ in range(10_000):
        if to_start:
            (ticket,) = tickets.take(1)
            assembler.open(ticket, group_size)
            outstanding += [(ticket, sample) for sample in range(group_size)]
            to_start -= 1
        if not outstanding:
            break
        index = data.draw(st.integers(0, len(outstanding) - 1))
        ticket, sample = outstanding.pop(index)
        value = data.draw(st.sampled_from([None, 0.0, 1.0]))
        rollout = make_rollout(ticket, sample)
        decision = assembler.add(rollout, Reward(rollout_id=rollout.id, value=value))
        if decision is not None and decision.action == "refill":
            to_start += 1
        while (batch := assembler.close()) is not None:
            batches.append(batch)
    assert len(batches) == wanted
    for batch in batches:
        assert sum(decision.action != "refill" for _, _, decision in batch.decisions) == per_step
        assert sum(decision.action == "refill" for _, _, decision in batch.decisions) <= int(cap * per_step)
        numbers = [ticket.number for ticket, _, _ in batch.decisions]
        assert numbers == sorted(numbers)
        seen += numbers
        for _, group in batch.groups:
            assert sum(value is not None for value in group.values) >= 2
            assert [rollout.id for rollout in group.rollouts] == sorted(rollout.id for rollout in group.rollouts)
    assert len(seen) == len(set(seen))


def test_too_few_scored_and_the_refill_limit_are_named():
    assembler = Assembler(decide_by_mean, groups_per_step=1, min_scored=2, max_refill=1.0)
    tickets = Tickets([make_task()], seed=0).take(3)
    for ticket, values in zip(tickets, ([None, 1.0], [1.0, 1.0], [1.0, 1.0]), strict=True):
        assembler.open(ticket, 2)
        rollouts = [make_rollout(ticket, sample) for sample in range(2)]
        assert assembler.add(rollouts[0], Reward(rollout_id=rollouts[0].id, value=values[0])) is None
        decision = assembler.add(rollouts[1], Reward(rollout_id=rollouts[1].id, value=values[1]))
        expected = [
            Decision("drop", TOO_FEW_SCORED),
            Decision("refill", "zero_variance"),
            Decision("drop", REFILL_LIMIT),
        ][ticket.number]
        assert decision == expected


def test_a_rollout_that_comes_twice_is_refused():
    assembler = Assembler(decide_by_mean, groups_per_step=1, min_scored=2, max_refill=0)
    (ticket,) = Tickets([make_task()], seed=0).take(1)
    assembler.open(ticket, 2)
    rollout = make_rollout(ticket, 0)
    assembler.add(rollout, Reward(rollout_id=rollout.id, value=1.0))
    with pytest.raises(ValueError, match="added before"):
        assembler.add(rollout, Reward(rollout_id=rollout.id, value=1.0))


def test_the_watchdog_names_the_most_downstream_stage_with_work_and_its_oldest_work():
    watchdog = Watchdog(limit_s=10.0)
    watchdog.begin("sample", "the engine", 0.0)
    answered = watchdog.begin("judge", "the verdict on rollout 'r1'", 1.0)
    watchdog.begin("judge", "the verdict on rollout 'r2'", 2.0)
    watchdog.begin("judge", "the verdict on rollout 'r3'", 4.0)
    watchdog.end("train", watchdog.begin("train", "the update of step 1", 1.0))
    watchdog.end("judge", answered)  # the stage has been busy since it came, but not with it
    assert watchdog.complaint(9.9) is None
    complaint = watchdog.complaint(12.0)
    assert complaint is not None
    assert "stage 'judge' is stuck in the verdict on rollout 'r2' for 10 s" in complaint
    watchdog.progress(12.0)
    assert watchdog.complaint(13.0) is None


def test_what_is_waited_for_is_told_after_ten_seconds_and_then_more_and_more_rarely():
    watchdog = Watchdog(limit_s=600.0)
    update = watchdog.begin("train", "the update of step 1", 0.5)
    told = {second: text for second in range(70) if (text := watchdog.waiting(float(second))) is not None}
    assert list(told) == [10, 20, 40]
    assert told[10] == "waiting for the update of step 1 (train, 10 s)"
    watchdog.end("train", update)
    watchdog.progress(70.0)
    watchdog.begin("sample", "the engine, 8 rollouts requested", 70.0)
    assert [second for second in range(70, 90) if watchdog.waiting(float(second)) is not None] == [80]


def test_judging_beside_sampling_is_hidden_and_judging_alone_is_not():
    overlap = Overlap(now=0.0)
    overlap.enter("sample", 0.0)
    overlap.enter("judge", 1.0)
    overlap.leave("sample", 4.0)
    overlap.leave("judge", 5.0)
    overlap.enter("train", 5.0)
    overlap.leave("train", 7.0)
    seconds = overlap.take(7.0)
    assert (seconds["sample_s"], seconds["judge_s"], seconds["train_s"]) == (4.0, 4.0, 2.0)
    assert seconds["judge_hidden"] == pytest.approx(0.75)
    assert overlap.take(8.0)["judge_s"] == 0.0


def test_what_prompt_and_answer_say_is_no_part_of_the_template():
    task = Task(
        id="t", messages=(Message(role="user", content="print {reference}"),), reference='f"{prompt}" {reference}'
    )
    shown = conditioned(task, "{prompt}\nThe answer is {reference}. Why?").messages[-1].content
    assert shown == 'print {reference}\nThe answer is f"{prompt}" {reference}. Why?'
