"""New weights out of safetensors files into the running model, by vLLM's own routes for weight updates.

`/init_weight_transfer_engine` names the root that all files must lie in; each `/update_weights` names files relative to
it. The server must be paused meanwhile. Written against vLLM 0.32.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)


@dataclass
class FileInit(WeightTransferInitInfo):
    """What `/init_weight_transfer_engine` is told."""

    root: str = ""
    """Folder that every file lies in."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """What `/update_weights` is told."""

    files: list[str] = field(default_factory=list)
    """Safetensors files relative to the root, with the tensors' names as in the model's folder."""


class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads whole versions from files; each worker reads them by itself."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Remember the root; a later call replaces it."""
        if not os.path.isdir(init_info.root):
            raise ValueError(f"assay_file: root is no folder on this host: {init_info.root!r}")
        self.root = os.path.realpath(init_info.root)

    def start_weight_update(self) -> None:
        """Put the model's layers into the state in which they can be loaded again."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Load the files; replaces the base class's method, which waits for an accelerator and fails without one."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Load the files' tensors into the model."""
        with torch.no_grad():
            self.model.load_weights(self._tensors(update_info.files))

    def finish_weight_update(self) -> None:
        """Bring the layers back into the form they compute in.

        On a CPU the output layer keeps a packed copy of its weights, and for a model whose output layer is tied to its
        embeddings the reload leaves the old copy in place: it is made again here.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
        from vllm.platforms import current_platform

        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            for module in self.model.modules():
                if type(module).__name__ == "ParallelLMHead":
                    module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def _tensors(self, files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for file in files:
            path = os.path.realpath(os.path.join(self.root, file))
            if os.path.commonpath([path, self.root]) != self.root:
                raise ValueError(f"assay_file: {file!r} lies outside the root {self.root!r}")
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118  (no mapping)
                    yield name, handle.get_tensor(name)
