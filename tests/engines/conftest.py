"""What the tests of engines on servers share: a policy with telling weights, and one vLLM server for a whole file."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from assay.discovery import default_cache_dir
from assay.errors import ConfigError
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay.training.weights import save_policy
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import Server, find_python, free_port, server_command

START_S = 900.0
OPTIONS = VLLMOptions(max_rows=16)


def shake(policy: PolicyModel, seed: int) -> None:
    """Fresh weights are nearly uniform; larger ones make log-probs that a mistake would show in."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment; skips where there is none."""
    try:
        return find_python(OPTIONS, default_cache_dir(), Path.cwd())
    except ConfigError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    """A tiny policy whose folder holds its weights, tied embeddings and all."""
    folder = make_tiny_model(tmp_path_factory.mktemp("policy") / "model", seed=3, hidden_size=64)
    policy = load_policy(str(folder))
    shake(policy, 0)
    save_policy(policy, folder)
    return policy


@pytest.fixture(scope="module")
def server(vllm_python: Path, policy: PolicyModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A vLLM server on the policy."""
    port = free_port()
    command = server_command(vllm_python, Path(policy.path), OPTIONS, dtype="float32", port=port, on_cpu=True)
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = Server(command, port=port, log=log, kv_cache_gib=1)
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(running.url):
            assert running.running, f"the server ended while it started: {running.last_words()}"
            assert time.monotonic() < deadline, f"no answer after {START_S:g} s: {running.last_words()}"
            time.sleep(0.25)
        yield running
    finally:
        running.stop()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False
