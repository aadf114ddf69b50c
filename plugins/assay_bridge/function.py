"""What all bridged functions share: where they are, what they may answer, and one call per candidate."""

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import Field, JsonValue, field_validator, model_validator

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Limits, Task, Verdict
from assay.errors import ConfigError, did_you_mean


class BridgeOptions(Options):
    """Where the function is, and what it may answer."""

    path: str
    """`module:function` or `file.py:function`, the file relative to the config's folder."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value; anything outside is *failed*."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Wall time of one answer."""
    memory_mib: int | None = Field(default=1024, gt=0)
    """Memory that one answer may add."""
    deterministic: bool = True
    """Whether equal inputs give equal verdicts; only then are verdicts cached."""

    @field_validator("path")
    @classmethod
    def _two_parts(cls, path: str) -> str:
        place, colon, name = path.rpartition(":")
        if not (place and colon and all(part.isidentifier() for part in name.split("."))):
            raise ValueError(f"expected 'module:function' or 'file.py:function'; found {path!r}")
        return path

    @model_validator(mode="after")
    def _ordered(self) -> "BridgeOptions":
        if self.value_range[0] > self.value_range[1]:
            raise ValueError(f"value_range {self.value_range} ends before it starts")
        return self

    def limits(self) -> Limits:
        """The limits that these options declare."""
        return Limits(
            value_range=self.value_range,
            timeout_s=self.timeout_s,
            memory_mib=self.memory_mib,
            deterministic=self.deterministic,
        )


class BridgedSource:
    """A reward source that calls somebody else's function; subclasses say how."""

    def __init__(self, options: BridgeOptions, fingerprint: str) -> None:
        """`fingerprint` changes with the function's file."""
        self.limits = options.limits()
        self.fingerprint = fingerprint

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order; whatever the function raises is raised."""
        return [await self._verdict(candidate) for candidate in batch]

    async def _verdict(self, candidate: Candidate) -> Verdict:
        missing = self.check_task(candidate.task)
        if missing is not None:
            return Verdict.abstain(missing, fault="ours")
        return await self.ask(candidate)

    async def ask(self, candidate: Candidate) -> Verdict:
        """The verdict on a candidate whose task has all that the function needs."""
        raise NotImplementedError

    def check_task(self, task: Task) -> str | None:
        """Why the function cannot be asked about this task, or None."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing to let go of."""


def load(path: str, context: BuildContext) -> tuple[Any, str]:
    """What `path` names, and a fingerprint of its file.

    Raises `ConfigError` where the file, the module or the name is missing, or the import fails.
    """
    place, _, name = path.rpartition(":")
    module = _file(context.base_dir / place, path) if place.endswith(".py") else _module(place, path)
    found: Any = module
    for part in name.split("."):
        members = cast("dict[str, Any]", vars(found))
        known = [key for key, value in members.items() if callable(value) and not key.startswith("_")]
        if not hasattr(found, part):
            listed = ", ".join(sorted(known)[:12]) or "no function"
            raise ConfigError(f"{path}: {place} has no {part!r}; it has {listed}.{did_you_mean(part, known)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{path}: {name!r} is a {type(found).__name__}, not a function; name a function")
    file = getattr(module, "__file__", None)
    content = Path(file).read_bytes() if file is not None and Path(file).is_file() else path.encode()
    return found, hashlib.sha256(content).hexdigest()


def _module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # the module is the user's; whatever it raises is told as one sentence
        raise ConfigError(f"{path}: cannot be imported: {type(error).__name__}: {error}; install or fix it") from error


def _file(file: Path, path: str) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise ConfigError(f"{path}: no such file; looked at {file}. Paths are relative to the config's folder")
    # A name of its own for each file, so that two files called reward.py never meet and none hides a real package.
    name = f"assay_bridged_{hashlib.sha256(str(file).encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # at the end: the file may import its neighbours, and hides nothing
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's; whatever it raises is told as one sentence
        sys.modules.pop(name, None)
        raise ConfigError(f"{path}: cannot be imported: {type(error).__name__}: {error}; fix the file") from error
    return module


class Asked:
    """Which arguments a function takes by name."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        """Read the signature; raises `ConfigError` where there is none."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: its arguments cannot be read; write a plain function around it") from error
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = tuple(p.name for p in named)
        self.required = tuple(p.name for p in named if p.default is p.empty)
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def chosen(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `offered` that the function takes."""
        return {name: value for name, value in offered.items() if self.takes_all or name in self.names}


async def called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What a plain or asynchronous function returns."""
    answer = function(**arguments)
    return await answer if inspect.isawaitable(answer) else answer


def finite(value: Any, what: str) -> float:
    """`value` as a finite number; raises `ValueError`, which makes the verdict *failed*, for anything else."""
    if value is None or isinstance(value, str | bytes):
        raise ValueError(f"{what} gave {value!r} instead of a number")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} gave a {type(value).__name__} instead of a number") from error
    if not math.isfinite(number):
        raise ValueError(f"{what} gave {number}, which is not finite")
    return number


def plain(value: Any) -> JsonValue:
    """`value` as JSON for the evidence; what is none is shown as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return str(value)[:1000]
