"""What is trained: one entry per reward model, as a config of kind `prm`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from world import INSTRUCTION, NO, QUESTION, YES

VERDICT = {"question": QUESTION, "yes": YES, "no": NO}


@dataclass(frozen=True)
class Model:
    """A reward model of the table."""

    title: str
    objective: dict[str, Any]
    """Name under `use`, and options."""
    data: str
    """File of the world, without `.jsonl`."""
    learning_rate: float = 3e-3
    world: Literal["digits", "domains"] = "digits"
    share: float = 1.0
    """Of the proof's updates; 0 leaves the head untrained."""
    control: bool = False
    """Whether it must fail."""
    pools: float = 1.0
    """Share of the pools that it scores (a verifier that writes is slow)."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of the reward source when it is loaded."""


MODELS: dict[str, Model] = {
    "step-oracle": Model("step head, oracle labels", {"use": "step"}, "oracle"),
    "implicit-ce": Model(
        "implicit, cross-entropy", {"use": "implicit_ce", "beta": 0.5}, "outcomes", learning_rate=1e-3
    ),
    "step-mc": Model("step head, Monte Carlo labels (2 of 16)", {"use": "step"}, "labelled"),
    "outcome-end": Model("outcome, at the end", {"use": "outcome"}, "outcomes"),
    "outcome-steps": Model(
        "outcome, at every step's end", {"use": "outcome", "at": "steps", "aggregation": "min"}, "outcomes"
    ),
    "pqm": Model("PQM, Monte Carlo labels", {"use": "pqm"}, "labelled"),
    "implicit-dpo": Model("implicit, DPO", {"use": "implicit_dpo", "beta": 0.5}, "pairs", learning_rate=1e-3),
    "bradley-terry": Model("Bradley-Terry", {"use": "bradley_terry", "centring": 0.01}, "pairs"),
    "generative": Model("generative, direct", {"use": "generative", **VERDICT}, "outcomes"),
    "critique": Model(
        "generative, with critique",
        {"use": "generative_critique", **VERDICT, "instruction": INSTRUCTION, "critiques": 4, "critique_tokens": 12},
        "critiques",
        pools=0.1,
    ),
    "multi-domain": Model(
        "multi-domain step head, Monte Carlo labels", {"use": "multi_domain"}, "labelled", world="domains"
    ),
    "untrained": Model("step head, untrained", {"use": "step"}, "oracle", share=0.0, control=True),
    "permuted-step": Model("step head, labels permuted", {"use": "step"}, "permuted-oracle", share=0.36, control=True),
    "permuted-implicit": Model(
        "implicit, cross-entropy, labels permuted",
        {"use": "implicit_ce", "beta": 0.5},
        "permuted-outcomes",
        learning_rate=1e-3,
        share=0.36,
        control=True,
    ),
}
"""Name to model, in the order in which they are trained."""
