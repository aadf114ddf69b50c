"""What `assay rerank` prints: counts beside every mean, intervals beside every share, and what to be wary of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from assay.reports.best_of import BestOf, Estimate
from assay.reports.first_error import FirstError
from assay.reports.statistics import Interval
from assay.reports.step_rows import StepReport
from assay.reranking import Reranked

FLAT = {"majority": "majority", "any of n": "any of n (oracle, pass@n)"}
"""Strategies that no scorer has a part in, and what they are called in print."""


def best_of_text(data: str, found: Reranked) -> list[str]:
    """The lines for best-of-n."""
    judged = found.judged
    any_figures = next(iter(next(iter(found.found.values())).values()))
    lines = [
        f"{data}: {len(judged.pools):,} problems, {len(judged.responses):,} responses; right or wrong says "
        f"{judged.verdict}",
        f"pass@1 {_shown(any_figures.first)}",
    ]
    head = ["", *(f"n = {n}" for n in any_figures.sizes)]
    rows = [head, *([title, *_cells(any_figures.rows[name])] for name, title in FLAT.items())]
    for scorer, by_how in found.found.items():
        for how, figures in by_how.items():
            title = scorer if how == "value" else f"{scorer} ({how})"
            rows += [[f"{title}: {name}", *_cells(figures.rows[name])] for name in ("argmax", "weighted vote")]
    lines += _aligned(rows)
    for scorer, by_how in found.found.items():
        for how, figures in by_how.items():
            lines += _remarks(scorer if how == "value" else f"{scorer} ({how})", figures)
    lines += _counts(any_figures, judged.unjudged)
    return lines


def _remarks(title: str, figures: BestOf) -> Iterator[str]:
    """What a reader must know of one scorer: majority may beat it, and more samples may make it worse."""
    most = max((n for n in figures.sizes if figures.gain[n].interval is not None), default=None)
    if most is not None and most > 1:
        gain = figures.gain[most].interval
        assert gain is not None
        word = "beats majority" if gain.low > 0 else "loses to majority" if gain.high < 0 else "is no better or worse"
        yield f"{title}: weighted vote of {most} minus majority {_signed(gain)}: it {word}"
    for fall in figures.falls:
        if fall.drop.low > 0:
            yield (
                f"! {title}: over-optimised: the argmax of {fall.more} is worth {fall.drop.value:.3f} "
                f"[{fall.drop.low:.3f}, {fall.drop.high:.3f}] less than that of {fall.fewer}"
            )
    if figures.length_correlation is not None and abs(figures.length_correlation) >= 0.3:
        yield f"! {title}: its scores go with length, correlation {figures.length_correlation:+.2f} inside problems"
    if figures.unscored:
        yield f"! {title}: {figures.unscored:,} of {figures.samples:,} responses have no score and are never chosen"


def _counts(figures: BestOf, unjudged: Mapping[str, int]) -> Iterator[str]:
    if figures.masked or unjudged:
        parts = ", ".join(f"{count:,} {status}" for status, count in unjudged.items()) or "no verdict in the data"
        yield f"{figures.masked:,} responses without a verdict are left out ({parts})"
    if figures.unread:
        yield f"{figures.unread:,} responses without a readable answer, which never vote"
    short = {n: figures.first.problems - figures.rows["majority"][n].problems for n in figures.sizes}
    if any(short.values()):
        parts = ", ".join(f"n = {n}: {missing:,}" for n, missing in short.items() if missing)
        yield f"problems with too few responses, left out of their column: {parts}"


def first_error_text(data: str, source: str, found: StepReport) -> list[str]:
    """The lines for a file with labelled steps."""
    fitted = found.whole.threshold
    where = "given" if not fitted.rows else f"fitted on {fitted.rows:,} rows of the development half"
    lines = [f"{data}: {found.rows:,} rows by {source}; threshold {fitted.threshold:.6g}, {where}"]
    head = ["", "rows", "errors found", "right ones kept", "F1", "step AUC", "calibration error"]
    rows = [head, ["all", *_figures(found.whole)], *([name, *_figures(row)] for name, row in found.domains.items())]
    lines += _aligned(rows)
    if found.domains:
        mean, weighed = _percent(found.mean_f1.plain), _percent(found.mean_f1.size_weighted)
        without = f"; not defined for {', '.join(found.mean_f1.undefined)}" if found.mean_f1.undefined else ""
        lines.append(f"mean F1 over subsets {mean} (weighed by size {weighed}){without}")
    if found.step_f1 is not None:
        step = found.step_f1
        lines.append(
            f"all wrong steps are known: F1 {_percent(step.f1)}, F1 of wrong steps {_percent(step.negative_f1)}, "
            f"PRM score {_percent(step.prm_score)}, {step.steps:,} steps"
        )
        for name, each in found.step_f1_by_domain.items():
            lines.append(f"  {name}: PRM score {_percent(each.prm_score)}, {each.steps:,} steps")
    if found.unscored:
        lines.append(f"! {found.unscored:,} rows have no score for each step and are in no figure")
    return lines


def _figures(found: FirstError) -> list[str]:
    error = "-" if found.calibration_error is None else f"{found.calibration_error:.3f}"
    return [
        f"{found.with_error + found.without_error:,}",
        _accuracy(found.error_accuracy),
        _accuracy(found.correct_accuracy),
        _accuracy(found.f1_interval),
        "not defined" if found.step_auc is None else f"{found.step_auc:.3f}",
        error,
    ]


def _accuracy(interval: Interval | None) -> str:
    return "not defined" if interval is None else f"{100 * interval.value:.1f} {_range(interval)}"


def _range(interval: Interval) -> str:
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _percent(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:.1f}"


def _cells(row: Mapping[int, Estimate]) -> list[str]:
    return [_shown(estimate) for estimate in row.values()]


def _shown(estimate: Estimate) -> str:
    found = estimate.interval
    return "-" if found is None else f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _signed(interval: Interval) -> str:
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A plain table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
