"""The worker's side of a reward source: built again from names, judges one candidate or group per call."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from assay.component import BuildContext
from assay.contracts import Candidate, Task, Verdict
from assay.judging.answers import checked_batch, checked_verdict
from assay.judging.lending import open_lent
from assay.judging.worker import Program
from assay.protocols import RewardSource
from assay.registry import component_from

_CANDIDATES = TypeAdapter(list[Candidate])
_VERDICTS = TypeAdapter(list[Verdict])
CHECK = b"?"
"""In front of a task whose gold is to be checked, instead of candidates to be judged."""
TARGET = "assay.judging.rebuild:source_program"


def source_program(init: dict[str, Any]) -> Program:
    """The program of a reward source; its facts are its limits, its fingerprint and whether it can check golds.

    `init` has the keys module, name, options, base_dir, cache_dir, seed, device, and sandboxes: where the run lends
    its sandboxes, or None.
    """
    component = component_from(init["module"], "reward_source", init["name"])
    options = component.config.model_validate(init["options"])
    context = BuildContext(
        seed=init["seed"],
        device=init["device"],
        base_dir=Path(init["base_dir"]),
        cache_dir=Path(init["cache_dir"]),
        open_sandbox=None if init["sandboxes"] is None else partial(open_lent, init["sandboxes"]),
    )
    source: RewardSource = component.build(options, context)
    check = getattr(source, "check_task", None)
    judge = _Judge(source)

    def run(payload: bytes) -> bytes:
        if payload[:1] == CHECK:
            return _checked(check, payload[1:])
        return judge(payload)

    facts = {
        "limits": source.limits.model_dump(mode="json"),
        "checks_tasks": check is not None,
        "fingerprint": str(getattr(source, "fingerprint", "")),
    }
    return Program(run, facts)


class _Judge:
    """Runs the source's coroutine in a loop that is made after the fork and kept."""

    def __init__(self, source: RewardSource) -> None:
        self.source = source
        self.runner: asyncio.Runner | None = None

    def __call__(self, payload: bytes) -> bytes:
        candidates = _CANDIDATES.validate_json(payload)
        self.runner = self.runner or asyncio.Runner()
        answer = self.runner.get_loop().run_until_complete(self.source.judge(candidates))
        verdicts = [checked_verdict(found) for found in checked_batch(answer, len(candidates))]
        return _VERDICTS.dump_json(verdicts)


def _checked(check: Any, payload: bytes) -> bytes:
    complaint = check(Task.model_validate_json(payload))
    return b"" if complaint is None else str(complaint).encode()
