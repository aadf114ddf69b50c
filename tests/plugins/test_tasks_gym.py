# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# reasoning_gym is only partly annotated.
import ast
import asyncio
import inspect
from typing import Any

import pytest

from assay.component import BuildContext
from assay.contracts import Candidate, Rollout, Task, Turn, Verdict
from assay.errors import ConfigError
from assay_tasks.gym import GymOptions, GymTasks, build_gym
from assay_tasks.gym_scorer import REFUSED, SAFE, GymScorer, GymScorerOptions
from assay_tasks.split import normalized

factory = pytest.importorskip("reasoning_gym.factory", reason="the library reasoning_gym is not installed")

SUMS = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}


def source(dataset: str, **options: Any) -> GymTasks:
    return build_gym(GymOptions.model_validate({"dataset": dataset, **options}), BuildContext())


def judge(task: Task, text: str, **options: Any) -> Verdict:
    rollout = Rollout(id="r", task_id=task.id, group_id="g", turns=(Turn(text=text),))
    scorer = GymScorer(GymScorerOptions.model_validate(options))
    (verdict,) = asyncio.run(scorer.judge([Candidate(task=task, rollout=rollout)]))
    return verdict


def test_questions_are_distinct_and_the_halves_disjoint_across_seeds() -> None:
    train = source("chain_sum", options=SUMS, size=1500, seed=0, question="expression", part="train").tasks()
    held_out = source("chain_sum", options=SUMS, size=1500, seed=700, question="expression", part="held_out").tasks()
    questions = [normalized(task.prompt) for task in train]
    assert len(set(questions)) == len(questions)
    assert not set(questions) & {normalized(task.prompt) for task in held_out}
    assert len(held_out) > 50


def test_tasks_carry_the_reference_and_what_made_them() -> None:
    tasks = source("chain_sum", options=SUMS, size=5, question="expression", template="{prompt} =", limit=2).tasks()
    assert len(tasks) == 2
    for task in tasks:
        left = task.prompt.removesuffix(" =")
        first, *rest = left.replace("- ", "-").replace("+ ", "").split()
        assert int(first) + sum(map(int, rest)) == int(str(task.reference))
    assert tasks[0].id == "chain_sum-0-0"
    again = source("chain_sum", options=SUMS, size=5, question="expression", template="{prompt} =", limit=2).tasks()
    assert again == tasks


def test_a_solved_example_is_never_a_task() -> None:
    first = source("chain_sum", options=SUMS, size=1, question="expression").tasks()[0]
    examples = [{"prompt": first.prompt, "answer": str(first.reference)}]
    tasks = source("chain_sum", options=SUMS, size=20, question="expression", examples=examples).tasks()
    assert first.prompt not in [task.prompt for task in tasks]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataset": "chain_sums"}, "reasoning_gym has no generator named 'chain_sums'.* Did you mean 'chain_sum'?"),
        (
            {"dataset": "chain_sum", "options": {"terms": 3}},
            "refuses {'terms': 3}: .* its options: allow_negation, max_dig",
        ),
        ({"dataset": "chain_sum", "options": {"min_terms": 9}}, "max_terms must be >= min_terms"),
        ({"dataset": "chain_sum", "question": "expresion"}, "no text field 'expresion'.* Did you mean 'expression'?"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        source(**options).tasks()


@pytest.mark.parametrize(
    "dataset",
    ["chain_sum", "gcd", "letter_counting", "word_sorting", "number_sorting", "mini_sudoku", "basic_arithmetic"],
)
def test_the_library_s_scorer_takes_golds_and_refuses_others(dataset: str) -> None:
    for task in source(dataset, size=4).tasks():
        assert judge(task, f"so <answer>{task.reference}</answer>").value == 1.0
        assert (judge(task, "<answer>certainly wrong</answer>").value or 0.0) < 1.0


def test_where_the_answer_stands_is_an_option() -> None:
    task = source("gcd", size=1).tasks()[0]
    gold = str(task.reference)
    assert judge(task, f"it is\n{gold}\n", answer="last_line").value == 1.0
    assert judge(task, gold, answer="whole").value == 1.0
    missing = judge(task, gold)
    assert (missing.status, missing.fault) == ("abstained", "candidate")
    assert judge(task, " \n", answer="whole").fault == "candidate"


@pytest.mark.parametrize("dataset", ["countdown", "polynomial_multiplication", "binary_matrix"])
def test_scorers_that_evaluate_text_are_never_called(dataset: str) -> None:
    task = source(dataset, size=1).tasks()[0]
    attack = "<answer>__import__('os').environ.__setitem__('ASSAY_GYM', '1')</answer>"
    verdict = judge(task, attack)
    assert (verdict.status, verdict.fault) == ("abstained", "ours")
    assert "use = 'math'" in (verdict.reason or "")


def test_a_task_that_is_no_longer_made_is_ours() -> None:
    task = source("gcd", size=1).tasks()[0]
    facts = task.facts["reasoning_gym"]
    assert isinstance(facts, dict)
    stale = task.model_copy(update={"facts": {"reasoning_gym": facts | {"question": "another"}}})
    assert judge(stale, "<answer>1</answer>").fault == "ours"
    foreign = task.model_copy(update={"facts": {}})
    assert "not from the task source" in (judge(foreign, "<answer>1</answer>").reason or "")


def test_every_generator_is_judged_safe_or_refused() -> None:
    assert set(factory.DATASETS) <= SAFE | set(REFUSED)
    assert not SAFE & set(REFUSED)


OWN_TEXT = {"basic_arithmetic", "bf", "bitwise_arithmetic", "codeio", "gsm_symbolic", "number_sorting"}
"""Their modules evaluate or compile what the generator itself wrote: a problem, a gold, a template, a program."""


def test_no_safe_scorer_s_module_evaluates_text() -> None:
    suspicious = {"eval", "exec", "compile", "parse_expr", "sympify", "__import__", "literal_eval", "loads"}
    found: dict[str, set[str]] = {}
    for name in sorted(SAFE & set(factory.DATASETS)):
        tree = ast.parse(inspect.getsource(inspect.getmodule(factory.DATASETS[name][0]) or pytest))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func
                word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                owner = called.value if isinstance(called, ast.Attribute) else None
                harmless = isinstance(owner, ast.Name) and owner.id in ("json", "re")
                if word in suspicious and not harmless:
                    found.setdefault(name, set()).add(word)
    assert set(found) <= OWN_TEXT, found
