"""The objectives as components; each preset is the options model of its family with other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.component import BuildContext, Component
from assay.errors import ConfigError, did_you_mean
from assay.protocols import Objective
from assay_optim.options import PartSpec, checked, spec
from assay_optim.parts import indexed
from assay_optim.preference.imitation import SftObjective, SftOptions
from assay_optim.preference.links import Link, link_parts
from assay_optim.preference.pairs import OrpoObjective, OrpoOptions, PairObjective, PairOptions, Reference
from assay_optim.preference.ranked import Form, LarpoObjective, LarpoOptions
from assay_optim.preference.unpaired import BnfObjective, BnfOptions, KtoObjective, KtoOptions


class DpoOptions(PairOptions):
    """DPO (arXiv 2305.18290)."""


class NormalisedDpoOptions(PairOptions):
    """Length-normalised DPO (Tulu 3, arXiv 2411.15124): log-ratios per token, beta 5."""

    link: PartSpec = spec("logistic", beta=5.0)
    """What is made of h."""
    length_norm: bool = True
    """Scores per token."""


class IpoOptions(PairOptions):
    """IPO (arXiv 2310.12036); per-token means, as its authors confirmed; `length_norm = false` for sums."""

    link: PartSpec = spec("square", tau=0.1)
    """What is made of h."""
    length_norm: bool = True
    """Scores per token."""


class SimpoOptions(PairOptions):
    """SimPO (arXiv 2405.14734): mean log-probs without a reference, and a margin; gamma / beta = 0.25."""

    link: PartSpec = spec("logistic", beta=2.0, gamma=0.5)
    """What is made of h."""
    length_norm: bool = True
    """Scores per token."""
    reference: Reference = "none"
    """No reference."""


class SpinOptions(PairOptions):
    """SPIN (arXiv 2401.01335): human texts against the last iterate's own; the iterate is also the reference."""

    reference: Reference = "iterate"
    """The policy of the last iteration."""


class IterativeDpoOptions(PairOptions):
    """Iterative DPO (arXiv 2405.07863): label smoothing 0.1, the reference follows the iterations."""

    link: PartSpec = spec("logistic", beta=0.1, smoothing=0.1)
    """What is made of h."""
    reference: Reference = "iterate"
    """The policy of the last iteration."""


class HingeOptions(PairOptions):
    """A hinge on the scaled margin (SLiC-HF, arXiv 2305.10425)."""

    link: PartSpec = spec("hinge", beta=0.1)
    """What is made of h."""


class LarpoLambdaRankOptions(LarpoOptions):
    """LarPO, all pairs of the list."""

    form: Form = "lambdarank"
    """The form."""


class LarpoListOptions(LarpoOptions):
    """LarPO, the likelihood of the whole order."""

    form: Form = "listmle"
    """The form."""


def build_pairs(options: PairOptions, context: BuildContext) -> Objective:
    """A member of the PsiPO family; its link may come from another plugin."""
    known = {**context.parts, **indexed(link_parts())}
    part = known.get(("link", options.link.use))
    if part is None:
        names = sorted(name for axis, name in known if axis == "link")
        raise ConfigError(
            f"objective.link.use: no link named {options.link.use!r}; known: {', '.join(names)}."
            f"{did_you_mean(options.link.use, names)}"
        )
    what = f"link {options.link.use!r}"
    link: Link = part.build(checked(part.config, options.link.options, where="objective.link", what=what))
    return PairObjective(options, link)


def build_sft(options: SftOptions, _context: BuildContext) -> Objective:
    """Supervised fine-tuning."""
    return SftObjective(options)


def build_orpo(options: OrpoOptions, _context: BuildContext) -> Objective:
    """ORPO."""
    return OrpoObjective(options)


def build_kto(options: KtoOptions, _context: BuildContext) -> Objective:
    """KTO."""
    return KtoObjective(options)


def build_bnf(options: BnfOptions, _context: BuildContext) -> Objective:
    """BNF."""
    return BnfObjective(options)


def build_larpo(options: LarpoOptions, _context: BuildContext) -> Objective:
    """LarPO in one of its forms."""
    return LarpoObjective(options)


def objectives() -> list[Component[Any, Objective]]:
    """All objectives of this plugin."""
    pairs: Mapping[str, type[PairOptions]] = {
        "dpo": DpoOptions,
        "dpo_norm": NormalisedDpoOptions,
        "ipo": IpoOptions,
        "simpo": SimpoOptions,
        "spin": SpinOptions,
        "iterative_dpo": IterativeDpoOptions,
        "hinge": HingeOptions,
        "psipo": PairOptions,
    }
    found = [_component(name, model, build_pairs) for name, model in pairs.items()]
    found.append(_component("sft", SftOptions, build_sft, kind="sft"))
    found.append(_component("orpo", OrpoOptions, build_orpo))
    found.append(_component("kto", KtoOptions, build_kto))
    found.append(_component("bnf", BnfOptions, build_bnf))
    ranked: Mapping[str, type[LarpoOptions]] = {
        "larpo": LarpoOptions,
        "larpo_lambdarank": LarpoLambdaRankOptions,
        "larpo_listmle": LarpoListOptions,
    }
    found += [_component(name, model, build_larpo) for name, model in ranked.items()]
    return found


def _component(name: str, model: type[Any], build: Any, kind: str = "preference") -> Component[Any, Objective]:
    summary = (model.__doc__ or "").partition("\n")[0]
    return Component(name, model, build, summary=summary, extra="train", facts={"kind": kind})
