"""The sources `math` and `math-verify`: golds, tasks, the worker, budgets, and the same verdict every time."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.component import BuildContext
from assay.contracts import Candidate, Message, Rollout, Task, Turn, Verdict
from assay.judging import WorkerPool
from assay_math import MathPolicy, assay_reward_sources
from assay_math.second import MathVerifyOptions, MathVerifySource
from assay_math.verify import BadGold, Gold, MathSource, read_gold, verify

INTEGRAL = "\\boxed{\\int_0^2 x^2\\,dx}"
ENDLESS = "\\boxed{\\prod_{k=1}^{10^9} k}"


def task(gold: Any, *, prompt: str = "?", **facts: Any) -> Task:
    return Task(id="t", messages=(Message(role="user", content=prompt),), reference=gold, facts=facts)


def candidate(gold: Any, text: str, **facts: Any) -> Candidate:
    rollout = Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),))
    return Candidate(task=task(gold, **facts), rollout=rollout)


def judged(source: MathSource | MathVerifySource, batch: Sequence[Candidate]) -> list[Verdict]:
    return list(asyncio.run(source.judge(batch)))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool(2)
    yield workers
    workers.close()


def test_both_sources_are_offered() -> None:
    assert [component.name for component in assay_reward_sources()] == ["math", "math-verify"]
    assert all(component.isolation == "inline" for component in assay_reward_sources())


def test_listing_imports_nothing_heavy() -> None:
    code = "import sys, assay_math\nsys.exit(bool({'sympy', 'mpmath', 'math_verify', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (None, "gold_empty"),
        ("", "gold_empty"),
        ("$ $", "gold_empty"),
        ("\\frac{3}{", "gold_unparseable"),
        ("4\u200b2", "gold_unparseable"),
        ({"a": 1}, "gold_wrong_type"),
        (True, "gold_wrong_type"),
        ("The medians meet at the centroid of the triangle", "gold_not_checkable_by_rule"),
    ],
)
def test_bad_golds_are_named(reference: Any, reason: str) -> None:
    gold = read_gold(reference)
    assert isinstance(gold, BadGold)
    assert gold.reason == reason
    source = MathSource(MathPolicy(), BuildContext())
    assert source.check_task(task(reference)) == gold.sentence
    (verdict,) = judged(source, [candidate(reference, "\\boxed{4}")])
    assert (verdict.status, verdict.fault, verdict.reason) == ("abstained", "ours", reason)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (145.0, "145"),
        (0.1, "\\frac{1}{10}"),
        (7, "7"),
        (["2", 3], "3, 2"),
        ("<<1+1=2>> so\n#### 18", "18"),
        ("Thus $x = \\boxed{\\frac{1}{2}}$.", "0.5"),
        ("$\\frac12$", "0.5"),
    ],
)
def test_golds_in_the_forms_of_data_sets(reference: Any, answer: str) -> None:
    gold = read_gold(reference)
    assert isinstance(gold, Gold)
    assert verify(gold, f"\\boxed{{{answer}}}").value == 1.0


def test_a_readable_gold_is_no_complaint() -> None:
    assert MathSource(MathPolicy(), BuildContext()).check_task(task("\\frac{1}{2}")) is None


def test_two_tasks_of_one_name_are_kept_apart() -> None:
    source = MathSource(MathPolicy(), BuildContext())
    verdicts = judged(source, [candidate("1", "\\boxed{1}"), candidate("2", "\\boxed{1}")])
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0]


def test_evidence_says_what_was_found_where_and_by_which_rule() -> None:
    gold = read_gold("\\frac{1}{2}")
    assert isinstance(gold, Gold)
    text = "So \\boxed{0.5}."
    (evidence,) = verify(gold, text).evidence
    data = evidence.data
    assert isinstance(data, dict)
    assert data == {
        "answer": "0.5",
        "rule": "boxed",
        "span": [3, 14],
        "gold": "\\frac{1}{2}",
        "compared": "equal by exact algebra",
    }
    assert text[3:14] == "\\boxed{0.5}"


def test_verdicts_are_valid_contracts_also_on_hostile_text() -> None:
    gold = read_gold("\\text{yes}")
    assert isinstance(gold, Gold)
    for text in (
        "\\boxed{\x00}",
        "\\boxed{\ud800}",
        "\\boxed{\u202e1}",
        "x" * 100_000,
        "\\boxed{" * 50_000,
        "\\boxed{no}",
        "",
    ):
        verdict = verify(gold, text)
        assert Verdict.model_validate(json.loads(verdict.model_dump_json())) == verdict
        assert verdict.value != 1.0


def test_the_worker_decides_what_the_exact_layers_cannot(pool: WorkerPool) -> None:
    source = MathSource(MathPolicy(unevaluated=True, deep_cpu_s=10.0), BuildContext(workers=pool))
    right, wrong = judged(source, [candidate("\\frac{8}{3}", INTEGRAL), candidate("2", INTEGRAL)])
    assert right.value == 1.0
    assert wrong.value == 0.0
    assert "sympy" in right.evidence[0].summary


def test_unevaluated_answers_are_not_answers() -> None:
    (verdict,) = judged(MathSource(MathPolicy(), BuildContext()), [candidate("\\frac{8}{3}", INTEGRAL)])
    assert (verdict.status, verdict.fault, verdict.reason) == ("abstained", "candidate", "unevaluated")


def test_without_workers_the_abstention_is_ours() -> None:
    source = MathSource(MathPolicy(unevaluated=True), BuildContext())
    (verdict,) = judged(source, [candidate("\\frac{8}{3}", INTEGRAL)])
    assert (verdict.status, verdict.fault, verdict.reason) == ("abstained", "ours", "no_workers")


def test_an_endless_answer_costs_its_budget_and_delays_nobody(pool: WorkerPool) -> None:
    source = MathSource(MathPolicy(unevaluated=True, deep_cpu_s=2.0), BuildContext(workers=pool))
    judged(source, [candidate("\\frac{8}{3}", INTEGRAL)])
    done: dict[str, float] = {}

    async def one(name: str, item: Candidate) -> Verdict:
        (verdict,) = await source.judge([item])
        done[name] = time.monotonic()
        return verdict

    async def together() -> Verdict:
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(one("stuck", candidate("5", ENDLESS)))
            for place in range(20):
                group.create_task(one(f"ordinary {place}", candidate("5", f"\\boxed{{{place}}}")))
        return stuck.result()

    verdict = asyncio.run(together())
    assert (verdict.status, verdict.fault, verdict.reason) == ("abstained", "candidate", "limit")
    assert max(done, key=lambda name: done[name]) == "stuck"


def test_math_verify_gives_a_second_opinion(pool: WorkerPool) -> None:
    source = MathVerifySource(MathVerifyOptions(wall_s=20.0), BuildContext(workers=pool))
    right, wrong, bad = judged(
        source, [candidate("\\frac{1}{2}", "\\boxed{0.5}"), candidate("2", "\\boxed{3}"), candidate("", "\\boxed{3}")]
    )
    assert (right.value, wrong.value) == (1.0, 0.0)
    assert (bad.status, bad.fault, bad.reason) == ("abstained", "ours", "gold_empty")
    (alone,) = judged(MathVerifySource(MathVerifyOptions(), BuildContext()), [candidate("2", "\\boxed{2}")])
    assert (alone.status, alone.fault) == ("abstained", "ours")


PAIRS = [
    ("\\sin 2x", "\\boxed{2\\sin x\\cos x}"), ("\\{3,1,2\\}", "\\boxed{\\{1,2,3\\}}"), ("5", "The answer is 5 or 6."),
    ("x^2+y^2=4", "\\boxed{2x^2+2y^2=8}"), ("10", "\\boxed{9^{9^{9}}}"), ("yes", "\\boxed{no}"), ("7", "I do not know"),
]  # fmt: skip
SCRIPT = f"""
from assay_math.verify import read_gold, verify
for gold, text in {PAIRS!r}:
    print(verify(read_gold(gold), text).model_dump_json())
