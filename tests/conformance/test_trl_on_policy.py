"""TRL's own trainers, called on the same fixed batch, give the same advantages, losses and gradients."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# pyright: reportUntypedBaseClass=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false
# pyright: reportUnknownLambdaType=false
# TRL and datasets have no stubs, and the oracle's entry points are private methods.

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward, TrainBatch
from assay.testing.optimizer_suite import batch_of
from assay_optim import optimizer

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = tomllib.loads((Path(__file__).parent / "golden" / "trl_on_policy.toml").read_text())["row"]
TOLERANCE = 1e-5
GROUP, MAX_TOKENS = 4, 8
LENGTHS = ([3, 6, 2, 5, 4, 1, 6, 2], [6, 6, 6, 6, 1, 2, 3, 4], [1, 1, 5, 2, 6, 6, 3, 3])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that TRL's constructor accepts; its weights play no part."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    words = {f"t{index}": index for index in range(14)} | {"<eos>": 14, "<pad>": 15}
    tokens = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<eos>", pad_token="<pad>", unk_token="t0"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=15,
        eos_token_id=14,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def scripted(kind: str, folder: Path, out: Path, options: dict[str, Any], lengths: list[int], rewards: Tensor) -> Any:
    """A real trainer of TRL whose sampling, rewards and log-probs are given instead of computed."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    base: Any
    base, config = (GRPOTrainer, GRPOConfig) if kind == "grpo" else (RLOOTrainer, RLOOConfig)
    completions = [[3] * length for length in lengths]

    class Scripted(base):
        logp: Tensor
        reference: Tensor

        def _generate(self, prompts):
            texts = ["x"] * len(lengths)
            if kind == "rloo":
                return [[1, 2]] * len(lengths), completions, texts
            return [[1, 2]] * len(lengths), completions, None, texts, None, {}, None, None

        def _calculate_rewards(self, *_args):
            return rewards.unsqueeze(1)

        def _get_per_token_logps_and_entropies(self, model, *_args, **_kwargs):
            logp = self.reference if model is self.ref_model else self.logp
            return logp, torch.zeros_like(logp), None

    settings = config(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        report_to=[],
        num_generations=GROUP,
        per_device_train_batch_size=len(lengths),
        max_completion_length=MAX_TOKENS,
        **options,
    )
    trainer = Scripted(
        model=str(folder),
        reward_funcs=lambda **_: [0.0],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "t1 t2"}] * len(lengths)),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def assert_near(ours: Tensor, theirs: Tensor, what: str) -> None:
    limit = TOLERANCE * max(1.0, float(theirs.abs().max()))
    worst = float((ours - theirs).abs().max())
    assert worst <= limit, f"{what}: off by {worst:g}, allowed {limit:g}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["method"].replace(" ", "_"))
@pytest.mark.parametrize("seed", range(3))
def test_equals_trl(row: dict[str, Any], seed: int, tiny: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = LENGTHS[seed]
    shape = (len(lengths), max(lengths))
    rewards = torch.rand(len(lengths), generator=generator).round(decimals=1)
    if "masked_row" in row:
        rewards[row["masked_row"]] = torch.nan
    logp = -torch.rand(shape, generator=generator)
    noise = row.get("noise", 0.3)
    old = logp + noise * torch.randn(shape, generator=generator)
    reference = logp + 0.3 * torch.randn(shape, generator=generator)

    theirs = scripted(row.get("trainer", "grpo"), tiny, tmp_path, row["trl"], lengths, rewards)
    theirs.logp, theirs.reference = old, reference
    inputs = theirs._generate_and_score_completions([{"prompt": "t1 t2"} for _ in lengths])
    if "old_logps" not in inputs:
        inputs["old_per_token_logps"] = old
    theirs.logp = logp.clone().requires_grad_()
    their_loss = theirs._compute_loss(theirs.model, inputs)
    their_loss.backward()

    ours = optimizer(row["preset"], **row.get("options", {}))
    batch: TrainBatch = batch_of(
        rewards.tolist(), lengths, group_size=GROUP, max_tokens=MAX_TOKENS, logp_old=old, logp_ref=reference
    )
    prepared = ours.prepare(batch)
    assert prepared.advantage is not None
    current = logp.clone().requires_grad_()
    report = ours.loss(prepared, Forward(current, torch.zeros(shape)))
    report.loss.backward()
    assert current.grad is not None
    assert theirs.logp.grad is not None

    if "advantage" in row["compared"]:
        assert_near(prepared.advantage, inputs["advantages"], "advantage")
    if "loss" in row["compared"]:
        assert_near(report.loss.detach(), their_loss.detach(), "loss")
    if "gradient" in row["compared"]:
        assert_near(current.grad, theirs.logp.grad, "gradient")
        assert float(current.grad.abs().max()) > 0
