"""The proof's table: every model with its intervals, what falls with more samples, and the gates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

from models import MODELS
from unit import Plan

from assay.reports.best_of import AGGREGATES, Aggregate, BestOf, Estimate, Sample, aggregate, best_of, expected_argmax
from assay.reports.resampling import Resampler
from assay.reports.statistics import Interval

SIZES = (1, 2, 4, 8, 16)
LONG = 2000
"""Updates from which the gates of a long run hold."""


@dataclass(frozen=True)
class Figures:
    """One model over all seeds that are finished."""

    name: str
    units: tuple[dict[str, Any], ...]

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.units)

    @cached_property
    def best(self) -> BestOf:
        """Best-of-n by the model's own aggregation, over the problems of all seeds together."""
        return best_of(self._pools("value"), SIZES)

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """Other aggregations of its step scores; none where it has no steps."""
        several = any(len(row["steps"]) > 1 for unit in self.units for row in unit["pool"])
        return tuple(how for how in AGGREGATES if how != "value") if several else ()

    def argmax(self, how: Aggregate) -> Interval:
        """Argmax of the most samples by another aggregation."""
        return Resampler().interval([expected_argmax(pool, SIZES[-1])[0] for pool in self._pools(how)])

    def _pools(self, how: Aggregate) -> list[list[Sample]]:
        pools: dict[tuple[int, str], list[Sample]] = {}
        for unit in self.units:
            for row in unit["pool"]:
                score = row["value"] if how == "value" or row["value"] is None else aggregate(row["steps"], how)
                sample = Sample(score, row["correct"], row["answer"], row["length"])
                pools.setdefault((unit["seed"], row["problem"]), []).append(sample)
        return list(pools.values())

    def first_error(self, key: str) -> list[float]:
        """A first-error figure of each seed that has it; accuracies without their interval."""
        nothing: dict[str, Any] = {}
        found: list[Any] = [(unit["first_error"] or nothing).get(key) for unit in self.units]
        values: list[Any] = [value[0] if isinstance(value, list) else value for value in found]
        return [float(value) for value in values if value is not None]

    @property
    def f1(self) -> float | None:
        """Mean F1 over the seeds; None where a seed has none."""
        values = self.first_error("f1")
        return math.fsum(values) / len(values) if values and len(values) == self.seeds else None

    def vote(self, n: int) -> float:
        """Weighted vote of n."""
        return _value(self.best.rows["weighted vote"][n])


class Gate(NamedTuple):
    """One line of what must hold."""

    sentence: str
    holds: bool
    found: str


def figures(plan: Plan) -> dict[str, Figures]:
    """What is finished, by model."""
    found: dict[str, Figures] = {}
    for name in plan.models:
        files = [plan.result(name, seed) for seed in plan.seeds if plan.result(name, seed).is_file()]
        if files:
            found[name] = Figures(name, tuple(json.loads(file.read_text(encoding="utf-8")) for file in files))
    return found


def gates(found: Mapping[str, Figures], *, long: bool) -> list[Gate]:
    """Every gate whose models are finished; `long` for those of a run of `LONG` updates."""
    return list(_gates(found, long=long))


def _gates(found: Mapping[str, Figures], *, long: bool) -> Iterator[Gate]:
    def f1(name: str, least: float) -> Gate:
        value = found[name].f1
        text = f"first-error F1 of {MODELS[name].title!r} at least {least:.0%}"
        return Gate(text, value is not None and value >= least, _percent(value))

    if "step-oracle" in found:
        yield f1("step-oracle", 0.95 if long else 0.85)
    if "step-mc" in found:
        yield f1("step-mc", 0.70)
    if "implicit-ce" in found:
        yield f1("implicit-ce", 0.90)
    for name in ("step-oracle", "step-mc", "implicit-ce"):
        if name in found:
            yield from _votes(found[name])
    for name in ("step-mc", "implicit-ce"):
        for other in ("outcome-end", "outcome-steps"):
            if name in found and other in found:
                ours, theirs = found[name].vote(16), found[other].vote(16)
                text = f"weighted vote of 16 of {MODELS[name].title!r} beats that of {MODELS[other].title!r}"
                yield Gate(text, ours > theirs, f"{ours:.3f} against {theirs:.3f}")
    for name, figure in found.items():
        if MODELS[name].control:
            gain = _value(figure.best.gain[16])
            text = f"weighted vote of 16 of {MODELS[name].title!r} does not beat majority by 10 points"
            yield Gate(text, gain < 0.10, f"{gain:+.3f}")
    yield from _falls(found)


def _votes(figure: Figures) -> Iterator[Gate]:
    title, gain = MODELS[figure.name].title, _value(figure.best.gain[16])
    yield Gate(f"weighted vote of 16 of {title!r} beats majority by 10 points", gain >= 0.10, f"{gain:+.3f}")
    few, many = figure.vote(4), figure.vote(16)
    yield Gate(f"weighted vote of {title!r} does not fall from 4 to 16", many >= few, f"{few:.3f} to {many:.3f}")