"""


def test_other_processes_seeds_and_threads_say_the_same() -> None:
    def here(_: int = 0) -> list[str]:
        golds = [(read_gold(gold), text) for gold, text in PAIRS]
        return [verify(gold, text).model_dump_json() for gold, text in golds if isinstance(gold, Gold)]

    expected = here()
    with ThreadPoolExecutor(4) as threads:
        assert all(lines == expected for lines in threads.map(here, range(8)))
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.splitlines() == expected


PIECES = st.sampled_from(
    [
        "1",
        "23",
        "0.5",
        "-7",
        "x",
        "y",
        "\\pi",
        "i",
        "e",
        "\\frac{1}{2}",
        "\\sqrt{2}",
        "^{2}",
        "^{3x}",
        "!",
        "+",
        "-",
        "\\cdot",
        "/",
        "(",
        ")",
        "[",
        "]",
        ",",
        "\\{",
        "\\}",
        "=",
        "<",
        "\\le",
        "\\pm",
        "\\%",
        "^\\circ",
        "\\text{cm}",
        "\\text{yes}",
        "\\infty",
        "\\cup",
        "|",
        "\\sin",
        "\\log_2",
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
        "_2",
        ":",
        "..",
        "0",
        "\\int",
        "\\binom{5}{x}",
        "10^{400}",
        "1/0",
        "0.333333",
        "2^{2^{99}}",
        "3000!",
        "$",
        "€",
        "\\approx",
        "\\ne",
    ]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=7).map("".join)


@settings(deadline=None, max_examples=300)
@given(TEXTS, TEXTS)
def test_any_pair_is_judged_without_raising_and_alike_both_ways(one: str, two: str) -> None:
    golds = read_gold(one), read_gold(two)
    if any(isinstance(gold, BadGold) for gold in golds):
        return
    first, second = (gold for gold in golds if isinstance(gold, Gold))
    there, back = verify(first, f"\\boxed{{{two}}}"), verify(second, f"\\boxed{{{one}}}")
    assert Verdict.model_validate(json.loads(there.model_dump_json())) == there
    if there.value is not None and back.value is not None and "," not in one + two:
        assert there.value == back.value, (one, two, there.evidence, back.evidence)
    assert verify(first, f"\\boxed{{{one}}}").value == 1.0


@pytest.mark.parametrize(
    ("options", "gold", "text", "value"),
    [
        (["12", "24"], "24", "The answer is (B).", 1.0),
        (["12", "24"], "24", "The answer is (A).", 0.0),
        (["12", "24"], "B", "\\boxed{24}", 1.0),
        ({"A": "12", "B": "24"}, "B", "The answer is B. 24", 1.0),
        ({"label": ["A", "B"], "text": ["12", "24"]}, "B", "The answer is B", 1.0),
        ({"unrelated": 3}, "24", "The answer is 24 because 12+12 is.", 1.0),
        (["12", "36"], "24", "The answer is 24 because 12+12 is.", 1.0),
    ],
)
def test_options_in_the_forms_of_data_sets(options: Any, gold: str, text: str, value: float) -> None:
    read = read_gold(gold, task=task(gold, options=options))
    assert isinstance(read, Gold)
    assert verify(read, text).value == value


@pytest.mark.parametrize(
    ("prompt", "gold", "answer", "right"),
    [
        ("Simplify $\\sqrt{72}$.", "6\\sqrt{2}", "\\sqrt{72}", False),
        ("Simplify $\\sqrt{72}$.", "6\\sqrt{2}", "3\\sqrt{8}", True),
        ("Simplify $\\frac{48}{64}$.", "\\frac{3}{4}", "\\frac{48}{64}", False),
        ("Write 3/8 as a decimal. Compute all digits.", "0.375", "3/8", False),
        ("Compute $\\binom{9}{4}$.", "126", "\\binom{9}{4}", False),
        ("A coin shows heads with probability 1/2. Find that of tails.", "\\frac{1}{2}", "1/2", True),
        ("A coin shows heads with probability $\\frac{1}{2}$. Find that of tails.", "1/2", "\\frac{1}{2}", True),
        ("Find the angle beside $\\frac{\\pi}{4}$.", "\\frac\\pi4", "\\frac{\\pi}{4}", True),
    ],
)
def test_the_question_sent_back_is_no_answer_but_a_number_that_it_names_is(
    prompt: str, gold: str, answer: str, right: bool
) -> None:
    known = read_gold(gold, task=task(gold, prompt=prompt))
    assert isinstance(known, Gold)
    assert (verify(known, f"\\boxed{{{answer}}}").value == 1.0) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Answer: B. But it could be C.", False),
        ("Answer: B or maybe C", False),
        ("Answer: B. No, C.", False),
        ("Answer: B. A is too small.", True),
        ("Answer: B, perhaps surprisingly.", True),
    ],
)
def test_a_letter_offered_beside_the_chosen_one_counts_against_it(text: str, right: bool) -> None:
    known = read_gold("B", task=task("B", options=["A", "B", "C", "D"]))
    assert isinstance(known, Gold)
    assert (verify(known, text).value == 1.0) is right
