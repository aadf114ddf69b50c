"""10,000 MATH rows through the whole panel, beside math-verify in two processes in the same run; one stuck answer.

    python tests/benchmarks/math_panel.py SHARED [--peer-rows 600] [--rows 10000]

5,000 golds of the MATH test split x {a rewrite, the neighbour's gold}, judged by `[[rewards]] use = "math"` with the
verdict cache off: the first pass is cold, the second warm. math-verify judges a sample of the same rows in two
processes after a warm-up. Then 64 ordinary answers beside one that never ends. One JSON line per figure.
"""

# math-verify ships partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, cast

from assay.config.rewards import JudgingConfig, SourceEntry
from assay.contracts import Message, Reward, Rollout, Task, Turn
from assay.judging import Panel, open_panel
from assay.registry import Registry
from assay_math.extract import extract
from assay_math.found import Extraction
from assay_math.options import MathPolicy
from assay_math.rewrites import REWRITES

Row = tuple[str, str, bool]
"""Gold, response, and whether it must be accepted."""
_IN_FLIGHT = 256


def say(figure: str, **numbers: Any) -> None:
    """Print one figure."""
    print(json.dumps({"figure": figure, **numbers, "load": round(os.getloadavg()[0], 2)}), flush=True)


def math_rows(data: Path, count: int) -> list[Row]:
    """Every gold with one of its rewrites (in turn) and with the neighbour's gold."""
    policy = MathPolicy(rules=("boxed",))
    lines = (data / "math" / "test.jsonl").read_text("utf-8").splitlines()
    found = [extract(json.loads(line)["solution"], policy) for line in lines]
    golds = [each.text for each in found if isinstance(each, Extraction)]
    rules = itertools.cycle(REWRITES.values())
    rows: list[Row] = []
    for place, gold in enumerate(golds):
        written = next((text for text in (next(rules)(gold) for _ in REWRITES) if text is not None), gold)
        rows.append((gold, f"Therefore the answer is $\\boxed{{{written}}}$.", True))
        neighbour = golds[(place + 1) % len(golds)]
        rows.append((gold, f"Therefore the answer is $\\boxed{{{neighbour}}}$.", neighbour == gold))
    return rows[:count]


def labelled_rows(data: Path) -> list[Row]:
    """The labelled responses of `bon_math100`."""
    lines = (data / "bon_math100" / "math_cot_100.jsonl").read_text("utf-8").splitlines()
    parsed = [json.loads(line) for line in lines]
    return [
        (row["answer"], text, label)
        for row in parsed
        for text, label in zip(row["responses"], row["correct"], strict=True)
    ]


async def judge(panel: Panel, rows: list[Row]) -> list[Reward]:
    """The rewards of all rows, a bounded number in flight."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def one(place: int, gold: str, text: str) -> Reward:
        task = Task(id=f"t{place // 2}:{gold[:40]}", messages=(Message(role="user", content="?"),), reference=gold)
        rollout = Rollout(id=f"r{place}", task_id=task.id, group_id=task.id, turns=(Turn(text=text),))
        async with gate:
            return await panel.judge(task, rollout)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(place, gold, text)) for place, (gold, text, _) in enumerate(rows)]
    return [task.result() for task in tasks]


def peer_one(row: Row) -> bool:
    """math-verify's verdict on one row."""
    from math_verify import parse, verify

    none = cast("int", None)
    gold, text, _ = row
    answer = parse(text, parsing_timeout=none)
    return bool(verify(parse(f"\\boxed{{{gold}}}", parsing_timeout=none), answer, timeout_seconds=none))


def peer_rate(rows: list[Row], sample: int) -> tuple[float, float]:
    """Rows per second of math-verify in two warm processes, and its share of right verdicts."""
    some = rows[:: max(1, len(rows) // sample) | 1]  # an odd step, so that both labels are drawn
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(peer_one, some[:60], chunksize=5)
        began = time.perf_counter()
        answers = pool.map(peer_one, some, chunksize=10)
        took = time.perf_counter() - began
    right = sum(answer == row[2] for answer, row in zip(answers, some, strict=True))
    return len(some) / took, right / len(some)


async def measured(rows: list[Row], name: str, sample: int) -> None:
    """Cold and warm passes of `rows`, and math-verify's rate."""
    began = time.perf_counter()
    registry = Registry.load()
    judging = JudgingConfig(cache=False)
    seconds: list[float] = []
    right = 0
    async with open_panel([SourceEntry(use="math")], registry=registry, judging=judging) as panel:
        for _ in range(2):
            rewards = await judge(panel, rows)
            seconds.append(time.perf_counter() - began)
            right = sum((reward.value == 1.0) == row[2] for reward, row in zip(rewards, rows, strict=True))
            began = time.perf_counter()
    rate, peer_right = peer_rate(rows, sample)
    say(
        name,
        rows=len(rows),
        right=right / len(rows),
        cold_s=round(seconds[0], 2),
        warm_s=round(seconds[1], 2),
        rows_per_s=round(len(rows) / seconds[1]),
        math_verify_rows_per_s=round(rate),
        math_verify_right=round(peer_right, 4),
        ratio=round(len(rows) / seconds[1] / rate, 1),
    )


async def stuck() -> None:
    """One answer that never ends beside 64 ordinary ones: what it costs, and how late the others are."""
    endless = "\\boxed{\\prod_{k=1}^{10^9} k}"
    entry = SourceEntry.model_validate({"use": "math", "unevaluated": True})
    done: dict[str, float] = {}
    async with open_panel([entry], registry=Registry.load(), judging=JudgingConfig(cache=False)) as panel:
        # The worker's start (imports) belongs to no answer.
        await judge(panel, [("\\frac{8}{3}", "\\boxed{\\int_0^2 x^2\\,dx}", True)])
        began = time.perf_counter()

        async def one(name: str, row: Row) -> None:
            await judge(panel, [row])
            done[name] = time.perf_counter() - began

        async with asyncio.TaskGroup() as group:
            group.create_task(one("stuck", ("5", endless, False)))
            for place in range(64):
                group.create_task(one(f"ordinary {place}", ("5", f"The answer is \\boxed{{{place}}}.", place == 5)))
    ordinary = max(took for name, took in done.items() if name != "stuck")
    say("one stuck answer", budget_cpu_s=1.0, stuck_s=round(done["stuck"], 3), slowest_ordinary_s=round(ordinary, 3))


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--peer-rows", type=int, default=600)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    data: Path = options.shared / "data"
    asyncio.run(measured(math_rows(data, options.rows), "MATH rows through the panel", options.peer_rows))
    asyncio.run(measured(labelled_rows(data), "bon_math100 through the panel", options.peer_rows))
    asyncio.run(stuck())


if __name__ == "__main__":
    main()
