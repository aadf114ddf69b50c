"""`assay compare`: two runs side by side."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from assay import runs
from assay.cli.output import emit, say, table
from assay.compare import Comparison, Flip
from assay.compare import compare as compare_runs
from assay.errors import ConfigError
from assay.reports.compute_curve import MIN_POINTS, ComputeCurve
from assay.reports.text import one_line

SHOWN = 5
"""Flips and settings that are listed of many."""


def compare(
    first: str,
    second: str,
    /,
    *,
    by: Literal["task", "sample"] = "task",
    pass_at: Annotated[str, Parameter(name="--pass-at")] = "",
    fit: bool = False,
    runs_dir: Path = Path("runs"),
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Show paired differences of two runs, what flipped, and what was set otherwise.

    Args:
        first: Folder, name, short id of a run, or `latest`; usually the base.
        second: The run that it is compared with.
        by: Pair the means of tasks, or single answers by their place.
        pass_at: The k of pass@k, for example `1,4,16`; also tells where the first run catches up.
        fit: Fit a sigmoid of the reward against sampled tokens to each run.
        runs_dir: Where run folders are looked for.
        json_: JSON instead of text.
    """
    ks = _numbers(pass_at)
    folders = runs.find_run(first, runs_dir), runs.find_run(second, runs_dir)
    found = compare_runs(*folders, by=by, pass_at=ks, fit=fit)
    if json_:
        emit(found.to_dict())
    else:
        _print(found)
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"--pass-at {text}: not a list of whole numbers; write for example --pass-at 1,4,16"
        ) from None


def _print(found: Comparison) -> None:
    say(f"{found.first.name} -> {found.second.name}: {found.answers}, {found.pairs:,} paired by {found.by}")
    if found.means is not None and found.difference is not None:
        d = found.difference
        sign = (
            "no clear difference"
            if d.low <= 0 <= d.high
            else "the second is better"
            if d.low > 0
            else "the second is worse"
        )
        means = f"mean {found.means[0]:.3f} -> {found.means[1]:.3f}"
        say(f"{means}, difference {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]: {sign}")
    say(f"wrong to right {len(found.gained):,}, right to wrong {len(found.lost):,}")
    if any(found.unpaired):
        say(f"only in the first {found.unpaired[0]:,}, only in the second {found.unpaired[1]:,}")
    _flips("right to wrong", found.lost)
    _flips("wrong to right", found.gained)
    if found.pass_at:
        table(
            ["k", "tasks", "first pass@k", "second pass@k"],
            [[row.k, row.tasks, row.first, row.second] for row in found.pass_at],
        )
        say(
            "the first does not catch up at these k"
            if found.crossover is None
            else f"the first catches up at k = {found.crossover}"
        )
    if found.curves is not None:
        for folder, curve in zip((found.first, found.second), found.curves, strict=True):
            say(f"{folder.name}: {_curve(curve)}")
    _differences("setting", found.settings)
    _differences("plugin", found.plugins)


def _flips(title: str, flips: list[Flip]) -> None:
    for flip in flips[:SHOWN]:
        say(f"  {title}: {flip.task}  {one_line(flip.first, 50)!r} -> {one_line(flip.second, 50)!r}")
    if len(flips) > SHOWN:
        say(f"  ... and {len(flips) - SHOWN:,} more; --json lists all")


def _curve(curve: ComputeCurve | None) -> str:
    if curve is None:
        return f"no curve: fewer than {MIN_POINTS} steps with a reward"
    guess = "" if curve.reached >= 0.5 else "; less than half of it is reached, so the ceiling is a guess"
    return (
        f"reward {curve.start:.3f} -> ceiling {curve.ceiling:.3f}, half of the gain at {curve.midpoint:,.0f} tokens, "
        f"steepness {curve.steepness:.2f} (residual {curve.residual:.3f} over {curve.points} steps{guess})"
    )


def _differences(title: str, changed: dict[str, Any] | dict[str, tuple[str | None, str | None]]) -> None:
    for key, (ours, theirs) in changed.items():
        say(f"{title} {key}: {ours!r} -> {theirs!r}")
