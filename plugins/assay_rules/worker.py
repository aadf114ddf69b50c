"""The worker's side of the rules: judges one long response, so that the loop of the run need not."""

from functools import lru_cache
from typing import Any, cast

from pydantic import JsonValue

from assay.component import BuildContext
from assay.contracts import Rollout, Task
from assay_rules.plugin import assay_reward_sources
from assay_rules.source import RuleSource

_components = {component.name: component for component in assay_reward_sources()}


@lru_cache(maxsize=64)
def _source(name: str, options: str) -> RuleSource:
    component = _components[name]
    source = component.build(component.config.model_validate_json(options), BuildContext())
    return cast("RuleSource", source)


def judge(payload: JsonValue) -> JsonValue:
    """The verdict, as JSON, of the rule `payload["name"]` with its `options` on `task` and `rollout`."""
    fields = cast("dict[str, Any]", payload)
    source = _source(fields["name"], fields["options"])
    verdict = source.judge_one(Task.model_validate(fields["task"]), Rollout.model_validate(fields["rollout"]))
    return verdict.model_dump(mode="json")
