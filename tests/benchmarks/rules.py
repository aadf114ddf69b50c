"""How many verdicts each rule gives per CPU-second, on its own cases and on a long answer; one JSON line per rule.

`slowest_in_place_ms` is the CPU time of the slowest of some hostile texts that are just short enough to be judged in
the loop of the run, against every task of the rule's cases; longer ones go to a worker.


    python tests/benchmarks/rules.py [--seconds 0.5]

CPU time of one thread, without guard and store, evidence included.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import assay_rules
from assay.component import BuildContext
from assay.contracts import Candidate
from assay.registry import component_from
from assay.testing import hostile_texts, read_cases
from assay.testing.cases import candidate


def rate(name: str, batches: Sequence[tuple[Mapping[str, Any], list[Candidate]]], seconds: float) -> float:
    """Verdicts per CPU-second over the batches, each with the options of its source."""
    component = component_from("assay_rules", "reward_source", name)
    built = [(component.build(component.config(**options), BuildContext()), batch) for options, batch in batches]

    async def run() -> float:
        for source, batch in built:
            await source.judge(batch)
        count, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            for source, batch in built:
                count += len(await source.judge(batch))
        return count / (time.process_time() - began)

    return asyncio.run(run())


def slowest(name: str, batches: Sequence[tuple[Mapping[str, Any], list[Candidate]]]) -> tuple[float, str]:
    """CPU seconds of the slowest hostile text that is judged in place, and the text's name."""
    component = component_from("assay_rules", "reward_source", name)
    size = 4_096 if name == "edit-distance" else 65_536
    texts = [(kind, text) for kind, text in hostile_texts(huge=size) if len(text) > size // 2]
    texts += [(kind, unit * (size // len(unit))) for kind, unit in UNITS]
    worst = (0.0, "")
    for options, batch in batches:
        source = component.build(component.config(**options), BuildContext())
        for task in {each.task.model_dump_json(): each.task for each in batch}.values():
            asyncio.run(source.judge([candidate(task, "some words")]))  # what is loaded once is loaded now
            for kind, text in texts:
                began = time.process_time()
                asyncio.run(source.judge([candidate(task, text)]))
                worst = max(worst, (time.process_time() - began, kind))
    return worst


UNITS = (
    ("accents", "e\u0301"),
    ("Chinese", "\u4e2d\u6587"),
    ("choices", "Answer: B\n"),
    ("citations", '[1] "four words are quoted" '),
    ("boxes", "\\boxed{B} "),
    ("answer tags", "<answer>4</answer>"),
    ("objects", '{"a": 1}, '),
)


def main() -> None:
    """Print one JSON line per rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    seconds = parser.parse_args().seconds
    prose = "First we add the two numbers, then we look at what is left over. " * 500
    for path in sorted(Path(assay_rules.__file__).parent.glob("cases/*.jsonl")):
        grouped: dict[str, list[Candidate]] = {}
        for case in read_cases(path):
            grouped.setdefault(json.dumps(case.options), []).append(candidate(case.task, case.text))
        batches = [(json.loads(options), batch) for options, batch in grouped.items()]
        first = read_cases(path)[0]
        long = [(dict(first.options), [candidate(first.task, prose + first.text)])]
        inline = component_from("assay_rules", "reward_source", path.stem).isolation == "inline"
        cost, kind = slowest(path.stem, batches) if inline else (0.0, "in a worker")
        figures = {
            "benchmark": "rules",
            "rule": path.stem,
            "cases_per_cpu_s": round(rate(path.stem, batches, seconds)),
            "long_answers_per_cpu_s": round(rate(path.stem, long, seconds)),
            "long_characters": len(prose) + len(first.text),
            "slowest_in_place_ms": round(1000 * cost, 1),
            "slowest_text": kind,
            "load": os.getloadavg()[0],
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
