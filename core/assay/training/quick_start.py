"""The quick start's model, made on the spot in seconds, and how fast this machine multiplies."""

import time
from pathlib import Path

import torch

from assay.training.model import load_policy
from assay.training.tiny import make_tiny_model, teach_sums
from assay.training.weights import save_policy


def quick_start_model(folder: Path, *, seed: int = 0) -> Path:
    """A tiny model in `folder` that knows the format of one-digit sums and gets some of them right; made only once."""
    if (folder / "model.safetensors").is_file():
        return folder
    make_tiny_model(folder, seed=seed)
    policy = load_policy(str(folder))
    teach_sums(policy, seed=seed, answer=r"\boxed{{{}}}".format)
    save_policy(policy, folder)
    return folder


def machine_speed(size: int = 768, seconds: float = 0.2) -> float:
    """GFLOP/s of float32 matrix products with the threads in use, measured for about `seconds`."""
    left, right = torch.ones(size, size), torch.ones(size, size)
    torch.mm(left, right)
    started, products = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        torch.mm(left, right)
        products += 1
    return products * 2 * size**3 / passed / 1e9
