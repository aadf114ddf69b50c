"""`assay train`: run a config of any training kind."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from assay import runs
from assay.cli.output import emit, say
from assay.cli.progress import FitProgress, Progress
from assay.config.load import config_schema, load_config
from assay.config.rewards import RayConfig
from assay.config.run import AnyConfig, RlvrConfig, ScoreConfig
from assay.errors import ConfigError
from assay.training.meeting import speaks


def train(
    file: Path | None = None,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)] = (),
    steps: int | None = None,
    minutes: float | None = None,
    dry_run: bool = False,
    resume: bool = False,
    ray: str | None = None,
    schema: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Run a config: reinforcement learning (rlvr), examples (sft, preference), or a reward model (prm).

    Args:
        file: The TOML config.
        set_: Replace one value, for example `--set rewards.0.weight=0.5`; may be repeated.
        steps: Number of optimizer steps in place of the config's.
        minutes: Stop after this many minutes, at the end of a step.
        dry_run: Check everything and stop before the first token or update.
        resume: Continue the newest run of this config.
        schema: Print the JSON Schema of configs, for an editor, and stop.
        ray: Judge on the Ray cluster at this address: auto, local or HOST:PORT.
        json_: One JSON object per line on stdout.
    """
    if schema:
        emit(config_schema())
        return 0
    if file is None:
        raise ConfigError("assay train: no config is named; write: assay train FILE.toml")
    overrides = dict(_pair(item) for item in set_)
    overrides |= {key: value for key, value in (("steps", steps), ("minutes", minutes)) if value is not None}
    config = load_config(file, overrides=overrides)
    if isinstance(config, ScoreConfig):
        raise ConfigError(
            f"{file}: kind {config.kind!r} is not for `assay train`; use: assay {config.kind} --config {file}"
        )
    if ray is not None:
        config = _on_cluster(config, ray)
    folder = _newest(config) if resume else None
    if isinstance(config, RlvrConfig):
        from assay.run import train as run_training  # after the config: a mistake in it is answered at once

        with Progress() as progress:
            told = emit if json_ else progress.handle
            finished = run_training(config, base_dir=file.parent, resume=folder, dry_run=dry_run, emit=told)
    else:
        from assay.fit import fit  # likewise

        with FitProgress() as progress:
            told = emit if json_ else progress.handle
            finished = fit(config, base_dir=file.parent, resume=folder, dry_run=dry_run, emit=told)
    if finished is None and dry_run and not json_ and speaks():
        say(f"{file}: everything that can be checked before work is in order")
    return 0


def _pair(item: str) -> tuple[str, str]:
    key, found, value = item.partition("=")
    if not found:
        raise ConfigError(f"--set {item}: no '='; write it as KEY=VALUE, for example --set rewards.0.weight=0.5")
    return key, value


def _on_cluster(config: AnyConfig, address: str) -> RlvrConfig:
    if not isinstance(config, RlvrConfig):
        raise ConfigError(f"--ray {address}: kind {config.kind!r} judges nothing; leave it out")
    settings = (config.judging.ray or RayConfig()).model_copy(update={"address": address})
    return config.model_copy(update={"judging": config.judging.model_copy(update={"ray": settings})})


def _newest(config: AnyConfig) -> Path:
    """The newest run folder of the config's name."""
    folders = [f for f in runs.run_folders(Path(config.runs_dir)) if f.name.rpartition("-")[0] == config.name]
    if not folders:
        raise ConfigError(f"--resume: {config.runs_dir} has no run of {config.name!r}; start it without --resume")
    return folders[-1]
