"""A tiny real model, made on the spot: the quick start's policy, and what tests train.

`make_tiny_model` writes a model folder like any other: a Llama of about 0.9 million parameters with fresh weights, and
a tokenizer of single characters. `teach_sums` is its supervised start: it shows one-digit sums and stops as soon as
sampled answers are right part of the time, so that the model ends up as a policy that knows the answer's format,
answers with spread, and is sometimes right: the state from which rewards can teach.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from assay.config.training import OptimizerSettings
from assay.contracts.task import Message, Task
from assay.contracts.tensors import Forward, LossReport
from assay.protocols import Encode, Example, ExampleTotals, Needs, RowLayout, Sidecar
from assay.training.weights import without_ties

if TYPE_CHECKING:
    from assay.training.model import PolicyModel

ALPHABET = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
"""Every character that the tokenizer knows; others become `<unk>`."""
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Messages are joined as they are: one character, one token."""


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    hidden_size: int = 192,
    layers: int = 2,
    max_positions: int = 512,
    head_size: int = 32,
    initial_std: float = 0.02,
) -> Path:
    """Write a fresh tiny model and its tokenizer to `folder` and return it; equal seeds give equal weights.

    Args:
        folder: where it is written.
        seed: of the weights.
        hidden_size: width of the states, a multiple of `head_size`.
        layers: how many.
        max_positions: longest sequence in tokens.
        head_size: width of an attention head; there are half as many key heads as query heads.
        initial_std: spread of the fresh matrices. The default is made for widths of hundreds; a model of width 64
            learns tables of facts several times sooner from about hidden_size ** -0.5.
    """
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden_size // head_size),
        num_key_value_heads=max(1, hidden_size // (2 * head_size)),
        max_position_embeddings=max_positions,
        initializer_range=initial_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]  # by which other trainers choose the class
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    save_file(without_ties(model, model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer() -> Any:
    """A transformers tokenizer of single characters, with `<pad>`, `</s>` and `<unk>`, and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL.values(), *ALPHABET]
    raw = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, SPECIAL["unk_token"]))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        clean_up_tokenization_spaces=False,
        **SPECIAL,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def sum_tasks(*, digits: int = 1) -> list[Task]:
    """Every sum of two numbers below 10 ** `digits` as a task: `3+4=`, reference `7`."""
    limit = 10**digits
    return [
        Task(id=f"sum-{a}-{b}", messages=(Message(role="user", content=f"{a}+{b}="),), reference=str(a + b))
        for a in range(limit)
        for b in range(limit)
    ]


def teach_sums(
    policy: PolicyModel,
    *,
    seed: int = 0,
    until: float = 0.4,
    max_steps: int = 300,
    answer: Callable[[str], str] = str,
    progress: Callable[[int, float], None] | None = None,
) -> float:
    r"""Teach `policy` one-digit sums until it is partly right; the share of sampled answers that are then right.

    The share is exact, not sampled: the mean over all 100 sums of the probability of the right answer, measured in the
    same pass that teaches. It comes back once it reaches `until`, or after `max_steps`.

    Args:
        policy: a tiny model.
        seed: decides the trainer's own streams.
        until: share (0 to 1) at which teaching ends.
        max_steps: most optimizer steps, each over all 100 sums.
        answer: wraps the number in the answer's format, for example `r"\boxed{{{}}}".format`.
        progress: called with the step and the share.
    """
    from assay.training.trainer import Trainer

    settings = OptimizerSettings(learning_rate=2e-3, warmup_steps=5, betas=(0.9, 0.95), micro_batch_tokens=8192)
    trainer = Trainer(policy, None, settings, seed=seed)
    examples = [_shown(policy.tokenizer, task, answer) for task in sum_tasks()]
    share = 0.0
    for step in range(max_steps):
        share = trainer.step_examples(examples, _ShownAnswers()).metrics["right_share"]
        if progress is not None:
            progress(step + 1, share)
        if share >= until:
            break
    return share


class _ShownAnswers:
    """Cross-entropy per response token, and the mean probability of whole responses."""

    kind: Literal["sft", "preference", "prm"] = "sft"
    layout: RowLayout = "texts"
    sidecars: Sequence[Sidecar] = ()
    needs = Needs(logp_old=False)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """The example of a row with `prompt` and `response`."""
        return Example((encode(row["prompt"], row["response"]),))

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples as they are."""
        return examples

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """The examples as they are."""
        return examples

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share of the mean of -log p over response tokens."""
        assert totals is not None
        right = float(forward.logp.detach().sum(dim=1).exp().sum()) / totals.examples
        return LossReport(-forward.logp.sum() / totals.tokens, {"right_share": right})


def _shown(tokenizer: Any, task: Task, answer: Callable[[str], str]) -> Example:
    prompt = tuple(tokenizer(task.prompt, add_special_tokens=False).input_ids)
    response = tuple(tokenizer(answer(str(task.reference)), add_special_tokens=False).input_ids)
    return Example(((prompt, (*response, tokenizer.eos_token_id)),))
