"""What a user writes in a script."""

import assay


def main() -> None:
    """Score a file and look at each judgement."""
    for judgement in assay.score("answers.jsonl", rewards=["math", {"use": "length", "max_tokens": 20}]):
        value: float | None = judgement.value
        reason: str | None = judgement.reason
        print(judgement.rollout_id, judgement.status, value, reason)
    run: assay.Run = assay.train(assay.load_config("rlvr.toml", overrides={"steps": 2}))
    print(run.summary(), run.rollouts(status="failed")[0].explain())
