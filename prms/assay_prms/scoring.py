"""A reward model's numbers for responses, in memory: training's own encoding and forward, without a gradient.

Guaranteed: a score does not depend on the other responses of a call, their order, or how they are packed, beyond
rounding (1e-5 in float32); there are as many scores as steps, or none and a reason. One forward per response gives the
scores of all its steps; forwards are cut to a token budget after sorting by length or shared prompt.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from assay.contracts import Fault, Span
from assay.errors import ConfigError
from assay.steps import step_spans
from assay.training.batch import plan_micro_batches
from assay.training.encoder import TextEncoder
from assay.training.forward import TokenRow, causal_model, response_forward, supports_shared_prompt
from assay_prms.generative import direct_prompt
from assay_prms.losses import implicit_values, step_rewards
from assay_prms.places import Placed, one_id, place_steps
from assay_prms.render import SpecEncoder

if TYPE_CHECKING:
    from assay.training.model import PolicyModel
    from assay_prms.heads import ScoreHead
    from assay_prms.spec import ScorerSpec

TOKEN_BUDGET = 4096


class Response(NamedTuple):
    """What is to be judged."""

    prompt: Any
    """A text, or a list of messages."""
    text: str
    spans: tuple[Span, ...] | None = None
    """Its steps; None lets the model's own splitter find them."""


class Scores(NamedTuple):
    """What the model says of one response."""

    spans: tuple[Span, ...]
    """The steps; one span, the whole text, where only the end is judged."""
    values: tuple[float, ...]
    """One number per span, in order."""
    reason: str | None = None
    """Why there are none."""
    fault: Fault = "candidate"
    """Whose doing that is."""


