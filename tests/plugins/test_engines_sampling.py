# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Tensor.tolist is not annotated.
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts import Sampling
from assay_engines.transformers.prefill import common_prefix
from assay_engines.transformers.sampling import draw, nucleus, uniforms

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40)


def test_tokens_come_as_often_as_their_probability() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    rows = 4000
    logits = (probabilities.log() * 0.5).expand(rows, -1)  # at temperature 0.5 these are the probabilities again
    drawn = draw(logits, [Sampling(temperature=0.5)] * rows, [uniforms(seed) for seed in range(rows)])
    counts = torch.bincount(torch.tensor(drawn.tokens), minlength=5) / rows
    assert counts[1] == 0
    # Four standard errors of the likeliest token.
    assert torch.allclose(counts, probabilities, atol=4 * math.sqrt(0.25 / rows))


@given(LOGITS, st.floats(0.1, 3.0), st.integers(0, 2**32))
def test_a_token_has_the_log_prob_of_the_tempered_softmax(values: list[float], temperature: float, seed: int) -> None:
    logits = torch.tensor([values])
    drawn = draw(logits, [Sampling(temperature=temperature)], [uniforms(seed)])
    expected = (logits[0].double() / temperature).log_softmax(-1)[drawn.tokens[0]]
    assert drawn.logprobs[0] == pytest.approx(float(expected), abs=1e-4)
    assert math.isfinite(drawn.logprobs[0])


@given(st.lists(LOGITS, min_size=1, max_size=4), st.integers(0, 1000))
def test_a_row_does_not_see_its_neighbours(rows: list[list[float]], seed: int) -> None:
    width = max(map(len, rows))
    logits = torch.tensor([row + [-math.inf] * (width - len(row)) for row in rows])
    settings = [Sampling(temperature=(0.0, 0.7, 1.0)[place % 3]) for place in range(len(rows))]
    together = draw(logits, settings, [uniforms(seed + place) for place in range(len(rows))])
    for place, sampling in enumerate(settings):
        alone = draw(logits[place : place + 1], [sampling], [uniforms(seed + place)])
        assert alone.tokens[0] == together.tokens[place]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[place], abs=1e-5)


@given(LOGITS, st.floats(0.01, 0.999))
def test_the_nucleus_is_the_smallest_that_reaches_its_mass(values: list[float], top_p: float) -> None:
    logp = torch.tensor(values).log_softmax(-1)
    ids, kept = nucleus(logp, top_p)
    mass = logp.exp()[ids]
    assert float(mass.sum()) >= top_p - 1e-5 or len(ids) == len(logp)
    assert float(mass[:-1].sum()) < top_p + 1e-5
    assert float(kept.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    left = set(range(len(values))) - set(ids.tolist())
    assert all(float(logp[token]) <= float(logp[ids].min()) + 1e-6 for token in left)


def test_a_wide_nucleus_goes_past_the_short_list() -> None:
    logp = torch.zeros(5000).log_softmax(-1)
    ids, kept = nucleus(logp, 0.9)
    assert len(ids) == pytest.approx(4500, abs=2)
    assert float(kept[0]) == pytest.approx(-math.log(len(ids)), abs=1e-4)


@pytest.mark.parametrize(
    ("texts", "length"), [([(1, 2, 3), (1, 2, 4)], 2), ([(1, 2), (1, 2, 3)], 2), ([(5,)], 1), ([(1,), (2,)], 0)]
)
def test_common_prefix(texts: list[tuple[int, ...]], length: int) -> None:
    assert common_prefix(texts) == length
