"""The worker's side of a reward source: built again from names and options, judges one candidate per call."""

import asyncio
from pathlib import Path
from typing import Any

from assay.component import BuildContext
from assay.contracts import Candidate, Task
from assay.judging.answers import checked_batch, checked_verdict
from assay.judging.worker import Program
from assay.protocols import RewardSource
from assay.registry import component_from

TARGET = "assay.judging.rebuild:source_program"


def source_program(init: dict[str, Any]) -> Program:
    """The program of a reward source; its facts are the source's limits and whether it can check golds.

    `init` has the keys module, name, options, base_dir, cache_dir, seed, device.
    """
    component = component_from(init["module"], "reward_source", init["name"])
    options = component.config.model_validate(init["options"])
    context = BuildContext(
        seed=init["seed"],
        device=init["device"],
        base_dir=Path(init["base_dir"]),
        cache_dir=Path(init["cache_dir"]),
    )
    source: RewardSource = component.build(options, context)
    check = getattr(source, "check_task", None)
    judge = _Judge(source)

    def run(payload: bytes) -> bytes:
        if payload[:1] == b"?":
            return _checked(check, payload[1:])
        return judge(payload)

    return Program(run, {"limits": source.limits.model_dump(mode="json"), "checks_tasks": check is not None})


class _Judge:
    """Runs the source's coroutine in a loop that is made after the fork and kept."""

    def __init__(self, source: RewardSource) -> None:
        self.source = source
        self.runner: asyncio.Runner | None = None

    def __call__(self, payload: bytes) -> bytes:
        candidate = Candidate.model_validate_json(payload)
        self.runner = self.runner or asyncio.Runner()
        answer = self.runner.get_loop().run_until_complete(self.source.judge([candidate]))
        verdict = checked_verdict(checked_batch(answer, 1)[0])
        return verdict.model_dump_json().encode()


def _checked(check: Any, payload: bytes) -> bytes:
    complaint = check(Task.model_validate_json(payload))
    return b"" if complaint is None else str(complaint).encode()
