"""The config tree: one frozen model per `kind`; unknown keys are errors."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from assay.config.refs import Use
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.training import OptimizerSettings
from assay.contracts.rollout import Sampling


class Table(BaseModel):
    """Base of the tables of a config: frozen, closed, every field documented by one string."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class PolicyConfig(Table):
    """The model that is trained."""

    model: str = Field(min_length=1)
    """A folder, a hub id, or `smollm2-135m-instruct`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    """A torch device."""


class EngineConfig(Use):
    """The rollout engine and how it samples; further keys are the engine's own options."""

    use: str = "transformers"
    group_size: int = Field(default=8, ge=1)
    """G: responses per prompt."""
    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop: tuple[str, ...] = ()
    """Texts that end a response."""

    def sampling(self, *, seed: int) -> Sampling:
        """The sampling of one training request."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            seed=seed,
        )


class OptimizerConfig(OptimizerSettings):
    """The policy optimizer: a preset by name, the trainer's settings, and the preset's own options."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    use: str = "grpo"
    """Name of a policy optimizer; `assay plugins --kind optimizer` lists them."""

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's own options."""
        return dict(self.model_extra or {})


class LoopConfig(Table):
    """How the stages work together."""

    groups_per_step: int = Field(default=16, ge=1)
    """Prompts whose groups make one update."""
    max_staleness: int = Field(default=0, ge=0)
    """How many versions a rollout may lie behind; 0 is synchronous and reproducible."""
    max_refill: float = Field(default=3.0, ge=0)
    """Most groups drawn in place of dropped ones, as a multiple of `groups_per_step`; then the short batch is used."""
    min_scored: int = Field(default=2, ge=1)
    """A group with fewer scored rollouts is dropped."""
    judge_concurrency: int = Field(default=256, ge=1)
    """Rollouts that may be judged at once."""
    stuck_after_s: float = Field(default=600.0, gt=0)
    """No progress for this long stops the run with a sentence that names the stuck stage."""
    shuffle_rewards: bool = False
    """Permute the rewards inside each batch: a control run that must not learn."""


class EvaluateConfig(Table):
    """Held-out evaluation before, during and after training."""

    tasks: Use
    """Where the held-out tasks come from."""
    by: RewardEntry | None = None
    """The source that decides what is correct; default the first entry of `rewards`."""
    also: tuple[RewardEntry, ...] = ()
    """Further sources that judge the same answers and that training does not use."""
    samples: int = Field(default=1, ge=1)
    """Responses per task."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    every_steps: int = Field(default=0, ge=0)
    """Evaluate each so many steps; 0 is before and after only."""
    pass_at: tuple[Annotated[int, Field(ge=1)], ...] = (1,)
    """k of pass@k; each at most `samples`."""
    strategy_template: str = "The answer is {answer}"
    """How constant and copying answers are written out, to be compared with the policy under the same source."""

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        if max(self.pass_at, default=1) > self.samples:
            raise ValueError(
                f"pass_at asks for k = {max(self.pass_at)} with samples = {self.samples}; raise samples or lower k"
            )
        return self


class CheckpointConfig(Table):
    """When checkpoints are written."""

    every_steps: int = Field(default=20, ge=1)
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""


class PluginsConfig(Table):
    """Which third-party plugins may load."""

    allow: tuple[str, ...] | None = None
    """Entry-point names; without it all may."""


class _Run(Table):
    name: str = Field(pattern=r"^\w[\w.+-]*$")
    """Name of the run, which its folder begins with; default the file name."""
    base_dir: str | None = None
    """Folder that relative paths of tasks, models and local files are relative to; default the config file's."""
    seed: int = 7
    runs_dir: str = "runs"
    """Folder that run folders are made in, relative to the working directory."""
    plugins: PluginsConfig = PluginsConfig()
    trackers: tuple[Use, ...] = ()
    """Where metrics are copied to; the run's own log is always kept."""


class RlvrConfig(_Run):
    """Reinforcement learning from verified rewards."""

    kind: Literal["rlvr"]
    steps: int = Field(ge=0)
    """Optimizer steps."""
    minutes: float | None = Field(default=None, gt=0)
    """Stop after this many minutes, at the end of a step."""
    policy: PolicyConfig
    tasks: Use
    engine: EngineConfig = EngineConfig()
    rewards: tuple[RewardEntry, ...] = Field(min_length=1)
    judging: JudgingConfig = JudgingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loop: LoopConfig = LoopConfig()
    evaluate: EvaluateConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _group(self) -> Self:
        if self.loop.min_scored > self.engine.group_size:
            raise ValueError(
                f"loop.min_scored is {self.loop.min_scored} with engine.group_size = {self.engine.group_size}; "
                "every group would be dropped"
            )
        return self


class ScoreData(Table):
    """The file to judge and which columns hold what."""

    path: str
    prompt: str | None = None
    """Column of the prompt; default the first of prompt, problem, question."""
    response: str | None = None
    """Column of the response; default the first of response, completion, output."""
    reference: str | None = None
    """Column of the reference; default the first of reference, answer, gold, solution, if there is one."""
    on_bad_row: Literal["stop", "skip"] = "stop"


class ScoreOutput(Table):
    """Where the verdicts go."""

    path: str
    evidence: bool = True


class ScoreConfig(_Run):
    """Judging a file of answers."""

    kind: Literal["score"]
    data: ScoreData
    rewards: tuple[RewardEntry, ...] = Field(min_length=1)
    judging: JudgingConfig = JudgingConfig()
    output: ScoreOutput | None = None


AnyConfig = RlvrConfig | ScoreConfig
KINDS: dict[str, type[RlvrConfig] | type[ScoreConfig]] = {"rlvr": RlvrConfig, "score": ScoreConfig}
"""Kind to its model."""
