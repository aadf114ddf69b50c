"""What `assay label` prints: what was labelled and what was left out, what it cost, and what the audit says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.labels import LabelReport, LabelSettings, Solution


def label_facts(report: LabelReport, target: Path, written: int) -> dict[str, Any]:
    """The figures as plain JSON."""
    audit = report.audit
    return {
        "labelled": len(report.labelled),
        "right": sum(found.right for found in report.labelled),
        "undecided": report.undecided,
        "skipped": len(report.skipped),
        "unjudged": _counted(report.unjudged.values()),
        "completions": report.results,
        "cost": report.cost.to_dict(),
        "audit": {
            "prefixes": audit.nodes,
            "disagree": audit.disagree,
            "behind_the_error": audit.closed,
            "leaked": audit.leaked,
        },
        "out": str(target),
        "written": written,
    }


def label_lines(
    data: str, solutions: Sequence[Solution], report: LabelReport, settings: LabelSettings
) -> Iterator[str]:
    """The figures in words."""
    right = sum(found.right for found in report.labelled)
    steps = sum(len(solution.pieces) for solution in solutions) / len(solutions)
    wrong = len(report.labelled) - right
    yield f"{data}: {len(solutions):,} solutions of {steps:.1f} steps; {right:,} right and {wrong:,} wrong labelled"
    if report.skipped:
        low, high = settings.pass_rate
        unsolved = low < 1e-6 and high == 1
        why = "nobody solved their problem" if unsolved else "their problem's share of right ones is outside the range"
        yield f"  {len(report.skipped):,} wrong ones are left out: {why}"
    if report.unjudged:
        yield f"  {len(report.unjudged):,} have no verdict: {_listed(_counted(report.unjudged.values()))}"
    if report.undecided:
        yield f"  {report.undecided:,} wrong ones have no first error: completions of a prefix could not be judged"
    yield f"completions: {_listed(report.results) or 'none'}"
    yield f"cost: {report.cost}"
    audit = report.audit
    if audit.nodes:
        leak = f"; leak {audit.leaked / audit.closed:.1%} of {audit.closed:,}" if audit.closed else ""
        yield (
            f"audit: of {audit.nodes:,} prefixes with all {settings.samples} completions {audit.disagree:,} would be "
            f"labelled otherwise{leak}"
        )


def _counted(results: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for result in results:
        found[result] = found.get(result, 0) + 1
    return found


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
