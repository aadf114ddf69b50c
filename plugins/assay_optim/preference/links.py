"""Link functions of the PsiPO family: what is made of the margin h between two responses, each in nats.

A third party registers one as a `Part` of the axis `link`: a model of options with `loss(margin) -> loss`, both (B,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from assay.component import Options, Part

if TYPE_CHECKING:
    from torch import Tensor


class Link(Protocol):
    """A loss of the margin."""

    def loss(self, margin: Tensor) -> Tensor:
        """(B,) losses of margins (B,)."""
        ...


class Logistic(Options):
    """-(1 - e) log sigma(b h - gamma) - e log sigma(gamma - b h) (DPO, arXiv 2305.18290; SimPO, 2405.14734).

    check: h = 1.5, b = 0.1 gives 0.620957, and 0.635957 for e = 0.1.
    """

    beta: float = Field(default=0.1, gt=0.0)
    """b."""
    smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """e: the share of pairs that are thought to be labelled the wrong way round."""
    gamma: float = 0.0
    """By how much b h must win (SimPO: gamma / b = 0.25)."""

    def loss(self, margin: Tensor) -> Tensor:
        """(B,) losses, by softplus, never log(sigmoid())."""
        logit = self.beta * margin - self.gamma
        return (1 - self.smoothing) * softplus(-logit) + self.smoothing * softplus(logit)


class Square(Options):
    """(h - 1 / (2 tau))^2 (IPO, arXiv 2310.12036). check: h = 1.5, tau 0.1 gives 12.25."""

    tau: float = Field(default=0.1, gt=0.0)
    """tau."""

    def loss(self, margin: Tensor) -> Tensor:
        """(B,) losses."""
        return (margin - 1 / (2 * self.tau)).square()


class Hinge(Options):
    """max(0, 1 - b h) (SLiC-HF, arXiv 2305.10425)."""

    beta: float = Field(default=0.1, gt=0.0)
    """b."""

    def loss(self, margin: Tensor) -> Tensor:
        """(B,) losses."""
        return (1 - self.beta * margin).clamp(min=0)


def softplus(values: Tensor) -> Tensor:
    """log(1 + exp(x)) = -log sigma(-x), exact at both ends."""
    zero = values.new_zeros(())
    return values.logaddexp(zero)


def link_parts() -> tuple[Part, ...]:
    """The built-in links."""
    named = {"logistic": Logistic, "square": Square, "hinge": Hinge}
    return tuple(
        Part("link", name, model, lambda options: options, summary=(model.__doc__ or "").partition("\n")[0])
        for name, model in named.items()
    )
