"""Sources in worker processes that run programs: they borrow the run's sandbox, and a killed worker gives it back."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement, Task
from assay.errors import ConfigError, SandboxError
from assay.judging import open_panel
from assay.judging.lending import OpenSandbox, SandboxHost, open_lent
from assay.protocols import ProgramSandbox, Sandbox
from assay.testing.fakes import make_group, make_task, registry_of
from assay_sandboxes.sandbox import JailedSandbox

pytestmark = pytest.mark.long

SOURCES = '''
"""Sources that run programs, in worker processes."""
from assay import Component, Limits, Options, Verdict, hookimpl
from assay.contracts.sandbox import Job, JobLimits
from assay.errors import ConfigError
from assay_code.verify import CodeOptions, build

class Runs:
    """1 where the answer, as a program, prints 42; waits for it as long as it takes."""
    limits = Limits(timeout_s=6.0, deterministic=False)
    def __init__(self, sandbox):
        self.sandbox = sandbox
    async def judge(self, batch):
        limits = JobLimits(wall_s=300, cpu_s=300)
        results = [await self.sandbox.run(Job(source=c.rollout.text, limits=limits)) for c in batch]
        return [Verdict.score(float(r.stdout == "42\\n"), evidence=r.tier) for r in results]
    async def aclose(self): pass

def runs(options, context):
    if context.open_sandbox is None:
        raise ConfigError("runs: no sandbox")
    return Runs(context.open_sandbox(None, {}))

@hookimpl
def assay_reward_sources():
    """Offer them; `code` once in a worker and once where the built-in one runs."""
    return [
        Component("runs", Options, runs, isolation="process"),
        Component("code-in-worker", CodeOptions, build, isolation="process"),
        Component("code-inline", CodeOptions, build, isolation="inline"),
    ]
'''
CASES = [{"args": [2], "expect": 4}, {"args": [5], "expect": 25}]
SQUARES = make_task(facts={"tests": {"kind": "call", "fn": "square", "cases": CASES}})
ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
LENIENT = JudgingConfig(workers=2, on_unhealthy="mask", stop_if_failed_above=1.0)
HONEST = "```python\ndef square(x):\n    return x * x\n```"
WRONG = "```python\ndef square(x):\n    return 2 * x\n```"
FORKS = "```python\nimport os\ndef square(x):\n    os.fork()\n    return x * x\n```"


class Lent:
    """A sandbox that its borrower cannot close."""

    def __init__(self, inner: JailedSandbox) -> None:
        self.guarantees = inner.guarantees
        self.require = inner.require
        self.run = inner.run
        self.run_each = inner.run_each
        self.run_pair = inner.run_pair

    async def aclose(self) -> None:
        return


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module with the sources above."""
    name = f"lending_sources_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCES, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def judge(
    module: str, name: str, task: Task, texts: Sequence[str], open_sandbox: OpenSandbox | None
) -> list[Judgement]:
    """What the source says of each text, in order."""
    seen: list[Judgement] = []

    async def run() -> None:
        async with open_panel(
            ENTRIES.validate_python([{"use": name}]),
            registry=registry_of(module),
            judging=LENIENT,
            context=BuildContext(open_sandbox=open_sandbox),
            observe=lambda _, judgement: seen.append(judgement),
        ) as panel:
            await panel.judge_group(task, make_group(texts))

    asyncio.run(run())
    return sorted(seen, key=lambda judgement: judgement.rollout_id)


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, open_tier: Callable[..., JailedSandbox]) -> Lent:
    """A tier that works here."""
    return Lent(open_tier(request.param))


def test_code_in_a_worker_says_what_it_says_in_the_run(module: str, sandbox: Lent) -> None:
    texts = [HONEST, WRONG, FORKS, "no program"]
    opened: list[tuple[str | None, dict[str, Any]]] = []

    def open_sandbox(name: str | None, options: dict[str, Any]) -> Sandbox:
        opened.append((name, options))
        return sandbox

    found = judge(module, "code-in-worker", SQUARES, texts, open_sandbox)
    assert opened == [(None, {})]  # once for all workers
    assert [judgement.value for judgement in found] == [1.0, 0.0, found[2].value, None], found
    assert found[0].verdict.evidence[0].data["verdict"] == "pass"  # pyright: ignore[reportOptionalSubscript, reportCallIssue, reportArgumentType, reportIndexIssue]
    inline = judge(module, "code-inline", SQUARES, texts, open_sandbox)
    assert [(j.status, j.value, j.reason) for j in found] == [(j.status, j.value, j.reason) for j in inline]


def test_a_killed_worker_gives_the_sandbox_back(module: str, sandbox: Lent) -> None:
    started = time.monotonic()
    texts = ["import time; time.sleep(1000)"] * 4 + ["print(42)"] * 4
    found = judge(module, "runs", make_task(), texts, lambda name, options: sandbox)
    assert [judgement.value for judgement in found] == [None] * 4 + [1.0] * 4
    assert {judgement.reason for judgement in found[:4]} == {"timed out after 6 s"}
    assert time.monotonic() - started < 200  # each of the four would run for 300 s if its worker's end were missed


def test_a_sandbox_that_does_not_work_is_told_where_the_source_is_built(module: str) -> None:
    def broken(name: str | None, options: dict[str, Any]) -> Sandbox:
        raise SandboxError("sandbox: none works on this machine")

    with pytest.raises(ConfigError, match=r"'runs' cannot be built: SandboxError: sandbox: none works on this machine"):
        judge(module, "runs", make_task(), ["print(42)"], broken)
    with pytest.raises(ConfigError, match="runs: no sandbox"):
        judge(module, "runs", make_task(), ["print(42)"], None)


def test_only_who_has_the_token_is_answered(sandbox: Lent) -> None:
    host = SandboxHost(lambda name, options: sandbox)
    try:
        lent = open_lent(host.address, None, {})
        assert isinstance(lent, ProgramSandbox)
        assert lent.guarantees == sandbox.guarantees
        assert set(lent.require(["python"])) == {"python"}
        with pytest.raises(SandboxError, match="no language named 'klingon'"):
            lent.require(["klingon"])
        name, _, token = host.address.partition(":")
        with pytest.raises(SandboxError, match="hung up"):
            open_lent(f"{name}:{token[:-1]}?", None, {})
    finally:
        host.close()
    with pytest.raises(SandboxError, match="which keeps it, cannot be reached from here: "):
        open_lent(host.address, None, {})
