"""Checkpoints: written whole or not at all, checked by hash before use, the previous one when the newest is damaged.

A checkpoint is a folder named by its step. It is a model folder that `policy.model` accepts (config, tokenizer,
`model.safetensors`; with an adapter only the adapter), and beside it the trainer's tensors and numbers. It is written
under another name, flushed to disk, and renamed. No pickle is written or read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import JsonValue
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from assay.config.training import OptimizerSettings
from assay.errors import ConfigError, TrainingError
from assay.protocols import RewardObjective
from assay.training.forward import causal_model
from assay.training.ranks import Ranks
from assay.training.weights import save_configuration, without_ties

if TYPE_CHECKING:
    from assay.training.model import PolicyModel
    from assay.training.trainer import Trainer

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
ADAPTER = "adapter.safetensors"
TENSORS = "trainer.safetensors"
NUMBERS = "trainer.json"
REWARD_MODEL = "reward_model.json"
"""What a reward model is, beside its weights: the reward source that loads the folder, and that source's options."""
HEADS = "heads.safetensors"
"""The tensors of a reward model's heads, each under `<sidecar>.<name>`."""
FORMAT = 1


class Found(NamedTuple):
    """The newest checkpoint that is whole."""

    path: Path
    step: int
    skipped: tuple[str, ...]
    """One sentence for each newer checkpoint that is damaged."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """Checkpoints in `folder`, of which the newest `keep` stay."""
        self.folder = folder
        self._keep = max(1, keep)

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a new folder, then make it the checkpoint of `step`; older ones beyond `keep` go.

        Raises:
            TrainingError: the disk is full or cannot be written; earlier checkpoints are untouched.
        """
        target = self.folder / f"{step:08d}"
        temporary = self.folder / f".{target.name}.{os.getpid()}"
        try:
            self._remove_leftovers()
            temporary.mkdir(parents=True)
            write(temporary)
            _write_manifest(temporary, step)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            _flush(self.folder)
        except OSError as cause:
            shutil.rmtree(temporary, ignore_errors=True)
            raise TrainingError(
                f"{target}: the checkpoint cannot be written; {cause.strerror or cause}. "
                "Earlier checkpoints are untouched: free some space, then use --resume"
            ) from cause
        for old in self._steps()[: -self._keep]:
            shutil.rmtree(self._path(old), ignore_errors=True)
        return target

    def latest(self) -> Found | None:
        """The newest checkpoint that passes its check, or None where there is none at all.

        Raises:
            TrainingError: there are checkpoints, and all are damaged.
        """
        skipped: list[str] = []
        for step in reversed(self._steps()):
            fault = find_fault(self._path(step))
            if fault is None:
                return Found(self._path(step), step, tuple(skipped))
            skipped.append(f"checkpoint {self._path(step)} is damaged and was passed over: {fault}")
        if skipped:
            raise TrainingError(f"{self.folder}: every checkpoint is damaged; {'; '.join(skipped)}. Start a new run")
        return None

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.is_dir() and path.name.isdigit())

    def _remove_leftovers(self) -> None:
        if self.folder.is_dir():
            for path in self.folder.glob(".*.*"):
                shutil.rmtree(path, ignore_errors=True)


