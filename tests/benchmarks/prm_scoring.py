"""Step scores of a classifier reward model on ProcessBench's MATH part in file order, beside a plain padded loop.

    python tests/benchmarks/prm_scoring.py FILE [--rows 200] [--batch 16] [--window 64] [--model FOLDER] [--hidden 128]

Both arms get the same rows, the same weights (a fresh Llama of `--hidden` and 4 layers with single characters as tokens
unless a folder is named) and the same token ids and places; they take turns, batch by batch. The plain loop pads
`--batch` rows to their longest, runs the body once and reads the head at every step's end, as published scoring scripts
do. The reward source gets the same `--batch` rows at a time; a third arm hands it `--window` rows at once, as a run
does. Printed: seconds, responses and tokens per second of each arm, the ratios, the share of padding in the plain loop,
and the largest difference of a score. Target: at least 1.5 times the plain loop; scores equal to 1e-5.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from assay.training.encoder import TextEncoder
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay_prms.heads import ScoreHead
from assay_prms.places import place_steps
from assay_prms.reading import RewardOptions, join, solutions
from assay_prms.scoring import Response, Scorer
from assay_prms.spec import ScorerSpec

TARGET, TOLERANCE = 1.5, 1e-5


def responses(file: Path, count: int, longest: int, encoder: TextEncoder) -> list[Response]:
    """The first rows of the file that the model can read, in file order."""
    found: list[Response] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        (row,) = solutions(json.loads(line), RewardOptions())
        text, spans = join(row, RewardOptions().splitter)
        prompt, response = encoder(row.problem, text)
        if len(prompt) + len(response) <= longest:
            found.append(Response(row.problem, text, spans))
        if len(found) == count:
            break
    return found


class PlainLoop:
    """Rows padded on the right to the longest of the batch, one forward, the head at the steps' ends."""

    def __init__(self, policy: PolicyModel, head: ScoreHead) -> None:
        self.policy, self.head = policy, head
        self.encoder = TextEncoder(policy.tokenizer, literal=True)
        self.real = self.padded = 0

    def __call__(self, batch: Sequence[Response]) -> list[list[float]]:
        rows: list[list[int]] = []
        places: list[list[int]] = []
        for response in batch:
            assert response.spans is not None
            placed = place_steps(self.encoder, response.prompt, response.text, response.spans)
            rows.append([*placed.prompt, *placed.response])
            places.append([len(placed.prompt) + place for place in placed.places])
        width = max(map(len, rows))
        self.real += sum(map(len, rows))
        self.padded += width * len(rows)
        ids = torch.tensor([row + [self.policy.pad_id] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        with torch.inference_mode():
            body = self.policy.model.get_decoder()
            states = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            logits = [self.head.read(states[line, at]) for line, at in enumerate(places)]
            return [(out[:, 1] - out[:, 0]).sigmoid().tolist() for out in logits]


def timed(work: Callable[[], list[list[float]]], spent: list[float]) -> list[list[float]]:
    """What the work gives; its seconds are added to the list."""
    started = time.perf_counter()
    found = work()
    spent.append(time.perf_counter() - started)
    return found


def main() -> int:
    """0 where both targets hold, 3 where not."""
    options = arguments()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        shape = {"hidden_size": options.hidden, "layers": 4, "max_positions": 4096}
        policy = load_policy(options.model or str(make_tiny_model(Path(folder) / "model", **shape)))
        return measure(policy, options)


def measure(policy: PolicyModel, options: argparse.Namespace) -> int:
    """Run the arms in turns and print the line."""
    head = random_head(policy)
    scorer = Scorer(policy, ScorerSpec(), head=head, token_budget=options.token_budget)
    plain = PlainLoop(policy, head)
    longest = scorer.longest or 4096
    rows = responses(options.file, options.rows, longest, plain.encoder)

    def ours(batch: Sequence[Response]) -> list[list[float]]:
        return [list(one.values) for one in scorer.score(batch)]

    for arm in (ours, plain):  # what is computed once per model
        arm(rows[:2])
    plain.real = plain.padded = 0
    seconds: dict[str, list[float]] = {"plain": [], "batch": [], "window": []}
    worst = 0.0
    for start in range(0, len(rows), options.window):
        window = rows[start : start + options.window]
        expected: list[list[float]] = []
        for at in range(0, len(window), options.batch):
            batch = window[at : at + options.batch]
            expected += timed(lambda: plain(batch), seconds["plain"])  # noqa: B023  # called at once
            found = timed(lambda: ours(batch), seconds["batch"])  # noqa: B023
            worst = max(worst, difference(found, expected[at:]))
        found = timed(lambda: ours(window), seconds["window"])  # noqa: B023
        worst = max(worst, difference(found, expected))
    total = {name: sum(values) for name, values in seconds.items()}
    facts: dict[str, Any] = {
        "rows": len(rows), "tokens": plain.real, "padding_share": round(1 - plain.real / plain.padded, 3),
        **{f"{name}_s": round(value, 2) for name, value in total.items()},
        **{f"{name}_tokens_per_s": round(plain.real / value) for name, value in total.items()},
        "ratio": round(total["plain"] / total["batch"], 2), "ratio_window": round(total["plain"] / total["window"], 2),
        "target": TARGET, "largest_difference": worst,
    }  # fmt: skip
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0 if facts["ratio"] >= TARGET and worst <= TOLERANCE else 3


def difference(found: list[list[float]], expected: list[list[float]]) -> float:
    """The largest difference of a score; infinite where the counts differ."""
    if [len(line) for line in found] != [len(line) for line in expected]:
        return float("inf")
    return max(abs(a - b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True))


def random_head(policy: PolicyModel) -> ScoreHead:
    """A head whose scores spread."""
    head = ScoreHead(2)
    head.bind(policy.model.get_output_embeddings().weight.shape[1])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return head


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="math.jsonl of ProcessBench")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--model", help="a folder or name; default a fresh small model")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--token-budget", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
