"""Tasks and reward functions of verifiers 0.4.0, the real package, as a source."""

# pyright: reportMissingTypeStubs=false

from pathlib import Path

import pytest

from assay import BuildContext, ConfigError
from assay.registry import component_from
from assay.testing import judge_text

pytest.importorskip("verifiers.v1", reason="the package verifiers is not installed")

TASKS = """
import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str
    level: int = 1


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, task, trace) -> float:
        return float(len(trace.last_reply) < 4)


class Broken(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        raise RuntimeError("the grader is down")


class Unscored(vf.Task[Sum, vf.State, vf.TaskConfig]):
    pass


async def level(task, trace) -> float:
    return 0.5 * len(trace.last_reply)


class Unrelated:
    pass
"""


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    return BuildContext(base_dir=tmp_path)


RUBRIC = component_from("assay_bridge", "reward_source", "verifiers-rubric")


def test_all_rewards_of_a_task_class_count_by_their_weights(context: BuildContext):
    options = {"path": "tasks.py:SumTask"}
    verdict = judge_text(RUBRIC, "4", prompt="2 + 2?", reference="4", options=options, context=context)
    assert verdict.value == 1.0
    assert verdict.evidence[0].data == {"right": 0.75, "short": 0.25}
    assert judge_text(RUBRIC, "five", prompt="2 + 2?", reference="4", options=options, context=context).value == 0.0


def test_a_function_of_a_trace_judges_alone(context: BuildContext):
    verdict = judge_text(RUBRIC, "4", prompt="2 + 2?", options={"path": "tasks.py:level"}, context=context)
    assert verdict.value == 0.5


def test_a_task_that_does_not_fit_is_masked_and_a_broken_grader_raises(context: BuildContext):
    unfit = judge_text(RUBRIC, "4", options={"path": "tasks.py:SumTask"}, context=context)
    assert (unfit.status, unfit.fault) == ("abstained", "ours")
    assert "does not fit Sum: answer" in str(unfit.reason)
    with pytest.raises(Exception, match="the grader is down"):
        judge_text(RUBRIC, "4", reference="4", options={"path": "tasks.py:Broken"}, context=context)
    with pytest.raises(ValueError, match="left every reward unscored"):
        judge_text(RUBRIC, "4", reference="4", options={"path": "tasks.py:Unscored"}, context=context)
    with pytest.raises(ConfigError, match=r"Unrelated is no verifiers\.v1\.Task"):
        RUBRIC.build(RUBRIC.config(path="tasks.py:Unrelated"), context)
