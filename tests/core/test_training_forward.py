"""The forward: log-probs, entropies and gradients are the same however rows are packed, chunked or padded."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.training.forward import (
    ForwardSettings,
    TokenRow,
    response_forward,
    response_hidden,
    supports_shared_prompt,
)
from assay.training.token_logp import Head, token_logp

VOCAB = 61
PADDED = ForwardSettings(shared_prompt=False)


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**{**options, **changes})).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


def draw_rows(seed: int, count: int = 9) -> list[TokenRow]:
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(VOCAB) for _ in range(draw.randrange(1, 8))) for _ in range(3)]
    rows: list[TokenRow] = []
    for _ in range(count):
        response = tuple(draw.randrange(VOCAB) for _ in range(draw.randrange(0, 9)))
        scored = tuple(draw.random() < 0.7 for _ in response) if draw.random() < 0.5 else None
        rows.append(TokenRow(draw.choice(prompts), response, scored, draw.choice([1.0, 0.6, 1.7])))
    return rows


def plain(model: Any, rows: list[TokenRow]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies by one full forward per row, straight from the logits."""
    shape = (len(rows), max(len(row.response) for row in rows))
    logp, entropy = torch.zeros(shape), torch.zeros(shape)
    for index, row in enumerate(rows):
        full = (model(torch.tensor([row.prompt + row.response])).logits[0] / row.temperature).log_softmax(-1)
        for t, token in enumerate(row.response):
            if row.scored is None or row.scored[t]:
                line = full[len(row.prompt) + t - 1]
                logp[index, t] = line[token]
                entropy[index, t] = -(line.exp() * line).sum()
    return logp, entropy


def gradients(model: Any, logp: Tensor, entropy: Tensor) -> list[Tensor]:
    model.zero_grad()
    (logp.sin().sum() + 0.3 * entropy.square().sum()).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def largest(left: list[Tensor], right: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", [ForwardSettings(), PADDED, ForwardSettings(chunk_tokens=3)])
def test_packed_padded_and_chunked_equal_a_plain_forward_and_its_gradient(
    model: Any, seed: int, how: ForwardSettings
) -> None:
    rows = draw_rows(seed)
    expected = plain(model, rows)
    wanted = gradients(model, *expected)
    found = response_forward(model, rows, settings=how, entropy_grad=True)
    torch.testing.assert_close(found.logp, expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy, expected[1], atol=1e-5, rtol=0)
    scale = max(1.0, max(float(grad.abs().max()) for grad in wanted))
    assert largest(gradients(model, found.logp, found.entropy), wanted) <= 1e-5 * scale


def test_the_llama_shape_shares_prompts_and_keeps_its_own_attention_without_a_layout(model: Any) -> None:
    ids = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(0))
    fresh = llama()
    before = fresh(ids).logits
    assert supports_shared_prompt(fresh)
    torch.testing.assert_close(fresh(ids).logits, before, atol=0, rtol=0)


def test_a_sliding_window_falls_back_to_padding_with_the_same_numbers() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    config = MistralConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=4,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    assert not supports_shared_prompt(model)
    rows = draw_rows(5)
    torch.testing.assert_close(response_forward(model, rows).logp, plain(model, rows)[0], atol=1e-5, rtol=0)


def test_a_model_whose_attention_ignores_the_layout_is_found_out_by_trying() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    rows = draw_rows(6)
    before = model.config._attn_implementation
    agrees = supports_shared_prompt(model)
    assert agrees or model.config._attn_implementation == before
    torch.testing.assert_close(response_forward(model, rows).logp, plain(model, rows)[0], atol=1e-5, rtol=0)


def test_gradient_checkpointing_changes_nothing(model: Any) -> None:
    rows = draw_rows(1)
    expected = response_forward(model, rows, entropy_grad=True)
    wanted = gradients(model, expected.logp, expected.entropy)
    saving = llama()
    saving.activation_checkpointing_enable({"use_reentrant": False})
    saving.train()
    found = response_forward(saving, rows, entropy_grad=True)
    torch.testing.assert_close(found.logp, expected.logp, atol=1e-6, rtol=0)
    assert largest(gradients(saving, found.logp, found.entropy), wanted) <= 1e-5


