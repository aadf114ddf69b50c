"""`assay plugins`: what is installed, and what is broken and why."""

import json
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from assay.cli.output import say, table
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
        kind: Only this kind: source, optimizer, objective, engine, sandbox, task or tracker; `optimizer` prints the
            composition table.
        broken: Only plugins that could not be loaded and names that were refused, with the causes.
        json_: One JSON object per line.
    """
    registry = Registry.load()
    wanted = _kind(kind)
    if broken:
        for problem in registry.problems:
            say(problem)
        if not registry.problems:
            say("no broken plugin")
        return 0
    if name is not None:
        return _options(registry, name)
    rows = [row for row in registry.rows if row.kind in WORDS and (wanted is None or row.kind == wanted)]
    if json_:
        _as_json(registry, rows)
    else:
        _as_table(registry, rows, composition=wanted == "policy_optimizer")
    return 0


def _as_json(registry: Registry, rows: Sequence[Row]) -> None:
    for row in rows:
        facts = {"kind": row.kind, "name": row.offer.name, "package": row.plugin.distribution}
        facts |= {"version": row.plugin.version, "state": row.state, "summary": row.offer.summary}
        say(json.dumps(facts | row.offer.facts))
    for plugin in registry.plugins:
        if plugin.state != "ok":
            say(json.dumps({"package": plugin.distribution, "state": plugin.state, "cause": plugin.cause}))


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
            [
                [r.offer.name, WORDS[r.kind], r.plugin.distribution, r.plugin.version, r.state, r.offer.summary]
                for r in rows
            ],
        )
    for problem in registry.problems:
        say(f"! {problem}")
    for plugin in registry.plugins:
        if plugin.state == "blocked":
            say(f"- plugin {plugin.title}: {plugin.cause}")


def _kind(kind: str | None) -> str | None:
    if kind is None:
        return None
    if kind not in KINDS:
        raise ConfigError(f"--kind: unknown kind {kind!r}; known: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    return KINDS[kind]


def _options(registry: Registry, name: str) -> int:
    kinds = [kind for kind in WORDS if name in registry.names(kind)]
    if not kinds:
        known = [row.offer.name for row in registry.rows if row.kind in WORDS]
        raise ConfigError(f"no component named {name!r}; see `assay plugins`.{did_you_mean(name, known)}")
    for kind in kinds:
        component, origin = registry.component(kind, name), registry.origin(kind, name)
        say(f"{WORDS[kind]} {name!r} from {origin.distribution} {origin.version}: {component.summary}")
        fields = getattr(component.config, "model_fields", {})
        rows = [
            [
                key,
                _type_name(field.annotation),
                "required" if field.is_required() else repr(field.default),
                field.description or "",
            ]
            for key, field in fields.items()
        ]
        if rows:
            table(["option", "type", "default", "meaning"], rows)
        else:
            say("it has no options")
    return 0


def _type_name(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
