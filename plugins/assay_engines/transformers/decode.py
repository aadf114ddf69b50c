"""The decode loop, without threads or clocks: submit requests, call `step` until nothing is left.

One step gives one token to every row in use. A row that ends frees its slot, which the next waiting request takes
before the following step, so that the batch stays full while anything waits. Requests with the same prompt share one
prefill.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from assay.contracts import Finish, Rollout, RolloutRequest, Turn, WeightSpan
from assay_engines.transformers.cache import SlotCache
from assay_engines.transformers.prefill import Ids, Network, Prefiller, Prompt
from assay_engines.transformers.sampling import draw, uniforms

GRAIN = 64
STOP_MARGIN = 4


class TextDecoder(Protocol):
    """What is needed of a tokenizer here."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens left out."""
        ...


@dataclass(eq=False)
class Row:
    """One request on its way."""

    request: RolloutRequest
    prompt: Ids
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish: Finish | None = None
    text: str | None = None
    """Set where a stop string cut the text."""
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = uniforms(self.request.sampling.seed)

    @property
    def needed(self) -> int:
        """Positions that its slot must have."""
        return len(self.prompt) + self.request.sampling.max_new_tokens

    @property
    def stored(self) -> int:
        """Positions of its slot that are filled: all but the last token, which has not been fed yet."""
        return len(self.prompt) + len(self.tokens) - 1