def test_logits_topk_and_values_stand_where_the_tokens_are(model: Any) -> None:
    rows = draw_rows(2)
    width = max(len(row.response) for row in rows)
    ids = torch.randint(VOCAB, (len(rows), width, 3), generator=torch.Generator().manual_seed(1))
    found = response_forward(
        model,
        rows,
        logits=True,
        topk_ids=ids,
        critics={"reward": lambda hidden: hidden.sum(-1), "cost": lambda hidden: 2 * hidden.sum(-1)},
    )
    assert found.logits is not None
    assert found.topk is not None
    assert found.values is not None
    asked = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        for t in range(len(row.response)):
            asked[index, t] = row.scored is None or row.scored[t]
    full = found.logits.log_softmax(-1)
    torch.testing.assert_close(full.gather(-1, ids)[asked], found.topk[asked])
    torch.testing.assert_close(found.extra["values_cost"], 2 * found.values)
    assert not found.logp[~asked].any()
    torch.testing.assert_close(found.logp, plain(model, rows)[0], atol=1e-5, rtol=0)


def test_hidden_states_at_tokens_are_those_after_reading_them(model: Any) -> None:
    rows = [TokenRow((1, 2), (3, 4, 5)), TokenRow((1, 2), (6,)), TokenRow((7,), (8, 9), (False, True))]
    found = response_hidden(model, rows)
    for index, row in enumerate(rows):
        states = model.model(torch.tensor([row.prompt + row.response])).last_hidden_state[0]
        for t in range(len(row.response)):
            wanted = row.scored is None or row.scored[t]
            expected = states[len(row.prompt) + t] if wanted else torch.zeros_like(states[0])
            torch.testing.assert_close(found[index, t], expected, atol=1e-5, rtol=0)


def test_rows_without_a_scored_token_cost_nothing_and_give_zeros(model: Any) -> None:
    found = response_forward(model, [TokenRow((1,), ()), TokenRow((1,), (2, 3), (False, False))])
    assert found.logp.shape == (2, 2)
    assert not found.logp.any()


def test_a_response_without_a_prompt_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="row 1: the prompt has no token"):
        response_forward(model, [TokenRow((1,), (2,)), TokenRow((), (2,))])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    chunk=st.integers(1, 13),
    softcap=st.sampled_from([None, 5.0]),
    scale=st.sampled_from([1.0, 0.25]),
    with_bias=st.booleans(),
)
def test_the_chunked_head_equals_a_float64_log_softmax_and_its_gradient(
    seed: int, count: int, chunk: int, softcap: float | None, scale: float, with_bias: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=draw).requires_grad_()
    weight = torch.randn(17, 6, generator=draw).requires_grad_()
    bias = torch.randn(17, generator=draw).requires_grad_() if with_bias else None
    targets = torch.randint(17, (count,), generator=draw)
    temperature = torch.rand(count, generator=draw) + 0.5
    pull = torch.randn(2, count, generator=draw)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]

    found = token_logp(
        Head(weight, bias, scale, softcap), hidden, targets, temperature, entropy_grad=True, chunk_tokens=chunk
    )
    mine = torch.autograd.grad((found.logp * pull[0]).sum() + (found.entropy * pull[1]).sum(), leaves)

    z = hidden.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    z = z * scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    full = (z / temperature.double()[:, None]).log_softmax(-1)
    logp, entropy = full.gather(1, targets[:, None]).squeeze(1), -(full.exp() * full).sum(-1)
    theirs = torch.autograd.grad((logp * pull[0]).sum() + (entropy * pull[1]).sum(), leaves)
    torch.testing.assert_close(found.logp.double(), logp, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.entropy.double(), entropy, atol=1e-4, rtol=1e-4)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other, atol=1e-3, rtol=1e-3)


