"""The config tree of reinforcement learning and of scoring; `KINDS` names every kind. Unknown keys are errors."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import ConfigDict, Field, field_validator, model_validator

from assay.config.base import CheckpointConfig, PolicyConfig, RunTable, Table
from assay.config.fit import AnyFit, GroupExamples, PreferenceConfig, PrmConfig, SftConfig, StreamData
from assay.config.refs import Use
from assay.config.rewards import JudgingConfig, RewardEntry
from assay.config.training import OptimizerSettings
from assay.contracts.rollout import Sampling

__all__ = [
    "KINDS",
    "AnyConfig",
    "AnyFit",
    "CheckpointConfig",
    "EngineConfig",
    "EvaluateConfig",
    "ForcedStopConfig",
    "LoopConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "PreferenceConfig",
    "PrmConfig",
    "RayEngineConfig",
    "RlvrConfig",
    "ScoreConfig",
    "ScoreData",
    "ScoreOutput",
    "SftConfig",
]


class RayEngineConfig(Table):
    """Engines as actors of a Ray cluster; a text alone is its `address`."""

    address: str = Field(default="auto", min_length=1)
    """`auto`: the cluster that this machine belongs to; `local`: one that is started for this run; or `HOST:PORT`."""
    actors: int = Field(default=1, ge=1)
    """Engines, each with the whole model."""
    cpus: float = Field(default=1.0, ge=0)
    """CPUs that each takes of the cluster."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs that each takes of the cluster."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of the cluster that each takes."""
    weights_dir: str | None = None
    """Folder for new weights that every node sees; default `weights` in the run's folder."""
    start_s: float = Field(default=600.0, gt=0)
    """Longest start of an actor, in seconds; its model is loaded then."""
    lost_after_s: float = Field(default=60.0, gt=0)
    """An actor that gives no sign of life for this long is ended and replaced."""


class ForcedStopConfig(Table):
    """A phrase that ends a thought by force, after which the answer is drawn (ScaleRL, arXiv 2510.13786).

    The phrase is left out of the loss. What is judged of such a response is the answer alone.
    """

    think_tokens: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Least and most tokens of a thought: each response's budget is drawn between them; or one number for all."""
    phrase: str = "\n\nOkay, time is up. Let me stop thinking and formulate a final answer now.\n</think>\n\n"
    """What is put in where the budget is used up."""
    end: str = Field(default="</think>", min_length=1)
    """A thought that has this text is over, and is not stopped."""

    @field_validator("think_tokens", mode="before")
    @classmethod
    def _one_for_all(cls, think_tokens: Any) -> Any:
        return (think_tokens, think_tokens) if isinstance(think_tokens, int) else think_tokens

    @field_validator("think_tokens")
    @classmethod
    def _ordered(cls, think_tokens: tuple[int, int]) -> tuple[int, int]:
        if think_tokens[0] > think_tokens[1]:
            raise ValueError(f"the least comes first; found {list(think_tokens)}")
        return think_tokens


class EngineConfig(Use):
    """The rollout engine and how it samples; further keys are the engine's own options."""

    use: str = "transformers"
    """Name of a rollout engine."""
    group_size: int = Field(default=8, ge=1)
    """G: responses per prompt."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Most tokens of one response; a longer one is cut off there."""
    temperature: float = Field(default=1.0, ge=0)
    """Of sampling; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 samples from the whole distribution."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""
    forced_stop: ForcedStopConfig | None = None
    """End thoughts that use up their budget."""
    ray: RayEngineConfig | None = None
    """Run the engine in actors of a Ray cluster: its address, or a table; default in this process."""

    @field_validator("ray", mode="before")
    @classmethod
    def _address_alone(cls, ray: Any) -> Any:
        return {"address": ray} if isinstance(ray, str) else ray

    @model_validator(mode="after")
    def _no_stop_across_parts(self) -> Self:
        if self.forced_stop is not None and self.stop:
            raise ValueError("forced_stop draws a response in parts, and a stop text may lie across them; remove one")
        return self

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


class ExplanationConfig(Table):
    """Texts that the policy writes while it is shown the answer, and learns to write without it (ExPO, 2507.02834)."""

    template: str = "{prompt}\n\nThe correct answer is {reference}. Explain step by step how to get there."
    """The last message of the conditioned prompt; `{prompt}` is the question, `{reference}` the task's reference."""
    per_group: int = Field(default=1, ge=1)
    """Explanations per prompt."""

    @field_validator("template")
    @classmethod
    def _shows_the_answer(cls, template: str) -> str:
        missing = [place for place in ("{prompt}", "{reference}") if place not in template]
        if missing:
            raise ValueError(f"the template has no {missing[0]}; found {template!r}; write it where it belongs")
        return template


