"""verl 0.9.1 and OpenRLHF 0.11.2 by their recorded call shapes, and verifiers 0.4.0 itself.

The shapes stand in the installed packages of those versions: verl in `verl/experimental/reward_loop/reward_manager/`
(`naive.py`, `base.py`), `verl/experimental/reward_loop/reward_loop.py` and `verl/trainer/ppo/reward.py`; OpenRLHF in
`openrlhf/utils/agent.py` and `openrlhf/trainer/ppo_utils/samples_generator.py`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeArgument=false

import asyncio
import inspect
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from assay.adapters import openrlhf, verl
from assay.errors import ConfigError, JudgingError

MINE = """
from assay import Verdict

def judge(task, rollout):
    if rollout.text == "no tool":
        return Verdict.abstain("a tool is missing", fault="ours")
    if not rollout.text:
        return Verdict.abstain("empty")
    if task.facts.get("num_turns") == 3:
        return Verdict.abstain("too many turns")
    return Verdict.score(float(rollout.text == task.reference))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return f"{tmp_path}/mine.py:judge"


class Data:
    """The part of verl's `DataProto` that its reward managers use: slices, items, two kinds of columns."""

    def __init__(self, batch: dict[str, torch.Tensor], columns: dict[str, Any]) -> None:
        self.batch, self.non_tensor_batch = batch, columns

    def __getitem__(self, which: int | slice) -> "Data":
        return Data(
            {name: tensor[which] for name, tensor in self.batch.items()},
            {name: column[which] for name, column in self.non_tensor_batch.items()},
        )


class Letters:
    """A tokenizer whose ids are letters."""

    def decode(self, ids: torch.Tensor, *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(int(token)) for token in ids)


def as_verl_calls(function: Any, **reward_kwargs: Any) -> Any:
    """The function with the keyword arguments that verl merges in."""

    def call_with(raw: Any, extra: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return raw(*args, **{**kwargs, **extra})

    assert not inspect.iscoroutinefunction(function)
    return partial(call_with, function, reward_kwargs)


def test_verl_compute_score_gives_a_number_and_equal_keys(mine: str):
    function = as_verl_calls(verl.reward(mine, masked=-1.0))

    async def manager() -> list[dict[str, float]]:
        """Several responses at once, each in a thread of the loop's executor, as the naive manager does."""
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(
                None,
                lambda text=text: function(
                    data_source="sums",
                    solution_str=text,
                    ground_truth="4",
                    extra_info={"question": "2 + 2?", "index": 3, "num_turns": None, "rollout_reward_scores": {}},
                ),
            )
            for text in ("4", "5", "", "no tool")
        ]
        return [await call for call in calls]

    results = asyncio.run(manager())
    assert [result["score"] for result in results] == [1.0, 0.0, 0.0, -1.0]
    assert [result["masked"] for result in results] == [0.0, 0.0, 0.0, 1.0]
    assert [result["declared"] for result in results] == [0.0, 0.0, 1.0, 0.0]
    assert len({tuple(result) for result in results}) == 1
    assert all(np.array([result[key] for result in results]).dtype == float for key in results[0])
    assert results[3]["judge/abstained"] == 1.0


def test_verl_gets_an_error_instead_of_a_made_up_number(mine: str):
    with pytest.raises(JudgingError, match=r"a tool is missing\. The trainer knows no missing reward.*masked="):
        verl.reward(mine)("sums", "no tool", "4", {})


def test_verl_compute_score_takes_the_rewards_as_reward_kwargs():
    function = as_verl_calls(verl.compute_score, rewards=["math", {"use": "length", "weight": 0.5}])
    for _ in range(2):
        result = function(data_source="x", solution_str=r"\boxed{4}", ground_truth="4", extra_info={})
        assert result["score"] == 1.5
    with pytest.raises(ConfigError, match=r"verl\.compute_score.*no reward source named 'mth'"):
        as_verl_calls(verl.compute_score, rewards=["mth"])(
            data_source="x", solution_str="4", ground_truth="4", extra_info={}
        )
    with pytest.raises(ConfigError, match=r"rewards is one text; write rewards=\['math'\]"):
        as_verl_calls(verl.compute_score, rewards="math")(data_source="x", solution_str="4", ground_truth="4")


def test_verl_reward_manager_judges_the_last_sequence(mine: str):
    manager_class = verl.reward_manager({"use": "python", "path": mine, "when": {"tag": "sums"}})
    custom: dict[str, Any] = {"path": None}
    config = SimpleNamespace(reward={"custom_reward_function": custom})
    manager = manager_class(config, Letters(), lambda: None, reward_router_address=None, reward_model_tokenizer=None)
    responses = torch.tensor([[ord("9"), 0, 0], [ord("4"), ord("2"), 0]])
    data = Data(
        {
            "prompts": torch.zeros(2, 2, dtype=torch.long),
            "responses": responses,
            "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 0]]),
        },
        {
            "data_source": np.array(["sums", "sums"], dtype=object),
            "reward_model": np.array([{"ground_truth": "9"}, {"ground_truth": "42"}], dtype=object),
            "extra_info": np.array([{"index": 0}, {"index": 1}], dtype=object),
        },
    )
    answer = asyncio.run(manager.run_single(data))
    assert answer["reward_score"] == 1.0
    assert answer["reward_extra_info"]["judge/scored"] == 1.0
    data.non_tensor_batch["__num_turns__"] = np.array([1, 3], dtype=np.int32)
    asked_again = asyncio.run(manager.run_single(data))["reward_extra_info"]
    assert (asked_again["judge/abstained"], asked_again["declared"]) == (1.0, 1.0)
    scores = manager_class.assemble_rm_scores(data, [0.5, 0.25])
    assert scores.dtype == torch.float32
    assert scores.tolist() == [[0.5, 0.0, 0.0], [0.0, 0.25, 0.0]]
    custom["path"] = "other.py"
    with pytest.raises(ConfigError, match="custom_reward_function is set as well"):
        manager_class(config, Letters(), lambda: None)


