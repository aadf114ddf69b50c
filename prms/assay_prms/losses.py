"""Losses of reward models, pure and in float32 from logits; one number per pair, step or response.

Letters: B responses, S steps (padded), T tokens. No loss takes the logarithm of a sigmoid's value or adds an epsilon
inside a logarithm.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

__all__ = ["bradley_terry", "implicit_values", "option_preference", "pqm", "step_rewards", "yes_or_no"]


def bradley_terry(
    chosen: Tensor,
    rejected: Tensor,
    margin: Tensor | float = 0.0,
    centring: float = 0.0,
    preference: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(B,) -log sigma(chosen - rejected - margin), and (B,) centring x (chosen + rejected)^2, to be added.

    A `preference` p in [0, 1], the chance that `chosen` is the better one, makes the first part the cross entropy with
    it: p softplus(-x) + (1 - p) softplus(x), x = chosen - rejected - margin (soft labels of an AI judge, arXiv
    2212.08073). The second part keeps the scale from drifting (Eisenstein et al., arXiv 2312.09244; 0.01).
    check: 1.2 and 0.5 give 0.403186; margin 0.3: 0.513015; centring 0.01: 0.0289; preference 0.6: 0.683186.
    """
    chosen, rejected = chosen.float(), rejected.float()
    gap = chosen - rejected - margin
    return preference * softplus(-gap) + (1 - preference) * softplus(gap), centring * (chosen + rejected).square()


def option_preference(first: float, second: float, within: tuple[float, float] = (0.0, 1.0)) -> float:
    """Chance of the first of two options by a judge's log-probs of their names, normalised over both and held `within`.

    Constitutional AI (Bai et al., arXiv 2212.08073): 0.4 to 0.6 behind a chain of thought, which makes judges too sure.
    check: -1 and -2.5 give 0.817574, held within 0.4 and 0.6 it is 0.6.
    """
    low, high = within
    return min(max(1 / (1 + math.exp(min(second - first, 700.0))), low), high)


def yes_or_no(logit: Tensor, label: Tensor) -> Tensor:
    """Binary cross entropy of logits with labels in [0, 1], hard or soft, of the same shape; element by element.

    For two-class logits z hand in z_positive - z_negative: it is then their cross entropy. Sources: PRM800K (arXiv
    2305.20050), Math-Shepherd (arXiv 2312.08935; hard any-correct or soft share of correct continuations).
    """
    return binary_cross_entropy_with_logits(logit.float(), label.float(), reduction="none")


def pqm(q: Tensor, label: Tensor, zeta: float = 4.0) -> Tensor:
    """(B,) ranking losses of step values q (B, S) with labels (B, S): 1 right, 0 wrong, NaN unlabelled or padding.

    PQM (Li and Li, arXiv 2410.11287): for each right step t, -log(e^{Q_t} / (sum_{q<=t, right} e^{Q_q} +
    sum_{wrong} e^{Q_w + zeta})), with a virtual right step Q_0 = 0 in every denominator, whose own term counts only
    where a wrong step exists; mean over the terms. The authors' 1e-5 inside the denominator is left out: logsumexp
    needs none. NaN where a response has no labelled step; leave such responses out.
    check, zeta 4: Q [.5, 1, -2], labels 1, 1, 0: 1.826430; [.5, 1] all right: 0.577176; [-1, -2] all wrong: 3.349013.
    """
    q = q.float()
    right, wrong = label >= 0.5, label < 0.5
    minus = torch.full_like(q, -torch.inf)
    zero = q.new_zeros(q.shape[0], 1)
    wrongs = torch.logsumexp(torch.cat([(q + zeta).where(wrong, minus), zero - torch.inf], dim=1), dim=1, keepdim=True)
    before = torch.logcumsumexp(torch.cat([zero, q.where(right, minus)], dim=1), dim=1)
    terms = torch.logaddexp(before, wrongs) - torch.cat([zero, q], dim=1)
    counted = torch.cat([wrong.any(dim=1, keepdim=True), right], dim=1)
    return terms.where(counted, 0.0).sum(dim=1) / counted.sum(dim=1)


def implicit_values(logp: Tensor, reference: Tensor, mask: Tensor, beta: float) -> Tensor:
    """(B, T) q_t = beta x sum_{i<=t} (log pi - log ref) over tokens where mask is 1 (Implicit PRM, arXiv 2412.01981).

    check: log-ratios .4, -.2, .6, .1 and beta .05 give .02, .01, .04, .045.
    """
    return beta * ((logp.float() - reference.float()) * mask).cumsum(dim=1)


def step_rewards(q: Tensor, ends: Tensor) -> Tensor:
    """(S,) rewards q_end(k) - q_end(k-1) of one response's values q (T,), the first step from 0.

    `ends` (S,) are the indices of the steps' last tokens, rising. check: q above, ends 1 and 3: .01, .035.
    """
    at = q[ends]
    return at - torch.cat([at.new_zeros(1), at[:-1]])
