"""TRL's GRPOTrainer with assay's rewards: python trl_grpo.py MODEL DATA.jsonl (columns prompt and answer)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportArgumentType=false
import sys

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

from assay.adapters import trl

model, data = sys.argv[1:]
args = GRPOConfig("trl-out", max_steps=2, logging_steps=1, num_generations=4, max_completion_length=16, bf16=False)
reward = trl.reward("math", "length:0.1", reference="answer")
dataset = load_dataset("json", data_files=data, split="train")
GRPOTrainer(model=model, reward_funcs=[reward], train_dataset=dataset, args=args).train()
