"""The vLLM server's process: started on loopback, its log kept, ended with everything below it.

The process tree is that of `assay.process`: it dies with this process, however this process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from assay.errors import ConfigError, EngineError
from assay.process import Tree, start
from assay_engines.vllm.options import VLLMOptions

MODULE = "vllm.entrypoints.launchers.api_server.entry"
SERVED_NAME = "policy"
BACKENDS = {"file": "assay_file", "nccl": "nccl"}
"""What vLLM calls the ways of the option `transfer`."""
PORTS = range(20_000, 32_000)
"""Below those that Linux gives to connections (32768 and up): a server binds its own seconds after it was chosen."""
_TAIL_BYTES = 1 << 14
_TELLING = ("Error", "error:", "Exception", "Killed", "No space")


def find_python(options: VLLMOptions, cache_dir: Path, base_dir: Path) -> Path:
    """The interpreter of vLLM's environment; raises `ConfigError` where there is none."""
    folder = cache_dir / "vllm" if options.environment is None else base_dir / Path(options.environment).expanduser()
    python = folder / "bin" / "python"
    if not python.is_file():
        raise ConfigError(
            f"engine 'vllm': there is no vLLM environment in {folder}; make it once with `make vllm` in a checkout of "
            "assay (3 GB, about three minutes), name another folder as environment, or give the url of a server"
        )
    return python


def server_command(
    python: Path, model: Path, options: VLLMOptions, *, dtype: str, port: int, on_cpu: bool
) -> list[str]:
    """The command line of a server that this engine can use.

    The module is started instead of the command `vllm`, which looks for a distribution of that name and finds none
    where vLLM was rebuilt for the CPU.
    """
    command = [str(python), "-m", MODULE, "--model", str(model), "--served-model-name", SERVED_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-num-seqs", str(options.max_rows)]
    command += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--scheduling-policy", "priority", "--weight-transfer-config", transfer_config(options)]
    command += ["--disable-uvicorn-access-log"]
    if options.max_model_len is not None:
        command += ["--max-model-len", str(options.max_model_len)]
    if on_cpu:
        # A prompt taken in two steps needs its request's seeded generator wound back, which a CPU's cannot be: the
        # server would die of it, at the latest when what is under way is computed afresh after a push.
        command += ["--enforce-eager", "--no-enable-chunked-prefill"]
    return [*command, *options.server_args]


def transfer_config(options: VLLMOptions) -> str:
    """The value of `--weight-transfer-config`."""
    return json.dumps({"backend": BACKENDS[options.transfer]}, separators=(",", ":"))


class Server:
    """One life of a server process."""

    def __init__(self, command: Sequence[str], *, port: int, log: Path, kv_cache_gib: int) -> None:
        """Start it; its output is appended to `log`."""
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        with log.open("ab") as file:
            self._began = file.tell()
            self._tree: Tree = start(command, env=_environment(kv_cache_gib), stdout=file, stderr=file)

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self._tree.running()

    @property
    def pid(self) -> int:
        """Process id of the root of its tree."""
        return self._tree.pid

    def stop(self) -> None:
        """End it and everything below it; returns when nothing of it runs."""
        self._tree.close()

    def last_words(self) -> str:
        """The line of this life's log that tells most about an end."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._began, end - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if any(word in line for word in _TELLING)]
        chosen = (telling or lines or ["nothing"])[-1].strip()
        return chosen[-300:]


def free_port() -> int:
    """A port on loopback that is free now, and that no connection of another process is given meanwhile."""
    for port in secrets.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EngineError(f"engine 'vllm': none of 100 ports of loopback between {PORTS[0]} and {PORTS[-1]} is free")


def new_log(folder: Path) -> Path:
    """A log file of its own in `folder`: `vllm.log`, or the next free number after it."""
    for number in range(1000):
        path = folder / ("vllm.log" if number == 0 else f"vllm-{number}.log")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise EngineError(f"engine 'vllm': {folder} is full of logs (vllm.log to vllm-999.log); remove some")


def _environment(kv_cache_gib: int) -> dict[str, str]:
    """Ours without what points Python at our own packages, and what the server needs."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights and pauses
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
