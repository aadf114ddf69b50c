"""`assay demo`: a small model learns from verified rewards on this machine, and leaves a report."""

import importlib.util
import json
import os
import time
from importlib.resources import as_file, files
from pathlib import Path

from assay.cli.output import say
from assay.cli.progress import Progress
from assay.config.load import load_config
from assay.config.run import RlvrConfig


def demo(
    *,
    full: bool = False,
    steps: int | None = None,
    seed: int | None = None,
    shuffle_rewards: bool = False,
    out: Path = Path("runs"),
) -> int:
    """Train for a few steps and write a report: a tiny model made on the spot, or SmolLM2 with --full.

    Args:
        full: Train SmolLM2-135M-Instruct on arithmetic, about ten minutes on two cores.
        steps: Number of steps in place of the config's.
        seed: Seed in place of the config's.
        shuffle_rewards: Permute the rewards inside each batch: a control that must not learn.
        out: The folder in which the run's own folder is made.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return _judge_scripted_answers(out)
    overrides: dict[str, object] = {"runs_dir": str(out)}
    if steps is not None:
        overrides["steps"] = steps
    if seed is not None:
        overrides["seed"] = seed
    if shuffle_rewards:
        overrides["loop.shuffle_rewards"] = True
    from assay.training.quick_start import machine_speed, quick_start_model  # torch, which --help must not load

    say(f"machine: load {os.getloadavg()[0]:.2f}, {machine_speed():.0f} GFLOP/s")
    started = time.monotonic()
    with as_file(files("assay") / "demo") as folder:
        path = folder / ("full.toml" if full else "quick.toml")
        if not full:
            overrides["policy.model"] = str(quick_start_model(out / "quick-start-model").absolute())
        config = load_config(path, overrides=overrides)
        assert isinstance(config, RlvrConfig)
        from assay.run import train  # after the config: a mistake in a flag is answered at once

        with Progress() as progress:
            train(config, base_dir=folder, emit=progress.handle)
    say(f"{(time.monotonic() - started) / 60:.1f} minutes in all")
    return 0


def _judge_scripted_answers(out: Path) -> int:
    """Without torch there is no model: judge scripted answers instead, and name what training needs."""
    from assay.cli.score import score

    rows = [json.loads(line) for line in (files("assay") / "demo" / "sums.jsonl").read_text("utf-8").splitlines()]
    shapes = ("The answer is {}.", "\\boxed{{{}}}", "I think it is more than {} or less.", "The answer is 1{}.")
    path = out / "demo-answers.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    answers = [{**row, "response": shapes[i % len(shapes)].format(row["answer"])} for i, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in answers), encoding="utf-8")
    code = score(str(path), reward=("math",), runs_dir=out)
    say('these answers were scripted; to train a model: python -m pip install "assay[train]"')
    return code
