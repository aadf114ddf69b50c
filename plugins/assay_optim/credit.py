"""Credits: how a response's reward is spread over its tokens. Masked tokens (padding, tools) are carried across."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from assay.component import Options
from assay.protocols import Needs
from assay_optim.masked import last_token, needed, zero_where_masked

if TYPE_CHECKING:
    from torch import Tensor

    from assay.contracts.tensors import TrainBatch


class Broadcast(Options):
    """Every token gets the response's advantage; token rewards are summed into the reward first."""

    @property
    def whole_response(self) -> bool:
        """True: the response is one action."""
        return True

    def assign(self, reward: Tensor, batch: TrainBatch) -> tuple[Tensor, Tensor | None]:
        """Advantages (N,)."""
        return reward, None


class ReturnToGo(Options):
    """A_t = r_t + gamma A_{t+1} over unmasked tokens; the reward stands at the last one (REINFORCE++, PRIME)."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount per token."""

    @property
    def whole_response(self) -> bool:
        """False: tokens keep their own rewards."""
        return False

    def assign(self, reward: Tensor, batch: TrainBatch) -> tuple[Tensor, Tensor | None]:
        """Advantages (N, T)."""
        return discounted(token_rewards(reward, batch), batch.mask, self.gamma), None


class Gae(Options):
    """delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lambda A_{t+1} (arXiv 1506.02438; PPO).

    V after the last token is 0, for truncated responses too (no bootstrap: the outcome or the EOS penalty decides).
    Returns A + V are taken before any whitening.
    """

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount per token."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """lambda."""

    @property
    def needs(self) -> Needs:
        """A critic."""
        return Needs(logp_old=False, values=True)

    @property
    def whole_response(self) -> bool:
        """False: tokens keep their own rewards."""
        return False

    def assign(self, reward: Tensor, batch: TrainBatch) -> tuple[Tensor, Tensor | None]:
        """Advantages (N, T) and returns (N, T)."""
        values = needed(batch.values, "values", "gae")
        return generalised_advantage(token_rewards(reward, batch), values, batch.mask, gamma=self.gamma, lam=self.lam)


def token_rewards(reward: Tensor, batch: TrainBatch) -> Tensor:
    """(N, T) token rewards with the response's reward added at its last unmasked token; NaN rewards count 0."""
    placed = last_token(batch.mask) * reward.nan_to_num(nan=0.0).unsqueeze(1)
    if batch.token_reward is None:
        return placed
    return placed + zero_where_masked(batch.token_reward, batch.mask)


def discounted(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """(N, T) discounted sums from each token on; a masked token shows and changes nothing."""
    running = rewards.new_zeros(len(rewards))
    columns: list[Tensor] = []
    for step in reversed(range(rewards.shape[1])):
        here = mask[:, step] > 0
        running = (rewards[:, step] + gamma * running).where(here, running)
        columns.append(running.where(here, 0.0))
    return _stacked(columns, rewards)


def generalised_advantage(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (N, T) from token rewards and values (N, T); both 0 on masked tokens."""
    advantage = value = rewards.new_zeros(len(rewards))
    columns: list[Tensor] = []
    for step in reversed(range(rewards.shape[1])):
        here = mask[:, step] > 0
        delta = rewards[:, step] + gamma * value - values[:, step]
        advantage = (delta + gamma * lam * advantage).where(here, advantage)
        value = values[:, step].where(here, value)
        columns.append(advantage.where(here, 0.0))
    advantages = _stacked(columns, rewards)
    return advantages, zero_where_masked(advantages + values, mask)


def _stacked(columns: list[Tensor], like: Tensor) -> Tensor:
    out = like.new_zeros(like.shape)
    for step, column in enumerate(reversed(columns)):
        out[:, step] = column
    return out
