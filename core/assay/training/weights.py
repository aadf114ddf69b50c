"""New weights on their way back to the engines.

An engine that shares the module in memory needs the new version number only. Every other engine reads a folder in the
Hugging Face layout, which appears whole or not at all.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.contracts.batch import WeightsRef
from assay.training.probe import probe, write_probe
from assay.training.ranks import Ranks

if TYPE_CHECKING:
    from assay.training.model import PolicyModel


class Publisher:
    """Makes the reference that an engine's `push_weights` takes."""

    def __init__(
        self, policy: PolicyModel, *, folder: Path | None = None, keep: int = 2, ranks: Ranks | None = None
    ) -> None:
        """A publisher of `policy`; without a folder engines share the module, else `keep` versions stay on disk.

        On several processes (`ranks`) all of them publish, and the first one writes.
        """
        self._ranks = ranks or Ranks()
        self._policy = policy
        self._folder = folder
        self._keep = max(1, keep)

    def publish(self, version: int) -> WeightsRef:
        """The reference to the current weights as `version`."""
        if self._folder is None:
            return WeightsRef(version=version)
        target = self._folder / f"{version:08d}"
        if self._ranks.rank > 0:
            save_policy(self._policy, target, self._ranks)
            if self._policy.tokenizer is not None:
                probe(self._policy)
            return WeightsRef(version=version, path=str(target))
        temporary = self._folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_policy(self._policy, temporary, self._ranks)
        if self._policy.tokenizer is not None:
            write_probe(self._policy, temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        versions = sorted(path for path in self._folder.iterdir() if path.name.isdigit() and path != target)
        for old in versions[: len(versions) + 1 - self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return WeightsRef(version=version, path=str(target))


def save_policy(policy: PolicyModel, folder: Path, ranks: Ranks | None = None) -> None:
    """Write `policy` as a model folder: config, tokenizer, `model.safetensors`; an adapter is merged in.

    On several processes (`ranks`) all of them call it, and the first one writes.
    """
    from safetensors.torch import save_file

    ranks = ranks or Ranks()
    state = ranks.gathered(policy_state(policy))
    if ranks.rank > 0:
        return
    save_configuration(policy, folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def policy_state(policy: PolicyModel) -> dict[str, Any]:
    """Every weight under the name that it has in a model folder; an adapter is merged in."""
    from assay.training.forward import causal_model
    from assay.training.lora import merged_state

    base = causal_model(policy.model)
    state = merged_state(policy.model) if base is not policy.model else base.state_dict()
    return without_ties(base, state)


def save_configuration(policy: PolicyModel, folder: Path) -> None:
    """Write everything of a model folder but the weights."""
    from assay.training.forward import causal_model

    base = causal_model(policy.model)
    base.config.save_pretrained(folder)
    if getattr(base, "generation_config", None) is not None:
        base.generation_config.save_pretrained(folder)
    if policy.tokenizer is not None:
        policy.tokenizer.save_pretrained(folder)


def without_ties(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """`state` with one name for each storage, contiguous, as safetensors wants it; loading ties the others again."""
    names: Any = getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ()
    tied: set[str] = set(names)
    kept: dict[str, Any] = {}
    seen: set[int] = set()
    for name in sorted(state, key=lambda name: name in tied):
        tensor = state[name]
        local: Any = getattr(tensor, "to_local", lambda tensor=tensor: tensor)()  # of a weight that is divided
        if local.data_ptr() in seen and name in tied:
            continue
        seen.add(local.data_ptr())
        kept[name] = tensor.detach().contiguous()
    return kept
