"""Training from examples: the run loop of the kinds `sft`, `preference` and `prm`.

`plan` checks everything before the first update, `session` is one run while it goes on, `measures` scores a reward
model on held-out data. A run folder looks like that of reinforcement learning: `config.toml`, the log (empty of
rollouts), `metrics.jsonl`, `evaluations.jsonl`, `data.json`, `checkpoints/`, `outcome.json`, `report.html`.
"""

from assay.fit.session import afit, fit

__all__ = ["afit", "fit"]
