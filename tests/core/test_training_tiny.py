"""The tiny model: made on the spot, equal by seed, and taught to be partly right."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from assay.training.forward import TokenRow, response_forward
from assay.training.model import load_policy
from assay.training.threads import use_threads
from assay.training.tiny import make_tiny_model, sum_tasks, teach_sums, tiny_tokenizer


def test_equal_seeds_give_equal_models_and_touch_no_global_stream(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_tiny_model(tmp_path / name, seed=seed, hidden_size=32, layers=1)
    assert torch.equal(torch.rand(1), expected)
    files = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]


def test_every_character_is_one_token_and_comes_back() -> None:
    tokenizer = tiny_tokenizer()
    text = "If 3+4=7,\nthen \\boxed{7} ~"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("é").input_ids == [tokenizer.unk_token_id]


def test_teaching_stops_at_a_partly_right_policy_that_ends_its_answers(tmp_path: Path) -> None:
    policy = load_policy(str(make_tiny_model(tmp_path)))
    assert 0.7e6 < sum(parameter.numel() for parameter in policy.model.parameters()) < 1.2e6
    shares: list[float] = []
    share = teach_sums(policy, until=0.25, progress=lambda step, now: shares.append(now))
    assert 0.25 <= share < 0.6
    assert len(shares) < 150
    tokenizer = policy.tokenizer
    rows = [
        TokenRow(
            tuple(tokenizer(task.prompt).input_ids), (*tokenizer(str(task.reference)).input_ids, tokenizer.eos_token_id)
        )
        for task in sum_tasks()
    ]
    with torch.no_grad():
        logp = response_forward(policy.model, rows).logp
    assert float(logp.sum(dim=1).exp().mean()) == pytest.approx(share, abs=0.2)
    ends = [float(logp[index, len(row.response) - 1]) for index, row in enumerate(rows)]
    assert sum(ends) / len(ends) > -0.3


def test_threads_never_exceed_the_cores_and_obey_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert use_threads() == 1
        monkeypatch.delenv("OMP_NUM_THREADS")
        cores = use_threads()
        assert use_threads(10_000) == cores
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
