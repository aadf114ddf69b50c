"""How much of judging and sampling hides behind the rest: the pipeline with scripted parts of known length.

    python tests/benchmarks/judging_overlap.py [--steps 6] [--sample-s 2] [--train-s 2]

64 rollouts a step stream in over `sample-s`; one source takes 1, 10 or 100 ms per rollout, four at once; an update
takes `train-s`. One JSON line per cost and staleness: seconds per step (first step left out), their ratio to the
ideal (max(sample, judge) + train where stages take turns, staleness 0; max(sample, judge, train) where they overlap),
and the share of judging that other stages hid (also without the last step, beside which nothing more is sampled).
`judging_overlap_parts.py` does the same with real parts.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from assay.config.rewards import RewardEntry
from assay.contracts import Reward, Rollout, Sampling, ScoredGroup, Task, WeightsRef
from assay.judging import open_panel
from assay.pipeline import Loop, LoopSettings, StepReport, Tickets
from assay.pipeline.loop import LoopHooks
from assay.protocols import Decision
from assay.testing.fakes import make_task, registry_of
from assay.testing.scripted import ScriptedEngine

GROUPS, SIZE, CONCURRENCY = 8, 8, 4
SOURCE = '''
"""A source that takes its time without using the processor."""
import asyncio
from assay import Component, Limits, Options, Verdict, hookimpl

class Timed(Options):
    """How long."""
    cost_s: float

class Slow:
    limits = Limits(concurrency=4)
    def __init__(self, cost_s): self.cost_s = cost_s
    async def judge(self, batch):
        await asyncio.sleep(self.cost_s)
        return [Verdict.score(float(len(c.rollout.text) % 2)) for c in batch]
    async def aclose(self): pass

@hookimpl
def assay_reward_sources():
    """Offer it."""
    return [Component("slow", Timed, lambda options, context: Slow(options.cost_s), isolation="inline")]
'''


class Learner:
    """An update that takes its time."""

    def __init__(self, train_s: float) -> None:
        """Take `train_s` seconds a step."""
        self.train_s = train_s

    def select(self, group: ScoredGroup) -> Decision:
        """Keep everything."""
        return Decision("keep", "")

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Sleep."""
        time.sleep(self.train_s)
        return {"groups": float(len(groups))}

    def weights(self, version: int) -> WeightsRef:
        """No weights, only their version."""
        return WeightsRef(version=version)


class Forgetful:
    """A journal that keeps nothing."""

    def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
        """Nothing."""
        return {}

    def sampled(self, step: int, task: Task, rollout: Rollout) -> None:
        """Nothing."""

    def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None:
        """Nothing."""

    def trained(self, report: StepReport) -> None:
        """Nothing."""


def offer_source(folder: str) -> None:
    """Make the module with the timed source importable from `folder`."""
    (Path(folder) / "overlap_source.py").write_text(SOURCE, encoding="utf-8")
    sys.path.insert(0, folder)


async def measure(cost_s: float, staleness: int, steps: int, sample_s: float, train_s: float) -> dict[str, float]:
    """The figures of one setting."""
    count = GROUPS * SIZE
    number = 0

    def delay(_request: object) -> float:
        nonlocal number
        number += 1
        return sample_s * ((number - 1) % count + 1) / count

    engine = ScriptedEngine(lambda request, version: f"{request.id} {version}", delay_s=delay)
    entries = TypeAdapter(tuple[RewardEntry, ...]).validate_python([{"use": "slow", "cost_s": cost_s}])
    ends: list[float] = []
    hidden: list[float] = []

    def after_step(report: StepReport) -> None:
        ends.append(time.monotonic())
        hidden.append(report.metrics["judge_hidden"])

    settings = LoopSettings(
        steps=steps, groups_per_step=GROUPS, group_size=SIZE, sampling=Sampling(), max_staleness=staleness
    )
    async with open_panel(entries, registry=registry_of("overlap_source")) as panel:
        loop = Loop(
            settings,
            tickets=Tickets([make_task(f"t{index}") for index in range(100)], seed=1),
            engine=engine,
            judge=panel,
            learner=Learner(train_s),
            journal=Forgetful(),
            hooks=LoopHooks(after_step=after_step),
        )
        await loop.run()
    judge_s = count * cost_s / CONCURRENCY
    ideal_s = max(sample_s, judge_s, train_s) if staleness else max(sample_s, judge_s) + train_s
    step_s = (ends[-1] - ends[0]) / (len(ends) - 1)
    return {
        "cost_ms": 1000 * cost_s,
        "staleness": staleness,
        "step_s": round(step_s, 3),
        "ideal_s": round(ideal_s, 3),
        "ratio": round(step_s / ideal_s, 3),
        "judge_hidden": round(sum(hidden[1:-1]) / (len(hidden) - 2), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sample-s", type=float, default=2.0)
    parser.add_argument("--train-s", type=float, default=2.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        offer_source(folder)
        for staleness in (0, 1):
            for cost_s in (0.001, 0.01, 0.1):
                load = os.getloadavg()
                figures = asyncio.run(measure(cost_s, staleness, given.steps, given.sample_s, given.train_s))
                print(json.dumps({"benchmark": Path(__file__).stem, "load": load, **figures}), flush=True)


if __name__ == "__main__":
    main()
