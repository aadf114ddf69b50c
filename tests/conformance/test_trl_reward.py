"""TRL's reward-model losses on the same batch: the same rows, weights and head give the same loss and gradients."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeStubs=false
# TRL has no stubs, and the oracle's entry points are methods of a trainer that is not constructed.

import tomllib
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.protocols import Example, RewardObjective
from assay.training.encoder import TextEncoder
from assay.training.forward import TokenRow, response_forward
from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay_prms import objective
from assay_prms.heads import ScoreHead

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "golden" / "trl_reward.toml").read_text())["row"]
TOLERANCE = 1e-5
PAIRS = [
    {"prompt": "3+4=", "chosen": "7", "rejected": "3+4=8, so 8", "margin": 0.3},
    {"prompt": "12*2=", "chosen": "12+12=24\n24", "rejected": "14", "margin": 0.0},
    {"prompt": "9-5=", "chosen": "4 is it", "rejected": "5", "margin": 1.0},
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    return load_policy(str(make_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=32)))


def classifier(kind: str, policy: PolicyModel, weight: Tensor, bias: Tensor | None) -> Any:
    """The transformers model that TRL trains, with the same body and this head."""
    import transformers

    config = policy.model.config.__class__.from_dict({**policy.model.config.to_dict(), "num_labels": len(weight)})
    made = getattr(transformers, f"LlamaFor{kind}Classification")(config).eval()
    made.model.load_state_dict(policy.model.model.state_dict())
    with torch.no_grad():
        made.score.weight.copy_(weight)
        if bias is not None:
            made.score.bias.copy_(bias)
    return made


def headed(policy: PolicyModel, made: RewardObjective) -> ScoreHead:
    """The objective's head, bound and filled with numbers."""
    head = made.sidecars[0]
    assert isinstance(head, ScoreHead)
    head.bind(policy.model.get_output_embeddings().weight.shape[1])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
            if head.outputs == 1 and parameter.ndim == 1:
                parameter.zero_()  # TRL's head of one score has no bias
    return head


def ours(policy: PolicyModel, made: RewardObjective, examples: list[Example]) -> Tensor:
    examples = list(made.prepare(examples))
    rows = [TokenRow(prompt, response) for example in examples for prompt, response in example.sequences]
    head = headed(policy, made)
    policy.model.zero_grad(set_to_none=True)
    forward = response_forward(policy.model, rows, heads={"reward": head.read}, logp=False)
    loss = made.loss(examples, forward, None).loss
    loss.backward()
    return loss.detach()


def theirs_of_pairs(row: dict[str, Any], policy: PolicyModel, head: ScoreHead, examples: list[Example]) -> Any:
    from trl.trainer.reward_trainer import DataCollatorForPreference, RewardTrainer

    linear: Any = head.module[0]
    model = classifier("Sequence", policy, linear.weight.detach(), None)
    model.config.pad_token_id = policy.pad_id
    features: list[dict[str, Any]] = [
        {"chosen_ids": [*a, *b], "rejected_ids": [*c, *d], "margin": float(example.facts["margin"])}
        for example in examples
        for (a, b), (c, d) in [example.sequences]
    ]
    if not row["trl"]["margin"]:
        features = [{key: value for key, value in each.items() if key != "margin"} for each in features]
    inputs = DataCollatorForPreference(policy.pad_id)(features)
    trainer: Any = object.__new__(RewardTrainer)
    trainer.model = SimpleNamespace(training=False)
    trainer.args = SimpleNamespace(center_rewards_coefficient=0.01 if row["trl"]["center"] else None)
    trainer.accelerator = SimpleNamespace(gather=itself, gather_for_metrics=itself)
    trainer._metrics = {"eval": defaultdict(list)}
    trainer._total_train_tokens = 0
    loss = trainer.compute_loss(Bare(model), inputs)
    loss.backward()
    return loss.detach(), model


def itself(value: Tensor) -> Tensor:
    return value


class Bare(torch.nn.Module):
    """The classifier without the margin, which TRL's own trainer takes out of the inputs in a wrapper."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, margin: Any = None, **inputs: Any) -> Any:
        return self.model(**inputs)


@pytest.mark.parametrize("row", [row for row in ROWS if row["trainer"] == "reward"], ids=lambda row: row["method"])
def test_preference_equals_trl(row: dict[str, Any], policy: PolicyModel) -> None:
    made: Any = objective(row["objective"], companion=0.0, **row.get("options", {}))
    pairs = PAIRS if row["trl"]["margin"] else [{**pair, "margin": 0.0} for pair in PAIRS]
    examples = [example for pair in pairs for example in made.read_all(pair, TextEncoder(policy.tokenizer))]
    mine = ours(policy, made, examples)
    body = policy.model.model.embed_tokens.weight.grad.clone()
    other, model = theirs_of_pairs(row, policy, made.head, examples)
    assert float(mine) == pytest.approx(float(other), abs=TOLERANCE)
    assert float((body - model.model.embed_tokens.weight.grad).abs().max()) <= TOLERANCE
    assert float((made.head.module[0].weight.grad - model.score.weight.grad).abs().max()) <= TOLERANCE


def test_steps_equal_trl(policy: PolicyModel) -> None:
    (row,) = [row for row in ROWS if row["trainer"] == "prm"]
    made: Any = objective(row["objective"], companion=0.0, **row["options"])
    recorded = row["recorded"]
    data = [{key: each[key] for key in ("prompt", "completions", "labels")} for each in recorded]
    examples = [example for each in data for example in made.read_all(each, TextEncoder(policy.tokenizer))]
    for example, each in zip(examples, recorded, strict=True):
        ((prompt, response),) = example.sequences
        assert [*prompt, *response] == each["ids"]
        places = {len(prompt) + place: label for place, label in zip(*facts(example), strict=True)}
        assert [places.get(at, -100) for at in range(len(each["ids"]))] == each["places"]

    mine = ours(policy, made, examples)
    body = policy.model.model.embed_tokens.weight.grad.clone()
    linear = made.head.module[0]
    model = classifier("Token", policy, linear.weight.detach(), linear.bias.detach())
    width = max(len(each["ids"]) for each in recorded)

    def padded(name: str, fill: int) -> Tensor:
        return torch.tensor([each[name] + [fill] * (width - len(each[name])) for each in recorded])

    mask = (torch.arange(width) < torch.tensor([[len(each["ids"])] for each in recorded])).long()
    other = model(input_ids=padded("ids", policy.pad_id), attention_mask=mask, labels=padded("places", -100)).loss
    other.backward()
    assert float(mine) == pytest.approx(float(other.detach()), abs=TOLERANCE)
    assert float((body - model.model.embed_tokens.weight.grad).abs().max()) <= TOLERANCE
    assert float((linear.weight.grad - model.score.weight.grad).abs().max()) <= TOLERANCE


def facts(example: Example) -> tuple[tuple[int, ...], tuple[float, ...]]:
    return example.facts["places"], example.facts["labels"]
