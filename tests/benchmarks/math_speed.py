"""How fast the exact path is, beside math-verify in the same run; towers, factorials and long texts apart.

    python tests/benchmarks/math_speed.py SHARED [--peer-rows 200] [--repeats 5]

`verify(gold, text)` runs with evidence, without guard and store, on the exactly decided rows of `bon_math100`, golds
read before. CPU time of one thread. The first pass has empty memories; later passes are the usual case, because the
samples of one task repeat their answers. One JSON line per figure.
"""

# math-verify ships partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, cast

from assay_math.extract import extract
from assay_math.options import MathPolicy
from assay_math.verify import Gold, read_gold, verify

TOWERS = (
    "9^{9^{9^{9}}}",
    "2^{2^{2^{2^{2^{2}}}}}",
    "\\frac{4^{(4^{(4^{(4^4)})})}-4}{12}",
    "10^{10^{10}}+1",
    "7^{7^{7}}",
    "(10^{100})!",
    "(100!)!",
    "\\frac{1}{902!}",
    "\\binom{100000}{50000}",
    "3^{-100000}",
    "2^{100000}",
    "e^{e^{e^{e^{9}}}}",
    "9!!!!!!",
    "\\frac{1000000!}{999999!}",
    "(2^{1000})^{2^{1000}}",
)


def say(figure: str, **numbers: Any) -> None:
    """Print one figure."""
    print(json.dumps({"figure": figure, **numbers, "load": round(os.getloadavg()[0], 2)}), flush=True)


def items(path: Path) -> list[tuple[Gold, str, str]]:
    """(gold, its text, response) of every row that the exact path decides."""
    found: list[tuple[Gold, str, str]] = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        gold = read_gold(row["answer"])
        assert isinstance(gold, Gold)
        found.extend((gold, row["answer"], text) for text in row["responses"])
    return found


def exact_path(data: list[tuple[Gold, str, str]], repeats: int) -> float:
    """Verdicts per CPU-second over whole passes; the first is reported apart."""
    rates: list[float] = []
    for _ in range(repeats + 1):
        began = time.process_time()
        for gold, _, text in data:
            verify(gold, text)
        rates.append(len(data) / (time.process_time() - began))
    decided = sum(verify(gold, text).status == "scored" for gold, _, text in data)
    rate = statistics.median(rates[1:])
    say(
        "exact path",
        rows=len(data),
        decided=decided,
        verdicts_per_cpu_s=round(rate),
        first_pass=round(rates[0]),
        target=20_000,
    )
    return rate


def peer_path(data: list[tuple[Gold, str, str]], rate: float, rows: int) -> None:
    """math-verify on the same rows, its golds read before as well."""
    from math_verify import parse
    from math_verify import verify as compare

    none = cast("int", None)
    some = data[:: max(1, len(data) // rows)]
    parsed = [parse(f"\\boxed{{{text}}}", parsing_timeout=none) for _, text, _ in some]
    for gold, (_, _, text) in zip(parsed[:20], some, strict=False):
        compare(gold, parse(text, parsing_timeout=none), timeout_seconds=none)
    began = time.process_time()
    for gold, (_, _, text) in zip(parsed, some, strict=True):
        compare(gold, parse(text, parsing_timeout=none), timeout_seconds=none)
    peer = len(some) / (time.process_time() - began)
    say("math-verify on the same rows", rows=len(some), verdicts_per_cpu_s=round(peer), ratio=round(rate / peer, 1))


def towers() -> None:
    """Milliseconds of one verdict on answers that must never be expanded."""
    golds = [read_gold(text) for text in ("10", "\\frac{1}{900!}", "x^2", "2^{100}")]
    times: dict[str, float] = {}
    limited = decided = 0
    for gold in golds:
        assert isinstance(gold, Gold)
        for tower in TOWERS:
            text = f"\\boxed{{{tower}}}"
            first = verify(gold, text)
            best = min(_verdict_s(gold, text) for _ in range(5))
            times[tower] = max(times.get(tower, 0.0), best * 1e3)
            limited += first.reason == "limit"
            decided += first.status == "scored"
    slowest = max(times, key=lambda tower: times[tower])
    say(
        "towers and factorials",
        pairs=len(TOWERS) * len(golds),
        decided=decided,
        reached_a_limit=limited,
        slowest=slowest,
        slowest_ms=round(times[slowest], 3),
        target_ms=1.0,
    )


def _verdict_s(gold: Gold, text: str) -> float:
    """CPU-seconds of one verdict; only the reading of the two answers is remembered."""
    began = time.process_time()
    verify(gold, text)
    return time.process_time() - began


def long_texts() -> None:
    """Milliseconds of extraction from 32,000 characters, with a box and without."""
    filler = "We compute \\frac{a}{b} = {c} and $x^2$ (see above). "
    body = filler * (32_000 // len(filler))
    for name, text in (
        ("with a box", body + "So \\boxed{42}."),
        ("without", body),
        ("many boxes", "\\boxed{1} " * 3_200),
    ):
        best = min(_time(text) for _ in range(20))
        say(f"extraction from 32k characters, {name}", ms=round(best * 1e3, 3), target_ms=1.0)


def _time(text: str) -> float:
    began = time.perf_counter()
    extract(text, MathPolicy())
    return time.perf_counter() - began


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--peer-rows", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    data = items(options.shared / "data" / "bon_math100" / "math_cot_100.jsonl")
    rate = exact_path(data, options.repeats)
    peer_path(data, rate, options.peer_rows)
    towers()
    long_texts()


if __name__ == "__main__":
    main()
