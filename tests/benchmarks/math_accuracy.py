"""How right the math verifier is: the labelled cases, the golds of five data sets, 800 labelled responses.

    python tests/benchmarks/math_accuracy.py SHARED [--peer]

`SHARED` is the folder with `cases/` and `data/`. One JSON line per figure; `--peer` adds math-verify's own numbers on
the cases and the responses (gold boxed, no timeouts), measured in the same run. Equal writing is switched off for the
golds, so that every one of them is really read and compared.
"""

# math-verify ships partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, cast

from assay.contracts import Message, Task, Verdict
from assay_math.extract import extract
from assay_math.found import Extraction
from assay_math.options import MathPolicy
from assay_math.rewrites import REWRITES
from assay_math.verify import BadGold, Gold, read_gold, verify

NEVER = {"attack_listing", "attack_range", "attack_injection", "think_only", "gold_from_prompt", "truncated_latex"}


def rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def golds(data: Path) -> dict[str, list[str]]:
    """The gold answers of every data set, as strings."""
    boxed = MathPolicy(rules=("boxed",))
    found = [extract(row["solution"], boxed) for row in rows(data / "math" / "test.jsonl")]
    return {
        "MATH-500": [row["answer"] for row in rows(data / "math" / "math500.jsonl")],
        "MATH test": [each.text if isinstance(each, Extraction) else "" for each in found],
        "GSM8K test": [row["answer"].split("####")[1].strip() for row in rows(data / "gsm8k" / "test.jsonl")],
        "AIME": [str(r["answer"]) for name in ("aime24", "aime25") for r in rows(data / "aime" / f"{name}.jsonl")],
        "SVAMP": [str(row["Answer"]) for row in rows(data / "svamp" / "test.jsonl")],
    }


def say(figure: str, **numbers: Any) -> None:
    """Print one figure."""
    print(json.dumps({"figure": figure, **numbers, "load": round(os.getloadavg()[0], 2)}), flush=True)


def peer(gold: str, text: str) -> bool:
    """math-verify's verdict with the gold in a box."""
    from math_verify import parse
    from math_verify import verify as compare

    none = cast("int", None)
    return bool(
        compare(
            parse(f"\\boxed{{{gold}}}", parsing_timeout=none), parse(text, parsing_timeout=none), timeout_seconds=none
        )
    )


def cases(path: Path, *, with_peer: bool) -> None:
    """The labelled cases, debatable ones left out; an abstention on a row labelled false counts as right."""
    right = abstained = false_positives = negatives = forbidden = total = peer_right = 0
    wrong: list[str] = []
    for row in rows(path):
        if row.get("debatable"):
            continue
        facts = {"options": row["options"]} if row.get("options") else {}
        message = Message(role="user", content=row.get("prompt") or "?")
        task = Task(id=row["id"], messages=(message,), reference=row["gold"], facts=facts)
        gold = read_gold(row["gold"], task=task)
        verdict = verify(gold, row["prediction"]) if isinstance(gold, Gold) else None
        accepted = verdict is not None and verdict.value == 1.0
        decided = verdict is not None and verdict.status == "scored"
        total += 1
        right += accepted == row["expected"]
        negatives += not row["expected"]
        false_positives += accepted and not row["expected"]
        forbidden += accepted and not row["expected"] and row["kind"] in NEVER
        abstained += not decided and not row.get("abstain_ok")
        if accepted != row["expected"]:
            wrong.append(row["id"])
        if with_peer:
            # The case file holds math-verify 0.9.0's own verdicts; towers would hold a run up for a minute.
            peer_right += bool(row["math_verify_boxed"]) == row["expected"]
    numbers: dict[str, Any] = {
        "rows": total,
        "right": right / total,
        "wrong": wrong,
        "false_positives": false_positives,
        "negatives": negatives,
        "false_positives_in_attacks": forbidden,
        "abstained": abstained / total,
    }
    if with_peer:
        numbers["math_verify_right"] = peer_right / total
    say("labelled cases", **numbers)


def every_gold(name: str, answers: list[str]) -> None:
    """Every gold read, its rewrites accepted, the next different gold rejected."""
    policy = MathPolicy(equal_strings=False)
    counts: Counter[str] = Counter()
    misses: list[tuple[str, str]] = []
    for place, answer in enumerate(answers):
        gold = read_gold(answer, policy)
        if isinstance(gold, BadGold):
            counts["unreadable"] += 1
            misses.append(("unreadable", answer))
            continue
        counts["itself"] += _accepted(verify(gold, f"\\boxed{{{answer}}}"))
        for rule, rewrite in REWRITES.items():
            written = rewrite(answer)
            if written is not None:
                counts[f"{rule}: asked"] += 1
                accepted = _accepted(verify(gold, f"so it is \\boxed{{{written}}}."))
                counts[f"{rule}: accepted"] += accepted
                if not accepted:
                    misses.append((rule, f"{answer} as {written}"))
        following = answers[(place + 1) % len(answers)]
        if following != answer:
            counts["neighbour: asked"] += 1
            accepted = _accepted(verify(gold, f"so it is \\boxed{{{following}}}."))
            counts["neighbour: rejected"] += not accepted
            if accepted:
                misses.append(("neighbour", f"{answer} and {following}"))
    say(f"golds of {name}", golds=len(answers), **dict(sorted(counts.items())), misses=misses[:12])


def _accepted(verdict: Verdict) -> bool:
    return verdict.value == 1.0


def responses(path: Path, *, with_peer: bool) -> None:
    """Agreement with the labels of 800 responses."""
    agreed = peer_agreed = total = 0
    others: list[dict[str, Any]] = []
    for row in rows(path):
        gold = read_gold(row["answer"])
        assert isinstance(gold, Gold)
        for text, label in zip(row["responses"], row["correct"], strict=True):
            verdict = verify(gold, text)
            total += 1
            agreed += _accepted(verdict) == label
            if _accepted(verdict) != label:
                others.append({"gold": row["answer"], "label": label, "evidence": verdict.evidence[0].summary})
            if with_peer:
                peer_agreed += peer(row["answer"], text) == label
    numbers: dict[str, Any] = {"rows": total, "agreed": agreed, "others": others}
    if with_peer:
        numbers["math_verify_agreed"] = peer_agreed
    say("bon_math100", **numbers)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    shared: Path = options.shared
    cases(shared / "cases" / "math_cases.jsonl", with_peer=options.peer)
    for name, answers in golds(shared / "data").items():
        every_gold(name, answers)
    responses(shared / "data" / "bon_math100" / "math_cot_100.jsonl", with_peer=options.peer)


if __name__ == "__main__":
    main()
