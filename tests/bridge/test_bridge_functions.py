"""Functions written for TRL, verl and verifiers as sources, called as their hosts call them."""

# pyright: reportMissingTypeStubs=false

import asyncio
from pathlib import Path
from typing import Any

import pytest

from assay import BuildContext, ConfigError, Verdict
from assay.config.rewards import JudgingConfig, SourceEntry
from assay.contracts import Judgement, Message, Task
from assay.judging import open_panel
from assay.preflight import make_context
from assay.registry import Registry, component_from
from assay.testing import judge_text
from assay.testing.cases import candidate

FUNCTIONS = """
import asyncio, math, os, time

def right(completions, answer, **kwargs):
    return [float(text == gold) for text, gold in zip(completions, answer)]

async def right_soon(prompts, completions, ground_truth):
    await asyncio.sleep(0)
    return [float(completions[0] == ground_truth[0])]

def logs(completions, log_extra, log_metric, level):
    log_extra("seen", list(completions))
    log_metric("level", level[0])
    return [0.5]

def chat(prompts, completions, **kwargs):
    assert prompts[0][-1]["role"] == "user" and completions[0][0]["role"] == "assistant"
    return [float(completions[0][0]["content"] == kwargs["solution"][0])]

def ids(completions, completion_ids):
    return [float(len(completion_ids[0]) == 2)]

def odd(completions, **kwargs):
    answers = {"none": [None], "nan": [math.nan], "two": [1.0, 1.0], "number": 1.0, "text": ["1"], "above": [7.0]}
    return answers[completions[0]]

def breaks(completions, **kwargs):
    if completions[0] == "hang":
        time.sleep(60)
    if completions[0] == "crash":
        os._exit(3)
    raise KeyError("no such column")

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "table":
        return {"score": 0.5, "acc": True, "pred": data_source}
    if solution_str == "nan":
        return {"score": math.nan}
    if solution_str == "none":
        return None
    if solution_str == "no score":
        return {"acc": 1.0}
    return float(solution_str == ground_truth and extra_info["question"] == "2 + 2?")

async def scaled(solution_str, ground_truth, factor):
    return factor * float(solution_str == ground_truth)

def needs_more(solution_str, tokenizer):
    return 0.0

def classic(completion, answer, info, state):
    assert state["answer"] == answer
    return float(completion[-1]["content"] == answer) * info.get("share", 1.0)

async def classic_soon(prompt, completion, parser=None):
    return float(prompt[-1]["content"] == "2 + 2?")
"""


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    (tmp_path / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    return BuildContext(base_dir=tmp_path)


def judge(context: BuildContext, use: str, function: str, text: str, **more: Any) -> Verdict:
    options = {"path": f"functions.py:{function}", **more.pop("options", {})}
    component = component_from("assay_bridge", "reward_source", use)
    more.setdefault("reference", "4")
    return judge_text(component, text, prompt="2 + 2?", options=options, context=context, **more)


@pytest.mark.parametrize("function", ["right", "right_soon"])
def test_a_function_of_trl_gets_the_reference_as_the_argument_that_it_asks_for(context: BuildContext, function: str):
    assert judge(context, "trl-reward", function, "4").value == 1.0
    assert judge(context, "trl-reward", function, "5").value == 0.0


def test_a_function_of_trl_gets_columns_token_ids_and_messages(context: BuildContext):
    verdict = judge(context, "trl-reward", "logs", "x", facts={"level": 3})
    assert verdict.value == 0.5
    assert verdict.evidence[0].data == {"seen": ["x"], "level": 3}
    assert judge(context, "trl-reward", "ids", "x", token_ids=[1, 2]).value == 1.0
    chat = {"messages": True, "reference": "solution"}
    assert judge(context, "trl-reward", "chat", "4", options=chat).value == 1.0


def test_what_trl_calls_not_applicable_is_masked(context: BuildContext):
    verdict = judge(context, "trl-reward", "odd", "none")
    assert (verdict.status, verdict.fault) == ("abstained", "ours")
    for missing in ("logs", "ids"):
        verdict = judge(context, "trl-reward", missing, "x")
        assert (verdict.status, verdict.fault) == ("abstained", "ours")
    assert "the column 'level', which this task has not" in str(judge(context, "trl-reward", "logs", "x").reason)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nan", "nan, which is not finite"),
        ("two", "2 rewards for 1 completion"),
        ("number", "a float instead of a list"),
        ("text", "'1' instead of a number"),
    ],
)
def test_what_is_no_reward_is_an_error_and_never_a_number(context: BuildContext, text: str, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        judge(context, "trl-reward", "odd", text)


def test_a_function_of_trl_itself_judges():
    component = component_from("assay_bridge", "reward_source", "trl-reward")
    options = {"path": "trl.rewards:think_format_reward", "messages": True}
    assert judge_text(component, "<think>\nso\n</think>\n4", options=options).value == 1.0
    assert judge_text(component, "4", options=options).value == 0.0


def test_compute_score_of_verl_gives_numbers_and_tables(context: BuildContext):
    assert judge(context, "verl-reward", "compute_score", "4").value == 1.0
    verdict = judge(context, "verl-reward", "compute_score", "table", options={"data_source": "sums"})
    assert verdict.value == 0.5
    assert verdict.evidence[0].data == {"acc": True, "pred": "sums"}
    assert judge(context, "verl-reward", "scaled", "4", options={"kwargs": {"factor": 0.25}}).value == 0.25
    for text, sentence in (
        ("nan", "not finite"),
        ("none", "None instead"),
        ("no score", "without 'score'; it has acc"),
    ):
        with pytest.raises(ValueError, match=sentence):
            judge(context, "verl-reward", "compute_score", text)
    masked = judge(context, "verl-reward", "compute_score", "4", reference=None)
    assert (masked.status, masked.fault) == ("abstained", "ours")


def test_a_classic_rubric_function_gets_what_it_names(context: BuildContext):
    assert judge(context, "verifiers-rubric", "classic", "4", facts={"share": 0.5}).value == 0.5
    assert judge(context, "verifiers-rubric", "classic_soon", "4").value == 1.0


def test_mistakes_in_a_path_or_a_signature_are_one_sentence(context: BuildContext, tmp_path: Path):
    (tmp_path / "broken.py").write_text("import no_such_library_at_all\n", encoding="utf-8")
    for use, path, sentence in (
        ("trl-reward", "functions.py:brakes", "has no 'brakes'.*Did you mean 'breaks'"),
        ("trl-reward", "nowhere.py:f", "no such file"),
        ("trl-reward", "broken.py:f", "cannot be imported: ModuleNotFoundError"),
        ("verl-reward", "functions.py:needs_more", "asks for 'tokenizer', which verl does not give.*kwargs"),
        ("verifiers-rubric", "functions.py:needs_more", "asks for 'solution_str', which is not there outside"),
        ("trl-reward", "functions.py:FUNCTIONS", "has no 'FUNCTIONS'"),
    ):
        component = component_from("assay_bridge", "reward_source", use)
        with pytest.raises(ConfigError, match=sentence):
            component.build(component.config(path=path), context)
    with pytest.raises(ValueError, match=r"expected 'module:function' or 'file\.py:function'"):
        component_from("assay_bridge", "reward_source", "trl-reward").config(path="functions.py")


def judged(tmp_path: Path, texts: list[str], **entry: Any) -> list[Judgement]:
    """The judgements of a panel, in which the function runs in a killable worker."""
    registry = Registry.load()
    found: list[Judgement] = []
    task = Task(id="t", messages=(Message(role="user", content="2 + 2?"),), reference="4")

    async def work() -> None:
        async with open_panel(
            [SourceEntry.model_validate({"use": "trl-reward", **entry})],
            registry=registry,
            judging=JudgingConfig(workers=2),
            context=make_context(registry, base_dir=tmp_path, seed=0),
            observe=lambda _, judgement: found.append(judgement),
        ) as panel:
            for text in texts:
                await panel.judge(task, candidate(task, text).rollout)

    asyncio.run(work())
    return found


def test_a_function_that_hangs_crashes_or_leaves_its_range_costs_itself(context: BuildContext, tmp_path: Path):
    hang, crash, raised = judged(tmp_path, ["hang", "crash", "x"], path="functions.py:breaks", timeout_s=5.0)
    assert [item.status for item in (hang, crash, raised)] == ["failed"] * 3
    assert "timed out after 5 s" in str(hang.reason)
    assert "exited with code 3" in str(crash.reason)
    assert "KeyError" in str(raised.reason)
    assert "functions.py" in raised.output
    nan, above, fine = judged(tmp_path, ["nan", "above", "none"], path="functions.py:odd")
    assert (nan.status, above.status, fine.status) == ("failed", "failed", "abstained")
    assert "outside" in str(above.reason)
    (wider,) = judged(tmp_path, ["above"], path="functions.py:odd", value_range=[0.0, 10.0])
    assert wider.value == 7.0