class Decoder:
    """Rows in slots, requests in a queue, one token per row and step."""

    def __init__(
        self,
        network: Network,
        text: TextDecoder,
        *,
        end_ids: Collection[int],
        max_rows: int,
        prefill_tokens: int,
        version: int = 0,
    ) -> None:
        """Decode at most `max_rows` rows at a time; `end_ids` end a response (none of them: only length and stop)."""
        self.network = network
        self.text = text
        self.end_ids = frozenset(end_ids)
        self.max_rows = max_rows
        self.version = version
        self.prefiller = Prefiller(network, max_tokens=prefill_tokens)
        self.slots: list[Row | None] = []
        self.cache: SlotCache | None = None
        self._waiting: list[tuple[int, int, Row]] = []
        self._order = 0
        self._prompts: dict[Ids, Prompt] = {}
        self._wanted: Counter[Ids] = Counter()

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting) or any(self.slots)

    def submit(self, requests: Sequence[tuple[RolloutRequest, Ids]]) -> None:
        """Queue requests with their prompt ids: lower priority numbers first, then in the order given."""
        for request, prompt in requests:
            self._order += 1
            self._wanted[prompt] += 1
            heapq.heappush(self._waiting, (request.priority, self._order, Row(request, prompt)))

    def cancel(self, ids: Collection[str] | None = None) -> list[Rollout]:
        """End these requests (None: all) and give back what they have so far, with finish `abort`."""
        ended: list[Rollout] = []
        kept: list[tuple[int, int, Row]] = []
        for entry in sorted(self._waiting):
            if ids is None or entry[2].request.id in ids:
                self._release(entry[2].prompt)
                ended.append(self._end(entry[2], "abort"))
            else:
                kept.append(entry)
        self._waiting = kept
        for slot, row in enumerate(self.slots):
            if row is not None and (ids is None or row.request.id in ids):
                self.slots[slot] = None
                ended.append(self._end(row, "abort"))
        return ended

    def take_weights(self, network: Network, version: int) -> None:
        """Go on with new weights: later tokens carry `version`; rows in flight keep the key-values that they have."""
        self.network = network
        self.version = version
        self.prefiller.network = network
        self.prefiller.forget()
        self._prompts.clear()

    @torch.inference_mode()
    def step(self) -> list[Rollout]:
        """Give one token to every row in use, after filling free slots; returns the rollouts that ended."""
        ended = self._admit()
        self._close_gaps()
        rows = [row for row in self.slots if row is not None]
        if not rows or self.cache is None:
            return ended
        device = self.network.device
        positions = torch.tensor([row.stored for row in rows], device=device)
        width = min(-(-(int(positions.max()) + 1) // 8) * 8, self.cache.capacity)
        self.cache.aim(positions, width)
        ids = torch.tensor([[row.tokens[-1]] for row in rows], device=device)
        mask = torch.arange(width, device=device)[None] <= positions[:, None]
        logits = self.network(ids, positions[:, None], mask[:, None, None], self.cache)
        self._extend(rows, logits)
        return ended + self._collect()

    def _admit(self) -> list[Rollout]:
        """Fill free slots from the queue; rows that end with their first token make room for further ones."""
        ended: list[Rollout] = []
        while self._waiting and (free := self._free_slots()):
            entries = [heapq.heappop(self._waiting) for _ in range(min(len(free), len(self._waiting)))]
            rows = [entry[2] for entry in entries]
            self._prefill([row.prompt for row in rows])
            self._make_room(max(row.needed for row in rows))
            assert self.cache is not None
            places = dict(zip(map(id, rows), free, strict=False))
            logits = torch.stack([self._prompts[row.prompt].logits for row in rows])
            self._extend(rows, logits)
            for row in rows:
                block = self._prompts[row.prompt].block
                self._release(row.prompt)
                if row.finish is None:
                    self.cache.load(block, [places[id(row)]])
                    self.slots[places[id(row)]] = row
                else:
                    ended.append(self._end(row, row.finish))
        return ended

    def _free_slots(self) -> list[int]:
        self.slots += [None] * (self.max_rows - len(self.slots))
        return [slot for slot, row in enumerate(self.slots) if row is None]

    def _prefill(self, prompts: Sequence[Ids]) -> None:
        """Make sure of these prompts' blocks; a forward with room to spare takes along prompts that wait."""
        missing = [ids for ids in dict.fromkeys(prompts) if ids not in self._prompts]
        while missing:
            ahead = [row.prompt for _, _, row in heapq.nsmallest(self.max_rows, self._waiting)]
            queue = list(dict.fromkeys([*missing, *(ids for ids in ahead if ids not in self._prompts)]))
            self._prompts.update(zip(queue, self.prefiller.run(queue), strict=False))
            missing = [ids for ids in missing if ids not in self._prompts]

    def _release(self, prompt: Ids) -> None:
        self._wanted[prompt] -= 1
        if self._wanted[prompt] <= 0:
            del self._wanted[prompt]
            self._prompts.pop(prompt, None)

    def _make_room(self, needed: int) -> None:
        capacity = -(-needed // GRAIN) * GRAIN
        if self.cache is None:
            block = next(iter(self._prompts.values())).block
            waiting = max((row.needed for _, _, row in self._waiting), default=0)
            capacity = max(capacity, -(-waiting // GRAIN) * GRAIN)
            self.cache = SlotCache(self.network.layers, self.max_rows, capacity, block)
        elif self.cache.capacity < capacity:
            self.cache = self.cache.grown(capacity)

    def _close_gaps(self) -> None:
        """Move rows from the end into free slots, so that the rows in use are the first ones."""
        while self.slots and self.slots[-1] is None:
            self.slots.pop()
        for slot in range(len(self.slots)):
            if slot < len(self.slots) and self.slots[slot] is None:
                row = self.slots.pop()
                assert row is not None
                assert self.cache is not None
                self.cache.move(len(self.slots), slot, row.stored)
                self.slots[slot] = row
                while self.slots[-1] is None:
                    self.slots.pop()

    def _extend(self, rows: Sequence[Row], logits: Any) -> None:
        drawn = draw(logits, [row.request.sampling for row in rows], [row.generator for row in rows])
        for row, token, logprob in zip(rows, drawn.tokens, drawn.logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            row.finish = self._verdict(row)

    def _verdict(self, row: Row) -> Finish | None:
        sampling = row.request.sampling
        if row.tokens[-1] in self.end_ids:
            return "stop"
        if sampling.stop and self._met_stop(row, sampling.stop):
            return "stop"
        return "length" if len(row.tokens) >= sampling.max_new_tokens else None

    def _met_stop(self, row: Row, stops: Sequence[str]) -> bool:
        """Whether a stop text is now complete; looks at the tail alone, since a token is at least one byte."""
        window = 4 * max(len(stop) for stop in stops) + STOP_MARGIN
        if not any(stop in self.text.decode(row.tokens[-window:]) for stop in stops):
            return False
        whole = self.text.decode(row.tokens)
        places = [whole.find(stop) for stop in stops if stop in whole]
        if not places:
            return False
        row.text = whole[: min(places)]
        return True

    def _collect(self) -> list[Rollout]:
        ended: list[Rollout] = []
        for slot, row in enumerate(self.slots):
            if row is not None and row.finish is not None:
                self.slots[slot] = None
                ended.append(self._end(row, row.finish))
        return ended

    def _end(self, row: Row, finish: Finish) -> Rollout:
        text = row.text
        if text is None:
            spoken = row.tokens[:-1] if row.tokens and row.tokens[-1] in self.end_ids else row.tokens
            text = self.text.decode(spoken)
        turn = Turn(text=text, token_ids=tuple(row.tokens), logprobs=tuple(row.logprobs))
        return Rollout(
            id=row.request.id,
            task_id=row.request.task.id,
            group_id=row.request.group_id,
            turns=(turn,),
            prompt_ids=row.prompt,
            weight_versions=_spans(row.versions),
            finish=finish,
            sampling=row.request.sampling,
        )


def _spans(versions: Sequence[int]) -> tuple[WeightSpan, ...]:
    spans: list[WeightSpan] = []
    for place, version in enumerate(versions):
        if spans and spans[-1].version == version:
            spans[-1] = WeightSpan(version=version, first=spans[-1].first, last=place)
        else:
            spans.append(WeightSpan(version=version, first=place, last=place))
    return tuple(spans)
