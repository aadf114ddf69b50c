"""From options and context to an engine: which model, which tokenizer, whose server."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

from assay.component import BuildContext
from assay.errors import ConfigError
from assay_engines.vllm.engine import Speaker, VLLMEngine
from assay_engines.vllm.host import GivenHost, OwnHost
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import find_python, new_log
from assay_engines.vllm.transfer import FileTransfer, NcclTransfer, Transfer


def build_engine(options: VLLMOptions, context: BuildContext) -> VLLMEngine:
    """The engine; its server starts with the first request.

    Raises:
        ConfigError: no environment, no model, a model whose files are nowhere, or no GPU where one is asked for.
    """
    transfer = _transfer(options, context)
    host = None if options.url is None else GivenHost(options.url, options, transfer)
    python = None if host is not None else find_python(options, context.cache_dir, context.base_dir)
    policy = context.policy
    if options.model is not None:
        from assay.training.model import obtain_model

        model = obtain_model(options.model, cache_dir=context.cache_dir, base_dir=context.base_dir)
        tokenizer, end_ids = _speaking(model)
        dtype = options.dtype or "float32"
    elif policy is not None:
        model, tokenizer, end_ids = Path(policy.path), policy.tokenizer, policy.end_ids
        dtype = options.dtype or str(policy.model.dtype).removeprefix("torch.")
    else:
        raise ConfigError("engine 'vllm': there is no policy to sample from; set its option model")
    if host is None:
        assert python is not None
        host = OwnHost(
            python,
            options,
            dtype=dtype,
            on_cpu=context.device.startswith("cpu"),
            open_log=lambda: new_log(_own_folder(context) or Path(tempfile.mkdtemp(prefix="assay-vllm-"))),
        )
    return VLLMEngine(
        host,
        Speaker(tokenizer, end_ids, options.template),
        model=model,
        weights_folder=_weights_folder(options, context),
        transfer=transfer,
        dtype=dtype,
        restarts=options.restarts,
        ignore_end=options.ignore_end,
    )


def _transfer(options: VLLMOptions, context: BuildContext) -> Transfer:
    if options.transfer == "file":
        return FileTransfer()
    import torch

    from assay_engines.vllm.nccl import NcclError

    if not context.device.startswith("cuda") or not torch.cuda.is_available():
        raise ConfigError(
            f"engine 'vllm': transfer = 'nccl' sends weights from GPU to GPU, and this process trains on "
            f"{context.device!r}; use transfer = 'file'"
        )
    try:
        return NcclTransfer(torch.empty(0, device=context.device).device)
    except NcclError as error:
        raise ConfigError(f"engine 'vllm': transfer = 'nccl': {error}; use transfer = 'file'") from error


def _weights_folder(options: VLLMOptions, context: BuildContext) -> Path:
    """A folder of this engine's own, since it is removed at the end."""
    if options.weights_dir is not None:
        return context.base_dir / Path(options.weights_dir).expanduser() / f"assay-weights-{secrets.token_hex(4)}"
    folder = _own_folder(context)
    if folder is not None:
        shutil.rmtree(folder / "weights", ignore_errors=True)  # of a killed run that is resumed
        return folder / "weights"
    return Path(tempfile.gettempdir()) / f"assay-weights-{secrets.token_hex(4)}"


def _own_folder(context: BuildContext) -> Path | None:
    return None if context.run is None else Path(context.run.folder).absolute()


def _speaking(model: Path) -> tuple[Any, frozenset[int]]:
    """Tokenizer and end ids of a model's folder."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine 'vllm': no tokenizer in {model}: {str(error).splitlines()[0]}") from error
    found: list[Any] = [tokenizer.eos_token_id]
    if (model / "generation_config.json").is_file():
        configured = GenerationConfig.from_pretrained(model, local_files_only=True).eos_token_id
        found += configured if isinstance(configured, list) else [configured]
    end_ids = frozenset(int(token) for token in found if token is not None)
    if not end_ids:
        raise ConfigError(f"engine 'vllm': no end token in {model}: set eos_token in tokenizer_config.json")
    return tokenizer, end_ids