def test_openrlhf_reward_func_reads_the_response_behind_the_prompt(mine: str):
    function = openrlhf.reward(mine, masked=0.0)
    prompt = "<|im_start|>user\nWhat is 2 + 2? The answer is 5.<|im_end|>\n<|im_start|>assistant\n"
    queries = [f"{prompt}4<|im_end|>\n", f"<s>{prompt}5</s>", f"{prompt[20:]}no tool", f"{prompt}<|im_end|>"]
    info = asyncio.run(asyncio.to_thread(function, queries, [prompt] * 4, ["4"] * 4))
    assert info["rewards"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert info["scores"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert info["extra_logs"]["masked"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert info["extra_logs"]["declared"].tolist() == [0.0, 0.0, 0.0, 1.0]
    single = function(queries[:1], [prompt], ["4"])
    assert torch.tensor([single["rewards"]]).tolist() == [1.0]  # how the sample generator reads it
    assert [value.flatten()[0].item() for value in single["extra_logs"].values()] == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_openrlhf_mistakes_are_errors(mine: str):
    function = openrlhf.reward(mine)
    with pytest.raises(JudgingError, match=r"a tool is missing.*masked="):
        function(["a prompt: no tool"], ["a prompt: "], ["4"])
    with pytest.raises(ConfigError, match="a query does not begin with its prompt"):
        function(["something else"], ["a prompt: "], ["4"])
    with pytest.raises(ConfigError, match="2 queries, 1 prompts and 1 labels"):
        function(["a", "b"], ["a"], ["4"])

    with pytest.raises(ConfigError, match="0 queries, 0 prompts and 0 labels"):
        function([], [], [])


@pytest.mark.parametrize("make", [openrlhf.reward, verl.reward, verl.reward_manager])
def test_what_a_host_hands_over_is_checked_before_anything_is_judged(make: Any):
    for masked in (float("nan"), float("inf"), "0", True):
        with pytest.raises(ConfigError, match="masked= is the number that such an answer gets, and finite; found"):
            make("math", masked=masked)
    with pytest.raises(ConfigError, match=r"workers: input should be greater than or equal to 1; found 0"):
        make("math", workers=0)
    with pytest.raises(ConfigError, match=r"timeout_s: input should be greater than 0; found -1"):
        make("math", timeout_s=-1)
    with pytest.raises(ConfigError, match=r"rewards\[0\]: expected a name as after -r, or a table with 'use'; found 5"):
        make(5)


def test_verifiers_scores_its_own_traces_with_assay(tmp_path: Path, mine: str):
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import AgentConfig

    from assay.adapters import verifiers

    class Sum(vf.TaskData):
        answer: str

    math = verifiers.reward("math")
    mine_too = verifiers.reward(mine, reference="answer")

    class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
        @vf.reward(weight=2.0)
        async def right(self, trace: Any) -> float:
            return await math(self.data, trace)

        @vf.reward
        async def exact(self, task: Any, trace: Any) -> float:
            return await mine_too(task, trace)

    def trace_of(task: Any, text: str) -> Any:
        nodes = [
            vf.MessageNode(message=vf.UserMessage(content=str(task.data.prompt))),
            vf.MessageNode(parent=0, message=vf.AssistantMessage(content=text), sampled=True),
        ]
        return vf.Trace(
            task=vf.TraceTask(type="SumTask", data=task.data), agent=vf.AgentInfo(config=AgentConfig()), nodes=nodes
        )

    task = SumTask(Sum.model_validate({"prompt": "2 + 2?", "system_prompt": "Answer briefly.", "answer": "4"}))
    right, masked = trace_of(task, "4"), trace_of(task, "no tool")
    asyncio.run(task.score(right))
    assert {name: reward.value for name, reward in right.rewards.items()} == {"right": 2.0, "exact": 1.0}
    with pytest.raises(vf.TaskError, match="no reward for this trace: judge: a tool is missing"):
        asyncio.run(task.score(masked))
    assert masked.rewards == {"right": None, "exact": None}

    (tmp_path / "rewards.py").write_text(
        'from assay.adapters import verifiers\nboxed = verifiers.reward("math", {"use": "length", "weight": 0.5})\n',
        encoding="utf-8",
    )
    config = vf.TaskConfig.model_validate({"rewards": {"boxed": {"fn": f"{tmp_path}/rewards.py:boxed", "weight": 3.0}}})
    plugged = vf.Task[Sum, vf.State, vf.TaskConfig](task.data, config)
    trace = trace_of(task, r"So \boxed{4}")
    asyncio.run(plugged.score(trace))
    assert trace.rewards["boxed"].value == 4.5
    with pytest.raises(ConfigError, match="the task has no field 'gold'; it has answer"):
        asyncio.run(verifiers.reward("math", reference="gold")(task.data, trace))
