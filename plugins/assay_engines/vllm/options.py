"""Options of the engine `vllm`."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from assay.component import Options

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class VLLMOptions(Options):
    """Options of the engine `vllm`."""

    model: str | None = None
    """Folder, hub id or embedded model to serve; default: the policy that is trained."""
    url: str | None = None
    """Root of a server that runs already on this host, for example `http://127.0.0.1:8000`; default: assay starts one.
    It must have been started as `server_command` does, with the plug-in `assay-vllm`."""
    environment: str | None = None
    """Folder of vLLM's own environment; default `vllm` in assay's cache folder, where `make vllm` puts it."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the weights in the server; default the policy's."""
    max_rows: int = Field(default=64, ge=1)
    """Responses decoded at once; further ones wait in the server by their priority."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and answer together; default what the model allows."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """Memory of the key-value cache in GiB; on a CPU only."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How messages become a prompt, as for the engine `transformers`."""
    weights_dir: str | None = None
    """Folder that new weights are handed over in, for example under `/dev/shm`; default `weights` in the run's folder.
    It holds up to two versions and is emptied at the end."""
    transfer: Literal["file", "nccl"] = "file"
    """How new weights get into the server: it reads the files itself, or they are broadcast between GPUs; each of the
    server's workers then needs a GPU that the trainer does not use, for example
    `server_args = ["--device-ids", "1"]`."""
    start_s: float = Field(default=600.0, gt=0)
    """Longest start of the server, in seconds."""
    restarts: int = Field(default=3, ge=0)
    """How often in a row the server may die without having finished a response."""
    ignore_end: bool = False
    """Go on after the end token until `max_new_tokens`; for benchmarks."""
    server_args: tuple[str, ...] = ()
    """Further arguments of the server, for example `("--gpu-memory-utilization", "0.8")`."""

    @field_validator("url")
    @classmethod
    def _on_this_host(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK:
            raise ValueError(
                f"url must be on this host, as http://127.0.0.1:PORT; found {url!r}; the routes for weights have no "
                "password, and new weights are handed over as files"
            )
        return url.rstrip("/")
