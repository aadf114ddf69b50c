"""Options to a `Composition`: look parts up, check their options, refuse contradictions in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from assay.component import BuildContext, Part
from assay.errors import ConfigError, did_you_mean
from assay.protocols import Needs, Regulariser, Sidecar
from assay_optim.advantage import Standard
from assay_optim.optimizer import Composition
from assay_optim.options import CompositionOptions, PartSpec, checked
from assay_optim.parts import PARTS, indexed

TOKEN_REWARDS = ("kl_in_reward", "dpo_token_reward", "process_reward")
"""Shapers that pay single tokens."""
BINARY = ("maclaurin", "disco")
"""Estimators that tell right from wrong by the reward and see no other."""
NONE = PartSpec(use="none")
BROADCAST = PartSpec(use="broadcast")


class Builder:
    """Builds parts of one composition and remembers them, so that their needs and sidecars can be merged."""

    def __init__(self, parts: Mapping[tuple[str, str], Part]) -> None:
        """Look up among `parts`, the built-in ones first."""
        self.parts = {**parts, **indexed(PARTS)}
        self.built: list[object] = []
        self.needs: list[Needs | None] = []

    def look_up(self, axis: str, spec: PartSpec, where: str) -> tuple[Part, Any]:
        """The part's entry and its checked options; `ConfigError` for an unknown name or bad ones."""
        part = self.parts.get((axis, spec.use))
        if part is None:
            known = sorted(name for other, name in self.parts if other == axis)
            raise ConfigError(
                f"optimizer.{where}.use: no {axis.replace('_', ' ')} named {spec.use!r}; "
                f"known: {', '.join(known) or 'none'}.{did_you_mean(spec.use, known)}"
            )
        what = f"{axis.replace('_', ' ')} {spec.use!r}"
        options = checked(part.config, spec.options, where=f"optimizer.{where}", what=what)
        self.needs.append(getattr(options, "needs", None))
        return part, options

    def one(self, axis: str, spec: PartSpec, where: str) -> Any:
        """The part, built."""
        part, options = self.look_up(axis, spec, where)
        built = part.build(options)
        self.built.append(built)
        self.needs.append(getattr(built, "needs", None))
        return built

    def many(self, axis: str, specs: Sequence[PartSpec], where: str) -> list[Any]:
        """The parts of a list."""
        return [self.one(axis, spec, f"{where}[{index}]") for index, spec in enumerate(specs)]


def compose(name: str, options: CompositionOptions, parts: Mapping[tuple[str, str], Part] | None = None) -> Composition:
    """The optimizer that `options` describe; `parts` are further ones, from other plugins."""
    _refuse_contradictions(options)
    builder = Builder(parts or {})
    shapers = builder.many("shaper", options.shaping, "shaping")
    rules = builder.many("batch_rule", options.batch_rules, "batch_rules")
    if options.estimator is not None:
        estimator = builder.one("estimator", options.estimator, "estimator")
    else:
        estimator = Standard(
            builder.one("baseline", options.baseline or NONE, "baseline"),
            builder.one("scale", options.scale or NONE, "scale"),
            builder.one("credit", options.credit or BROADCAST, "credit"),
            options.virtual_samples,
        )
    ratio = builder.one("ratio", options.ratio, "ratio")
    trust_region = builder.one("trust_region", options.trust_region, "trust_region")
    aggregation = builder.one("aggregation", options.aggregation, "aggregation")
    regularisers: list[Regulariser] = builder.many("regulariser", options.regularisers, "regularisers")
    for part in builder.built:
        regularisers.extend(getattr(part, "regularisers", ()))
    sidecars: list[Sidecar] = [side for part in builder.built for side in getattr(part, "sidecars", ())]
    sidecars.extend(builder.many("sidecar", options.sidecars, "sidecars"))
    if options.task_sampler is not None:
        sidecars.append(builder.one("task_sampler", options.task_sampler, "task_sampler"))
    _refuse_twins(sidecars)
    return Composition(
        name=name,
        estimator=estimator,
        ratio=ratio,
        trust_region=trust_region,
        aggregation=aggregation,
        needs=merged([*builder.needs, *(getattr(part, "needs", None) for part in regularisers)]),
        shapers=shapers,
        rules=rules,
        regularisers=regularisers,
        sidecars=sidecars,
    )


def needs_of(options: CompositionOptions, parts: Mapping[tuple[str, str], Part] | None = None) -> Needs:
    """What the options of the parts ask for, without building one (so without torch)."""
    builder = Builder(parts or {})
    for axis, where, specs in placed(options):
        for spec in specs:
            builder.look_up(axis, spec, where)
    return merged(builder.needs)


