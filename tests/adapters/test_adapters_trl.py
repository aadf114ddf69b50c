"""TRL 1.16: the reward functions by themselves, and inside a real `GRPOTrainer` on a tiny model."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# TRL and datasets have no stubs.

import asyncio
import os
import pickle  # noqa: TID251 # trainers hand reward functions to other processes this way
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.adapters import trl
from assay.errors import ConfigError, JudgingError

MINE = """
import os, time
from assay import Verdict

def judge(task, rollout):
    if rollout.text == "hang":
        time.sleep(60)
    if rollout.text == "empty":
        return Verdict.abstain("nothing to judge")
    if rollout.text == "no tool":
        return Verdict.abstain("a tool is missing", fault="ours")
    if rollout.text == "crash":
        os._exit(3)
    return Verdict.score(float(rollout.text == task.reference))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A verifier in a local file, by the name that `-r` takes."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return f"{tmp_path}/mine.py:judge"


@pytest.fixture
def opened() -> Iterator[list[trl.TrlReward]]:
    """Reward functions that are closed at the end."""
    made: list[trl.TrlReward] = []
    yield made
    for function in made:
        function.close()


def test_scores_declared_scores_and_none_are_told_apart(mine: str, opened: list[trl.TrlReward]):
    function = trl.reward(mine, reference="answer", workers=2, timeout_s=5.0)
    opened.append(function)
    completions = ["4", "5", "empty", "no tool", "crash", "hang"]
    metrics: dict[str, float] = {}
    extra: dict[str, list[Any]] = {}
    values = function(
        ["2 + 2?"] * 6,
        completions,
        answer=["4"] * 6,
        completion_ids=[[1]] * 6,
        trainer_state=object(),
        log_metric=metrics.__setitem__,
        log_extra=extra.__setitem__,
    )
    assert values == [1.0, 0.0, 0.0, None, None, None]
    assert metrics == {
        "assay_judge/judge/mean": 0.5,
        "assay_judge/judge/scored": 2.0,
        "assay_judge/judge/abstained": 2.0,
        "assay_judge/judge/failed": 2.0,
    }
    (shown,) = extra.values()
    assert shown[:4] == [
        "1",
        "0",
        "abstained (candidate): nothing to judge",
        "abstained (ours): a tool is missing",
    ]
    assert "timed out after 5 s" in shown[5]


def test_a_batch_without_a_score_logs_no_mean(mine: str, opened: list[trl.TrlReward]):
    function = trl.reward(mine)
    opened.append(function)
    metrics: dict[str, float] = {}
    assert function(["?"], ["no tool"], answer=["4"], log_metric=metrics.__setitem__) == [None]
    assert "assay_judge/judge/mean" not in metrics
    assert metrics["assay_judge/judge/abstained"] == 1.0


def test_conversations_tags_and_weights(opened: list[trl.TrlReward]):
    function = trl.reward({"use": "exact", "when": {"tag": "exact"}}, "length:0.5")
    opened.append(function)
    prompts = [[{"role": "user", "content": "name a fruit"}]] * 2
    completions = [[{"role": "assistant", "content": [{"type": "text", "text": "pear"}]}]] * 2
    assert function(prompts, completions, solution=["pear"] * 2, tags=[["exact"], []]) == [1.5, 0.5]


def test_it_works_in_a_running_loop_in_other_threads_and_in_a_fork(opened: list[trl.TrlReward]):
    function = trl.reward("math")
    other = trl.areward("math")
    opened.extend([function, other])
    right = {"prompts": ["?"], "completions": [r"\boxed{4}"], "answer": ["4"]}

    async def inside() -> list[float | None]:
        assert function(**right) == [1.0]
        return await other(**right)

    assert asyncio.run(inside()) == [1.0]
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(function(**right))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1.0]] * 4
    copied = pickle.loads(pickle.dumps(function))
    opened.append(copied)
    assert copied(**right) == [1.0]
    child = os.fork()
    if child == 0:
        os._exit(0 if function(**right) == [1.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_mistakes_are_one_sentence(opened: list[trl.TrlReward]):
    with pytest.raises(ConfigError, match=r"trl.reward\('mth'\).*no reward source named 'mth'.*Did you mean 'math'"):
        trl.reward("mth")
    function = trl.reward("math", reference="gold")
    opened.append(function)
    with pytest.raises(ConfigError, match=r"column 'gold' is missing; the data set has answer, level\. Name"):
        function(["?"], ["4"], answer=["4"], level=[1])
    with pytest.raises(ConfigError, match=r"column 'completions' has 1 values for 2 prompts"):
        function(["?", "?"], ["4"], gold=["4", "4"])
    unnamed = trl.reward("math")
    opened.append(unnamed)
    with pytest.raises(ConfigError, match=r"none of the first 1 tasks can be judged.*a task has ansr.*reference="):
        unnamed(["?"], ["4"], ansr=["4"])
    with pytest.raises(ConfigError, match="only text is judged; found a content part of type 'image'"):
        unnamed(["?"], [[{"role": "assistant", "content": [{"type": "image"}]}]], answer=["4"])


def test_a_source_of_whole_groups_gets_the_answers_of_equal_prompts(opened: list[trl.TrlReward]):
    function = trl.reward({"use": "judge-pairwise", "base_url": "http://127.0.0.1:1/v1", "model": "m", "retries": 0})
    opened.append(function)
    assert function(["a", "a", "b", "b"], ["1", "2", "3", "4"], answer=["1"] * 4) == [None] * 4
    with pytest.raises(JudgingError, match="judges whole groups, and the trainer handed over single answers"):
        function(["a"], ["1"], answer=["1"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of a few thousand weights whose vocabulary is digits."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = {str(index): index for index in range(10)} | {"<eos>": 10, "<pad>": 11}
    tokens = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>", unk_token="0"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=11,
        eos_token_id=10,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_real_run_of_grpo_is_judged_by_assay(tiny: Path, tmp_path: Path, mine: str, opened: list[trl.TrlReward]):
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    together = trl.reward("exact", "length:0.1")
    asynchronous = trl.areward(mine)
    opened.extend([together, asynchronous])
    rows = [{"prompt": f"{a} {b}", "answer": str(b)} for a in range(4) for b in range(4)]
    trainer = GRPOTrainer(
        model=str(tiny),
        reward_funcs=[together, asynchronous],  # pyright: ignore[reportArgumentType] # it says nothing of asynchronous ones
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=2,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            seed=3,
        ),
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 2
    for entry in logged:
        for source in ("exact", "length"):
            counts = [entry[f"assay_exact_length/{source}/{status}"] for status in ("scored", "abstained", "failed")]
            assert sum(counts) == 8.0
        counts = [entry[f"assay_judge/judge/{status}"] for status in ("scored", "abstained", "failed")]
        assert sum(counts) == 8.0
        assert 0.0 <= entry["reward"] <= 2.1
        assert "rewards/assay_exact_length/mean" in entry
    assert set(trainer._logs["extra"]) >= {"assay_exact_length/exact", "assay_exact_length/length"}
