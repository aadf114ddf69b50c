"""Log-probs, entropies and hidden states of response tokens, whatever the packing.

Rows go in as token ids, (N, T) tensors come out: T counts response tokens, padding holds 0. The output head sees only
positions that predict a scored token, a chunk at a time (`token_logp`). Rows with the same prompt share one copy of it
where the model allows that (`shared_prompt`), otherwise rows are padded on the right to one block; results agree to
rounding. Log-probs are those of logits divided by the row's temperature, always float32.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.training import shared_prompt
from assay.training.lean import install_lean_layers
from assay.training.token_logp import CHUNK_TOKENS, Head, token_logp

T = TypeVar("T")

__all__ = [
    "ForwardSettings",
    "Head",
    "TokenRow",
    "prepare_model",
    "response_forward",
    "response_hidden",
    "supports_shared_prompt",
    "token_logp",
]


@dataclass(frozen=True)
class TokenRow:
    """One prompt and one response as token ids."""

    prompt: tuple[int, ...]
    """At least one token: the first response token is predicted from the prompt's last."""
    response: tuple[int, ...]
    scored: tuple[bool, ...] | None = None
    """Which response tokens are asked for; None asks for all."""
    temperature: float = 1.0
    """What the logits are divided by; above 0."""

    @cached_property
    def last_scored(self) -> int:
        """Index of the last scored response token, or -1."""
        if self.scored is None:
            return len(self.response) - 1
        return next((index for index in reversed(range(len(self.scored))) if self.scored[index]), -1)


@dataclass(frozen=True)
class ForwardSettings:
    """How a forward is computed; no choice here changes what it means."""

    shared_prompt: bool = True
    """Keep one copy of a prompt for all its responses, where the model allows it."""
    float32_head: bool = False
    """Multiply the output head in float32 even where the weights are narrower."""
    chunk_tokens: int = CHUNK_TOKENS
    """Tokens whose logits exist at the same time."""
    autocast: torch.dtype | None = None
    """Compute the body in this type; None keeps the weights' own."""


def response_forward(
    model: Any,
    rows: Sequence[TokenRow],
    *,
    settings: ForwardSettings | None = None,
    entropy_grad: bool = False,
    logits: bool = False,
    topk_ids: Tensor | None = None,
    critics: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    heads: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    logp: bool = True,
) -> Forward:
    """Log-probs (N, T) float32 of the scored response tokens, their entropies, and what else is asked for.

    T is the longest response of `rows`; unscored places hold 0. Gradients flow where torch's grad mode allows.

    Args:
        model: a transformers causal language model (LoRA-wrapped or not).
        rows: N rows; a row without scored tokens costs nothing.
        settings: packing and precision.
        entropy_grad: whether the entropies carry a graph.
        logits: whether to give (N, T, V) logits too, divided by the temperature.
        topk_ids: (N, T, K) token ids whose log-probs are wanted.
        critics: name to a function from the hidden states (n, H) that predict n tokens to values (n,); the first
            one's are `Forward.values`, the others' stand in `Forward.extra` as `values_<name>`.
        heads: name to a function from the hidden states (n, H) *after* n scored tokens to (n,) or (n, C); what it
            gives stands in `Forward.extra` as `head_<name>`.
        logp: False leaves out the output layer: log-probs and entropies are then zeros without a graph.

    Raises:
        ValueError: a row has no prompt token.
    """
    settings = settings or ForwardSettings()
    causal = causal_model(model)
    place = _Places.of(rows, next(causal.parameters()).device)
    shape = (len(rows), max((len(row.response) for row in rows), default=0))

    def read() -> dict[str, Tensor]:
        """What was asked for, one entry per scored token."""
        hidden, after = _states(causal, rows, place, settings, after=bool(heads))
        with torch.autocast(hidden.device.type, enabled=False):
            named = {f"values_{name}": critic(hidden).float() for name, critic in (critics or {}).items()}
            named |= {f"head_{name}": head(after).float() for name, head in (heads or {}).items()}
            if not logp and not logits and topk_ids is None:
                zeros = torch.zeros(len(hidden), device=hidden.device)
                return {**named, "logp": zeros, "entropy": zeros}
            head = Head.of(causal, float32=settings.float32_head)
            if not logits and topk_ids is None:
                found, entropy = token_logp(
                    head,
                    hidden,
                    place.targets,
                    place.temperature,
                    entropy_grad=entropy_grad,
                    chunk_tokens=settings.chunk_tokens,
                )
                return {**named, "logp": found, "entropy": entropy}
            z = head.logits(hidden, place.temperature)
            full = z.log_softmax(dim=-1)
            entropy = -(full.exp() * full).sum(dim=-1)
            named["logp"] = full.gather(1, place.targets[:, None]).squeeze(1)
            named["entropy"] = entropy if entropy_grad else entropy.detach()
            if topk_ids is not None:
                named["topk"] = full.gather(1, topk_ids.to(z.device)[place.row, place.column])
            if logits:
                named["logits"] = z
            return named

    def spread(values: Tensor) -> Tensor:
        grid = values.new_zeros((*shape, *values.shape[1:]))
        return grid.index_put((place.row, place.column), values)

    grids = {name: spread(values) for name, values in _as_forward(causal, read).items()}
    first = next((f"values_{name}" for name in critics or ()), "")
    return Forward(
        logp=grids.pop("logp"),
        entropy=grids.pop("entropy"),
        values=grids.pop(first, None),
        topk=grids.pop("topk", None),
        logits=grids.pop("logits", None),
        extra=grids,
    )


