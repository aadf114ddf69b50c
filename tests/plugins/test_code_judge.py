"""The source `code`: verdicts, evidence, whose fault it is."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from assay.component import BuildContext
from assay.contracts import Candidate, JsonValue, Message, Rollout, Task, Turn, Verdict
from assay.contracts.sandbox import Guarantee, Job, RunResult
from assay.errors import ConfigError, SandboxError
from assay.testing import run_reward_suite
from assay_code.plugin import assay_reward_sources
from assay_code.verify import CodeOptions, CodeSource, build
from assay_sandboxes.sandbox import JailedSandbox

OpenTier = Callable[..., JailedSandbox]
Judge = Callable[..., Verdict]
DOUBLE: dict[str, Any] = {
    "kind": "stdio",
    "cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (1, 5, 0, -3)],
}
GOOD = "```python\nprint(2 * int(input()))\n```"
HALF = "```python\nn = int(input())\nprint(2 * n if n > 0 else 7)\n```"


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


def _data(verdict: Verdict) -> dict[str, Any]:
    data: Any = verdict.evidence[0].data
    assert isinstance(data, dict)
    return cast("dict[str, Any]", data)


def _candidate(text: str, **facts: JsonValue) -> Candidate:
    task = Task(id="t", messages=(Message(role="user", content="?"),), facts=facts)
    return Candidate(task=task, rollout=Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),)))


@pytest.fixture
def judge(open_tier: OpenTier) -> Judge:
    sandbox = open_tier("landlock")

    def run(text: str, tests: Any, *, options: dict[str, Any] | None = None, **facts: JsonValue) -> Verdict:
        source = CodeSource(Lent(sandbox), CodeOptions(**(options or {})))
        (verdict,) = asyncio.run(source.judge([_candidate(text, tests=tests, **facts)]))
        return verdict

    return run


def test_all_or_nothing(judge: Judge) -> None:
    assert judge(GOOD, DOUBLE).value == 1.0
    verdict = judge(HALF, DOUBLE)
    assert verdict.value == 0.0
    assert _data(verdict)["run"] == 3
    assert verdict.evidence[-1].summary.startswith("stdio 2: fail")


def test_fraction_is_over_all_tests(judge: Judge) -> None:
    assert judge(HALF, DOUBLE, options={"scoring": "fraction"}).value == 0.5
    assert judge("```python\nimport sys\nsys.exit(1)\n```", DOUBLE, options={"scoring": "fraction"}).value == 0.0


def test_evidence_says_what_each_test_cost(judge: Judge) -> None:
    verdict = judge(GOOD, DOUBLE)
    _, *tests = verdict.evidence
    program = _data(verdict)
    assert (program["verdict"], program["tier"], program["trust"]) == ("pass", "landlock", "split")
    assert str(program["tool"]).startswith("3.")
    assert len(tests) == 4
    for test in tests:
        assert isinstance(test.data, dict)
        assert test.data["verdict"] == "pass"
        assert isinstance(test.data["cpu_s"], float)
        assert isinstance(test.data["peak_memory_mib"], float)
        assert test.data["peak_memory_mib"] > 1


def test_no_program_is_the_candidates_fault(judge: Judge) -> None:
    for text in ("", "I do not know.", "```text\n7\n```"):
        verdict = judge(text, DOUBLE)
        assert (verdict.status, verdict.fault) == ("abstained", "candidate")


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (None, "facts.tests"),
        ({"kind": "stdio", "cases": []}, "facts.tests.cases"),
        ({"kind": "quiz"}, "facts.tests"),
        ({**DOUBLE, "limits": {"wall_s": -1}}, "facts.tests.limits.wall_s"),
        ({**DOUBLE, "limits": {"wall_h": 1}}, "facts.tests.limits.wall_h"),
        ({"kind": "call", "fn": "f", "cases": [{"args": [1]}]}, "facts.tests.cases.0.expect: Field required"),
        ({"kind": "stdio", "cases": [{"stdin": "1"}]}, "facts.tests.cases.0.stdout: Field required"),
        ({"kind": "assert", "code": "assert f("}, "facts.tests.code: not Python"),
        ({"kind": "stdio", "cases": [{"stdin": "1", "stdout": "2"}] * 1001}, "max_tests = 1000"),
        ({**DOUBLE, "compare": {"mode": "checker", "checker": "x = 1"}}, "defines no function"),
    ],
)
def test_bad_tests_are_our_fault_in_one_sentence(tests: Any, said: str, judge: Judge) -> None:
    verdict = judge(GOOD, tests)
    assert (verdict.status, verdict.fault) == ("abstained", "ours")
    assert said in (verdict.reason or "")
    assert "\n" not in (verdict.reason or "")


def test_missing_tests_are_our_fault(open_tier: OpenTier) -> None:
    source = CodeSource(open_tier("landlock"), CodeOptions())
    (verdict,) = asyncio.run(source.judge([_candidate(GOOD)]))
    assert verdict.fault == "ours"
    assert verdict.reason == "task 't': facts['tests'] is missing; found: none; add the tests of this task"


def test_a_program_that_is_too_long_fails(judge: Judge) -> None:
    verdict = judge("```python\n#" + "x" * (10 << 20) + "\n```", DOUBLE)
    assert verdict.value == 0.0
    assert judge("```python\nprint(1)\0\n```", DOUBLE).value == 0.0


def test_thousands_of_tests(judge: Judge) -> None:
    cases = [{"args": [n], "expect": n + 1} for n in range(3000)]
    tests = {"kind": "call", "fn": "inc", "cases": cases}
    verdict = judge("```python\ndef inc(n):\n    return n + 1\n```", tests, options={"max_tests": 5000})
    assert verdict.value == 1.0


def test_calls_go_on_after_one_that_ends_the_process(judge: Judge) -> None:
    code = "```python\nimport os\ndef f(n):\n    if n == 1: os._exit(0)\n    while n == 3: pass\n    return n\n```"
    cases = [{"args": [n], "expect": n} for n in range(6)]
    tests = {"kind": "call", "fn": "f", "cases": cases, "limits": {"cpu_s": 1}}
    verdict = judge(code, tests, options={"scoring": "fraction"})
    assert verdict.value == pytest.approx(4 / 6)


def test_methods_tagged_values_and_rules(judge: Judge) -> None:
    code = "```python\nclass Solution:\n    def pair(self, a, b=1):\n        return (a, b)\n```"
    plain = {"kind": "call", "fn": "Solution().pair", "cases": [{"args": [3], "kwargs": {"b": 4}, "expect": [3, 4]}]}
    assert judge(code, plain).value == 0.0
    assert judge(code, {**plain, "compare": {"tuple_is_list": True}}).value == 1.0
    tagged: dict[str, Any] = {"kind": "call", "fn": "Solution().pair", "tagged": True}
    tagged["cases"] = [{"args": [{"t": "set", "v": [1]}], "expect": {"t": "tuple", "v": [{"t": "set", "v": [1]}, 1]}}]
    assert judge(code, tagged).value == 1.0


def test_tests_see_what_the_candidate_did_to_its_arguments(judge: Judge) -> None:
    tests = {"kind": "assert", "code": "x = [3, 1, 2]\nassert sort(x) is None\nassert x == [1, 2, 3]\n"}
    assert judge("```python\ndef sort(x):\n    x.sort()\n```", tests).value == 1.0
    assert judge("```python\ndef sort(x):\n    return None\n```", tests).value == 0.0


def test_tests_may_expect_exceptions(judge: Judge) -> None:
    code = "def check(f):\n    held = False\n    try:\n        f(-1)\n    except ValueError:\n        held = True\n"
    tests = {"kind": "assert", "code": code + "    assert held\ncheck(root)\n"}
    assert judge("```python\ndef root(n):\n    raise ValueError('no')\n```", tests).value == 1.0
    assert judge("```python\ndef root(n):\n    raise KeyError('no')\n```", tests).value == 0.0


def test_a_share_of_the_asserts(judge: Judge) -> None:
    tests = {
        "kind": "assert",
        "code": "for n in range(4):\n    assert f(n) >= 0\nassert f(2) == 2\nassert -f(3) == 3\n",
    }
    verdict = judge("```python\ndef f(n):\n    return n\n```", tests, options={"scoring": "fraction"})
    assert verdict.value == pytest.approx(2 / 3)


def test_tests_that_need_objects_share_a_process_and_say_so(judge: Judge) -> None:
    tests = {"kind": "assert", "code": "s = Stack()\ns.push(4)\nassert s.pop() == 4\n"}
    code = "```python\nclass Stack(list):\n    def push(self, x):\n        self.append(x)\n```"
    verdict = judge(code, tests)
    assert verdict.value == 1.0
    assert _data(verdict)["trust"] == "shared-process"
    refused = judge(code, tests, options={"shared_process": False})
    assert (refused.status, refused.fault) == ("abstained", "ours")


def test_special_judges(judge: Judge, shared: Path) -> None:
    lines = (shared / "cases" / "other_cases.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, filter(None, lines)) if row.get("checker") == "special"]
    assert len(rows) >= 2
    for row in rows:
        tests = {
            "kind": "stdio",
            "cases": [{"stdin": row["stdin"], "stdout": ""}],
            "compare": {"mode": "checker", "checker": row["judge_py"]},
        }
        verdict = judge(f"```python\nprint({row['actual_output'].strip()!r})\n```", tests)
        assert verdict.value == float(row["expected"]), row["id"]


def test_a_special_judge_may_give_a_part_and_a_message(judge: Judge) -> None:
    checker = "def check(inp, out, ref):\n    return (0.25, 'near ' + ref)\n"
    tests = {"kind": "stdio", "cases": [{"stdout": "9"}], "compare": {"mode": "checker", "checker": checker}}
    verdict = judge("```python\nprint(8)\n```", tests)
    assert verdict.value == 0.25
    assert "near 9" in verdict.evidence[1].summary


@pytest.mark.parametrize(
    "body",
    [
        "1 / 0",
        "return 7",
        "return 'yes'",
        "import os; os._exit(0)",
        pytest.param("while True: pass", marks=pytest.mark.slow),
    ],
)
def test_a_broken_special_judge_is_never_a_zero(body: str, judge: Judge) -> None:
    checker = f"def check(inp, out):\n    {body}\n"
    tests = {"kind": "stdio", "cases": [{"stdout": "9"}], "compare": {"mode": "checker", "checker": checker}}
    with pytest.raises(SandboxError, match=r"^infra: the special judge"):
        judge("```python\nprint(9)\n```", tests)


def test_a_head_is_completed_or_replaced(judge: Judge) -> None:
    head = "from math import sqrt\ndef helper(x):\n    return sqrt(x)\n\ndef root(x):\n    '''Root.'''\n"
    facts: dict[str, Any] = {"head": head, "entry_point": "root"}
    tests = {"kind": "assert", "code": "def check(f):\n    assert f(9) == 3\n    assert helper(4) == 2\ncheck(root)\n"}
    for text in (
        "    return helper(x)\n",
        "```python\n    return helper(x)\n```",
        "```python\ndef root(x):\n    return sqrt(x)\n```",
        f"```python\n{head}    return helper(x)\n```",
    ):
        assert judge(text, tests, **facts).value == 1.0, text
    assert judge("```python\n    return 0\n```", tests, **facts).value == 0.0


def test_only_stdio_tests_fit_other_languages(judge: Judge) -> None:
    verdict = judge("```cpp\nint main() {}\n```", {"kind": "call", "fn": "f", "cases": [{"args": []}]}, language="cpp")
    assert (verdict.status, verdict.fault) == ("abstained", "ours")


def test_an_unknown_language_is_found_before_the_run(open_tier: OpenTier) -> None:
    context = BuildContext(open_sandbox=lambda name, options: Lent(open_tier("landlock")))
    with pytest.raises(ConfigError, match="no language named 'cobol'"):
        build(CodeOptions(languages=("cobol",)), context)
    with pytest.raises(ConfigError, match="no sandbox"):
        build(CodeOptions(), BuildContext())


def test_a_sandbox_that_fails_is_raised_not_scored() -> None:
    class Broken:
        guarantees: frozenset[Guarantee] = frozenset()

        async def run(self, job: Job) -> RunResult:
            raise SandboxError("sandbox 'broken': the jail is gone")

        async def aclose(self) -> None:
            return

    source = CodeSource(Broken(), CodeOptions())
    with pytest.raises(SandboxError, match="gone"):
        asyncio.run(source.judge([_candidate(GOOD, tests=DOUBLE)]))


def test_the_reward_suite(open_tier: OpenTier) -> None:
    (component,) = assay_reward_sources()
    context = BuildContext(open_sandbox=lambda name, options: Lent(open_tier("landlock")))
    cases = Path(__file__).parents[2] / "plugins" / "assay_code" / "cases" / "code.jsonl"
    results = run_reward_suite("code", component=component, context=context, cases=cases, huge=200_000)
    assert [f"{each.check}: {each.detail}" for each in results if each.status == "failed"] == []
