"""Judging for a long time with faults among the candidates: whether anything slows down, leaks or is lost.

    python tests/benchmarks/judging_soak.py [--minutes 1] [--faults 0.05] [--workers 2]      # before a release: 30

Candidates of 1 ms CPU go through worker processes, the panel and the store; a share of them hangs, crashes, allocates,
forks, floods or raises. One JSON line per fifth of the time: verdicts per second, open files, threads, memory and
processes of this one; then a line with the last fifth against the first, how many candidates a loaded machine did not
let get as far as their own verdict or cause before the wall limit, and what should be 0: verdicts of healthy candidates
that changed (with the reasons given), faults without their cause, rollouts without exactly one judgement in the log,
processes left.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from assay.config.rewards import JudgingConfig, RewardEntry
from assay.contracts import Candidate, Judgement, RunInfo
from assay.judging import Panel, open_panel
from assay.process import descendants
from assay.store import RunStore
from assay.testing.fakes import make_rollout, make_task, registry_of

CAUSES = {
    "swallow": "timed out after",
    "exit": "its process exited with code 3",
    "allocate": "needed more than",
    "raise": "ValueError",
    "segfault": "ended by signal SIGSEGV",
    "print": "printed more than",
    "leave": "left ",
    "nan": "not a finite number",
}
"""Fault to what its verdict's reason says."""
FIFTHS, AT_ONCE = 5, 64
TASK = make_task()


def text_of(index: int, every: int) -> str:
    """The candidate of a number: every n-th is a fault, in turns."""
    if index % every:
        return f"answer {index}"
    return f"fault:{list(CAUSES)[index // every % len(CAUSES)]} {index}"


class Soak:
    """One long run."""

    def __init__(self, panel: Panel, store: RunStore, every: int) -> None:
        """Judge with `panel` into `store`; every n-th candidate is a fault."""
        self.panel = panel
        self.store = store
        self.every = every
        self.count = 0
        self.wrong: Counter[str] = Counter(healthy_verdicts_changed=0)
        self.reasons: Counter[str] = Counter()
        self.process = psutil.Process()

    def observe(self, candidate: Candidate, judgement: Judgement) -> None:
        """Keep and check a judgement."""
        self.store.add_judgement(judgement)
        text = candidate.rollout.text
        if text.startswith("fault:"):
            name = text.removeprefix("fault:").split()[0]
            reason = judgement.reason or ""
            expected = judgement.status == "failed" and CAUSES[name] in reason
            late = judgement.status == "failed" and not expected and "timed out after" in reason
            self.wrong["faults_ended_by_the_wall_first"] += late
            self.wrong["faults_without_their_cause"] += not expected and not late
        else:
            late = judgement.status == "failed" and "timed out after" in (judgement.reason or "")
            self.wrong["healthy_ended_by_the_wall"] += late
            if not late and judgement.value != float(len(text) % 2):
                self.wrong["healthy_verdicts_changed"] += 1
                self.reasons[f"{judgement.status}: {judgement.reason}"] += 1

    async def fifth(self, seconds: float) -> dict[str, float]:
        """Judge for some time; what it looked like at the end."""
        begin, started = self.count, time.monotonic()

        async def hand_in() -> None:
            while time.monotonic() < started + seconds:
                index, self.count = self.count, self.count + 1
                rollout = make_rollout(text_of(index, self.every), f"r{index:08d}", group_id=f"g{index // 8}")
                self.store.add_rollout(rollout, step=index // 1000, task=TASK)
                await self.panel.judge(TASK, rollout)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(hand_in())
        return {
            "verdicts_per_s": round((self.count - begin) / (time.monotonic() - started), 1),
            "open_files": self.process.num_fds(),
            "threads": self.process.num_threads(),
            "memory_mib": round(self.process.memory_info().rss / 2**20, 1),
            "processes": len(descendants(os.getpid())),
        }


async def soak(folder: Path, given: argparse.Namespace, say: Any) -> None:
    """Run the fifths and say what came of them."""
    entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python([{"use": "faulty", "cost_s": 0.001}])
    judging = JudgingConfig(workers=given.workers, on_unhealthy="mask", stop_if_failed_above=1.0, cache=False)
    info = RunInfo(id="soak", name="soak", kind="score", folder=str(folder), seed=1)
    with RunStore.create(folder, info) as store:
        run: list[Soak] = []
        async with open_panel(
            entries,
            registry=registry_of("assay.testing.faulty"),
            judging=judging,
            observe=lambda candidate, judgement: run[0].observe(candidate, judgement),
        ) as panel:
            run.append(Soak(panel, store, round(1 / given.faults)))
            await run[0].fifth(5.0)  # until everything is warm
            fifths: list[dict[str, float]] = []
            for number in range(FIFTHS):
                fifths.append(await run[0].fifth(given.minutes * 60 / FIFTHS))
                say(fifth=number + 1, **fifths[-1])
        store.flush()
        run[0].wrong["rollouts_without_one_judgement"] = sum(
            len(entry.judgements) != 1 for entry in store.rollouts()
        ) + abs(store.count_judgements() - run[0].count)
    first, last = fifths[0], fifths[-1]
    say(
        minutes=given.minutes,
        verdicts=run[0].count,
        last_against_first=round(last["verdicts_per_s"] / first["verdicts_per_s"], 3),
        open_files_grown=last["open_files"] - first["open_files"],
        threads_grown=last["threads"] - first["threads"],
        memory_grown_mib=round(last["memory_mib"] - first["memory_mib"], 1),
        processes_left=len(descendants(os.getpid())),
        **run[0].wrong,
        reasons=dict(run[0].reasons.most_common(5)),
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()

    def say(**figures: Any) -> None:
        print(json.dumps({"benchmark": Path(__file__).stem, "load": os.getloadavg(), **figures}), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(soak(Path(folder) / "run", given, say))


if __name__ == "__main__":
    main()