def test_a_narrow_head_in_float32_equals_the_widened_weights() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(17, 8, generator=draw).bfloat16()
    hidden = torch.randn(5, 8, generator=draw).bfloat16()
    targets, ones = torch.arange(5), torch.ones(5)
    wide = token_logp(Head(weight.float()), hidden.float(), targets, ones).logp
    assert torch.equal(token_logp(Head(weight, float32=True), hidden, targets, ones).logp, wide)
    assert not torch.equal(token_logp(Head(weight), hidden, targets, ones).logp, wide)


def test_without_entropy_grad_the_entropy_has_no_graph(model: Any) -> None:
    found = response_forward(model, [TokenRow((1,), (2, 3))])
    assert found.logp.requires_grad
    assert not found.entropy.requires_grad


def test_lean_layers_keep_the_numbers_and_less_memory(model: Any) -> None:
    from assay.training.lean import install_lean_layers

    ids = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(4))

    def run(candidate: Any) -> tuple[Tensor, list[Tensor], int]:
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        candidate.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            states = candidate.model(ids).last_hidden_state
        states.sin().sum().backward()
        grads = [parameter.grad.clone() for parameter in candidate.model.parameters()]
        return states.detach(), grads, sum(kept.values())

    lean = llama()
    own_states, own_grads, own_bytes = run(lean)
    assert install_lean_layers(lean) == 2 * 3 + 1
    assert install_lean_layers(lean) == 0
    states, grads, kept = run(lean)
    torch.testing.assert_close(states, own_states, atol=1e-5, rtol=0)
    assert largest(grads, own_grads) <= 1e-5 * max(1.0, max(float(grad.abs().max()) for grad in own_grads))
    assert kept < 0.85 * own_bytes


def test_lean_layers_leave_another_activation_alone() -> None:
    from assay.training.lean import install_lean_layers

    gelu = llama(hidden_act="gelu")
    assert install_lean_layers(gelu) == 2 * 2 + 1
    rows = draw_rows(3)
    torch.testing.assert_close(response_forward(gelu, rows).logp, plain(gelu, rows)[0], atol=1e-5, rtol=0)


def test_the_token_by_vocabulary_matrix_never_exists(model: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Widest(TorchDispatchMode):
        tokens = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.ndim and VOCAB in leaf.shape and 32 not in leaf.shape:
                    self.tokens = max(self.tokens, leaf.numel() // VOCAB)
            return result

    rows = [TokenRow((1, 2), tuple(range(3, 15)))] * 6
    with Widest() as widest:
        found = response_forward(model, rows, settings=ForwardSettings(chunk_tokens=8))
        found.logp.sum().backward()
    assert 0 < widest.tokens <= 8
    with Widest() as widest:
        response_forward(model, rows, logits=True)
    assert widest.tokens == 72


@pytest.mark.parametrize("how", [ForwardSettings(), PADDED])
def test_a_head_reads_the_state_after_each_scored_token(model: Any, how: ForwardSettings) -> None:
    rows = draw_rows(7)
    weight = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = response_forward(model, rows, settings=how, heads={"a": lambda h: h @ weight.T, "b": lambda h: h[:, 0]})
        bare = response_forward(model, rows, settings=how, heads={"a": lambda h: h @ weight.T}, logp=False)
        expected = torch.zeros(*found.logp.shape, 32)
        for index, row in enumerate(rows):
            states = model.model(torch.tensor([row.prompt + row.response])).last_hidden_state[0]
            for t in range(len(row.response)):
                if row.scored is None or row.scored[t]:
                    expected[index, t] = states[len(row.prompt) + t]
    torch.testing.assert_close(found.extra["head_a"], expected @ weight.T, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.extra["head_b"], expected[..., 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(bare.extra["head_a"], found.extra["head_a"], atol=1e-6, rtol=0)
    torch.testing.assert_close(found.logp, plain(model, rows)[0], atol=1e-5, rtol=0)
    assert bare.logp.abs().max() == 0
    assert not bare.logp.requires_grad
