"""The config tree of the kinds that learn from examples: `sft`, `preference` and `prm`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from assay.config.base import CheckpointConfig, PolicyConfig, RunTable, Table
from assay.config.refs import Use
from assay.config.training import TrainingConfig


class GroupExamples(Table):
    """How the judged rollouts of one prompt become examples."""

    good_from: float = 0.5
    """Rewards from this value on are good: what `sft` imitates, and what labels call true."""
    keep: int = Field(default=1, ge=1)
    """`sft`: so many of the best good rollouts of each prompt are imitated."""
    least_gap: float = Field(default=0.0, ge=0)
    """Pairs and lists: best and worst must differ by more than this."""
    chosen: Literal["best", "reference", "explanation"] = "best"
    """Pairs: the best rollout wins against the worst; or the task's reference text against every rollout (SPIN); or an
    explanation of the answer against the worst rollout that is not good (ExPO; needs the table `explanations`)."""


class ExampleData(GroupExamples):
    """Where examples come from, and how they are split into a trained and a held-out half."""

    use: Literal["jsonl", "run"] = "jsonl"
    """`jsonl`: a file of JSON lines, or a Parquet file; `run`: the judged rollouts of a stored run."""
    path: str = Field(min_length=1)
    """The file; or the run by folder, name, short id, or `latest`."""
    columns: dict[str, str] = Field(default_factory=dict)
    """What a row calls the column that the objective reads: `{ prompt = "problem", response = "solution" }`."""
    split_by: str | None = None
    """The column whose equal values never stand in both halves; default the encoded prompt, or the row where it has
    none."""
    holdout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the problems that is held out; 0 holds out none."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """Whether a row that cannot be read ends everything before work, or is left out and counted."""
    max_tokens: int | None = Field(default=None, ge=2)
    """Examples with a longer sequence (prompt and response together) are left out and counted; None: the model's own
    limit."""

    @model_validator(mode="after")
    def _fits_its_use(self) -> Self:
        foreign = set(GroupExamples.model_fields) if self.use == "jsonl" else {"columns", "on_bad_row"}
        wrong = sorted(
            key
            for key in foreign
            if getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True)
        )
        if wrong:
            other = "run" if self.use == "jsonl" else "jsonl"
            raise ValueError(f'{wrong[0]} is for use = "{other}"; found use = "{self.use}"; remove one of the two')
        if self.chosen == "explanation":
            raise ValueError('chosen = "explanation" needs explanations, which kind = "rlvr" draws; use "best"')
        return self


class StreamData(ExampleData):
    """A second stream beside the first (the pretraining term of PPO-ptx, arXiv 2203.02155)."""

    weight: float = Field(default=1.0, gt=0)
    """What its loss is multiplied by before it is added."""
    batch_size: int | None = Field(default=None, ge=1)
    """Its examples per step; default as many as `training.batch_size`. It starts again when it ends."""
    objective: Use | None = None
    """Its objective; default the config's own. Plain text: `{ use = "sft", text_column = "text" }`."""
    holdout: float = Field(default=0.0, ge=0, lt=1)
    """Nothing is held out of it unless asked for."""


class FitEvaluate(Table):
    """When the held-out half is measured."""

    every_steps: int = Field(default=0, ge=0)
    """Each so many steps; 0 is before, after each pass, and after all."""


class PrmEvaluate(FitEvaluate):
    """When and how a reward model is measured."""

    first_error: str | None = None
    """A file in ProcessBench's form (problem, steps, label: index of the first wrong step or -1)."""
    best_of: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """n of best-of-n over the held-out responses of each problem."""
    aggregate: tuple[Literal["min", "product", "last", "mean"], ...] = ("min",)
    """How the scores of steps become one of the response, for best-of-n."""


class FitConfig(RunTable):
    """What the kinds that learn from examples share."""

    objective: Use
    """The loss; `assay plugins --kind objective` lists them. Further keys are its options."""
    training: TrainingConfig = TrainingConfig()
    data: ExampleData
    steps: int | None = Field(default=None, ge=0)
    """At most so many optimizer steps, even inside a pass; None: all passes."""
    minutes: float | None = Field(default=None, gt=0)
    """Stop after this many minutes, at the end of a step."""
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def reference_model(self) -> str | None:
        """Name of the frozen model that the objective compares with; None for the trained one as it was."""
        return None

    @property
    def stream_data(self) -> StreamData | None:
        """The second stream, where there is one."""
        return None

    @property
    def objective_options(self) -> dict[str, Any]:
        """The objective's options."""
        return self.objective.options


class _PolicyFit(FitConfig):
    policy: PolicyConfig
    evaluate: FitEvaluate = FitEvaluate()

    @property
    def trained(self) -> PolicyConfig:
        """The policy."""
        return self.policy

    @property
    def measured(self) -> FitEvaluate:
        """The table `evaluate`."""
        return self.evaluate


class SftConfig(_PolicyFit):
    """Supervised fine-tuning: from files, or from the best rollouts of a run (rejection sampling)."""

    kind: Literal["sft"]
    objective: Use = Use(use="sft")
    """The loss; further keys are its options."""
    stream: StreamData | None = None
    """A second stream, for example pretraining text."""

    @property
    def stream_data(self) -> StreamData | None:
        """The table `stream`."""
        return self.stream


class PreferenceConfig(_PolicyFit):
    """Learning from comparisons: pairs, judged responses, ranked lists."""

    kind: Literal["preference"]
    reference: str | None = None
    """A folder or hub id; default the policy as it was at the start."""

    @property
    def reference_model(self) -> str | None:
        """The key `reference`."""
        return self.reference


class RewardModelConfig(Table):
    """The model that becomes a reward model."""

    base: str = Field(min_length=1)
    """A folder, a hub id, or `smollm2-135m-instruct`."""
    reference: str | None = None
    """The frozen model of implicit reward models; default `base` as it was at the start."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the weights."""
    device: str = "cpu"
    """A torch device."""


class PrmConfig(FitConfig):
    """Training of a reward model: outcome, step, ranking, implicit or generative."""

    kind: Literal["prm"]
    model: RewardModelConfig
    splitter: dict[str, Any] | None = None
    """How responses are cut into steps; the same as the objective's option of that name."""
    evaluate: PrmEvaluate = PrmEvaluate()

    @model_validator(mode="after")
    def _one_splitter(self) -> Self:
        if self.splitter is not None and "splitter" in self.objective.options:
            raise ValueError("splitter is given twice, as a table and in objective; remove one of the two")
        return self

    @property
    def trained(self) -> PolicyConfig:
        """The base model."""
        return PolicyConfig(model=self.model.base, dtype=self.model.dtype, device=self.model.device)

    @property
    def reference_model(self) -> str | None:
        """The key `model.reference`."""
        return self.model.reference

    @property
    def measured(self) -> FitEvaluate:
        """The table `evaluate`."""
        return self.evaluate

    @property
    def objective_options(self) -> dict[str, Any]:
        """The objective's options, the splitter among them."""
        return self.objective.options | ({} if self.splitter is None else {"splitter": self.splitter})


AnyFit = SftConfig | PreferenceConfig | PrmConfig
"""A config of a kind that learns from examples."""
