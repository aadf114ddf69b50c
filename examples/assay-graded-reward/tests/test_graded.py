"""It learns what it is shown, and its folder is a source."""

import json
from pathlib import Path

import assay
from assay.config.load import parse_config
from assay.training.tiny import make_tiny_model


def test_a_grade_is_learned_and_its_folder_is_a_source(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", hidden_size=32)
    rows = [{"prompt": f"{n}?", "response": text, "reward": g} for n in range(9) for text, g in (("ab", 1), ("ba", 0))]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    training = {"learning_rate": 3e-3, "epochs": 40, "batch_size": 16}
    table = {"kind": "prm", "model": {"base": str(model)}, "objective": {"use": "graded"}, "training": training}
    config = parse_config({**table, "data": {"path": "rows.jsonl"}, "runs_dir": str(tmp_path / "runs")})
    run = assay.train(config, base_dir=tmp_path)
    assert run.metrics[-1]["loss"] < 0.6 * run.metrics[0]["loss"]
    asked = [{"prompt": "3?", "response": text} for text in ("ab", "ba")]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    source = {"use": "graded-reward", "path": str(run.policy)}
    good, bad = (judgement.value for judgement in assay.score(tmp_path / "asked.jsonl", rewards=[source]))
    assert good is not None
    assert bad is not None
    assert good > 0.5 > bad