def placed(options: CompositionOptions) -> list[tuple[str, str, Sequence[PartSpec]]]:
    """(axis, key of the config, parts that stand there) for every axis."""
    lists = [("shaper", "shaping"), ("batch_rule", "batch_rules"), ("regulariser", "regularisers")]
    found: list[tuple[str, str, Sequence[PartSpec]]] = [(axis, key, getattr(options, key)) for axis, key in lists]
    found.append(("sidecar", "sidecars", options.sidecars))
    singles = ("task_sampler", "estimator", "baseline", "scale", "credit", "ratio", "trust_region", "aggregation")
    found += [(axis, axis, (spec,)) for axis in singles if (spec := getattr(options, axis)) is not None]
    return found


def build(name: str, options: CompositionOptions, context: BuildContext) -> Composition:
    """`compose` with the parts of all plugins."""
    return compose(name, options, context.parts)


def merged(needs: Iterable[Needs | None]) -> Needs:
    """What all of `needs` together ask for: flags or-ed, numbers the largest, names united."""
    values: dict[str, Any] = {
        field.name: field.default for field in fields(Needs) if field.name not in ("logp_old",)
    } | {"logp_old": False}
    for need in needs:
        if need is None:
            continue
        for key, old in values.items():
            new: Any = getattr(need, key)
            values[key] = tuple(dict.fromkeys(old + new)) if type(old) is tuple else max(old, new)
    return Needs(**values)


def _refuse_contradictions(options: CompositionOptions) -> None:
    baseline, credit = _use(options.baseline, "none"), _use(options.credit, "broadcast")
    if options.estimator is not None:
        _refuse_beside(options.estimator.use, options)
    if baseline == "group_loo_per_source" and credit == "broadcast":
        raise ConfigError(
            "optimizer.baseline: 'group_loo_per_source' centres the rewards of tokens and the credit 'broadcast' sums "
            "them first; set credit = 'return_to_go' or baseline = 'group_loo'"
        )
    if credit == "gae" and baseline != "critic":
        raise ConfigError(
            f"optimizer.credit: 'gae' needs a critic; the baseline is {baseline!r}; set baseline = 'critic'"
        )
    if baseline == "critic" and credit != "gae":
        raise ConfigError(
            f"optimizer.baseline: a critic is only used by the credit 'gae'; the credit is {credit!r}; "
            f"set credit = 'gae' or another baseline"
        )
    if options.virtual_samples is not None and not baseline.startswith("group_"):
        raise ConfigError(
            f"optimizer.virtual_samples: they enter the statistics of a group; the baseline is {baseline!r}; "
            f"set baseline = 'group_mean'"
        )
    _refuse_ratio(options.ratio.use, options.trust_region.use, options)


def _refuse_beside(estimator: str, options: CompositionOptions) -> None:
    """What cannot stand beside an estimator in one piece."""
    for axis in ("baseline", "scale", "credit", "virtual_samples"):
        if getattr(options, axis) is not None:
            raise ConfigError(
                f"optimizer.{axis}: the estimator {estimator!r} gives advantages in one piece; "
                f"found {axis} as well; remove one of the two"
            )
    paid = next((spec.use for spec in options.shaping if spec.use in TOKEN_REWARDS), None)
    if paid is not None and estimator in BINARY:
        raise ConfigError(
            f"optimizer.shaping: {paid!r} pays single tokens and the estimator {estimator!r} only tells right "
            f"responses from wrong ones; remove one of the two"
        )


def _refuse_ratio(ratio: str, region: str, options: CompositionOptions) -> None:
    """What the ratio cannot be limited or weighed by."""
    if ratio == "none" and region != "none":
        raise ConfigError(
            f"optimizer.trust_region: {region!r} limits a ratio and the ratio is 'none'; set ratio = 'token'"
        )
    if region == "divergence_mask" and ratio != "token":
        raise ConfigError(
            f"optimizer.trust_region: 'divergence_mask' compares single tokens; the ratio is {ratio!r}; "
            f"set ratio = 'token'"
        )
    credit = _use(options.credit, "broadcast")
    varies = "" if credit == "broadcast" else f"the credit {credit!r}"
    if _use(options.estimator, "") == "rectified":
        varies = "the estimator 'rectified'"
    if ratio in ("sequence", "sequence_sum") and varies:
        raise ConfigError(
            f"optimizer.ratio: {ratio!r} has one ratio per response and {varies} one advantage per token; "
            f"set ratio = 'sequence_token'"
        )


def _use(spec: PartSpec | None, default: str) -> str:
    return default if spec is None else spec.use


def _refuse_twins(sidecars: Sequence[Sidecar]) -> None:
    seen: set[str] = set()
    for sidecar in sidecars:
        if sidecar.name in seen:
            raise ConfigError(
                f"optimizer: two parts keep state under the name {sidecar.name!r}; their checkpoints would overwrite "
                f"one another; use one of them"
            )
        seen.add(sidecar.name)
