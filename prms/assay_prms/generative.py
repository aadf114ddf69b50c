"""Generative verifiers: the word Yes or No, at once or after a written critique (GenRM, arXiv 2408.15240)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from assay.contracts.tensors import Forward, LossReport
from assay.errors import ConfigError
from assay.protocols import Encoder, Example, ExampleTotals
from assay_prms.fields import text_of
from assay_prms.objective import RewardModelObjective, weight_total
from assay_prms.places import one_id
from assay_prms.reading import RewardOptions, judged, literal, outcome_of
from assay_prms.render import problem_of
from assay_prms.spec import CRITIQUE, QUESTION, ScorerSpec

if TYPE_CHECKING:
    from torch import Tensor


class GenerativeOptions(RewardOptions):
    """Generative verifier: p(yes) of "is the answer correct?", trained as the next word."""

    yes: str = " Yes"
    """The one token that says right, its leading space included; checked against the tokenizer."""
    no: str = " No"
    """The one token that says wrong."""
    question: str = QUESTION
    """What stands between the solution and the verdict."""
    imitation: float = Field(default=0.0, ge=0)
    """Weight of the language-model loss on right solutions (lambda; the paper prints no value)."""


class CritiqueOptions(GenerativeOptions):
    """Generative verifier that writes a critique first; the score is the mean p(yes) over several critiques."""

    instruction: str = CRITIQUE
    """What asks for the critique."""
    critiques: int = Field(default=4, ge=1)
    """K when scoring (paper 32)."""
    critique_tokens: int = Field(default=512, ge=1)
    """Longest critique when scoring."""
    critique_temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature when scoring."""


VerifierT = TypeVar("VerifierT", bound=GenerativeOptions)


def direct_prompt(prompt: Any, response: str, question: str) -> str:
    """What a direct verifier is asked; the verdict is the next token."""
    return f"{problem_of(prompt)}\n\n{response}\n\n{question}"


def critique_prompt(prompt: Any, response: str, instruction: str) -> str:
    """What a verifier is asked that writes a critique first."""
    return f"{problem_of(prompt)}\n\n{response}\n\n{instruction}"


class _Verifier(RewardModelObjective[VerifierT]):
    """Mean over responses of -log p(right word), plus imitation x mean over right ones of their NLL per token."""

    layout: Literal["pairs", "responses", "steps"] = "responses"

    def __init__(self, options: VerifierT) -> None:
        """The objective; the model itself is the verifier."""
        self.options = options

    @property
    def needs(self) -> Any:
        """Log-probs."""
        return replace(super().needs, logp=True)

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """A question and its one-token answer; a right solution may follow as a second sequence."""
        options, found = self.options, list[Example]()
        for one in judged(row, options):
            if not one.text.strip():
                continue
            word = one_id(encode, options.yes if one.label else options.no, what="yes" if one.label else "no")
            asked, _ = literal(encode)(direct_prompt(one.prompt, one.text, options.question), "")
            sequences: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(asked, (word,))]
            if options.imitation and one.label:
                sequences.append(literal(encode)(one.prompt, one.text))
            found.append(Example(tuple(sequences), facts={"label": one.label, "verdict": 0, "domain": one.domain}))
        return found

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples with the number of right ones in the batch."""
        count = float(sum(example.weight for example in examples if len(example.sequences) > 1))
        return [replace(example, facts={**example.facts, "imitated": count}) for example in examples]

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        logp, row = forward.logp, 0
        whole = weight_total(examples, totals)
        loss = logp.sum() * 0.0
        verdict = right = 0.0
        for example in examples:
            length = len(example.sequences[0][1])
            share = example.weight / whole
            loss = loss - share * logp[row, :length].sum() / max(1, example.facts.get("mean_over", 1))
            word = float(logp[row, example.facts["verdict"]].detach())
            verdict -= share * word
            right += share * float(word > -0.6931)
            if len(example.sequences) > 1:
                size = len(example.sequences[1][1])
                imitated = max(float(example.facts.get("imitated", whole)), 1e-12)
                loss = loss - self.options.imitation * example.weight / imitated * logp[row + 1, :size].sum() / size
            row += len(example.sequences)
        return LossReport(loss, {"accuracy": right, "verdict_nll": verdict})

    def spec(self) -> ScorerSpec:
        """p(yes) against p(no)."""
        options = self.options
        return self.shared(kind="generative", at="end", yes=options.yes, no=options.no, question=options.question)


class GenerativeObjective(_Verifier[GenerativeOptions]):
    """The verdict at once."""


class CritiqueObjective(_Verifier[CritiqueOptions]):
    """Mean over critiques of their NLL per token, the verdict's token among them."""

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """A critique whose verdict agrees with the outcome; columns `prompt`, `response`, `critique`, `label`.

        Raises:
            ConfigError: a column is missing or the critique does not end in a verdict.
        """
        options = self.options
        for name in ("prompt", "response", "critique"):
            if name not in row:
                raise ConfigError(f"column {name!r}: missing; found {', '.join(map(repr, row)) or 'no columns'}")
        text = text_of(row, "critique")
        critique, said = verdict_of(text, options.question, options.yes, options.no)
        if critique is None:
            raise ConfigError(
                f"critique: it does not end in {options.question!r} and {options.yes.strip()} or {options.no.strip()}; "
                f"found {text[-60:]!r}"
            )
        if said != outcome_of(row, "label"):
            return []
        word = one_id(encode, options.yes if said else options.no, what="yes" if said else "no")
        prompt = critique_prompt(row["prompt"], text_of(row, "response"), options.instruction)
        before, written = literal(encode)(prompt, critique)
        response = (*written[:-1], word, written[-1])
        facts = {"label": said, "verdict": len(response) - 2, "mean_over": len(response)}
        return [Example(((before, response),), facts=facts)]

    def spec(self) -> ScorerSpec:
        """The mean of p(yes) over sampled critiques."""
        options = self.options
        return self.shared(
            kind="critique", at="end", yes=options.yes, no=options.no, question=options.question,
            instruction=options.instruction, critiques=options.critiques, critique_tokens=options.critique_tokens,
            critique_temperature=options.critique_temperature,
        )  # fmt: skip


def verdict_of(critique: str, question: str, yes: str, no: str) -> tuple[str | None, bool]:
    """The critique up to and with its last question, and whether what follows says yes; (None, False) if unreadable."""
    at = critique.rfind(question)
    if at < 0:
        return None, False
    end = at + len(question)
    said = critique[end:].strip().rstrip(".!").casefold()
    words = {yes.strip().casefold(): True, no.strip().casefold(): False}
    return (critique[:end], words[said]) if said in words else (None, False)
