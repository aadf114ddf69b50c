"""What every policy optimizer must do, ours or a third party's, checked on small random batches.

    from assay.testing.optimizer_suite import check_optimizer
    check_optimizer(lambda: my_optimizer(options))

Each check takes a function that makes a fresh optimizer, and raises `AssertionError` with one sentence. torch is
imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.contracts.tensors import Denominators, Forward, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    from assay.protocols import Needs, PolicyOptimizer

Make = Callable[[], "PolicyOptimizer"]
TOLERANCE = 2e-6
"""Largest relative difference between two ways to compute the same loss or gradient in float32."""
SIZES = (4, 3, 4, 1)
"""Sizes of the groups of the suite's batches: ragged, and one that shrank to a single response."""
VOCABULARY = 24


def batch_of(
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    group_size: int | None = None,
    groups: Sequence[int] | None = None,
    max_tokens: int | None = None,
    width: int | None = None,
    truncated: Sequence[bool] | None = None,
    logp_gen: Tensor | None = None,
    logp_old: Tensor | None = None,
    logp_ref: Tensor | None = None,
    values: Tensor | None = None,
    token_reward: Tensor | None = None,
) -> TrainBatch:
    """A batch of responses with these rewards (NaN: masked) and token counts.

    Rows belong to `groups`, or to consecutive groups of `group_size`, or all to one. `width` pads beyond the longest.
    """
    import torch

    rows = len(rewards)
    widest = max(max(lengths), 1) if width is None else width
    mask = (torch.arange(widest).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)).float()
    if groups is None:
        groups = [row // group_size if group_size else 0 for row in range(rows)]
    group = torch.tensor(groups)
    return TrainBatch(
        mask=mask,
        reward=torch.tensor(list(rewards), dtype=torch.float32),
        group=group,
        truncated=torch.tensor(list(truncated) if truncated is not None else [False] * rows),
        denominators=denominators_of(mask, group, max_tokens if max_tokens is not None else widest),
        logp_gen=logp_gen,
        logp_old=logp_old,
        logp_ref=logp_ref,
        values=values,
        token_reward=token_reward,
    )


def denominators_of(mask: Tensor, group: Tensor, max_tokens: int) -> Denominators:
    """The global counts of a whole batch, by the definitions of `Denominators`."""
    lengths = mask.sum(dim=1)
    filled = lengths > 0
    same = (group.unsqueeze(0) == group.unsqueeze(1)).to(mask.dtype)
    group_rows = same @ filled.to(mask.dtype)
    return Denominators(
        rows=float(filled.sum()),
        tokens=float(lengths.sum()),
        groups=float((1.0 / group_rows[filled]).sum()),
        max_tokens=max_tokens,
        group_tokens=same @ lengths,
        group_rows=group_rows,
    )


def random_batch(needs: Needs, *, seed: int = 0, binary: bool = True, width: int = 7) -> tuple[TrainBatch, Tensor]:
    """A batch with ragged groups that holds all that `needs` asks for, and current log-probs (N, T) near the old ones.

    Rewards are 0 and 1, or all different where not `binary`; one response is truncated.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    rows = sum(SIZES)
    groups = [index for index, size in enumerate(SIZES) for _ in range(size)]
    lengths = [1 + int(6 * share) for share in uniform(rows)]
    rewards = (uniform(rows) > 0.5).float() if binary else uniform(rows)
    logp = -uniform(rows, width) - 0.05
    batch = batch_of(
        [float(reward) for reward in rewards],
        lengths,
        groups=groups,
        max_tokens=8,
        width=width,
        truncated=[row == 1 for row in range(rows)],
        logp_gen=logp + 0.1 * (uniform(rows, width) - 0.5),
        logp_old=logp,
        logp_ref=logp + 0.2 * (uniform(rows, width) - 0.5),
        values=uniform(rows, width) if needs.values else None,
        token_reward=uniform(rows, width) if needs.token_reward else None,
    )
    extra = {f"logp_{name}": logp + 0.1 * uniform(rows, width) for name in needs.models}
    if needs.values:
        extra["values_cost_critic"] = uniform(rows, width)
    topk = uniform(rows, width, VOCABULARY).log_softmax(-1)[..., : needs.topk] if needs.topk else None
    channels = {name: uniform(rows) for name in needs.channels}
    current = logp + 0.3 * (uniform(rows, width) - 0.5)
    return replace(batch, extra=extra, topk_gen=topk, channels=channels), current


def loss_and_gradient(
    optimizer: PolicyOptimizer, batch: TrainBatch, current: Tensor, slices: Sequence[Sequence[int]] | None = None
) -> tuple[float, Tensor]:
    """The loss of a prepared batch and its gradient by the current log-probs (N, T), summed over slices of rows."""
    import torch

    logp = current.clone().requires_grad_()
    whole = optimizer.rescore(batch, current)
    total = 0.0
    for rows in slices if slices is not None else [list(range(len(current)))]:
        index = torch.tensor(rows)
        report = optimizer.loss(whole.take(index), forward_of(optimizer.needs, batch.take(index), logp[index]))
        report.loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
        total += float(report.loss.detach())
    assert logp.grad is not None, "the loss has no gradient by the log-probs, not even one of zeros"
    return total, logp.grad


def forward_of(needs: Needs, batch: TrainBatch, logp: Tensor) -> Forward:
    """A forward with these log-probs (N, T); the rest is made of constants."""
    fixed = logp.detach() * 0.0
    topk = batch.topk_gen + 0.05 if batch.topk_gen is not None else None
    values = None if batch.values is None else batch.values + 0.1
    extra = {name: tensor + 0.1 for name, tensor in batch.extra.items() if name.startswith("values_")}
    logits = fixed.unsqueeze(-1).expand(*fixed.shape, VOCABULARY) if needs.logits else None
    return Forward(logp, fixed + 0.5, values=values, topk=topk, logits=logits, extra=extra)


def check_slices(make: Make, *, seed: int = 0, binary: bool = True) -> None:
    """Any split into slices gives the same loss and gradient."""
    optimizer = make()
    batch, current = random_batch(optimizer.needs, seed=seed, binary=binary)
    prepared = optimizer.prepare(batch)
    rows = len(current)
    whole = loss_and_gradient(optimizer, prepared, current)
    for slices in ([list(range(0, rows, 2)), list(range(1, rows, 2))], [[row] for row in reversed(range(rows))]):
        _same(whole, loss_and_gradient(optimizer, prepared, current, slices), f"split into {len(slices)} slices")


def check_padding(make: Make, *, seed: int = 0, binary: bool = True) -> None:
    """Columns of padding change nothing, whatever stands in them."""
    narrow = _run(make, seed=seed, binary=binary)
    wide = _run(make, seed=seed, binary=binary, padded=True)
    _same(narrow, (wide[0], wide[1][:, : narrow[1].shape[1]]), "three columns of padding appended")
    assert not bool(wide[1][:, narrow[1].shape[1] :].any()), "padding has a gradient"


def check_row_order(make: Make, *, seed: int = 0, binary: bool = True) -> None:
    """Another order of rows gives the same loss, and the gradients in that order."""
    import torch

    optimizer = make()
    batch, current = random_batch(optimizer.needs, seed=seed, binary=binary)
    order = torch.randperm(len(current), generator=torch.Generator().manual_seed(seed))
    loss, gradient = loss_and_gradient(optimizer, optimizer.prepare(batch), current)
    other = make()
    shuffled = loss_and_gradient(other, other.prepare(batch.take(order)), current[order])
    _same((loss, gradient[order]), shuffled, "rows in another order")


def check_masked_reward(make: Make, *, seed: int = 0, binary: bool = True) -> None:
    """A row whose reward is masked (NaN) is as good as absent."""
    import torch

    optimizer = make()
    batch, current = random_batch(optimizer.needs, seed=seed, binary=binary)
    row = 2
    masked = replace(batch, reward=batch.reward.where(torch.arange(len(current)) != row, torch.nan))
    loss, gradient = loss_and_gradient(optimizer, optimizer.prepare(masked), current)
    assert not bool(gradient[row].any()), "a masked row has a gradient"
    rest = torch.tensor([index for index in range(len(current)) if index != row])
    smaller = batch.take(rest)
    counted = denominators_of(smaller.mask, smaller.group, smaller.denominators.max_tokens)
    without = make()
    alone = loss_and_gradient(without, without.prepare(replace(smaller, denominators=counted)), current[rest])
    _same((loss, gradient[rest]), alone, "a masked row, or no such row")


def check_nothing_to_learn(make: Make) -> None:
    """Equal rewards, empty responses and a wholly masked batch give finite losses with a graph."""
    import torch

    for name in ("equal", "empty", "masked"):
        optimizer = make()
        batch, current = random_batch(optimizer.needs)
        if name == "equal":
            batch = replace(batch, reward=torch.zeros_like(batch.reward))
        if name == "empty":
            mask = batch.mask * (torch.arange(len(current)) > 0).unsqueeze(1)
            counts = denominators_of(mask, batch.group, batch.denominators.max_tokens)
            batch = replace(batch, mask=mask, denominators=counts)
        if name == "masked":
            batch = replace(batch, reward=torch.full_like(batch.reward, torch.nan))
        loss, gradient = loss_and_gradient(optimizer, optimizer.prepare(batch), current)
        assert loss == loss, f"{name}: the loss is NaN"
        assert bool(gradient.isfinite().all()), f"{name}: the gradient is not finite"
        assert name != "masked" or not bool(gradient.any()), "a wholly masked batch has a gradient"


def check_state(make: Make) -> None:
    """Each sidecar's state, loaded into a fresh optimizer, gives the same state again; names are unique."""
    optimizer, other = make(), make()
    for sidecar in (*optimizer.sidecars, *other.sidecars):
        if hasattr(sidecar, "bind"):
            getattr(sidecar, "bind")(8)  # noqa: B009 - not every sidecar is a critic
    optimizer.prepare(random_batch(optimizer.needs)[0])
    assert len({sidecar.name for sidecar in optimizer.sidecars}) == len(optimizer.sidecars), "two sidecars of one name"
    for old, new in zip(optimizer.sidecars, other.sidecars, strict=True):
        state = old.state_dict()
        new.load_state_dict(state)
        again = new.state_dict()
        assert state.keys() == again.keys(), f"{old.name}: the state has other keys after a trip"
        for key, value in state.items():
            equal = value == again[key]
            assert equal if isinstance(equal, bool) else bool(equal.all()), f"{old.name}.{key}: changed by a trip"


CHECKS = (check_slices, check_padding, check_row_order, check_masked_reward)


def check_optimizer(make: Make, *, seeds: Sequence[int] = (0, 1), binary: bool = True) -> None:
    """All checks; `binary` says whether rewards are 0 and 1."""
    for seed in seeds:
        for check in CHECKS:
            check(make, seed=seed, binary=binary)
    check_nothing_to_learn(make)
    check_state(make)


def _run(make: Make, *, seed: int, binary: bool, padded: bool = False) -> tuple[float, Tensor]:
    import torch

    optimizer = make()
    batch, current = random_batch(optimizer.needs, seed=seed, binary=binary)
    if padded:

        def widen(tensor: Tensor | None, fill: float) -> Tensor | None:
            if tensor is None or tensor.dim() < 2:
                return tensor
            shape = (tensor.shape[0], 3, *tensor.shape[2:])
            return torch.cat([tensor, tensor.new_full(shape, fill)], dim=1)

        odd = -3.7
        mask, wide = widen(batch.mask, 0.0), widen(current, odd)
        assert mask is not None
        assert wide is not None
        names = ("logp_gen", "logp_old", "logp_ref", "values", "token_reward", "topk_gen")
        tensors = {name: widen(getattr(batch, name), odd) for name in names}
        extra = {name: found for name, tensor in batch.extra.items() if (found := widen(tensor, odd)) is not None}
        batch, current = replace(batch, mask=mask, extra=extra, **tensors), wide
    return loss_and_gradient(optimizer, optimizer.prepare(batch), current)


def _same(one: tuple[float, Tensor], other: tuple[float, Tensor], what: str) -> None:
    scale = max(1.0, abs(one[0]))
    assert abs(one[0] - other[0]) <= TOLERANCE * scale, f"{what}: the loss is {other[0]:g} instead of {one[0]:g}"
    limit = TOLERANCE * max(1.0, float(one[1].abs().max()))
    worst = float((one[1] - other[1]).abs().max())
    assert worst <= limit, f"{what}: the gradient is off by {worst:g}, allowed {limit:g}"
