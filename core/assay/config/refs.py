"""`use = "name"` plus options: how a config names a component."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from assay.component import BuildContext, Component
from assay.config.validation import validate
from assay.errors import PluginError
from assay.registry import WORDS, Registry


class Use(BaseModel):
    """A component by name; the remaining keys are its options and are checked by the component's own model."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    use: str = Field(min_length=1)
    """Name of the component."""

    @property
    def options(self) -> dict[str, Any]:
        """The options, without `use`."""
        return dict(self.model_extra or {})


def checked(
    registry: Registry, kind: str, name: str, options: Mapping[str, Any], *, where: str
) -> tuple[Component[Any, Any], Any]:
    """The component and its validated options; raises `ConfigError` for an unknown name or option."""
    component = registry.component(kind, name, where=f"{where}.use")
    return component, validate(component.config, options, where=where)


def build(
    registry: Registry, kind: str, name: str, options: Mapping[str, Any], context: BuildContext, *, where: str
) -> Any:
    """The built part; a missing library becomes one sentence that names the extra to install."""
    component, config = checked(registry, kind, name, options, where=where)
    try:
        return component.build(config, context)
    except ModuleNotFoundError as error:
        origin = registry.origin(kind, name)
        package = f"{origin.distribution}[{component.extra}]" if component.extra else str(error.name)
        raise PluginError(
            f"{where}: {WORDS[kind]} {name!r} needs the package {error.name!r}, which is not installed; "
            f'install it with: python -m pip install "{package}"'
        ) from error