def find_fault(path: Path) -> str | None:
    """What is wrong with the checkpoint in `path`, or None when every file is as long and as hashed as written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']}, this version reads {FORMAT}"
    except (OSError, ValueError, KeyError, TypeError) as cause:
        return f"its manifest cannot be read ({type(cause).__name__})"
    for name, facts in files.items():
        file = path / name
        if not file.is_file():
            return f"file {name} is missing"
        if file.stat().st_size != facts["bytes"]:
            return f"file {name} has {file.stat().st_size} bytes instead of {facts['bytes']}"
        if _hash(file) != facts["sha256"]:
            return f"file {name} has another hash than when it was written"
    return None


def save_trainer(trainer: Trainer, folder: Path, progress: Mapping[str, JsonValue] | None = None) -> None:
    """Write everything that `load_trainer` needs to go on bit by bit, and `progress` for the caller.

    On several processes all of them call it; the first one gathers every tensor and writes the same files as one
    process would, so that a run can go on with another number of processes.
    """
    model, ranks = trainer.policy.model, trainer.ranks
    if ranks.rank == 0:
        save_configuration(trainer.policy, folder)
    if causal_model(model) is model:
        _write(ranks, without_ties(model, model.state_dict()), folder / WEIGHTS)
    else:
        _write(ranks, _adapter(model), folder / ADAPTER)
    tensors: dict[str, Tensor] = {"rng/torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"rng/cuda/{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    adamw = trainer.adamw.state_dict()
    for index, state in adamw["state"].items():
        tensors |= {f"adamw/{index}/{name}": value for name, value in state.items()}
    tensors |= {f"master/{index}": master for index, master in enumerate(trainer.masters.tensors)}
    numbers: dict[str, Any] = {
        "version": trainer.version,
        "updates": trainer.updates,
        "shapes": _shapes(trainer),
        "random": random.getstate(),
        "sidecars": {},
        "progress": dict(progress or {}),
    }
    for sidecar in trainer.sidecars:
        plain: dict[str, Any] = {}
        for name, value in sidecar.state_dict().items():
            if isinstance(value, Tensor):
                tensors[f"sidecar/{sidecar.name}/{name}"] = value
            else:
                plain[name] = value
        numbers["sidecars"][sidecar.name] = plain
    if trainer.reference_moved and trainer.reference is not None:
        reference = trainer.reference.model
        tensors |= {
            f"reference/{name}": value for name, value in without_ties(reference, reference.state_dict()).items()
        }
    _write(ranks, tensors, folder / TENSORS)
    if ranks.rank > 0:
        return
    if causal_model(model) is not model:
        model.peft_config["default"].save_pretrained(folder)
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1), encoding="utf-8")


def load_trainer(trainer: Trainer, folder: Path) -> dict[str, JsonValue]:
    """Put the state in `folder` into `trainer`, in place, and return the caller's progress.

    Raises:
        TrainingError: the checkpoint belongs to another model, optimizer or setting of the adapter.
    """
    numbers: dict[str, Any] = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    if numbers["shapes"] != _shapes(trainer):
        raise TrainingError(
            f"{folder}: the checkpoint is of another model or optimizer; it has {len(numbers['shapes'])} trained "
            f"tensors, this run {len(_shapes(trainer))}, or their shapes differ. Resume with the config of the run"
        )
    model = trainer.policy.model
    if causal_model(model) is model:
        _fill(model.state_dict(), _read(folder / WEIGHTS), model, trainer.ranks)
    else:
        _fill(dict(model.named_parameters()), _read(folder / ADAPTER), None, trainer.ranks)
    tensors = _read(folder / TENSORS)
    state: dict[int, dict[str, Tensor]] = {}
    moved = [value for group in trainer.adamw.param_groups for value in group["params"]]
    for name, value in _below(tensors, "adamw/").items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = trainer.ranks.like(moved[int(index)], value)
    trainer.adamw.load_state_dict({"state": state, "param_groups": trainer.adamw.state_dict()["param_groups"]})
    with torch.no_grad():
        for index, master in enumerate(trainer.masters.tensors):
            trainer.ranks.fill(master, tensors[f"master/{index}"])
    for sidecar in trainer.sidecars:
        sidecar.load_state_dict(
            {**numbers["sidecars"].get(sidecar.name, {}), **_below(tensors, f"sidecar/{sidecar.name}/")}
        )
    reference = _below(tensors, "reference/")
    if reference:
        trainer.refresh_reference()
        assert trainer.reference is not None
        _fill(trainer.reference.model.state_dict(), reference, trainer.reference.model, trainer.ranks)
    trainer.version, trainer.updates = numbers["version"], numbers["updates"]
    kind, inner, gauss = numbers["random"]
    random.setstate((kind, tuple(inner), gauss))
    torch.set_rng_state(tensors["rng/torch"])
    cuda = _below(tensors, "rng/cuda/")
    if cuda and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all([cuda[str(index)] for index in range(len(cuda))])
    progress: dict[str, JsonValue] = numbers["progress"]
    return progress


def save_reward_model(
    objective: RewardObjective,
    policy: PolicyModel,
    reference: PolicyModel | None,
    folder: Path,
    *,
    threshold: float | None = None,
) -> None:
    """Write what makes a model folder a reward model: its description and the weights of its heads.

    `threshold` is one that was fitted while training; it is kept where the description's `model` leaves its own open.
    """
    described = dict(objective.describe(policy, reference))
    model = described.get("model")
    if threshold is not None and isinstance(model, dict) and model.get("threshold", threshold) is None:
        described["model"] = {**model, "threshold": threshold}
    (folder / REWARD_MODEL).write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")
    heads = {
        f"{sidecar.name}.{name}": value.detach().contiguous()
        for sidecar in objective.sidecars
        for name, value in sidecar.state_dict().items()
        if isinstance(value, Tensor)
    }
    if heads:
        save_file(heads, folder / HEADS)


def checkpoint_bytes(policy: PolicyModel, settings: OptimizerSettings) -> int:
    """About how large one checkpoint is: weights and two moments of every trained parameter, and the tokenizer."""
    parameters = list(policy.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kept = trained if settings.lora is not None else parameters
    weights = sum(parameter.numel() * parameter.element_size() for parameter in kept)
    narrow = sum(parameter.numel() for parameter in trained if parameter.element_size() < 4)
    moments = sum(8 * parameter.numel() for parameter in trained)
    return weights + moments + 4 * narrow + 16 * 2**20


def check_free_space(folder: Path, needed: int, *, what: str = "checkpoints", free: int | None = None) -> None:
    """Make sure that `needed` bytes fit where `folder` is or will be; `free` replaces the question to the disk.

    Raises:
        ConfigError: they do not.
    """
    if free is None:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigError(
            f"{folder}: too little free disk for {what}; needed {_size(needed)}, free {_size(free)}. "
            "Free some space, lower checkpoint.keep, or put runs_dir on another disk"
        )


def _write(ranks: Ranks, tensors: Mapping[str, Tensor], file: Path) -> None:
    whole = ranks.gathered(tensors)
    if ranks.rank == 0:
        save_file(whole, file, metadata={"format": "pt"})


def _adapter(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().contiguous() for name, value in model.named_parameters() if value.requires_grad}


def _shapes(trainer: Trainer) -> list[list[int]]:
    return [list(value.shape) for group in trainer.adamw.param_groups for value in group["params"]]


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # not a mapping


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _fill(target: Mapping[str, Tensor], source: Mapping[str, Tensor], model: Any, ranks: Ranks) -> None:
    expected = set(target) if model is None else set(without_ties(model, dict(target)))
    expected = {name for name in expected if model is not None or target[name].requires_grad}
    if expected != set(source):
        different = sorted(expected ^ set(source))
        raise TrainingError(
            f"checkpoint: its weights are those of another model; {len(different)} names differ, "
            f"first {different[0]!r}. Resume with the config of the run"
        )
    with torch.no_grad():
        for name, value in source.items():
            ranks.fill(target[name], value)


def _write_manifest(folder: Path, step: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _hash(path)} for path in files
    }
    for path in files:
        _flush(path)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": FORMAT, "step": step, "files": facts}, indent=1), encoding="utf-8")
    _flush(manifest)
    _flush(folder)


def _hash(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