def _falls(found: Mapping[str, Figures]) -> Iterator[Gate]:
    """Where the argmax of 16 certainly lies below pass@1, it must be flagged as over-optimised."""
    for name, figure in found.items():
        own = figure.best
        first, last = _value(own.first), _value(own.rows["argmax"][16])
        if last < first - 0.02:
            text = f"over-optimisation of {MODELS[name].title!r} is flagged, whose argmax of 16 lies below pass@1"
            yield Gate(text, own.over_optimised, f"{first:.3f} to {last:.3f}")


# ---- the page --------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Figures], held: Sequence[Gate]) -> str:
    """The page of what is finished."""
    lines = [f"| {gate.sentence} | {gate.found} | {'yes' if gate.holds else '**no**'} |" for gate in held]
    parts = [_common(found), _first_errors(found), _best(found), _aggregates(found), _costs(found)]
    parts.append(_table("| gate | found | holds |", lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def _common(found: Mapping[str, Figures]) -> str:
    """What does not depend on the model: pass@1, majority, any of n; by world."""
    lines: list[str] = []
    for world in ("digits", "domains"):
        models = [figure for name, figure in found.items() if MODELS[name].world == world and MODELS[name].pools == 1]
        if models:
            most = max(models, key=lambda figure: figure.seeds).best
            cells = [_interval(most.rows[row][n]) for row in ("majority", "any of n") for n in (4, 16)]
            lines.append(f"| {world} | {most.problems:,} | {_interval(most.first)} | {' | '.join(cells)} |")
    head = "| world | problems | pass@1 | majority of 4 | majority of 16 | any of 4 | any of 16 |"
    return _table(head, lines)


def _first_errors(found: Mapping[str, Figures]) -> str:
    keys = ("f1", "error_accuracy", "correct_accuracy", "step_auc", "calibration_error")
    lines = [
        f"| {MODELS[name].title} | {figure.seeds} | {' | '.join(_spread(figure, key) for key in keys)} |"
        for name, figure in found.items()
    ]
    head = "| model | seeds | first-error F1 | wrong solutions found | right ones kept | step AUC | calibration error |"
    return _table(head, lines)


def _best(found: Mapping[str, Figures]) -> str:
    lines: list[str] = []
    for name, figure in found.items():
        own = figure.best
        argmax = " / ".join(f"{_value(own.rows['argmax'][n]):.3f}" for n in SIZES)
        falls = "argmax falls" if own.over_optimised else ""
        length = "-" if own.length_correlation is None else f"{own.length_correlation:+.2f}"
        lines.append(
            f"| {MODELS[name].title} | {_interval(own.rows['weighted vote'][16])} | {_signed(own.gain[16])} "
            f"| {argmax} | {falls} | {length} |"
        )
    head = "| model | weighted vote of 16 | minus majority | argmax of 1 / 2 / 4 / 8 / 16 | flag | score and length |"
    return _table(head, lines)


def _aggregates(found: Mapping[str, Figures]) -> str:
    lines: list[str] = []
    for name, figure in found.items():
        if figure.aggregates:
            values = [figure.argmax(how) for how in figure.aggregates]
            cells = [f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]" for value in values]
            lines.append(f"| {MODELS[name].title} | {' | '.join(cells)} |")
    return _table(f"| argmax of 16 by | {' | '.join(how for how in AGGREGATES if how != 'value')} |", lines)


def _costs(found: Mapping[str, Figures]) -> str:
    lines: list[str] = []
    for name, figure in found.items():
        updates, tokens = (max(unit[key] for unit in figure.units) for key in ("updates", "tokens"))
        seconds = [math.fsum(unit[key] for unit in figure.units) / figure.seeds for key in ("train_s", "measure_s")]
        lines.append(f"| {MODELS[name].title} | {updates:,} | {tokens:,.0f} | {seconds[0]:.0f} | {seconds[1]:.0f} |")
    return _table("| model | updates | tokens | seconds of training | of measuring |", lines)


def _table(head: str, lines: Sequence[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|---" * columns + "|", *lines]) if lines else ""


def _spread(figure: Figures, key: str) -> str:
    """Mean over seeds and their range, of one seed its own interval; "not defined" where no seed has it."""
    values = figure.first_error(key)
    if not values:
        return "not defined"
    if figure.seeds == 1 and isinstance(own := figure.units[0]["first_error"][key], list):
        _, *ends = cast("list[float]", own)
    else:
        ends = [min(values), max(values)] if len(values) > 1 else []
    whole = _percent(math.fsum(values) / len(values)) + (f" [{', '.join(map(_percent, ends))}]" if ends else "")
    return whole if len(values) == figure.seeds else f"{whole} ({len(values)} of {figure.seeds} seeds)"


def _percent(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:.1f}"


def _value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


def _interval(estimate: Estimate) -> str:
    low_high = "" if estimate.interval is None else f" [{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]"
    return f"{_value(estimate):.3f}{low_high}"


def _signed(estimate: Estimate) -> str:
    low_high = "" if estimate.interval is None else f" [{estimate.interval.low:+.3f}, {estimate.interval.high:+.3f}]"
    return f"{_value(estimate):+.3f}{low_high}"
