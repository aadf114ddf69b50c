"""A tiny model, reward models of every kind made from it, and the files that they learn from."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.training.model import PolicyModel, load_policy
from assay.training.tiny import make_tiny_model
from assay_prms.critique import scorer_of
from assay_prms.heads import ScoreHead
from assay_prms.scoring import Scorer
from assay_prms.spec import ScorerSpec

HIDDEN = 32


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model whose tokens are single characters."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden_size=HIDDEN)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one: the reference of implicit models."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "other", hidden_size=HIDDEN, seed=5)


@pytest.fixture(scope="session")
def policy(tiny: Path) -> PolicyModel:
    """The tiny model in memory; nothing may train it."""
    return load_policy(str(tiny))


@pytest.fixture(scope="session")
def reference(other: Path) -> PolicyModel:
    """The other one in memory."""
    return load_policy(str(other))


def random_head(outputs: int = 1, hidden: int = 0, *, width: int = HIDDEN) -> ScoreHead:
    """A head whose weights are random instead of zero."""
    head = ScoreHead(outputs, hidden)
    head.bind(width)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 1.0, generator=generator)
    return head


@pytest.fixture(scope="session")
def scorer(policy: PolicyModel, reference: PolicyModel) -> Callable[..., Scorer]:
    """A function from a description's fields to its scorer over the tiny model."""

    def make(token_budget: int = 4096, outputs: int = 1, **fields: Any) -> Scorer:
        spec = ScorerSpec(**fields)
        return scorer_of(
            policy,
            spec,
            head=random_head(outputs) if spec.kind == "head" else None,
            reference=reference if spec.kind == "implicit" else None,
            token_budget=token_budget,
        )

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Sequence[Mapping[str, Any]]], Path]:
    """A function that writes rows as JSON lines into the test's folder."""

    def put(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    return put
