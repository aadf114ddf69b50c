"""How new weights get from a folder into a paused server: it reads the files by itself, or they are sent over NCCL.

Both go through vLLM's routes for weight updates: begin, start, update, finish with the version. Written against vLLM
0.32.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import base64
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay_engines.vllm.files import Entry, read_entries
from assay_engines.vllm.routes import Lost, Routes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK_BYTES = 256 << 20
"""Tensors are sent together up to this size."""
LONGEST_S = 300.0
"""Of one exchange over NCCL; then the server counts as lost."""


class Transfer(Protocol):
    """A way for weights."""

    async def push(self, routes: Routes, life: int, folder: Path, files: Sequence[str], version: int) -> None:
        """Give the paused server of this life the tensors of `files` in `folder`, and name them `version`.

        Raises:
            Lost: the server is gone or did not take them; it is not usable after that.
        """
        ...

    def close(self) -> None:
        """Let go of what is held between pushes."""
        ...


class FileTransfer:
    """The server reads the folder: on the same host, by the plug-in `assay-vllm`."""

    async def push(self, routes: Routes, life: int, folder: Path, files: Sequence[str], version: int) -> None:
        """Name the files."""
        await routes.begin_transfer({"root": str(folder)})
        await routes.start_update()
        await routes.update({"files": list(files)})
        await routes.finish_update(version)

    def close(self) -> None:
        """Nothing is held."""


class NcclTransfer:
    """This process reads the folder and broadcasts the tensors to all of the server's workers, by vLLM's own `nccl`.

    Tensors are laid end to end as bytes, in the folder's order, and go out as soon as more than `chunk_bytes` are
    together: the server cuts the stream by the same rule.
    """

    def __init__(self, device: torch.device, *, library: str | None = None, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Nothing is met before the first push; `library` is a file to load in place of the one that torch brings.

        Raises:
            NcclError: there is no such library.
        """
        from assay_engines.vllm import nccl

        self._device = device
        self._library = nccl.load(library or nccl.LIBRARY)
        self._chunk_bytes = chunk_bytes
        self._group: nccl.Group | None = None
        self._life: int | None = None

    async def push(self, routes: Routes, life: int, folder: Path, files: Sequence[str], version: int) -> None:
        """Meet the workers where this life of the server is new, then tell them what comes, and send it."""
        entries = read_entries(folder, files)
        if self._group is None or self._life != life:
            await self._meet(routes)
            self._life = life
        group = self._group
        assert group is not None
        await routes.start_update()
        told = {
            "names": [entry.name for entry in entries],
            "dtype_names": [entry.dtype for entry in entries],
            "shapes": [list(entry.shape) for entry in entries],
        }

        def send() -> None:
            for chunk in chunks(tensors(folder, entries), self._chunk_bytes):
                group.broadcast(chunk.to(self._device))

        await self._both(routes.update(told), send)
        await routes.finish_update(version)

    def close(self) -> None:
        """Leave the group, also in the middle of an exchange."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    async def _meet(self, routes: Routes) -> None:
        from assay_engines.vllm import nccl

        self.close()
        await routes.end_transfer()  # with a trainer of before
        size = 1 + await routes.world_size()
        try:
            group = nccl.Group(self._library, size=size, device=self._device)
        except nccl.NcclError as error:
            raise Lost(f"no group for sending weights: {error}") from error
        meeting = {
            "rank_offset": 1,
            "world_size": size,
            "nccl_unique_id_b64": base64.b64encode(group.unique_id).decode("ascii"),
            "packed": True,
            "packed_buffer_size_bytes": self._chunk_bytes,
            "packed_num_buffers": 2,
        }
        self._group = group
        await self._both(routes.begin_transfer(meeting), group.join)

    async def _both(self, ask: Coroutine[Any, Any, None], act: Callable[[], None]) -> None:
        """Ask the server while this process does its part: each waits for the other inside NCCL.

        Where one of them fails, the group is left, so that nothing here waits on.
        """
        whole = False
        try:
            async with asyncio.timeout(LONGEST_S), asyncio.TaskGroup() as halves:
                halves.create_task(ask)
                halves.create_task(_in_thread(act))
            whole = True
        except TimeoutError as error:
            raise Lost(f"the exchange of weights over NCCL did not end within {LONGEST_S:g} s") from error
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            if not whole:
                self.close()


def tensors(folder: Path, entries: Iterable[Entry]) -> Generator[Tensor]:
    """The tensors of `entries`, in their order."""
    from safetensors import safe_open

    for file, inside in itertools.groupby(entries, key=lambda entry: entry.file):
        with safe_open(folder / file, framework="pt") as handle:
            for entry in inside:
                yield handle.get_tensor(entry.name)


def chunks(values: Iterable[Tensor], size: int) -> Generator[Tensor]:
    """The bytes of the tensors end to end, cut after the tensor by which a piece grows beyond `size`."""
    import torch

    waiting: list[Tensor] = []
    held = 0
    for value in values:
        waiting.append(value.contiguous().view(-1).view(torch.uint8))
        held += waiting[-1].numel()
        if held > size:
            yield torch.cat(waiting)
            waiting, held = [], 0
    if waiting:
        yield torch.cat(waiting)


async def _in_thread(act: Callable[[], None]) -> None:
    """Run `act` in a thread that does not keep the process alive: what waits inside NCCL cannot be told to stop."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            act()
        except Exception as error:  # told to whoever waits
            done.set_exception(Lost(f"{type(error).__name__}: {error}"))
        else:
            done.set_result(None)

    threading.Thread(target=run, name="assay-nccl", daemon=True).start()
    await asyncio.wrap_future(done)
