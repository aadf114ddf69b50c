"""The golden numbers of what is done with answers, each from the table in golden/inference.toml."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.reports.best_of import Aggregate, Sample, aggregate, choose, expected_argmax, vote
from assay.reports.compute_curve import ComputeCurve
from assay.reports.statistics import pass_at_k

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "golden" / "inference.toml").read_text())["row"]


def pass_at(cases: list[list[int]]) -> list[float]:
    return [pass_at_k(n, correct, k) for n, correct, k in cases]


def step_aggregates(steps: list[float], how: list[Aggregate]) -> list[float | None]:
    return [aggregate(steps, name) for name in how]


def votes(answers: list[str], scores: list[float], right: list[list[str]], weighted: list[bool]) -> list[float]:
    found: list[float] = []
    for classes, by_score in zip(right, weighted, strict=True):
        samples = [Sample(score, answer in classes, answer) for answer, score in zip(answers, scores, strict=True)]
        found.append(vote(samples, weighted=by_score))
    return found


def best(scores: list[float]) -> list[float]:
    index = choose([Sample(score, None, None) for score in scores])
    assert index is not None
    return [float(index)]


def subsets(scores: list[float], right: list[bool], n: int) -> list[float]:
    pool = [Sample(score, correct, None) for score, correct in zip(scores, right, strict=True)]
    return [expected_argmax(pool, n)[0]]


def curve(start: float, ceiling: float, midpoint: float, steepness: float, at: float) -> list[float]:
    return [ComputeCurve(start, ceiling, midpoint, steepness, residual=0.0, points=1, reached=1.0).at(at)]


CHECKS: dict[str, Callable[..., list[Any]]] = {
    check.__name__: check for check in (pass_at, step_aggregates, votes, best, subsets, curve)
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["method"])
def test_golden_number(row: dict[str, Any]) -> None:
    assert CHECKS[row["check"]](**row["inputs"]) == pytest.approx(row["expected"], abs=row["tolerance"])


def test_k_beyond_the_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="k"):
        pass_at_k(4, 2, 5)
