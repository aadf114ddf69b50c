"""A reward model behind a server: what comes back are the folder's own scores, whatever else the server is asked."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from assay.config.load import parse_config
from assay.config.rewards import JudgingConfig
from assay.fit import fit
from assay.preflight import make_context
from assay.registry import Registry
from assay.result import Run
from assay.scoring import reward_entries
from assay.serve.app import build_app
from assay.serve.metrics import Metrics
from assay.serve.service import Service
from assay.serve.settings import Settings
from assay.training.encoder import TextEncoder
from assay.training.model import load_policy

Write = Callable[[str, Sequence[Mapping[str, Any]]], Path]
STEPS = [
    {"problem": f"{a}+{b}=", "steps": [f"{a}+{b}={a + b + wrong}", f"so {a + b + wrong}"], "labels": [not wrong, True]}
    for a in range(4)
    for b in range(4)
    for wrong in (0, 1)
]
ASKED = [
    ("1+2=", "1+2=3\n\nso 3"),
    ("1+2=", "so 4"),
    ("3+3=", "3+3=7\n\n" + "let me see, " * 12 + "ah\n\nso 7"),
    ("0+1=", "0+1=1\n\nso 1\n\nyes"),
]


def plain(folder: Path, prompt: str, text: str) -> list[float]:
    """Scores at the steps' ends by nothing but the model's own code, unpadded and alone; a character is a token."""
    encoder = TextEncoder(load_policy(str(folder)).tokenizer, literal=True)
    before, ids = encoder.prompt(prompt), encoder.response(text)
    places, at = [], len(before)
    for piece in text.split("\n\n"):
        places.append(at + len(piece.rstrip()) - 1)
        at += len(piece) + 2
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    heads = load_file(folder / "heads.safetensors")
    with torch.no_grad():
        states = model.model(input_ids=torch.tensor([[*before, *ids]])).last_hidden_state[0, places]
    weight, bias = (next(t for name, t in heads.items() if name.endswith(end)) for end in ("weight", "bias"))
    return (states @ weight.reshape(-1) + bias.reshape(())).sigmoid().tolist()


@pytest.mark.parametrize("together", [True, False])
def test_served_scores_are_those_of_a_plain_forward(together: bool, tiny: Path, tmp_path: Path, write: Write) -> None:
    """vllm#19956: a process reward model behind an engine gave other scores than its own code."""
    config: Any = parse_config(
        {
            "kind": "prm", "seed": 1, "runs_dir": str(tmp_path / "runs"), "model": {"base": str(tiny)},
            "data": {"path": str(write("rows.jsonl", STEPS)), "holdout": 0.25}, "objective": {"use": "step"},
            "training": {"learning_rate": 3e-3, "batch_size": 16, "epochs": 2},
        }
    )  # fmt: skip
    folder = fit(config, base_dir=tmp_path)
    assert folder is not None
    model = Run(folder).policy
    registry = Registry.load()

    async def served() -> list[dict[str, Any]]:
        service = Service(
            reward_entries([str(model)]), registry=registry, judging=JudgingConfig(),
            context=make_context(registry, base_dir=tmp_path, seed=0),
        )  # fmt: skip
        items = [
            {"id": str(k), "task": {"prompt": prompt}, "rollout": {"text": text}}
            for k, (prompt, text) in enumerate(ASKED)
        ]
        async with service:
            app: Any = build_app(service, Settings(), metrics=Metrics(), check_host=False)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
                batches = [items] if together else [[item] for item in items]
                answers = [(await client.post("/v1/score", json={"items": batch})).json() for batch in batches]
        return [item for answer in answers for item in answer["items"]]

    found = asyncio.run(served())
    assert len(found) == len(ASKED)
    for item, (prompt, text) in zip(found, ASKED, strict=True):
        expected = plain(model, prompt, text)
        (part,) = item["parts"]
        assert item["status"] == "scored"
        assert [step["value"] for step in part["steps"]] == pytest.approx(expected, abs=1e-5)
        assert item["value"] == pytest.approx(min(expected), abs=1e-5)
        assert [text[step["span"]["start"] : step["span"]["end"]] for step in part["steps"]] == text.split("\n\n")
