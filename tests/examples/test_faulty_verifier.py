"""The example of a faulty verifier: what assay makes of each fault, and the whole demonstration beside TRL."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import TypeAdapter

from assay.component import BuildContext
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Judgement
from assay.judging import open_panel
from assay.registry import Registry
from assay.testing.fakes import make_group, make_task

FOLDER = Path(__file__).parents[2] / "examples" / "faulty-verifier"
ENTRIES = TypeAdapter(tuple[RewardEntry, ...])
REASONS = {
    "hang": "timed out after ",
    "crash": "its process exited with code 3 instead of answering",
    "raise": "ValueError: the verifier has a bug",
    "nan": "finite number",
    "huge": "its value 1000000000.0 is outside the declared range [0, 1]",
}
TEXTS = [f"{index} and {index * index}" for index in range(16)]


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's verifier as a module, healthy."""
    monkeypatch.delenv("FAULT", raising=False)
    spec = importlib.util.spec_from_file_location("faulty_example", FOLDER / "verifier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fault", REASONS)
def test_a_fault_costs_the_answers_that_bring_it_out_and_no_other(
    fault: str, verifier: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = {text: verifier.reward_of(text) for text in TEXTS}
    monkeypatch.setenv("FAULT", fault)
    bad = {text for text in TEXTS if brings_out(text)}
    assert 0 < len(bad) < len(TEXTS)
    judgements: dict[str, Judgement] = {}

    async def run() -> list[float | None]:
        async with open_panel(
            ENTRIES.validate_python([{"use": "python", "path": "verifier.py:score"}]),
            registry=Registry.load(),
            judging=JudgingConfig(timeout_s=5.0, workers=2, stop_if_failed_above=1.0),
            context=BuildContext(base_dir=FOLDER),
            observe=lambda candidate, judgement: judgements.update({candidate.rollout.text: judgement}),
        ) as panel:
            return [reward.value for reward in await panel.judge_group(make_task(), make_group(TEXTS))]

    values = asyncio.run(run())
    assert values == [None if text in bad else healthy[text] for text in TEXTS]
    assert {text for text, judgement in judgements.items() if judgement.status == "failed"} == bad
    assert all(REASONS[fault] in (judgements[text].reason or "") for text in bad)


def brings_out(text: str) -> bool:
    """Whether the verifier is faulty on this text, by the words of its page: on about a quarter, by a checksum."""
    import zlib

    return zlib.crc32(text.encode()) % 4 == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demonstration_shows_what_each_trainer_made_of_it() -> None:
    pytest.importorskip("trl", reason="the demonstration needs trl")
    command = [sys.executable, "side_by_side.py", "--limit-s", "60"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, str]] = {}
    fault = ""
    for line in done.stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            fault = line[:-1]
            told[fault] = {}
        else:
            arm, _, text = line.strip().partition(" ")
            told[fault][arm] = text.strip()
    assert list(told) == ["none", *REASONS]
    for fault, arms in told.items():
        assert arms["assay"].startswith("trained; reward "), (fault, arms)
        if fault != "none" and ", 0 masked" not in arms["assay"]:
            assert REASONS[fault] in arms["assay"], (fault, arms)
    assert sum(", 0 masked" not in arms["assay"] for arms in told.values()) >= 4
    assert told["none"]["TRL"].startswith("trained; reward ")
    assert told["hang"]["TRL"].startswith("still in its first step after ")
    assert told["crash"]["TRL"] == "the training process ended with status 3"
    assert "ValueError: the verifier has a bug" in told["raise"]["TRL"]
    assert told["nan"]["TRL"].startswith("trained; reward ")
