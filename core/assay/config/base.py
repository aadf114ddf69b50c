"""What every kind of config has: closed tables, the model, checkpoints, where runs are kept."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.config.refs import Use


class Table(BaseModel):
    """Base of the tables of a config: frozen, closed, every field documented by one string."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class PolicyConfig(Table):
    """The model that is trained."""

    model: str = Field(min_length=1)
    """A folder, a hub id, or `smollm2-135m-instruct`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights."""
    device: str = "cpu"
    """A torch device."""


class CheckpointConfig(Table):
    """When checkpoints are written."""

    every_steps: int = Field(default=20, ge=1)
    """A checkpoint is written each so many steps, and at the end."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""


class PluginsConfig(Table):
    """Which third-party plugins may load."""

    allow: tuple[str, ...] | None = None
    """Entry-point names; without it all may."""


class RunTable(Table):
    """What a config of any kind begins with."""

    name: str = Field(pattern=r"^\w[\w.+-]*$")
    """Name of the run, which its folder begins with; default the file name."""
    base_dir: str | None = None
    """Folder that relative paths of tasks, models and local files are relative to; default the config file's."""
    seed: int = 7
    """Of everything that is drawn: order of tasks, sampled tokens, fresh weights."""
    runs_dir: str = "runs"
    """Folder that run folders are made in, relative to the working directory."""
    plugins: PluginsConfig = PluginsConfig()
    trackers: tuple[Use, ...] = ()
    """Where metrics are copied to; the run's own log is always kept."""
