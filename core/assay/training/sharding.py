"""Training on several processes, each with a part of the weights: torch's fully sharded data parallel, version 2.

Started by torchrun, every process builds the same trainer and takes the same steps; a step's micro-batches are divided
among them. A slice's denominators are counted over the whole batch, so the loss is that of one process and gradients
are added up, not averaged. What is small (an optimizer's own heads) is whole on every process.

Guaranteed: loss and gradients of one process to rounding, whatever the number of processes; a dead peer ends the others
at once, a hung one after `timeout_s`. Not guaranteed: equal bits for another number of processes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from pydantic import JsonValue
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from assay.contracts.tensors import Forward
from assay.errors import ConfigError, TrainingError
from assay.training.forward import causal_model, prepare_model
from assay.training.ranks import Ranks, Slice

TIMEOUT_S = 600.0
"""How long one exchange may take before the peer counts as hung."""
WAITING_S = 30 * 24 * 3600.0
"""How long a process waits for its next command: sampling and judging have limits of their own."""


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "TORCHELASTIC_RUN_ID" in os.environ


class ShardedRanks(Ranks):
    """This process among those that torchrun started."""

    def __init__(self, device: str = "cpu", *, timeout_s: float = TIMEOUT_S) -> None:
        """Meet the others.

        Raises:
            ConfigError: there is no such meeting point, or the processes cannot exchange tensors of this device.
        """
        kind = torch.device(device).type
        backend = "nccl" if kind == "cuda" else "gloo"
        if kind == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"torchrun: the processes cannot meet: {error}; start them with: torchrun") from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._mesh = init_device_mesh(kind, (self.size,))
        self._device = torch.device(kind)
        self._turn = threading.Lock()
        self._commands: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=WAITING_S))

    def close(self) -> None:
        """Leave the others."""
        dist.destroy_process_group()

    # -- what the trainer asks -------------------------------------------------------------------------------------

    def shard(self, model: Any) -> None:
        """Divide every layer, then what is left, over the processes."""
        causal = causal_model(model)
        prepare_model(causal)
        layers: set[str] = set(getattr(causal, "_no_split_modules", None) or ())
        for module in causal.modules():
            if type(module).__name__ in layers:
                fully_shard(module, mesh=self._mesh)
        causal.run_as_forward = MethodType(_run, causal)
        fully_shard(causal, mesh=self._mesh, reshard_after_forward=True)
        register_fsdp_forward_method(causal, "run_as_forward")
        whole = [name for name, value in causal.named_parameters() if not isinstance(value, DTensor)]
        if whole:
            raise TrainingError(f"torchrun: the weight {whole[0]!r} was not divided; use one process for this model")

    def budget(self, tokens: int, of: int) -> int:
        """Every process's equal share of the batch, where that is less."""
        return min(tokens, -(-of // self.size))

    def share(self, plan: Sequence[list[int]]) -> list[Slice]:
        """Every `size`-th micro-batch; where some are left over, the last one is repeated without counting."""
        rounds = -(-len(plan) // self.size)
        mine = [number * self.size + self.rank for number in range(rounds)]
        return [Slice(plan[min(at, len(plan) - 1)], counts=at < len(plan)) for at in mine]

    def scale(self, loss: Tensor, forward: Forward, *, counts: bool) -> Tensor:
        """Times the number of processes, since gradients are averaged; 0 where the slice does not count."""
        # Backward must run on every process, also where nothing here pulls: the others wait for its exchanges.
        read = (forward.logp, forward.values, *forward.extra.values())
        anchor = next(value for value in read if value is not None and value.requires_grad)
        return loss * (self.size if counts else 0) + anchor.sum() * 0

    def add(self, *values: Tensor | None) -> None:
        """Sum in place."""
        for value in values:
            if value is not None:
                dist.all_reduce(value)

    def agreed(self, flag: bool) -> bool:
        """The least of all flags."""
        found = torch.tensor(float(flag), device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return bool(found)

    def shares(self, metrics: Sequence[dict[str, float]]) -> list[dict[str, float]]:
        """Those of rank 0 first."""
        everything: list[Any] = self._gather([{k: repr(v) for k, v in entry.items()} for entry in metrics])
        return [{k: float(v) for k, v in entry.items()} for part in everything for entry in part]

    def clip(self, parameters: Sequence[Tensor], limit: float | None) -> float:
        """The norm over all parts; gradients of whole parameters are averaged first."""
        divided: list[Tensor] = []
        whole: list[Tensor] = []
        for parameter in parameters:
            if isinstance(parameter, DTensor):
                if isinstance(parameter.grad, DTensor):
                    divided.append(parameter.grad.to_local())
            else:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(self.size)
                whole.append(parameter.grad)
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        for grad in divided:
            square += grad.double().square().sum()
        dist.all_reduce(square)
        for grad in whole:
            square += grad.double().square().sum()
        norm = math.sqrt(float(square)) if math.isfinite(float(square)) else math.inf
        if limit is not None and limit < norm < math.inf:
            for grad in (*divided, *whole):
                grad.mul_(limit / (norm + 1e-6))
        return norm

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One tensor after the other; only rank 0 keeps what was gathered."""
        kept: dict[str, Tensor] = {}
        for name, value in tensors.items():
            whole = value.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            if self.rank == 0:
                kept[name] = whole.contiguous()
        return kept

    def fill(self, target: Tensor, value: Tensor) -> None:
        """Write this process's part."""
        if isinstance(target, DTensor):
            value = self.like(target, value)
        target.copy_(value)

    def like(self, target: Tensor, value: Tensor) -> Tensor:
        """Divided as `target`; numbers and tensors of other shapes stay whole."""
        if not isinstance(target, DTensor) or value.shape != target.shape:
            return value
        placed = value.to(device=target.device, dtype=value.dtype)
        return distribute_tensor(placed, target.device_mesh, target.placements)

    # -- who does what ---------------------------------------------------------------------------------------------

    @contextmanager
    def leading(self, command: dict[str, Any]) -> Generator[None]:
        """On rank 0: let every other process hear `command`, and do the same inside.

        Raises:
            TrainingError: a peer is gone, or torch gave up in another way.
        """
        with self._turn:
            try:
                self._broadcast(json.dumps(command).encode("utf-8"))
                yield
            except RuntimeError as error:
                first = str(error).strip().partition("\n")[0]
                raise TrainingError(f"torchrun: the processes cannot go on together: {first}") from error

    def hear(self) -> dict[str, Any]:
        """On the others: the next command of rank 0.

        Raises:
            TrainingError: rank 0 is gone.
        """
        try:
            return json.loads(self._broadcast(b""))
        except RuntimeError as error:
            first = str(error).strip().partition("\n")[0]
            raise TrainingError(f"torchrun: rank {self.rank} lost rank 0: {first}") from error

    def _broadcast(self, data: bytes) -> bytes:
        length = torch.tensor(len(data))
        dist.broadcast(length, 0, group=self._commands)
        body = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(int(length)).byte()
        dist.broadcast(body, 0, group=self._commands)
        return bytes(body.numpy())

    def _gather(self, value: JsonValue) -> list[Any]:
        data = torch.frombuffer(bytearray(json.dumps(value).encode("utf-8")), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group=self._commands)
        widest = int(max(lengths))
        parts = [torch.zeros(widest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, torch.nn.functional.pad(data, (0, widest - len(data))), group=self._commands)
        return [json.loads(bytes(p[: int(n)].numpy())) for p, n in zip(parts, lengths, strict=True)]


def _run(self: Any, read: Callable[[], Any]) -> Any:
    """A forward of the whole model that is given from outside."""
    return read()
