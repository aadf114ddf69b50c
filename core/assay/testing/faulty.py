"""A reward source that does whatever the answer's text tells it to do wrong, for tests and demonstrations.

`fault:NAME` anywhere in the text chooses a fault of `FAULTS`; any other text is scored by its length's parity, so that
healthy verdicts can be compared between runs. The components are `faulty` (in a worker process), `faulty-inline` (in
the run's process; only the faults that do not end it) and `faulty-batch` (inline, in batches of eight).
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from assay.component import BuildContext, Component, Options
from assay.contracts import Candidate, Evidence, Limits, Rollout, Task, Verdict
from assay.errors import TransientError
from assay.hookspecs import hookimpl
from assay.protocols import RewardSource


def _busy() -> None:
    while True:
        pass


def _integer_power() -> None:
    len(str(10 ** (10**9)))


def _swallow() -> None:
    while True:
        try:
            time.sleep(1000)
        except BaseException:  # noqa: S112 # the fault itself
            continue


def _blocked_read() -> None:
    read, _ = os.pipe()
    os.read(read, 1)


def _grow() -> None:
    kept: list[bytearray] = []
    while True:
        kept.append(bytearray(1 << 20))


def _print_much() -> None:
    for _ in range(100):
        sys.stdout.write("x" * (1 << 20))


def _grandchildren(*, wait: bool) -> None:
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
    if wait:
        time.sleep(1000)


def _raise(error: BaseException) -> None:
    raise error


def _transient() -> None:
    raise TransientError("the judge is busy")


FAULTS: dict[str, Callable[[], object]] = {
    "busy": _busy,
    "power": _integer_power,
    "swallow": _swallow,
    "sleep": lambda: time.sleep(1000),
    "read": _blocked_read,
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "allocate": lambda: bytearray(4 << 30),
    "grow": _grow,
    "print": _print_much,
    "fork": lambda: _grandchildren(wait=True),
    "leave": lambda: _grandchildren(wait=False),
    "raise": lambda: _raise(ValueError("a verifier's bug")),
    "base": lambda: _raise(BaseException("not even an Exception")),
    "systemexit": lambda: sys.exit(0),
    "transient": _transient,
}
"""Name to what the source does instead of answering."""

ANSWERS: dict[str, Callable[[], object]] = {
    "nan": lambda: Verdict.model_construct(status="scored", value=float("nan"), evidence=(), steps=()),
    "inf": lambda: Verdict.model_construct(status="scored", value=float("inf"), evidence=(), steps=()),
    "outside": lambda: Verdict.score(7.0),
    "string": lambda: "1.0",
    "none": lambda: None,
    "number": lambda: 1.0,
    "failed": lambda: Verdict(status="failed", reason="I say so", fault="ours"),
    "million": lambda: Verdict.score(1.0, evidence=" " * 50_000_000),
    "fields": lambda: Verdict.score(1.0, evidence=Evidence(summary="x", data={str(n): n for n in range(10**6)})),
    "abstain": lambda: Verdict.abstain("no answer"),
    "ours": lambda: Verdict.abstain("the gold is unreadable", fault="ours"),
}
"""Name to what the source returns instead of a proper verdict."""


def healthy(text: str) -> Verdict:
    """The verdict on a text that asks for no fault."""
    return Verdict.score(float(len(text) % 2), evidence=f"{len(text)} characters")


def verdict_of(text: str) -> Verdict:
    """What the source does with a text: the fault it names, or the healthy verdict."""
    name = text.partition("fault:")[2].partition(" ")[0]
    if name == "swap":
        return healthy(text)
    if name in ANSWERS:
        return cast("Verdict", ANSWERS[name]())
    if name:
        FAULTS[name]()
    return healthy(text)


class FaultyOptions(Options):
    """How the faulty source behaves when it is healthy."""

    cost_s: float = 0.0
    """CPU seconds of every verdict."""
    timeout_s: float = 1.0
    """Wall time of one candidate."""
    memory_mib: int = 256
    """Memory of one candidate."""
    retries: int = 0
    """Further attempts after a transient error."""
    limit_fault: str = "ours"
    """Whose doing a timeout is."""
    deterministic: bool = True
    """Whether its verdicts are cached."""


class FaultySource:
    """Judges one candidate after the other by `verdict_of`."""

    def __init__(self, options: FaultyOptions, *, max_batch: int = 1) -> None:
        """Behave as `options` say."""
        self.options = options
        self.judged = 0
        self.limits = Limits.model_validate(
            {
                "timeout_s": options.timeout_s,
                "memory_mib": options.memory_mib,
                "retries": options.retries,
                "limit_fault": options.limit_fault,
                "deterministic": options.deterministic,
                "max_batch": max_batch,
            }
        )

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate; `fault:short`, `fault:hang` and `fault:swap` spoil the whole batch."""
        self.judged += len(batch)
        texts = [candidate.rollout.text for candidate in batch]
        if any("fault:hang" in text for text in texts):
            await asyncio.sleep(1000)
        if any("fault:short" in text for text in texts):
            return [healthy(text) for text in texts[1:]]
        _spin(self.options.cost_s * len(batch))
        verdicts = [verdict_of(text) for text in texts]
        return verdicts[::-1] if any("fault:swap" in text for text in texts) else verdicts

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def check_task(self, task: Task) -> str | None:
        """A sentence where the task's reference is the text `unreadable`."""
        return "the gold cannot be read" if task.reference == "unreadable" else None


def judge_rollout(_task: Task, rollout: Rollout) -> Verdict:
    """`verdict_of` as a plain verifier function, for `use = "python"`."""
    return verdict_of(rollout.text)


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """The faulty sources."""

    def build(options: FaultyOptions, _context: BuildContext) -> RewardSource:
        return FaultySource(options)

    def build_batch(options: FaultyOptions, _context: BuildContext) -> RewardSource:
        return FaultySource(options, max_batch=8)

    return [
        Component("faulty", FaultyOptions, build, isolation="process"),
        Component("faulty-inline", FaultyOptions, build, isolation="inline"),
        Component("faulty-batch", FaultyOptions, build_batch, isolation="inline"),
    ]


def _spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
