"""Test code taken apart."""

import pytest

from assay_code.asserts import plan
from assay_code.cases import CasesError


def test_literal_asserts_are_calls_and_values() -> None:
    made = plan("assert f(1, b=[2]) == (3,)\nassert {4} == g('x')\n")
    assert made.way == "direct"
    assert [case.call["fn"] for case in made.direct] == ["f", "g"]
    assert made.direct[0].call["kwargs"] == {"b": [2]}
    assert [case.expected for case in made.direct] == [(3,), {4}]


@pytest.mark.parametrize(
    ("code", "way"),
    [
        ("assert abs(half(3) - 1.5) < 1e-6", "pair"),
        ("def check(candidate):\n    assert candidate(2) == 4\ncheck(square)", "pair"),
        ("x = [3, 1]\nassert sort(x) is None\nassert x == [1, 3]", "pair"),
        ("assert f(1) == 1 and f(2) == 2", "pair"),
        ("assert remove((1, 'a'), int) == ['a']", "pair"),
        ("assert f(*[1, 2]) == 3", "pair"),
        ("assert f(**{'a': 1}) == 3", "pair"),
        ("assert Split(1) == [1]", "direct"),
        ("assert set(Split(1)) == {1}", "pair"),
        ("assert sum(1, 2) == 3", "direct"),
        ("assert size((1,)) == sys.getsizeof((1,))", "pair"),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", "shared"),
        ("assert f(Pair(1, 2)) == 3", "shared"),
        ("assert callable(f)", "shared"),
        ("assert list(map(f, [1])) == [1]", "shared"),
    ],
)
def test_ways(code: str, way: str) -> None:
    assert plan(code).way == way


def test_setup_is_part_of_the_tests() -> None:
    made = plan("assert f(x) == 1", setup="x = 3")
    assert made.way == "pair"
    assert made.functions == ("f",)
    assert made.code.startswith("x = 3\n")


@pytest.mark.parametrize("code", ["", "f(1)", "assert", "assert f(\0)", "assert " + "(" * 5000])
def test_tests_that_cannot_be_used_are_the_tasks_fault(code: str) -> None:
    with pytest.raises(CasesError, match=r"facts\.tests\.code"):
        plan(code)
