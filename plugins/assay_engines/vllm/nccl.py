"""NCCL as far as sending weights needs it: a group that this process leads, and broadcasts of bytes to all of it.

vLLM is not installed beside the trainer, so its own sender cannot be used; the library that comes with torch's CUDA
builds is called directly, as vLLM does on its side. The group is met by a unique id that travels over HTTP.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

LIBRARY = "libnccl.so.2"
UNIQUE_ID_BYTES = 128
_UINT8, _FLOAT32, _SUM = 1, 7, 0
"""Of the enumerations in `nccl.h`."""


class NcclError(Exception):
    """NCCL could not do what it was asked."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


def load(library: str = LIBRARY) -> Any:
    """The library with its functions declared; raises `NcclError` where there is none."""
    try:
        loaded: Any = ctypes.CDLL(library)
    except OSError as error:
        raise NcclError(f"the library {library} cannot be loaded: {error}") from error
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, list[Any]] = {
        "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
        "ncclCommInitRank": [ctypes.POINTER(pointer), number, _UniqueId, number],
        "ncclAllReduce": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclBroadcast": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclCommAbort": [pointer],
        "ncclGetErrorString": [number],
    }
    for name, types in signatures.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = types, number
    loaded.ncclGetErrorString.restype = ctypes.c_char_p
    return loaded


class Group:
    """The processes that take weights, and this one, which is rank 0 and sends."""

    def __init__(self, library: Any, *, size: int, device: torch.device) -> None:
        """A group that nobody has joined yet.

        `size` counts this process. `device` holds what is sent; each rank needs a GPU of its own.
        """
        self._library = library
        self._size = size
        self._device = device
        self._id = _UniqueId()
        self._communicator = ctypes.c_void_p()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(self._id)))

    @property
    def unique_id(self) -> bytes:
        """What the other ranks join with."""
        return bytes(self._id)

    def join(self) -> None:
        """Wait until every rank is there; then the exchange of one number that vLLM's ranks make first.

        It cannot be interrupted: where a rank never comes, it stays here.
        """
        joined = ctypes.c_void_p()
        with _current(self._device):
            self._check(self._library.ncclCommInitRank(ctypes.byref(joined), self._size, self._id, 0))
            self._communicator = joined
            number = torch.zeros(1, device=self._device)
            place = number.data_ptr()
            self._check(self._library.ncclAllReduce(place, place, 1, _FLOAT32, _SUM, joined, self._stream()))
            self._settle()

    def broadcast(self, data: Tensor) -> None:
        """Send the bytes of `data` (uint8, one axis, contiguous, on the group's device); back when they are there."""
        with _current(self._device):
            place, stream = data.data_ptr(), self._stream()
            self._check(self._library.ncclBroadcast(place, place, data.numel(), _UINT8, 0, self._communicator, stream))
            self._settle()

    def abort(self) -> None:
        """Leave, also while another thread waits inside `broadcast`, which then ends; the group is of no use after."""
        communicator, self._communicator = self._communicator, ctypes.c_void_p()
        if communicator:
            self._library.ncclCommAbort(communicator)

    def _stream(self) -> int:
        """Handle of the stream that the device's work is queued on; 0 where a device has none."""
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _check(self, result: int) -> None:
        if result != 0:
            words = self._library.ncclGetErrorString(result).decode("utf-8", "replace")
            raise NcclError(f"NCCL reported {result}: {words}")


def _current(device: torch.device) -> Any:
    """Makes `device` the calling thread's GPU; does nothing for another kind of device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
