"""What the tests of engines on servers share: one vLLM server for a whole file."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest

from assay.discovery import default_cache_dir
from assay.errors import ConfigError
from assay.training.model import PolicyModel
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import Server, find_python, free_port, server_command

START_S = 900.0
OPTIONS = VLLMOptions(max_rows=16)


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment; skips where there is none."""
    try:
        return find_python(OPTIONS, default_cache_dir(), Path.cwd())
    except ConfigError as absent:
        pytest.skip(str(absent))


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
