"""Scores: the same alone and among others, in any order and packing; as many as steps, or one sentence."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from assay.contracts import Span
from assay.errors import ConfigError
from assay.training import forward as forwards
from assay.training.encoder import TextEncoder
from assay.training.model import PolicyModel
from assay_prms.heads import ScoreHead
from assay_prms.scoring import Response, Scorer
from assay_prms.spec import ScorerSpec

Make = Callable[..., Scorer]
KINDS: dict[str, dict[str, Any]] = {
    "head": {"kind": "head"},
    "raw": {"kind": "head", "score": "raw"},
    "classes": {"kind": "head", "outputs": 2},
    "end": {"kind": "head", "at": "end"},
    "marker": {"kind": "head", "marker": "#", "between": "\n"},
    "vocabulary": {"kind": "vocabulary", "marker": "#", "positive": "+", "negative": "-"},
    "running": {"kind": "implicit", "beta": 0.5, "value": "running"},
    "shares": {"kind": "implicit", "beta": 0.5, "value": "step"},
    "generative": {"kind": "generative", "at": "end", "yes": "Y", "no": "N"},
}
RESPONSES = [
    Response("3*4+2=", "3*4=12\n\n12+2=14\n\nThe answer is 14"),
    Response("3*4+2=", "14"),
    Response("1+1", "1+1=3\n\n" + "so it goes " * 12 + "\n\nthree"),
    Response([{"role": "user", "content": "Say # and stop."}], "one # two\n\n#\n\nthree"),
    Response("3*4+2=", "3*4=12\n\n12+2=15"),
]


def values(scorer: Scorer, responses: Sequence[Response] = RESPONSES) -> list[tuple[float, ...]]:
    found = scorer.score(responses)
    assert [one.reason for one in found] == [None] * len(responses)
    return [one.values for one in found]


def close(found: list[tuple[float, ...]], expected: list[tuple[float, ...]]) -> bool:
    return all(a == pytest.approx(b, abs=1e-5) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_does_not_depend_on_its_neighbours(scorer: Make, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values(scorer(**KINDS[kind]))
    assert len({value for line in whole for value in line}) >= 5
    alone = [values(scorer(**KINDS[kind]), [response])[0] for response in RESPONSES]
    reversed_ = values(scorer(**KINDS[kind]), RESPONSES[::-1])[::-1]
    split = values(scorer(40, **KINDS[kind]))
    monkeypatch.setattr(forwards, "supports_shared_prompt", lambda model: False)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr("assay_prms.scoring.supports_shared_prompt", lambda model: False)  # pyright: ignore[reportUnknownLambdaType]
    padded = values(scorer(**KINDS[kind]))
    for found in (alone, reversed_, split, padded):
        assert close(found, whole)


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_a_plain_padded_forward(policy: PolicyModel, scorer: Make, side: str) -> None:
    ours = scorer(kind="head")
    assert ours.head is not None
    encoder = TextEncoder(policy.tokenizer, literal=True)
    rows, places = [], []
    for response in RESPONSES[:3]:
        prompt, text = encoder.prompt(response.prompt), encoder.response(response.text)
        rows.append([*prompt, *text])
        ends = [at + len(piece) for at, piece in pieces(response.text)]
        places.append([len(prompt) + end - 1 for end in ends])  # one character, one token
    width = max(map(len, rows))
    fill = [width - len(row) if side == "left" else 0 for row in rows]
    ids = torch.tensor([[0] * f + row + [0] * (width - f - len(row)) for f, row in zip(fill, rows, strict=True)])
    mask = torch.tensor([[0] * f + [1] * len(r) + [0] * (width - f - len(r)) for f, r in zip(fill, rows, strict=True)])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        states = policy.model.model(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        for line, (shift, at) in enumerate(zip(fill, places, strict=True)):
            expected = ours.head.read(states[line, [shift + place for place in at]]).sigmoid().tolist()
            assert ours.score([RESPONSES[line]])[0].values == pytest.approx(expected, abs=1e-5)


def pieces(text: str) -> list[tuple[int, str]]:
    found, at = [], 0
    for piece in text.split("\n\n"):
        found.append((at, piece.rstrip()))
        at += len(piece) + 2
    return found


@pytest.mark.parametrize("kind", ["head", "marker", "vocabulary", "running", "shares"])
def test_there_are_as_many_scores_as_steps_and_spans_cut_them_out(scorer: Make, kind: str) -> None:
    for response, found in zip(RESPONSES, scorer(**KINDS[kind]).score(RESPONSES), strict=True):
        assert len(found.values) == len(found.spans)
        texts = [response.text[span.start : span.end] for span in found.spans]
        assert texts == [piece for _, piece in pieces(response.text)]


def test_given_spans_are_kept(scorer: Make) -> None:
    spans = (Span(start=0, end=3), Span(start=3, end=6))
    (found,) = scorer(kind="head").score([Response("1+1", "abcdef", spans)])
    assert found.spans == spans
    assert len(found.values) == 2


def test_a_marker_in_the_response_stays_text(scorer: Make) -> None:
    """The policy writes the marker itself: it gets no score of its own and no id of the marker."""
    (plain,) = scorer(**KINDS["marker"]).score([Response("x", "one\n\ntwo")])
    (forged,) = scorer(**KINDS["marker"]).score([Response("x", "one#\n\n##two#")])
    assert len(plain.values) == len(forged.values) == 2


def test_an_adapter_switched_off_is_the_reference(tiny: Any) -> None:
    from assay.config.training import LoraSettings
    from assay.training.lora import add_adapter
    from assay.training.model import load_policy

    plain, adapted = load_policy(str(tiny)), load_policy(str(tiny))
    add_adapter(adapted, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(1))
    spec = ScorerSpec(kind="implicit", beta=0.5, value="step")
    ours, theirs = Scorer(adapted, spec), Scorer(adapted, spec, reference=plain)
    assert close(values(ours), values(theirs))
    assert max(abs(value) for line in values(ours) for value in line) > 1e-4


@pytest.mark.parametrize("text", ["", "  \n\n "])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_response_has_no_score(scorer: Make, kind: str, text: str) -> None:
    found = scorer(**KINDS[kind]).score([Response("1+1", text), RESPONSES[0]])
    assert found[0].reason == "empty_response"
    assert found[0].values == ()
    assert found[1].reason is None


def test_what_is_too_long_is_said_and_the_others_are_scored(scorer: Make) -> None:
    short, long = scorer(kind="head").score([RESPONSES[0], Response("1+1", "x " * 400)])
    assert short.reason is None
    assert long.values == ()
    assert long.reason == "too long: 804 tokens, the reward model reads 512"


def test_a_score_that_is_not_finite_names_response_and_step(policy: PolicyModel) -> None:
    head = ScoreHead(1)
    head.bind(32)
    with torch.no_grad():
        head.module[0].weight.fill_(float("nan"))  # type: ignore[union-attr,operator]
    ours = Scorer(policy, ScorerSpec(), head=head)
    with pytest.raises(ValueError, match=r"the score of step 1 of response 2 is nan"):
        ours.score([Response("1+1", " "), Response("1+1", "2")])


def test_temperature_divides_the_logits(scorer: Make) -> None:
    plain, raw = values(scorer(temperature=2.0)), values(scorer(score="raw"))
    expected = [tuple(torch.sigmoid(torch.tensor(line) / 2).tolist()) for line in raw]
    assert close(plain, expected)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"marker": "##"}, r"marker: '##' must be one token of this tokenizer, spaces included; found 2. Name another"),
        ({"kind": "vocabulary"}, "a vocabulary model needs the tokens positive and negative"),
        ({"kind": "generative", "yes": " Yes"}, r"yes: ' Yes' must be one token of this tokenizer"),
        ({"tokenizer": "0123456789abcdef"}, "its tokenizer is not the one that it was trained with"),
    ],
)
def test_a_description_that_does_not_fit_is_one_sentence(scorer: Make, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        scorer(**fields)


def test_a_head_and_a_reference_are_asked_for(policy: PolicyModel) -> None:
    with pytest.raises(ConfigError, match="its head's weights are missing"):
        Scorer(policy, ScorerSpec())
    with pytest.raises(ConfigError, match="an implicit reward needs its reference model"):
        Scorer(policy, ScorerSpec(kind="implicit"))
