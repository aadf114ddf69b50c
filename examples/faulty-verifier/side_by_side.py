"""One GRPO step with a verifier that hangs, crashes, raises or lies: TRL's trainer and assay, side by side.

    python examples/faulty-verifier/side_by_side.py [--faults hang,crash,raise,nan,huge] [--limit-s 20]

Both train the same tiny model, made on the spot, on one group of eight answers, with the same verifier (`verifier.py`),
each in a process of its own. A step with a faulty verifier is given `--limit-s` seconds more than the whole process
took whose verifier works. Needs `assay[train]` and `trl`.
"""

# trl and datasets ship partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PROMPT = "Write digits: "
STARTED_S = 600.0
"""Longest time of a process, starting included."""


def limited(limit_s: float) -> None:
    """From now on this process has `limit_s` seconds; then it says that it is late, and ends."""

    def end() -> None:
        print(json.dumps({"late": True}), flush=True)
        os._exit(0)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def trl_step(model: Path, limit_s: float) -> dict[str, Any]:
    """What TRL's trainer logged of its step."""
    sys.path.insert(0, str(FOLDER))
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
    from verifier import reward_of  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue] # beside this file

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [reward_of(text) for text in completions]

    with tempfile.TemporaryDirectory() as output:
        arguments = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=8,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            bf16=False,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=reward,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": PROMPT}] * 8),
        )
        limited(limit_s)
        trainer.train()
        return {name: trainer.state.log_history[0].get(name) for name in ("reward", "reward_std", "grad_norm")}


def assay_step(model: Path, limit_s: float) -> dict[str, Any]:
    """What assay recorded of its step."""
    import assay
    from assay.config.load import parse_config

    with tempfile.TemporaryDirectory() as folder:
        task = {"id": "digits", "question": PROMPT, "answer": "0"}
        (Path(folder) / "tasks.jsonl").write_text(json.dumps(task) + "\n", encoding="utf-8")
        config = parse_config(
            {
                "kind": "rlvr",
                "name": "digits",
                "steps": 1,
                "runs_dir": folder,
                "policy": {"model": str(model)},
                "tasks": {
                    "use": "jsonl",
                    "path": str(Path(folder) / "tasks.jsonl"),
                    "columns": {"prompt": "question", "reference": "answer"},
                },
                "engine": {"use": "transformers", "template": "plain", "group_size": 8, "max_new_tokens": 8},
                "rewards": [{"use": "python", "path": str(FOLDER / "verifier.py:score")}],
                "judging": {"timeout_s": 1.0},
                "loop": {"groups_per_step": 1},
            }
        )
        limited(limit_s)
        run = assay.train(config)
        failed = run.rollouts(status="failed")
        reasons = sorted({str(item.judgements[0].reason) for item in failed})
        line = run.metrics[0]
        kept = list(run.rollouts(status="scored"))
        rewards = [item.reward.value for item in kept if item.reward is not None and item.reward.value is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        return {"reward": mean, "scored": len(rewards), "masked": len(failed), "why": reasons, "step": line.get("step")}


def told(arm: str, fault: str, model: Path, limit_s: float) -> str:
    """One line: what the arm made of the fault."""
    from assay.process import run_blocking

    done = run_blocking(
        [sys.executable, __file__, "--arm", arm, "--model", str(model), "--limit-s", str(limit_s)],
        wall_s=STARTED_S,
        env={**os.environ, "FAULT": fault, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        output_kib=1024,
    )
    if done.outcome == "timed_out":
        return f"had not begun its step after {STARTED_S:g} s; killed"
    if done.exit_code:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        ends = f"the training process ended with status {done.exit_code}"
        return f"{ends}: {lines[-1]}" if lines and done.exit_code == 1 else ends
    facts = json.loads(done.stdout.decode().splitlines()[-1])
    if "late" in facts:
        return f"still in its first step after {limit_s:g} s; killed"
    if arm == "trl":
        return (
            f"trained; reward {facts['reward']:.3g}, std {facts['reward_std']:.3g}, grad norm {facts['grad_norm']:.3g}"
        )
    mean = "none" if facts["reward"] is None else f"{facts['reward']:.3g}"
    why = f" ({'; '.join(facts['why'])})" if facts["why"] else ""
    return f"trained; reward {mean} over {facts['scored']} scored, {facts['masked']} masked{why}"


def main() -> None:
    """Run every fault through both, or (with --arm) one step in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="hang,crash,raise,nan,huge")
    parser.add_argument("--limit-s", type=float, default=20.0)
    parser.add_argument("--arm", choices=["trl", "assay"])
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    if given.arm is not None:
        step = trl_step if given.arm == "trl" else assay_step
        print(json.dumps(step(given.model, given.limit_s)))
        return
    from assay.training.tiny import make_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", seed=1)
        limits_s: dict[str, float] = {}
        for fault in ("none", *given.faults.split(",")):
            print(f"{fault}:")
            for arm, name in (("trl", "TRL  "), ("assay", "assay")):
                started = time.monotonic()
                print(f"  {name} {told(arm, fault, model, limits_s.get(arm, STARTED_S))}", flush=True)
                limits_s.setdefault(arm, round(time.monotonic() - started + given.limit_s))


if __name__ == "__main__":
    main()
