"""`verifiers-rubric`: rewards written for PrimeIntellect's verifiers, of three forms.

| `path` names | it is called with |
|---|---|
| a subclass of `verifiers.v1.Task` (0.4.0) | its whole `score`: all its rewards by their weights |
| a function with an argument `trace` (0.4.0) | `task` (the data) and `trace` |
| any other function (rubric functions of older versions) | what it names of `prompt`, `completion`, `answer`, ... |

A finite number is scored. `None`, NaN, an exception, a reward of the task that stayed `None`: failed. A task whose
data does not fit the class: abstained, ours.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import ValidationError

from assay.component import BuildContext
from assay.contracts import Candidate, Evidence, Rollout, Task, Verdict
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay_bridge.function import Asked, BridgedSource, BridgeOptions, called, finite, load, plain

CLASSIC = ("prompt", "completion", "answer", "info", "state", "task")


class VerifiersOptions(BridgeOptions):
    """Where the function or the task class is."""

    answer: str = "answer"
    """Field of the task's data, or key of the state, that gets the task's reference."""


class RubricSource(BridgedSource):
    """Calls a rubric function of the classic form."""

    def __init__(self, function: Callable[..., Any], options: VerifiersOptions, fingerprint: str) -> None:
        """Check that the function asks for nothing that cannot be given."""
        super().__init__(options, fingerprint)
        self.function, self.options = function, options
        self.asked = Asked(function, options.path)
        _check_asked(self.asked, (*CLASSIC, options.answer), options.path)

    def check_task(self, task: Task) -> str | None:
        """A sentence where the function asks for an answer and the task has none."""
        if task.reference is None and self.options.answer in self.asked.required:
            return f"the task has no reference, which the function gets as {self.options.answer}"
        return None

    async def ask(self, candidate: Candidate) -> Verdict:
        """The verdict that the function's number comes to."""
        task, rollout = candidate.task, candidate.rollout
        state: dict[str, Any] = {
            "prompt": [{"role": message.role, "content": message.content} for message in task.messages],
            "completion": [{"role": turn.role, "content": turn.text} for turn in rollout.turns],
            self.options.answer: task.reference,
            "info": dict(task.facts),
            "task": task.tags[0] if task.tags else "default",
        }
        number = finite(await called(self.function, self.asked.chosen({**state, "state": state})), "the function")
        return Verdict.score(number, evidence=Evidence(kind="verifiers", summary=f"{number:g}"))


class TraceSource(BridgedSource):
    """Scores a trace: with one function, or with all the rewards of a task class."""

    def __init__(self, target: Any, options: VerifiersOptions, fingerprint: str, vf: Any) -> None:
        """`target` is a function with an argument `trace` or a subclass of `vf.Task`; `vf` is `verifiers.v1`."""
        super().__init__(options, fingerprint)
        self.target, self.options, self.vf = target, options, vf
        self.whole = isinstance(target, type)
        self.data: Any = target.data_type() if self.whole else vf.WireTaskData
        if not self.whole:
            self.asked = Asked(target, options.path)
            _check_asked(self.asked, ("task", "trace"), options.path)

    def check_task(self, task: Task) -> str | None:
        """Why the task's data does not fit the class, or None."""
        try:
            self._data(task)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            return f"the task does not fit {self.data.__name__}: {place}: {first['msg']}"
        return None

    async def ask(self, candidate: Candidate) -> Verdict:
        """The verdict that the rewards come to."""
        data = self._data(candidate.task)
        trace = self._trace(data, candidate.rollout)
        if not self.whole:
            answer = await called(self.target, self.asked.chosen({"task": data, "trace": trace}))
            values = cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {"function": answer}
            number = sum(finite(value, f"the reward {name!r}") for name, value in values.items())
            return Verdict.score(number, evidence=Evidence(kind="verifiers", summary=f"{number:g}"))
        await self.target(data).score(trace)
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored or not trace.rewards:
            raise ValueError(f"the task left {', '.join(unscored) or 'every reward'} unscored")
        number = finite(trace.reward, "the task")
        shown: dict[str, Any] = {name: plain(reward.value) for name, reward in trace.rewards.items()}
        return Verdict.score(number, evidence=Evidence(kind="verifiers", summary=f"{number:g}", data=shown))

    def _data(self, task: Task) -> Any:
        system = next((message.content for message in task.messages if message.role == "system"), None)
        fields: dict[str, Any] = {**task.facts, "prompt": task.prompt}
        if system is not None:
            fields["system_prompt"] = system
        if task.reference is not None:
            fields[self.options.answer] = task.reference
        return self.data.model_validate(fields)

    def _trace(self, data: Any, rollout: Rollout) -> Any:
        vf = self.vf
        from verifiers.v1.configs.agent import AgentConfig

        kinds: dict[str, Any] = {"assistant": vf.AssistantMessage, "user": vf.UserMessage, "system": vf.SystemMessage}
        nodes = [vf.MessageNode(message=vf.UserMessage(content=data.prompt_text))]
        for turn in rollout.turns:
            if turn.role == "tool":
                message = vf.ToolMessage(content=turn.text, tool_call_id="0")
            else:
                message = kinds[turn.role](content=turn.text)
            nodes.append(
                vf.MessageNode(
                    parent=len(nodes) - 1, message=message, sampled=turn.trainable and turn.role == "assistant"
                )
            )
        name = self.target.__name__ if self.whole else "Task"
        return vf.Trace(task=vf.TraceTask(type=name, data=data), agent=vf.AgentInfo(config=AgentConfig()), nodes=nodes)


def build_verifiers(options: VerifiersOptions, context: BuildContext) -> RewardSource:
    """The source of `options.path`; raises `ConfigError` where there is nothing to call, or verifiers is missing."""
    target, fingerprint = load(options.path, context)
    if isinstance(target, type) or "trace" in Asked(target, options.path).names:
        try:
            import verifiers.v1 as vf
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{options.path}: it needs the package 'verifiers', which is not installed; install it with: "
                "python -m pip install verifiers"
            ) from error
        if isinstance(target, type) and not issubclass(target, vf.Task):
            raise ConfigError(
                f"{options.path}: {target.__name__} is no verifiers.v1.Task; name a function or a task class"
            )
        return TraceSource(target, options, fingerprint, vf)
    return RubricSource(target, options, fingerprint)


def _check_asked(asked: Asked, offered: tuple[str, ...], path: str) -> None:
    unknown = [name for name in asked.required if name not in offered]
    if unknown:
        raise ConfigError(
            f"{path}: the function asks for {unknown[0]!r}, which is not there outside verifiers; it can have "
            f"{', '.join(dict.fromkeys(offered))}"
        )
