"""Long responses are judged in a worker and get the verdict that they would get in place."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

import assay_rules
from assay import BuildContext, JudgingError, Verdict
from assay.contracts import ResourceLimits
from assay.judging.workers import WorkerPool
from assay.registry import component_from
from assay.testing import judge_text, read_cases
from assay.testing.cases import candidate
from assay_rules.source import IN_PLACE_CHARACTERS, MAX_CHARACTERS, WORKER

CASES = sorted(Path(assay_rules.__file__).parent.glob("cases/*.jsonl"))
INLINE = [
    path.stem for path in CASES if component_from("assay_rules", "reward_source", path.stem).isolation == "inline"
]


class Recording:
    """A pool that counts its calls, and answers by another one or with a given end."""

    def __init__(self, pool: WorkerPool | None = None, status: str = "ok") -> None:
        self.pool, self.status, self.detail, self.value, self.output = pool, status, "in detail", None, ""
        self.calls: list[str] = []

    async def call(self, target: str, payload: JsonValue, *, limits: ResourceLimits) -> Any:
        self.calls.append(target)
        return await self.pool.call(target, payload, limits=limits) if self.pool is not None else self


def verdicts(name: str, workers: Any, texts: Sequence[str], **task: Any) -> list[Verdict]:
    component = component_from("assay_rules", "reward_source", name)
    source = component.build(component.config(**task.pop("options", {})), BuildContext(workers=workers))
    case = read_cases(next(path for path in CASES if path.stem == name))[0].model_copy(update=task)
    return list(asyncio.run(source.judge([candidate(case.task, text) for text in texts])))  # pyright: ignore[reportArgumentType]  # a coroutine


def test_a_worker_gives_the_verdict_that_would_be_given_in_place() -> None:
    asked: list[str] = []
    pool = WorkerPool(1)
    try:
        for name in INLINE:
            case = next(case for path in CASES if path.stem == name for case in read_cases(path) if case.text.strip())
            text = case.text + " and so on" * (IN_PLACE_CHARACTERS // 9) + "\n" + case.text
            recording = Recording(pool)
            settings: dict[str, Any] = {"reference": case.reference, "facts": case.facts, "prompt": case.prompt}
            there = judge_text(
                component_from("assay_rules", "reward_source", name),
                text,
                options=case.options,
                context=BuildContext(workers=recording),
                **settings,
            )
            here = judge_text(
                component_from("assay_rules", "reward_source", name), text, options=case.options, **settings
            )
            assert there == here, name
            asked += [name] * (recording.calls == [WORKER])
    finally:
        pool.close()
    assert asked == INLINE


def test_short_and_endless_responses_never_leave_the_loop() -> None:
    recording = Recording()
    endless = "x" * (MAX_CHARACTERS + 1)
    found = verdicts("exact", recording, ["blue", " " * 10, endless])
    assert [verdict.reason for verdict in found] == [None, "empty_response", "response_too_long"]
    assert not recording.calls


@pytest.mark.parametrize("status", ["timed_out", "out_of_memory", "killed"])
def test_what_a_worker_cannot_end_is_an_abstention_in_its_place(status: str) -> None:
    recording = Recording(status=status)
    first, long, last = verdicts("length", recording, ["a b", "word " * 20_000, "c d"])
    assert (first.status, last.status) == ("scored", "scored")
    assert (long.status, long.reason, long.fault) == ("abstained", "limit", "candidate")
    assert long.evidence[0].summary == f"{status}: in detail"


def test_what_a_worker_raises_is_raised() -> None:
    with pytest.raises(JudgingError, match="length: in detail"):
        verdicts("length", Recording(status="raised"), ["word " * 20_000])


def test_the_one_rule_that_is_not_linear_leaves_the_loop_earlier() -> None:
    recording = Recording(status="killed")
    assert verdicts("edit-distance", recording, ["x" * 4_096])[0].status == "scored"
    assert verdicts("edit-distance", recording, ["x" * 4_097])[0].reason == "limit"
