"""`python`: one's own `f(task, rollout) -> Verdict` from a local file, without a package."""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import Field, field_validator, model_validator

from assay.component import BuildContext, Component, Options
from assay.contracts import Candidate, Limits, Rollout, Task, Verdict
from assay.errors import ConfigError, did_you_mean
from assay.protocols import RewardSource

Function = Callable[[Task, Rollout], Verdict | Awaitable[Verdict]]


class PythonOptions(Options):
    """Where the function is, and what it may answer."""

    path: str
    """`file.py:function`, relative to the config file's folder. The function is `f(task, rollout) -> Verdict`, plain
    or async, or the component that `@verifier` makes of one."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value; anything outside is *failed*. A `@verifier` brings its own."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Wall time of one answer."""
    memory_mib: int | None = Field(default=1024, gt=0)
    """Memory that one answer may add."""
    deterministic: bool = True
    """Whether equal inputs give equal verdicts; only then are verdicts cached."""

    @field_validator("path")
    @classmethod
    def _two_parts(cls, path: str) -> str:
        file, colon, function = path.rpartition(":")
        if not (file.endswith(".py") and colon and function.isidentifier()):
            raise ValueError(f"expected 'file.py:function', found {path!r}")
        return path

    @model_validator(mode="after")
    def _ordered(self) -> "PythonOptions":
        if self.value_range[0] > self.value_range[1]:
            raise ValueError(f"the range {self.value_range} ends before it starts")
        return self


class PythonSource:
    """A reward source made of a function of a local file."""

    def __init__(self, function: Function, limits: Limits, fingerprint: str) -> None:
        """Wrap `function`; `limits` are what the options declare, `fingerprint` changes with the file."""
        self.function = function
        self.limits = limits
        self.fingerprint = fingerprint

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        verdicts: list[Verdict] = []
        for candidate in batch:
            answer = self.function(candidate.task, candidate.rollout)
            verdicts.append(await answer if inspect.isawaitable(answer) else answer)
        return verdicts

    async def aclose(self) -> None:
        """Nothing to let go of."""


def build_python(options: PythonOptions, context: BuildContext) -> RewardSource:
    """The source of `options.path`.

    Raises:
        ConfigError: the file or the function is missing, the file cannot be imported, or the name is no function.
    """
    file, _, name = options.path.rpartition(":")
    path = (context.base_dir / file).resolve()
    if not path.is_file():
        raise ConfigError(f"{options.path}: no such file; looked at {path}. Paths are relative to the config's folder.")
    module = _load(path, options.path)
    found: object = getattr(module, name, None)
    if found is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        listed = ", ".join(sorted(known)) or "no function"
        raise ConfigError(f"{options.path}: {file} has no {name!r}; it has {listed}.{did_you_mean(name, known)}")
    if isinstance(found, Component):
        component = cast("Component[Any, RewardSource]", found)
        return component.build(component.config(), context)
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            f"{options.path}: {name!r} is a {type(found).__name__}, not a function; "
            "write def f(task, rollout) -> Verdict."
        )
    return PythonSource(
        cast("Function", found),
        Limits(
            value_range=options.value_range,
            timeout_s=options.timeout_s,
            memory_mib=options.memory_mib,
            deterministic=options.deterministic,
        ),
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _load(path: Path, shown_path: str) -> ModuleType:
    # A name of its own for each file, so that two files called reward.py never meet and none hides a real package.
    digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = f"assay_local_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{shown_path}: cannot be imported as Python; rename it to end in .py.")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # at the end: the file may import its neighbours, and hides nothing
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's; whatever it raises is told as one sentence
        sys.modules.pop(name, None)
        raise ConfigError(
            f"{shown_path}: cannot be imported: {type(error).__name__}: {error}. Fix the file."
        ) from error
    return module
