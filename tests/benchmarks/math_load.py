"""The same input, the same verdict: in another process, hash seed, order and batch, and on a busy machine.

    python tests/benchmarks/math_load.py SHARED [--burners 8]

Every child judges the same rows through the panel (`math`, cache off) in a process of its own: MATH-500 golds x {a
rewrite, the neighbour's gold}, the labelled responses, the labelled cases, and answers that reach the worker, some of
them near its budget of CPU time. One child is idle; one has another hash seed, a shuffled order and other numbers in
flight; one shares the machine with `--burners` processes that never rest. Two lines of JSON: rows whose verdict or
evidence differ between quiet children (none may), and rows that load decided (at most 0.5 %, each with the reason
`limit` on one side).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from assay.config.rewards import JudgingConfig, SourceEntry
from assay.contracts import JsonValue, Judgement, Message, Rollout, Task, Turn
from assay.judging import open_panel
from assay.registry import Registry
from assay_math.rewrites import REWRITES

LIMIT = 0.005
Item = tuple[Task, str]
Found = dict[str, Any]


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def task(name: str, gold: JsonValue, prompt: str = "?", **facts: JsonValue) -> Task:
    """One task with its declared facts."""
    return Task(id=name, messages=(Message(role="user", content=prompt),), reference=gold, facts=facts)


def items(shared: Path) -> list[Item]:
    """Every row that is judged, always in this order."""
    found: list[Item] = []
    golds = [row["answer"] for row in lines(shared / "data" / "math" / "math500.jsonl")]
    for place, gold in enumerate(golds):
        written = next((text for text in (rule(gold) for rule in REWRITES.values()) if text is not None), gold)
        neighbour = golds[(place + 1) % len(golds)]
        found += [(task(f"math {place}", gold), f"So it is \\boxed{{{text}}}.") for text in (written, neighbour)]
    for place, row in enumerate(lines(shared / "data" / "bon_math100" / "math_cot_100.jsonl")):
        found += [(task(f"response {place}", row["answer"]), text) for text in row["responses"]]
    for row in lines(shared / "cases" / "math_cases.jsonl"):
        facts = {"options": row["options"]} if row.get("options") else {}
        found.append((task(row["id"], row["gold"], row.get("prompt") or "?", **facts), row["prediction"]))
    return found + worker_items()


def worker_items() -> list[Item]:
    """Answers that only the worker decides: easy ones, and ones that cost much of its budget or all of it."""
    facts: dict[str, JsonValue] = {"unevaluated": True}
    answers = [(f"\\frac{{{n**3}}}{{3}}", f"\\int_0^{{{n}}} x^2\\,dx") for n in range(2, 12)]
    answers += [(str(n * (n + 1) // 2), f"\\sum_{{k=1}}^{{{n}}} k") for n in range(5, 15)]
    answers += [(str(n), f"\\lim_{{x \\to 0}} \\frac{{\\sin({n}x)}}{{x}}") for n in range(2, 8)]
    answers += [("5", f"\\prod_{{k=1}}^{{10^{n}}} k") for n in (3, 4, 5, 9)]
    answers += [("\\pi", f"\\int_0^{{\\infty}} \\frac{{\\sin(x)^{n}}}{{x^{n}}}\\,dx") for n in (2, 3, 4)]
    return [
        (task(f"worker {place}", gold, math=facts), f"\\boxed{{{text}}}") for place, (gold, text) in enumerate(answers)
    ]


async def judged(rows: list[Item], order: list[int], in_flight: int) -> list[Found]:
    """What the panel says of every row, in the rows' own order."""
    found: dict[str, Found] = {}

    def observe(_: Any, judgement: Judgement) -> None:
        found[judgement.rollout_id] = judgement.verdict.model_dump(mode="json")

    gate = asyncio.Semaphore(in_flight)
    entry, registry = SourceEntry(use="math"), Registry.load()
    async with open_panel([entry], registry=registry, judging=JudgingConfig(cache=False), observe=observe) as panel:

        async def one(place: int) -> None:
            asked, text = rows[place]
            async with gate:
                await panel.judge(
                    asked, Rollout(id=str(place), task_id=asked.id, group_id="g", turns=(Turn(text=text),))
                )

        async with asyncio.TaskGroup() as group:
            for place in order:
                group.create_task(one(place))
    return [found[str(place)] for place in range(len(rows))]


def child(shared: Path, seed: int, in_flight: int) -> None:
    """Judge everything here and print the verdicts, one a line."""
    rows = items(shared)
    order = list(range(len(rows)))
    if seed:
        random.Random(seed).shuffle(order)  # an order, not a secret
    for verdict in asyncio.run(judged(rows, order, in_flight)):
        print(json.dumps(verdict, sort_keys=True))


def started(shared: Path, seed: int, in_flight: int) -> list[Found]:
    """The verdicts of a child with a hash seed and an order of its own."""
    command = [sys.executable, __file__, str(shared), "--child", str(seed), "--in-flight", str(in_flight)]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def burn() -> None:
    """Never rest."""
    while True:
        pass


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--burners", type=int, default=8)
    parser.add_argument("--child", type=int)
    parser.add_argument("--in-flight", type=int, default=64)
    options = parser.parse_args()
    shared: Path = options.shared
    if options.child is not None:
        child(shared, options.child, options.in_flight)
        return
    quiet, other = started(shared, 0, 64), started(shared, 7, 3)
    burners = [multiprocessing.get_context("spawn").Process(target=burn, daemon=True) for _ in range(options.burners)]
    for process in burners:
        process.start()
    try:
        busy = started(shared, 0, 64)
    finally:
        for process in burners:
            process.kill()
    names = [asked.id for asked, _ in items(shared)]
    unequal = [name for name, a, b in zip(names, quiet, other, strict=True) if a != b]
    moved = [(name, a, b) for name, a, b in zip(names, quiet, busy, strict=True) if a != b]
    unmarked = [name for name, a, b in moved if "limit" not in (a["reason"], b["reason"])]
    figures = {"rows": len(names), "reached_a_limit": sum(verdict["reason"] == "limit" for verdict in quiet)}
    say("another process, hash seed, order and batch", **figures, different=unequal)
    say(
        "decided by load",
        **figures,
        burners=options.burners,
        share=len(moved) / len(names),
        limit=LIMIT,
        rows_moved=[name for name, _, _ in moved],
        without_the_reason_limit=unmarked,
    )


def say(figure: str, **numbers: Any) -> None:
    """Print one figure."""
    print(json.dumps({"figure": figure, **numbers, "load": round(os.getloadavg()[0], 2)}), flush=True)


if __name__ == "__main__":
    main()