class Scorer:
    """A reward model in memory."""

    def __init__(
        self,
        policy: PolicyModel,
        spec: ScorerSpec,
        *,
        head: ScoreHead | None = None,
        reference: PolicyModel | None = None,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        """A scorer of this model.

        Args:
            policy: body, vocabulary and tokenizer.
            spec: how it reads and what it gives back.
            head: for `kind = "head"`.
            reference: for `kind = "implicit"`; None is allowed where the policy carries a LoRA adapter, which is then
                switched off.
            token_budget: tokens per forward.

        Raises:
            ConfigError: a part is missing, a text is not one token, or the tokenizer is not the one of training.
        """
        self.policy = policy
        self.spec = spec
        self.head = head
        self.reference = reference
        self.token_budget = token_budget
        encoder = TextEncoder(policy.tokenizer, template=spec.template, literal=True)
        if spec.tokenizer is not None and encoder.fingerprint != spec.tokenizer:
            raise ConfigError(
                f"reward model {policy.name!r}: its tokenizer is not the one that it was trained with; fingerprint "
                f"{encoder.fingerprint}, saved {spec.tokenizer}. Restore the folder's tokenizer files"
            )
        self.encode = SpecEncoder(encoder, spec)
        if spec.kind == "head" and head is None:
            raise ConfigError(f"reward model {policy.name!r}: its head's weights are missing")
        if spec.kind == "implicit" and reference is None and not hasattr(policy.model, "disable_adapter"):
            raise ConfigError(f"reward model {policy.name!r}: an implicit reward needs its reference model; name it")
        self._ids = self._special_ids()
        self.longest: int | None = getattr(causal_model(policy.model).config, "max_position_embeddings", None)

    def score(self, responses: Sequence[Response]) -> list[Scores]:
        """The scores of each response, in order.

        Raises:
            ValueError: a score is not finite; the message names the response and the step.
        """
        cuts = [self._cut(response) for response in responses]
        ready = [index for index, cut in enumerate(cuts) if isinstance(cut, _Cut)]
        values = self._values([cut for cut in cuts if isinstance(cut, _Cut)])
        found: list[Scores | None] = [cut if isinstance(cut, Scores) else None for cut in cuts]
        for index, numbers in zip(ready, values, strict=True):
            cut = cuts[index]
            assert isinstance(cut, _Cut)
            for step, value in enumerate(numbers, 1):
                if not math.isfinite(value):
                    raise ValueError(f"reward model: the score of step {step} of response {index + 1} is {value}")
            found[index] = Scores(cut.spans, tuple(numbers))
        return [scores for scores in found if scores is not None]

    # -- responses to tokens -------------------------------------------------------------------------------------------

    def _cut(self, response: Response) -> _Cut | Scores:
        """Tokens and places of a response, or why there are none."""
        text, spec = response.text, self.spec
        if not text.strip():
            return Scores((), (), "empty_response")
        whole = Span(start=0, end=len(text.rstrip()))
        spans = response.spans if response.spans is not None else step_spans(text, spec.splitter)
        if spec.kind == "generative":
            prompt = self.encode.prompt(direct_prompt(response.prompt, text, spec.question))
            placed = Placed(prompt, (self._ids[0],), (0,))
            spans = (whole,)
        else:
            try:
                placed = place_steps(
                    self.encode, response.prompt, text, spans, marker=spec.marker, between=spec.between
                )
            except ConfigError as error:
                return Scores((), (), str(error))
            if spec.at == "end":
                spans = (whole,)
                placed = placed._replace(places=(len(placed.response) - 1,))
        tokens = len(placed.prompt) + len(placed.response)
        if self.longest is not None and tokens > self.longest:
            return Scores((), (), f"too long: {tokens:,} tokens, the reward model reads {self.longest:,}")
        return _Cut(placed, tuple(spans))

    def _special_ids(self) -> tuple[int, int]:
        """(good, bad) ids of the vocabulary, where the model speaks through it."""
        spec = self.spec
        if spec.marker is not None:
            one_id(self.encode, spec.marker, what="marker")
        if spec.kind == "vocabulary":
            if spec.positive is None or spec.negative is None:
                raise ConfigError("reward model: a vocabulary model needs the tokens positive and negative")
            good = one_id(self.encode, spec.positive, what="positive")
            return good, one_id(self.encode, spec.negative, what="negative")
        if spec.kind in ("generative", "critique"):
            return one_id(self.encode, spec.yes, what="yes"), one_id(self.encode, spec.no, what="no")
        return 0, 0

    # -- tokens to numbers ---------------------------------------------------------------------------------------------

    def _values(self, cuts: Sequence[_Cut]) -> list[list[float]]:
        kind = self.spec.kind
        if kind == "implicit":
            return self._implicit(cuts)
        if kind == "generative":
            chances = self.word_chances([cut.placed.prompt for cut in cuts])
            return [[chance] for chance in chances]
        logits = self._logits(cuts, self._reader())
        if self.spec.score == "raw":
            return [line.tolist() for line in logits]
        return [(line / self.spec.temperature).sigmoid().tolist() for line in logits]

    def _reader(self) -> Callable[[Tensor], Tensor]:
        """States (n, H) to logits (n,): good minus bad where there are two classes."""
        if self.spec.kind == "head":
            assert self.head is not None
            head = self.head

            def of_head(hidden: Tensor) -> Tensor:
                out = head.read(hidden)
                return out if out.ndim == 1 else out[:, 1] - out[:, 0]

            return of_head
        layer = causal_model(self.policy.model).get_output_embeddings()
        good, bad = self._ids
        weight = (layer.weight[good].float() - layer.weight[bad].float()).detach()
        bias = getattr(layer, "bias", None)
        offset = 0.0 if bias is None else float(bias[good] - bias[bad])
        return lambda hidden: hidden.float() @ weight + offset

    def _logits(self, cuts: Sequence[_Cut], read: Callable[[Tensor], Tensor]) -> list[Tensor]:
        rows = [cut.row() for cut in cuts]
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        for members in self._plan(rows):
            with torch.inference_mode():
                forward = response_forward(
                    self.policy.model, [rows[index] for index in members], heads={"reward": read}, logp=False
                )
            output = forward.extra["head_reward"].cpu()
            for line, index in enumerate(members):
                found[index] = output[line, list(cuts[index].placed.places)]
        return found

    def _implicit(self, cuts: Sequence[_Cut]) -> list[list[float]]:
        """Running values or shares of each step; the last step's place is the response's last token."""
        spec = self.spec
        found: list[list[float]] = []
        for cut, q in zip(cuts, self.token_values([_whole(cut.placed) for cut in cuts]), strict=True):
            ends = [*cut.placed.places[:-1], len(cut.placed.response) - 1]
            if spec.value == "step":
                found.append(step_rewards(q, torch.tensor(ends)).tolist())
            else:
                running = q[ends] / spec.temperature
                found.append((running.sigmoid() if spec.score == "probability" else running).tolist())
        return found

    def token_values(self, rows: Sequence[TokenRow]) -> list[Tensor]:
        """Per row the running values q (T,) of its response's tokens."""
        found: list[Tensor] = [torch.empty(0)] * len(rows)
        for members in self._plan(rows):
            chosen = [rows[index] for index in members]
            with torch.inference_mode():
                own = response_forward(self.policy.model, chosen).logp
                frozen = self._reference_logp(chosen)
                q = implicit_values(own, frozen, torch.ones_like(own), self.spec.beta).cpu()
            for line, index in enumerate(members):
                found[index] = q[line, : len(rows[index].response)]
        return found

    def _reference_logp(self, rows: Sequence[TokenRow]) -> Tensor:
        if self.reference is not None:
            return response_forward(self.reference.model, rows).logp
        with self.policy.model.disable_adapter():
            return response_forward(self.policy.model, rows).logp

    def word_chances(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """p(yes) against p(no) as the next token after each prompt."""
        good, bad = self._ids
        rows = [TokenRow(prompt, (good,)) for prompt in prompts]
        layer = causal_model(self.policy.model).get_output_embeddings()
        weight = (layer.weight[good].float() - layer.weight[bad].float()).detach()
        found = [0.0] * len(rows)
        for members in self._plan(rows):
            with torch.inference_mode():
                forward = response_forward(
                    self.policy.model, [rows[i] for i in members], critics={"word": lambda h: h.float() @ weight},
                    logp=False,
                )  # fmt: skip
            assert forward.values is not None
            chances = (forward.values[:, 0] / self.spec.temperature).sigmoid().tolist()
            for index, chance in zip(members, chances, strict=True):
                found[index] = chance
        return found

    def _plan(self, rows: Sequence[TokenRow]) -> Iterator[list[int]]:
        if rows:
            shared = supports_shared_prompt(self.policy.model)
            yield from plan_micro_batches(rows, self.token_budget, shared_prompt=shared)


class _Cut(NamedTuple):
    placed: Placed
    spans: tuple[Span, ...]

    def row(self) -> TokenRow:
        """The response with only the judged places asked for."""
        wanted = set(self.placed.places)
        scored = tuple(index in wanted for index in range(len(self.placed.response)))
        return TokenRow(self.placed.prompt, self.placed.response, scored)


def _whole(placed: Placed) -> TokenRow:
    return TokenRow(placed.prompt, placed.response)