class RlvrConfig(RunTable):
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
    """The sources that judge each response, one entry each, as a weighted sum; or combinations of them."""
    judging: JudgingConfig = JudgingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    models: dict[str, str] = Field(default_factory=dict)
    """Frozen policies that the optimizer compares with, by its own names for them: `{ dpo = "folder" }` for `rto`."""
    objective: Use | None = None
    """Learn from the judged rollouts by an objective (online DPO, SPIN, online imitation) in place of an optimizer; the
    `optimizer` table then holds the trainer's settings alone."""
    examples: GroupExamples = GroupExamples()
    """How a group becomes examples of the objective."""
    stream: StreamData | None = None
    """Examples whose loss is added to every update: the pretraining term of PPO-ptx (arXiv 2203.02155). Its objective
    is `sft` unless it names one, and its batches are as large as `loop.groups_per_step` unless it says otherwise."""
    explanations: ExplanationConfig | None = None
    """Draw answer-conditioned explanations for each group that is learned from."""
    loop: LoopConfig = LoopConfig()
    evaluate: EvaluateConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _objective_or_optimizer(cls, data: Any) -> Any:
        table = dict(cast("Mapping[str, Any]", data)) if isinstance(data, Mapping) else {}
        chosen = table.get("objective")
        if not isinstance(chosen, Mapping | Use):
            return cast("Any", data)
        name = chosen.use if isinstance(chosen, Use) else cast("Mapping[str, Any]", chosen).get("use")
        optimizer = table.get("optimizer", {})
        if not isinstance(optimizer, Mapping):
            return table
        own = dict(cast("Mapping[str, Any]", optimizer))
        if own.setdefault("use", name) != name:
            raise ValueError(
                f"optimizer.use is {own['use']!r} and objective.use is {name!r}; one of them computes the loss: "
                "remove the other"
            )
        return {**table, "optimizer": own}

    @model_validator(mode="after")
    def _objective_fits(self) -> Self:
        if self.objective is None:
            if self.examples != GroupExamples():
                raise ValueError("examples: only an objective learns from examples; add objective, or remove examples")
            return self
        if self.models:
            raise ValueError("models: an optimizer compares with them, and an objective has none; remove them")
        if self.optimizer.options:
            key = sorted(self.optimizer.options)[0]
            raise ValueError(f"optimizer.{key}: an objective has no such option; remove it, or move it to objective")
        if self.optimizer.importance_correction != "none":
            raise ValueError(
                "optimizer.importance_correction: it weighs advantages, and an objective has none; remove it"
            )
        if (self.examples.chosen == "explanation") != (self.explanations is not None):
            raise ValueError(
                'with an objective, examples.chosen = "explanation" and the table explanations belong together; '
                f"found {self.examples.chosen!r} {'without' if self.explanations is None else 'with'} explanations"
            )
        return self

    @model_validator(mode="after")
    def _group(self) -> Self:
        if self.loop.min_scored > self.engine.group_size:
            raise ValueError(
                f"loop.min_scored is {self.loop.min_scored} with engine.group_size = {self.engine.group_size}; "
                f"every group would be dropped; set it to {self.engine.group_size}, or raise engine.group_size"
            )
        return self


Column = Literal["prompt", "response", "reference"]
"""What a column of a file to judge holds."""


class ScoreData(Table):
    """The file to judge and which columns hold what."""

    path: str
    """JSON lines (also `.gz`) or Parquet, relative to the working directory."""
    prompt: str | None = None
    """Column of the prompt; default the first of prompt, problem, question."""
    response: str | None = None
    """Column of the response; default the first of response, completion, output."""
    reference: str | None = None
    """Column of the reference; default the first of reference, answer, gold, solution, if there is one."""
    columns: dict[Column, str] = Field(default_factory=dict[Column, str])
    """The same three as one table, as `tasks` has them: `{ prompt = "problem", response = "completion" }`."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Whether a row that cannot be read ends everything before work, or is left out and counted."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        for name in self.columns:
            if getattr(self, name) is not None:
                raise ValueError(f"the column of the {name} is named by {name!r} and in 'columns'; name it once")
        return self

    def column(self, name: Column) -> str | None:
        """The column that was named for the prompt, the response or the reference, or None."""
        return self.columns.get(name, getattr(self, name))


class ScoreOutput(Table):
    """Where the verdicts go."""

    path: str
    """File of JSON lines, one per row that was judged."""
    evidence: bool = True
    """Whether the evidence of each verdict is written too; the run's log always has it."""


class ScoreConfig(RunTable):
    """Judging a file of answers."""

    kind: Literal["score"]
    data: ScoreData
    rewards: tuple[RewardEntry, ...] = Field(min_length=1)
    """The sources that judge each response, one entry each, as a weighted sum; or combinations of them."""
    judging: JudgingConfig = JudgingConfig()
    output: ScoreOutput | None = None


AnyConfig = RlvrConfig | AnyFit | ScoreConfig
KINDS: dict[str, type[AnyConfig]] = {
    "rlvr": RlvrConfig,
    "sft": SftConfig,
    "preference": PreferenceConfig,
    "prm": PrmConfig,
    "score": ScoreConfig,
}
"""Kind to its model."""
