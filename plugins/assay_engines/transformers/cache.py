"""Key-value storage that is allocated once: slots for the rows being decoded, and blocks for shared prompts.

A slot is one row of preallocated tensors (slots, heads, positions, head size) per layer. Rows in use are kept in the
first slots, so that a decode step reads one contiguous range of slots and no step allocates or moves storage. A block
is the storage of one prefilled text, copied into as many slots as start from it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' cache classes are only partly annotated.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Block:
    """Keys and values of one text: per layer two tensors (heads, length, head size)."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def length(self) -> int:
        """Number of positions."""
        return int(self.keys[0].shape[1])


class _Layer(CacheLayerMixin):
    """One layer of a preallocated cache; where new states go is decided by the cache that owns it."""

    def __init__(self, owner: Any, index: int) -> None:
        super().__init__()
        self.owner = owner
        self.index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the owner allocates."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new states and give back everything that the queries may attend to."""
        return self.owner.write(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the attended range; the masks used here are ready-made, so this is not consulted."""
        return self.owner.width, 0

    def get_seq_length(self) -> int:
        """Positions stored before the current call; positions are given explicitly, so this is not consulted."""
        return 0

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.owner.width


class PrefillCache(Cache):
    """Storage of one prefill of B texts: a prefix that all share, then S new positions each."""

    def __init__(self, layers: int, rows: int, new: int, prefix: Block | None) -> None:
        """`layers` layers for `rows` texts with `new` positions each after `prefix`."""
        self.rows = rows
        self.start = prefix.length if prefix else 0
        self.width = self.start + new
        self.prefix = prefix
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        super().__init__(layers=[_Layer(self, index) for index in range(layers)])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new states of `layer` (B, H, S, D) to the prefix; layers come in order."""
        if self.prefix is not None:
            shared = (self.prefix.keys[layer], self.prefix.values[layer])
            keys, values = (
                torch.cat([old.unsqueeze(0).expand(self.rows, -1, -1, -1), new], dim=2)
                for old, new in zip(shared, (keys, values), strict=True)
            )
        self.keys.append(keys)
        self.values.append(values)
        return keys, values

    def block(self, row: int, padding: int) -> Block:
        """The storage of text `row`, whose new positions start with `padding` unused ones."""

        def part(states: Tensor) -> Tensor:
            if padding == 0:
                return states[row].clone()
            return torch.cat([states[row, :, : self.start], states[row, :, self.start + padding :]], dim=1)

        return Block([part(keys) for keys in self.keys], [part(values) for values in self.values])


class SlotCache(Cache):
    """Preallocated storage of the rows being decoded; row i of a decode step is slot i."""

    def __init__(self, layers: int, slots: int, capacity: int, like: Block) -> None:
        """`slots` slots of `capacity` positions, with heads, sizes and types as in `like`."""
        self.capacity = capacity
        self.width = 0
        self.positions = torch.zeros(0, dtype=torch.long)
        self.slots = torch.zeros(0, dtype=torch.long)

        def room(state: Tensor) -> Tensor:
            heads, _, size = state.shape
            return torch.zeros(slots, heads, capacity, size, dtype=state.dtype, device=state.device)

        self.keys = [room(state) for state in like.keys]
        self.values = [room(state) for state in like.values]
        super().__init__(layers=[_Layer(self, index) for index in range(layers)])

    def aim(self, positions: Tensor, width: int) -> None:
        """Say where the next step writes: row i at `positions[i]`; queries see the first `width` positions."""
        self.positions = positions
        self.slots = torch.arange(len(positions), device=positions.device)
        self.width = width

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one new position per row of `layer` (A, H, 1, D), and give back (A, H, width, D) views."""
        rows = len(self.positions)
        self.keys[layer][self.slots, :, self.positions] = keys[:, :, 0]
        self.values[layer][self.slots, :, self.positions] = values[:, :, 0]
        return self.keys[layer][:rows, :, : self.width], self.values[layer][:rows, :, : self.width]

    def load(self, block: Block, slots: Sequence[int]) -> None:
        """Copy `block` into each of `slots`."""
        length = block.length
        for layer, (keys, values) in enumerate(zip(block.keys, block.values, strict=True)):
            for slot in slots:
                self.keys[layer][slot, :, :length] = keys
                self.values[layer][slot, :, :length] = values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot over another."""
        for states in (self.keys, self.values):
            for state in states:
                state[target, :, :length] = state[source, :, :length]

    def grown(self, capacity: int) -> SlotCache:
        """The same rows with room for `capacity` positions."""
        like = Block([keys[0] for keys in self.keys], [values[0] for values in self.values])
        wider = SlotCache(len(self.keys), self.keys[0].shape[0], capacity, like)
        for layer in range(len(self.keys)):
            wider.keys[layer][:, :, : self.capacity] = self.keys[layer]
            wider.values[layer][:, :, : self.capacity] = self.values[layer]
        return wider
