"""What step labels cost beside naive ones (every prefix x 16 completions), and how often they are true.

    python tests/benchmarks/labels.py [--problems 40]

Chains whose first wrong step is known, by a scripted policy whose completions are the same in every mode. One JSON line
per length and mode, over three policies: decoded tokens, how many times fewer than naive, completions per wrong
solution, share of the true first errors that was found (of all labelled wrong solutions, and of those whose problem's
pass rate is 0.2 to 0.9). `unequal` counts solutions of the mode `hard_exact` whose labels are not the naive ones,
closed behind their first dead prefix. The last line holds the bars; the exit status is 3 where one does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.labels import CompletionLog, Labelled, Labeller, LabelReport, LabelSettings, Mode, Solution
from assay.labels.decisions import AnyOf
from assay.steps import SplitterOptions, split_steps
from assay.testing.chains import ChainJudge, Chains, sample_seed, wrong_steps
from assay.testing.scripted import ScriptedEngine

SEEDS = (4, 5, 6)
SAMPLES = 16
PER_PROBLEM = 4
LINES = SplitterOptions(by="line")


@dataclass(frozen=True)
class Setting:
    """One length of solutions, over several policies with misconceptions of their own."""

    name: str
    worlds: tuple[Chains, ...]
    least_saving: float


SETTINGS = (
    Setting(
        "about 6 steps, leak about .02",
        tuple(Chains(seed=seed, lengths=(5, 7), collapse=0.02) for seed in SEEDS),
        5.0,
    ),
    Setting(
        "about 20 steps, leak about .04",
        tuple(Chains(seed=seed, lengths=(18, 22), collapse=0.01, slip=0.012, misconceived=0.04) for seed in SEEDS),
        10.0,
    ),
)


class Totals(Counter[str]):
    """Counts of one mode over all worlds."""

    def facts(self) -> dict[str, Any]:
        """With the shares that they make."""
        shares = {
            "found": round(self["hits"] / self["wrong"], 3),
            "found_of_middle": round(self["middle_hits"] / self["middle"], 3),
            "completions_per_wrong": round(self["completions"] / self["wrong"], 2),
        }
        return {**self, **shares}


def main() -> int:
    """0 where every bar holds."""
    parser = argparse.ArgumentParser(description="Cost and truth of step labels.")
    parser.add_argument("--problems", type=int, default=40, help="of each policy")
    problems: int = parser.parse_args().problems
    bars: dict[str, bool] = {}
    for setting in SETTINGS:
        naive, exact, auto = Totals(), Totals(), Totals()
        unequal = 0
        for chains in setting.worlds:
            given = _solutions(chains, problems)
            full = _label(chains, given, "soft")
            truth = _naive_labels(full)
            naive.update(_counted(full, truth), decoded=_decoded_by_naive(full))
            modes: list[tuple[Mode, Totals]] = [("hard_exact", exact), ("auto", auto)]
            for mode, totals in modes:
                report = _label(chains, given, mode)
                labels = {found.solution.id: list(found.labels) for found in report.labelled}
                totals.update(_counted(report, labels), decoded=report.cost.decoded)
                if mode == "hard_exact":
                    unequal += sum(labels[found.solution.id] != truth[found.solution.id] for found in _wrong(report))
        savings = {"hard_exact": naive["decoded"] / exact["decoded"], "auto": naive["decoded"] / auto["decoded"]}
        _say(setting, "naive, any of 16, closed", naive.facts())
        _say(setting, "hard_exact", {**exact.facts(), "saving": round(savings["hard_exact"], 1), "unequal": unequal})
        _say(setting, "auto", {**auto.facts(), "saving": round(savings["auto"], 1)})
        bars[f"{setting.name}: hard_exact equals naive"] = unequal == 0
        bars[f"{setting.name}: auto finds at least as many"] = auto["hits"] >= naive["hits"]
        bars[f"{setting.name}: {setting.least_saving:g} x fewer tokens"] = savings["auto"] >= setting.least_saving
    print(json.dumps({"bars": bars}), flush=True)
    return 0 if all(bars.values()) else 3


def _solutions(chains: Chains, problems: int) -> list[Solution]:
    found: list[Solution] = []
    for number in range(problems):
        task = chains.task(number)
        for sample in range(PER_PROBLEM):
            text = chains.continued(task.prompt, "", sample_seed("benchmark", task.id, sample))
            found.append(Solution(len(found) + 1, f"{task.id}-{sample}", task, text, split_steps(text, LINES)))
    return found


def _label(chains: Chains, given: Sequence[Solution], mode: Mode) -> LabelReport:
    """Labels of one mode, without an audit, of problems that somebody solved."""
    settings = LabelSettings(mode=mode, samples=SAMPLES, audit_share=0.0)
    with tempfile.TemporaryDirectory() as folder:
        log = CompletionLog(Path(folder) / "completions.jsonl", {})
        try:
            return asyncio.run(Labeller(ScriptedEngine(chains.answer), ChainJudge(), log, settings).label(given))
        finally:
            log.close()


def _decoded_by_naive(report: LabelReport) -> int:
    """Tokens of all completions, once for every solution that asks for them."""
    return sum(
        completion.tokens
        for found in report.labelled
        for node in found.nodes
        if node is not None
        for completion in node.completions.values()
    )


def _naive_labels(report: LabelReport) -> dict[str, list[float | None]]:
    """Solution to its labels by any of 16, closed behind the first dead prefix, from all completions."""
    labels: dict[str, list[float | None]] = {}
    for found in _wrong(report):
        states = [AnyOf(SAMPLES).state(node.counts(SAMPLES)) for node in found.nodes if node is not None]
        dead = next((index for index, state in enumerate(states) if state == "dead"), len(states))
        labels[found.solution.id] = [1.0] * dead + [0.0] + [None] * (len(states) - dead)
    return labels


def _wrong(report: LabelReport) -> list[Labelled]:
    return [found for found in report.labelled if not found.right]


def _counted(report: LabelReport, labels: Mapping[str, Sequence[float | None]]) -> dict[str, int]:
    """Wrong solutions, and those whose first wrong step is the labelled one; also of problems of a middling rate."""
    rates: dict[str, list[bool]] = {}
    for found in report.labelled:
        rates.setdefault(found.solution.task.id, []).append(found.right)
    counts = dict.fromkeys(("wrong", "hits", "middle", "middle_hits"), 0)
    for found in _wrong(report):
        wrong = wrong_steps(found.solution.task.prompt, found.solution.steps)
        said = labels[found.solution.id]
        hit = bool(wrong) and 0.0 in said and said.index(0.0) == wrong[0]
        right = rates[found.solution.task.id]
        middle = 0.2 <= sum(right) / len(right) <= 0.9
        counts["wrong"] += 1
        counts["hits"] += hit
        counts["middle"] += middle
        counts["middle_hits"] += middle and hit
    return {**counts, "completions": report.cost.completions}


def _say(setting: Setting, mode: str, facts: Mapping[str, Any]) -> None:
    print(json.dumps({"benchmark": "labels", "setting": setting.name, "mode": mode, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