def response_hidden(model: Any, rows: Sequence[TokenRow], *, settings: ForwardSettings | None = None) -> Tensor:
    """(N, T, H) hidden states of the last layer *at* every response token (after it was read), 0 where unscored."""
    settings = settings or ForwardSettings()
    causal = causal_model(model)
    device = next(causal.parameters()).device
    # The state at a token is the one that would predict a token after it: one more place, asked for one later.
    shifted = [
        TokenRow(row.prompt, (*row.response, 0), (False, *(row.scored or (True,) * len(row.response)))) for row in rows
    ]
    place = _Places.of(shifted, device)
    hidden = _as_forward(causal, lambda: _predicting(causal, shifted, place, settings))
    width = max((len(row.response) for row in rows), default=0)
    grid = hidden.new_zeros((len(rows), width, hidden.shape[-1]))
    return grid.index_put((place.row, place.column - 1), hidden)


def causal_model(model: Any) -> Any:
    """The transformers causal language model inside an adapter wrapper, or `model` itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def prepare_model(model: Any) -> None:
    """Try and change now what a first forward would: before the weights of `model` are divided among processes."""
    causal = causal_model(model)
    supports_shared_prompt(causal)
    _make_lean(causal)


_lean: weakref.WeakSet[Any] = weakref.WeakSet()
_supported: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def supports_shared_prompt(model: Any) -> bool:
    """Whether packing responses behind one copy of their prompt gives this model's own hidden states.

    Models with sliding windows or layers other than full attention are told apart by their config; every other model
    is tried once on a few tokens, packed and in separate rows.
    """
    causal = causal_model(model)
    if causal not in _supported:
        _supported[causal] = _declares_full_attention(causal.config) and _packs_correctly(causal)
    return _supported[causal]


class _Places(NamedTuple):
    """Every scored token: where it stands in (N, T), what it is, at which temperature."""

    row: Tensor
    column: Tensor
    targets: Tensor
    temperature: Tensor

    @classmethod
    def of(cls, rows: Sequence[TokenRow], device: torch.device) -> _Places:
        where: list[tuple[int, int, int]] = []
        for index, row in enumerate(rows):
            if not row.prompt and row.last_scored >= 0:
                raise ValueError(f"row {index}: the prompt has no token; a response needs at least one before it")
            wanted = row.scored or (True,) * len(row.response)
            where.extend((index, t, token) for t, token in enumerate(row.response) if wanted[t])
        table = torch.tensor(where, dtype=torch.long).reshape(-1, 3).to(device)
        scale = torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device)
        return cls(table[:, 0], table[:, 1], table[:, 2], scale[table[:, 0]])


def _make_lean(causal: Any) -> None:
    if causal not in _lean:
        install_lean_layers(causal)
        _lean.add(causal)


def _as_forward(causal: Any, read: Callable[[], T]) -> T:
    """`read()`, as the forward of `causal` where its weights are divided and gathered around a forward."""
    whole: Callable[[Callable[[], T]], T] | None = getattr(causal, "run_as_forward", None)
    return read() if whole is None else whole(read)


def _predicting(causal: Any, rows: Sequence[TokenRow], place: _Places, settings: ForwardSettings) -> Tensor:
    """(n, H) hidden states that predict the n scored tokens."""
    return _states(causal, rows, place, settings, after=False)[0]


def _states(
    causal: Any, rows: Sequence[TokenRow], place: _Places, settings: ForwardSettings, *, after: bool
) -> tuple[Tensor, Tensor]:
    """(n, H) hidden states that predict the n scored tokens, and those after them (the same ones unless `after`)."""
    used = [index for index, row in enumerate(rows) if row.last_scored >= 0]
    device = place.row.device
    if not used:
        parameter = next(causal.parameters())
        empty = parameter.new_zeros((0, causal.get_input_embeddings().weight.shape[1]))
        return empty, empty
    if torch.is_grad_enabled():
        _make_lean(causal)
    pack = _shared if settings.shared_prompt and supports_shared_prompt(causal) else _padded
    read = [row.response[: row.last_scored + after] for row in rows]
    with torch.autocast(device.type, dtype=settings.autocast, enabled=settings.autocast is not None):
        states, prompt_end, response_start = pack(causal, rows, read, used, device)
    own = torch.tensor(response_start, device=device)[place.row] + place.column
    before = torch.where(place.column == 0, torch.tensor(prompt_end, device=device)[place.row], own - 1)
    predicting = states.index_select(0, before)
    return predicting, states.index_select(0, own) if after else predicting


class _States(NamedTuple):
    states: Tensor
    """(tokens, H)."""
    prompt_end: list[int]
    """Per row: flat index of the prompt's last token."""
    response_start: list[int]
    """Per row: flat index of the response's first token."""


