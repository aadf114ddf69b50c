"""`assay plugins`: what is installed, and what is broken and why."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from assay.cli.output import say, table
from assay.discovery import SLOW_IMPORT_S
from assay.errors import ConfigError, did_you_mean
from assay.registry import WORDS, Registry, Row

KINDS = {
    "source": "reward_source",
    "optimizer": "policy_optimizer",
    "objective": "objective",
    "engine": "rollout_engine",
    "sandbox": "sandbox",
    "task": "task_source",
    "tracker": "tracker",
    "part": "part",
}


def plugins(
    name: str | None = None,
    /,
    *,
    kind: str | None = None,
    broken: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """List components, or show the options of one.

    Args:
        name: A component; its options are shown.
        kind: Only this kind: source, optimizer, part (of optimizers), objective, engine, sandbox, task or tracker;
            `optimizer` prints the composition table.
        broken: Only plugins that could not be loaded and names that were refused, with the causes.
        json_: One JSON object per line.
    """
    registry = Registry.load()
    wanted = _kind(kind)
    if broken:
        return _broken(registry, json_)
    if name is not None:
        return _options(registry, name)
    rows = [row for row in registry.rows if _is_shown(row, wanted)]
    if json_:
        _as_json(registry, rows)
    else:
        _as_table(registry, rows, composition=wanted == "policy_optimizer")
    return 0


def _is_shown(row: Row, wanted: str | None) -> bool:
    """Built-in parts, of which there are many, only where parts are asked for."""
    part = row.kind.startswith("part:")
    if wanted is None:
        return not (part and row.plugin.builtin)
    return part if wanted == "part" else row.kind == wanted


def _word(row: Row) -> str:
    return WORDS.get(row.kind) or f"part: {row.kind.removeprefix('part:').replace('_', ' ')}"


def _broken(registry: Registry, json_: bool) -> int:
    if json_:
        _plugins_as_json(registry, "broken")
        for row in registry.rows:
            if row.state != "ok":
                _row_as_json(row)
        return 0
    for problem in registry.problems:
        say(problem)
    if not registry.problems:
        say("no broken plugin")
    return 0


def _as_json(registry: Registry, rows: Sequence[Row]) -> None:
    for row in rows:
        _row_as_json(row)
    _plugins_as_json(registry, "broken", "blocked")


def _row_as_json(row: Row) -> None:
    facts = {"kind": row.kind, "name": row.offer.name, "package": row.plugin.distribution}
    facts |= {"version": row.plugin.version, "state": row.state, "summary": row.offer.summary}
    say(json.dumps(facts | row.offer.facts))


def _plugins_as_json(registry: Registry, *states: str) -> None:
    for plugin in registry.plugins:
        if plugin.state in states:
            facts = {"package": plugin.distribution, "version": plugin.version}
            say(json.dumps(facts | {"state": plugin.state, "cause": plugin.cause}))


def _as_table(registry: Registry, rows: Sequence[Row], *, composition: bool) -> None:
    if composition:
        columns = list(dict.fromkeys(column for row in rows for column in row.offer.facts))
        table(
            ["optimizer", *columns],
            [[row.offer.name, *(row.offer.facts.get(column, "") for column in columns)] for row in rows],
        )
    else:
        table(
            ["name", "kind", "package", "version", "state", "summary"],
            [[r.offer.name, _word(r), r.plugin.distribution, r.plugin.version, r.state, r.offer.summary] for r in rows],
        )
    for problem in registry.problems:
        say(f"! {problem}")
    for plugin in registry.plugins:
        if plugin.state == "blocked":
            say(f"- plugin {plugin.title}: {plugin.cause}")
        elif plugin.state == "ok" and not plugin.offers and not plugin.builtin:
            what = [word for word, has in (("commands", plugin.commands), ("observers", plugin.observers)) if has]
            say(f"- plugin {plugin.title}: ok: {' and '.join(what) or 'nothing'}, no component")
        if plugin.import_s > SLOW_IMPORT_S and not plugin.builtin:
            say(
                f"! plugin {plugin.title}: its import took {plugin.import_s:.1f} s, more than {SLOW_IMPORT_S} s; "
                "import what is heavy inside the functions that need it"
            )


def _kind(kind: str | None) -> str | None:
    if kind is None:
        return None
    if kind not in KINDS:
        raise ConfigError(f"--kind: unknown kind {kind!r}; known: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    return KINDS[kind]


def _options(registry: Registry, name: str) -> int:
    kinds = [kind for kind in WORDS if name in registry.names(kind)]
    parts = [row for row in registry.rows if row.kind.startswith("part:") and row.offer.name == name]
    if not kinds and not parts:
        known = [row.offer.name for row in registry.rows]
        raise ConfigError(f"no component named {name!r}; see `assay plugins`.{did_you_mean(name, known)}")
    for kind in kinds:
        component, origin = registry.component(kind, name), registry.origin(kind, name)
        say(f"{WORDS[kind]} {name!r} from {origin.distribution} {origin.version}: {component.summary}")
        _option_table(component.config)
    for row in parts:
        part = registry.parts()[row.kind.removeprefix("part:"), name]
        say(f"{_word(row)} {name!r} from {row.plugin.title}: {part.summary}")
        _option_table(part.config)
    return 0


def _option_table(config: type[Any]) -> None:
    fields = getattr(config, "model_fields", {})
    rows = [
        [
            key,
            _type_name(field.annotation),
            "required" if field.is_required() else repr(field.get_default(call_default_factory=True)),
            field.description or "",
        ]
        for key, field in fields.items()
    ]
    if rows:
        table(["option", "type", "default", "meaning"], rows)
    else:
        say("it has no options")


def _type_name(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
