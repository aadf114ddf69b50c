"""Finds components by kind and name among the installed plugins; imports a plugin only when a part of it is needed."""

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from assay.component import Component, Part
from assay.discovery import Offer, Plugin, installed_plugins
from assay.errors import ConfigError, PluginError, did_you_mean
from assay.hooks import collect, plugin_manager, single_plugin

log = logging.getLogger("assay")

WORDS = {
    "reward_source": "reward source",
    "policy_optimizer": "optimizer",
    "objective": "objective",
    "rollout_engine": "engine",
    "sandbox": "sandbox",
    "task_source": "task source",
    "tracker": "tracker",
}
"""Kind to the words that messages use."""


class Origin(NamedTuple):
    """Where a component comes from; enough for a worker process to build it again."""

    plugin: str
    module: str
    distribution: str
    version: str
    builtin: bool


class Row(NamedTuple):
    """One line of `assay plugins`."""

    kind: str
    offer: Offer
    plugin: Plugin
    state: str
    """`ok`, or `refused: ...` when another component has the name."""


class Registry:
    """All components of the installed plugins by kind and name; names are unique, and the built-in stays on a clash."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        """Index `plugins`, which are taken in order: the first to offer a name keeps it."""
        self.plugins = tuple(plugins)
        self.rows: list[Row] = []
        self._owner: dict[tuple[str, str], Plugin] = {}
        self._modules: dict[str, ModuleType] = {}
        for plugin in self.plugins:
            for offer in plugin.offers:
                owner = self._owner.setdefault((offer.kind, offer.name), plugin)
                state = "ok" if owner is plugin else f"refused: the name is taken by {owner.title}"
                self.rows.append(Row(offer.kind, offer, plugin, state))

    @classmethod
    def load(cls, *, allow: Iterable[str] | None = None, cache_dir: Path | None = None) -> "Registry":
        """A registry of what is installed; see `installed_plugins` for `allow`."""
        return cls(installed_plugins(allow=allow, cache_dir=cache_dir))

    @property
    def problems(self) -> list[str]:
        """One sentence per broken plugin and per refused name."""
        broken = [
            f"plugin {plugin.title}: not loaded: {plugin.cause}" for plugin in self.plugins if plugin.state == "broken"
        ]
        refused = [
            f"plugin {row.plugin.title}: {WORDS.get(row.kind, row.kind)} {row.offer.name!r} {row.state}"
            for row in self.rows
            if row.state != "ok"
        ]
        return broken + refused

    def names(self, kind: str) -> list[str]:
        """Sorted names of one kind."""
        return sorted(name for owner_kind, name in self._owner if owner_kind == kind)

    def origin(self, kind: str, name: str, *, where: str = "") -> Origin:
        """Where a component comes from; raises `ConfigError` with the nearest name when there is none."""
        plugin = self._plugin(kind, name, where)
        return Origin(plugin.name, plugin.module, plugin.distribution, plugin.version, plugin.builtin)

    def component(self, kind: str, name: str, *, where: str = "") -> Component[Any, Any]:
        """The component, its plugin imported now; `where` names the config key in the message of a `ConfigError`."""
        plugin = self._plugin(kind, name, where)
        for component in collect(single_plugin(self._import(plugin)), kind):
            if component.name == name:
                return component
        raise PluginError(f"plugin {plugin.title}: it listed {WORDS[kind]} {name!r} but no longer offers it")

    def parts(self) -> Mapping[tuple[str, str], Part]:
        """All optimizer parts by axis and name."""
        found: dict[tuple[str, str], Part] = {}
        for plugin in self.plugins:
            if any(offer.kind.startswith("part:") for offer in plugin.offers):
                for part in collect(single_plugin(self._import(plugin)), "optimizer_part"):
                    found.setdefault((part.axis, part.name), part)
        return found

    def observers(self) -> pluggy.PluginManager:
        """A manager with every plugin that declares observers."""
        return self._manager(plugin for plugin in self.plugins if plugin.observers)

    def commands(self) -> pluggy.PluginManager:
        """A manager with every plugin that adds commands."""
        return self._manager(plugin for plugin in self.plugins if plugin.commands)

    def versions(self) -> dict[str, str]:
        """Distribution to version of every plugin that is not broken or blocked."""
        return {plugin.distribution: plugin.version for plugin in self.plugins if plugin.state == "ok"}

    def _manager(self, plugins: Iterable[Plugin]) -> pluggy.PluginManager:
        manager = plugin_manager()
        for plugin in plugins:
            try:
                manager.register(self._import(plugin), name=f"{plugin.distribution}:{plugin.name}")
            except PluginError as error:
                log.warning("%s", error)
        return manager

    def _plugin(self, kind: str, name: str, where: str) -> Plugin:
        plugin = self._owner.get((kind, name))
        if plugin is not None:
            return plugin
        installed = self.names(kind)
        prefix = f"{where}: " if where else ""
        broken = [problem for problem in self.problems if "not loaded" in problem][:3]
        because = "".join(f" ({problem})" for problem in broken)
        raise ConfigError(
            f"{prefix}no {WORDS[kind]} named {name!r}; installed: {', '.join(installed) or 'none'}."
            f"{did_you_mean(name, installed)}{because}"
        )

    def _import(self, plugin: Plugin) -> ModuleType:
        if plugin.module not in self._modules:
            try:
                # What a plugin prints at import must not mix with results on stdout.
                with contextlib.redirect_stdout(sys.stderr):
                    self._modules[plugin.module] = importlib.import_module(plugin.module)
            # Whatever a plugin raises at import is reported as that plugin's failure, with the cause chained.
            except (Exception, SystemExit) as error:
                raise PluginError(f"plugin {plugin.title}: not loaded: {type(error).__name__}: {error}") from error
        return self._modules[plugin.module]


def component_from(module: str, kind: str, name: str) -> Component[Any, Any]:
    """The component that a plugin module offers under a name: how a worker process finds it again."""
    for component in collect(single_plugin(importlib.import_module(module)), kind):
        if component.name == name:
            return component
    raise PluginError(f"module {module!r} offers no {WORDS[kind]} named {name!r}")