def _shared(
    causal: Any,
    rows: Sequence[TokenRow],
    responses: Sequence[tuple[int, ...]],
    used: Sequence[int],
    device: torch.device,
) -> _States:
    prompts: dict[tuple[int, ...], int] = {}
    for index in used:
        prompts.setdefault(rows[index].prompt, len(prompts))
    ids: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    for prompt in prompts:
        ids.extend(prompt)
        positions.extend(range(len(prompt)))
        ends.append(len(ids) - 1)
    prompt_end, response_start = [0] * len(rows), [0] * len(rows)
    lengths: list[int] = []
    owners: list[int] = []
    for index in used:
        row = rows[index]
        prompt_end[index] = ends[prompts[row.prompt]]
        response_start[index] = len(ids)
        read = responses[index]
        if read:
            ids.extend(read)
            positions.extend(range(len(row.prompt), len(row.prompt) + len(read)))
            lengths.append(len(read))
            owners.append(prompts[row.prompt])
    shared_prompt.install(causal)
    dtype = causal.get_input_embeddings().weight.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    layout = shared_prompt.SharedPrompts.of(
        [len(prompt) for prompt in prompts], lengths, owners, dtype=dtype, device=device
    )
    states = causal.get_decoder()(
        input_ids=torch.tensor([ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        # A mask of four dimensions is taken as it is; the layout alone says who sees whom.
        attention_mask=torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),
        shared_prompts=layout,
        use_cache=False,
    ).last_hidden_state
    return _States(states[0], prompt_end, response_start)


def _padded(
    causal: Any,
    rows: Sequence[TokenRow],
    responses: Sequence[tuple[int, ...]],
    used: Sequence[int],
    device: torch.device,
) -> _States:
    read = [(*rows[index].prompt, *responses[index]) for index in used]
    width = max(map(len, read))
    # Padding stands on the right, where causal attention keeps every real token from seeing it.
    ids = torch.tensor([[*tokens, *([0] * (width - len(tokens)))] for tokens in read], device=device)
    states = causal.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    prompt_end, response_start = [0] * len(rows), [0] * len(rows)
    for line, index in enumerate(used):
        response_start[index] = line * width + len(rows[index].prompt)
        prompt_end[index] = response_start[index] - 1
    return _States(states.reshape(-1, states.shape[-1]), prompt_end, response_start)


def _declares_full_attention(config: Any) -> bool:
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return False
    kinds = getattr(config, "layer_types", None) or ()
    return all(kind == "full_attention" for kind in kinds)


def _packs_correctly(causal: Any) -> bool:
    device = next(causal.parameters()).device
    ids = [1 + index % max(1, causal.config.vocab_size - 1) for index in (3, 5, 7, 11, 13, 17, 19, 23)]
    prompts = [tuple(ids[:3]), tuple(ids[2:4])]
    rows = [
        TokenRow(prompts[0], tuple(ids[3:7])),
        TokenRow(prompts[0], tuple(ids[5:8])),
        TokenRow(prompts[1], tuple(ids[4:8])),
    ]
    place = _Places.of(rows, device)
    before = causal.config._attn_implementation
    with torch.no_grad():
        separate = _predicting(causal, rows, place, ForwardSettings(shared_prompt=False)).float()
        try:
            _supported[causal] = True
            packed = _predicting(causal, rows, place, ForwardSettings()).float()
        except Exception:  # any failure of a foreign model's code means only: this model cannot pack
            packed = None
    tolerance = 1e-4 if causal.get_input_embeddings().weight.dtype == torch.float32 else 0.1
    agrees = packed is not None and bool((packed - separate).abs().max() <= tolerance * separate.abs().max())
    if not agrees and causal.config._attn_implementation != before:
        causal.set_attn_implementation(before)
    return agrees
