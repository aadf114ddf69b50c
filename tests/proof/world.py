"""The data of the proof: chains of operations, one policy's solutions, and their labels, written once as JSON lines.

A *world* is one seed and some domains: a policy with its own misconceptions, the problems that are trained on, and
others that are measured on. No problem is in both.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.contracts import Task
from assay.labels import CompletionLog, Labeller, LabelReport, LabelSettings, labelled_row, read_solutions, write_rows
from assay.steps import SplitterOptions
from assay.testing.chains import DOMAINS, ChainJudge, Chains, Domain, answer_of, sample_seed, wrong_steps
from assay.testing.scripted import ScriptedEngine

BETWEEN = "\n"
SPLITTER = SplitterOptions(by="line")
QUESTION, YES, NO, INSTRUCTION = "?", "Y", "N", "check"
"""What the generative verifiers ask and answer; each answer is one token of the tiny model."""


@dataclass(frozen=True)
class Sizes:
    """How much data there is."""

    problems: int = 1500
    samples: int = 4
    """Solutions of each problem that are trained on."""
    paired: int = 8
    """Solutions of each problem that pairs are made of: two of equal outcome make none."""
    pools: int = 300
    """Problems of best-of-n."""
    pool: int = 16
    """Solutions of each of them."""
    measured: int = 1200
    """Solutions of further problems, whose first error is looked for; half of them fit the threshold."""


FULL = Sizes()


@dataclass(frozen=True)
class World:
    """One seed's data."""

    seed: int
    domains: tuple[Domain, ...] = ("digits",)
    sizes: Sizes = FULL

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{'digits' if self.domains == ('digits',) else 'domains'}-{self.seed}"

    @property
    def chains(self) -> Chains:
        """The policy and the truth."""
        return Chains(seed=self.seed, domains=self.domains)

    def write(self, folder: Path) -> None:
        """Write every file that is not there yet."""
        folder.mkdir(parents=True, exist_ok=True)
        writers: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "outcomes": self._outcomes,
            "oracle": self._oracle,
            "pairs": self._pairs,
            "critiques": self._critiques,
            "pools": self._pools,
            "steps": self._steps,
            "permuted-oracle": lambda: _permuted(self._oracle(), "labels", self.seed),
            "permuted-outcomes": lambda: _permuted(self._outcomes(), "label", self.seed),
        }
        for name, rows in writers.items():
            if not (folder / f"{name}.jsonl").is_file():
                write_rows(folder / f"{name}.jsonl", rows())
        if not (folder / "labelled.jsonl").is_file():
            asyncio.run(self._label(folder))

    def _split(self) -> tuple[list[Task], list[Task], list[Task]]:
        """Problems to train on, of the pools, and of the measured solutions; all different."""
        sizes, seen = self.sizes, set[str]()
        wanted = sizes.problems + sizes.pools + sizes.measured
        found: list[Task] = []
        number = 0
        while len(found) < wanted:
            task = self.chains.task(number)
            number += 1
            if task.prompt not in seen:
                seen.add(task.prompt)
                found.append(task)
        at = sizes.problems + sizes.pools
        return found[: sizes.problems], found[sizes.problems : at], found[at:]

    def _solutions(self, tasks: Sequence[Task], count: int) -> Iterator[tuple[Task, str]]:
        chains = self.chains
        for task in tasks:
            for sample in range(count):
                yield task, chains.continued(task.prompt, "", sample_seed(self.seed, task.id, sample))

    def _trained(self) -> Iterator[tuple[Task, str]]:
        return self._solutions(self._split()[0], self.sizes.samples)

    def _outcomes(self) -> Iterator[dict[str, Any]]:
        for number, (task, text) in enumerate(self._trained()):
            yield {
                "id": str(number),
                "prompt": task.prompt,
                "response": text,
                "reference": task.reference,
                "label": answer_of(text) == task.reference,
                "domain": task.facts["domain"],
            }

    def _oracle(self) -> Iterator[dict[str, Any]]:
        for task, text in self._trained():
            steps = text.split(BETWEEN)
            wrong = set(wrong_steps(task.prompt, steps))
            labels = [index not in wrong for index in range(len(steps))]
            yield {"prompt": task.prompt, "completions": steps, "labels": labels}

    def _pairs(self) -> Iterator[dict[str, Any]]:
        by_problem: dict[str, tuple[list[str], list[str]]] = {}
        for task, text in self._solutions(self._split()[0], self.sizes.paired):
            by_problem.setdefault(task.prompt, ([], []))[answer_of(text) == task.reference].append(text)
        for prompt, (wrong, right) in by_problem.items():
            for chosen in dict.fromkeys(right):
                for rejected in dict.fromkeys(wrong):
                    yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}

    def _critiques(self) -> Iterator[dict[str, Any]]:
        """The oracle's critique of each solution: a mark for each step, then the verdict."""
        for task, text in self._trained():
            steps = text.split(BETWEEN)
            wrong = set(wrong_steps(task.prompt, steps))
            marks = "".join("x" if index in wrong else "." for index in range(len(steps)))
            yield {
                "prompt": task.prompt,
                "response": text,
                "critique": f"{marks}{QUESTION}{NO if wrong else YES}",
                "label": answer_of(text) == task.reference,
            }

    def _pools(self) -> Iterator[dict[str, Any]]:
        for task, text in self._solutions(self._split()[1], self.sizes.pool):
            answer = answer_of(text)
            yield {
                "problem": task.prompt,
                "response": text,
                "answer": answer,
                "label": answer == task.reference,
                "domain": task.facts["domain"],
            }

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Solutions in ProcessBench's form, one of each problem."""
        for task, text in self._solutions(self._split()[2], 1):
            steps = text.split(BETWEEN)
            wrong = wrong_steps(task.prompt, steps)
            yield {
                "id": task.id,
                "problem": task.prompt,
                "steps": steps,
                "label": wrong[0] if wrong else -1,
                "domain": task.facts["domain"],
            }

    async def _label(self, folder: Path) -> None:
        """Labels by 2 of at most 16 completions, problems that nobody solved left out."""
        settings = LabelSettings(mode="auto", samples=16, seed=self.seed)
        solutions = read_solutions(str(folder / "outcomes.jsonl"), splitter=SPLITTER)
        log = CompletionLog(folder / "completions.jsonl", {"seed": self.seed})
        try:
            labeller = Labeller(ScriptedEngine(self.chains.answer), ChainJudge(), log, settings)
            report = await labeller.label(solutions)
        finally:
            log.close()
        write_rows(folder / "labelled.jsonl", (labelled_row(found, settings, ["chain"]) for found in report.labelled))
        audit = report.audit
        facts = {"labelled": len(report.labelled), "skipped": len(report.skipped), "cost": report.cost.to_dict()}
        leak = audit.leaked / audit.closed if audit.closed else None
        facts |= {"audited": audit.nodes, "disagree": audit.disagree, "leak": leak, "found": _found(report)}
        (folder / "labelling.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def of_all_domains(seed: int, sizes: Sizes) -> World:
    """A world with every domain and as many problems as one with digits alone."""
    return World(seed, DOMAINS, replace(sizes, pools=sizes.pools // 3 * 3))


def _found(report: LabelReport) -> float | None:
    """Share of the wrong solutions whose first wrong step is the one labelled."""
    hits: list[bool] = []
    for found in report.labelled:
        wrong = wrong_steps(found.solution.task.prompt, found.solution.steps)
        if not found.right and wrong:
            hits.append(found.first_error == wrong[0])
    return sum(hits) / len(hits) if hits else None


def _permuted(rows: Iterator[dict[str, Any]], column: str, seed: int) -> Iterator[dict[str, Any]]:
    """The rows with the values of one column dealt out anew; lists only among rows of equal length."""
    kept = list(rows)
    by_size: dict[int, list[int]] = {}
    for index, row in enumerate(kept):
        by_size.setdefault(len(row[column]) if isinstance(row[column], list) else 0, []).append(index)
    draw = random.Random(f"{seed}:{column}")
    for members in by_size.values():
        dealt = [kept[index][column] for index in members]
        draw.shuffle(dealt)
        for index, value in zip(members, dealt, strict=True):
            kept[index] = {**kept[index], column: value}
    yield from kept
