"""Every on-policy method once more, in plain floats from the papers' formulas, without a line of the package.

`python tests/conformance/by_hand.py` prints the expected numbers of golden/whole.toml: the loss of one batch of two
prompts with four responses each. Section by section: the batch, rewards, advantages, surrogates, averages, terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Row = list[float]
Rows = list[Row]

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
LENGTHS = [3, 2, 4, 1, 2, 3, 1, 2]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
TRUNCATED = [False, False, True, False, False, False, False, False]
LIMIT = 4
RTS = [0.0, 0.5, 0.25, 0.0, 0.0, 0.0, 0.75, 0.5]
COST = [0.3, -0.2, 0.1, 0.0, -0.1, 0.2, 0.0, 0.4]
EXPLANATION = [-0.5, -1.5]
"""Log-probs of an explanation's tokens under the current policy."""


def rows(value: Callable[[int, int], float]) -> Rows:
    """A number for each token of each response."""
    return [[value(i, t) for t in range(length)] for i, length in enumerate(LENGTHS)]


OLD = rows(lambda i, t: -0.7 - 0.1 * ((3 * i + 2 * t) % 7))
NOW = rows(lambda i, t: OLD[i][t] + 0.5 * math.sin(i + 2 * t + 1) - 0.1)
GEN = rows(lambda i, t: OLD[i][t] - 0.05 * ((i + t) % 3))
REFERENCE = rows(lambda i, t: OLD[i][t] + 0.1 * math.cos(i * t))
DPO = rows(lambda i, t: OLD[i][t] + 0.9 * math.sin(i + t))
VALUES = rows(lambda i, t: 0.3 + 0.05 * ((i + t) % 4))
COST_VALUES = rows(lambda i, t: 0.1 * ((i + t) % 3))
PROCESS = rows(lambda i, t: 0.1 * ((i + 2 * t) % 3))
SECOND_GEN = rows(lambda i, t: math.log(0.02))
SECOND_NOW = rows(lambda i, t: math.log(0.02 + 0.055 * ((i + t) % 4)))
"""Log-probs of one further token of a top two."""
WARM_UP = {"reinforce": 1, "kimi": 100}
"""Batches without any reward that come first: the moving average is then 0, the length reward's warm-up over."""

# ---- Rewards ---------------------------------------------------------------------------------------------------------


def at_end(rewards: Sequence[float]) -> Rows:
    """The reward of a response at its last token."""
    return [[0.0] * (length - 1) + [reward] for length, reward in zip(LENGTHS, rewards, strict=True)]


def minus(first: Rows, second: Rows) -> Rows:
    """Token by token."""
    return [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]


def plus(first: Rows, second: Rows, times: float = 1.0) -> Rows:
    """first + times x second, token by token."""
    return [[a + times * b for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]


def with_kl(beta: float, rewards: Sequence[float] = REWARDS) -> Rows:
    """r_t = -beta k1_t, and the reward at the last token."""
    return plus(at_end(rewards), minus(OLD, REFERENCE), -beta)


def overlong() -> list[float]:
    """DAPO: linear over the last fifth of the limit, here one token."""
    return [r + max(min((LIMIT - 1 - n) / 1, 0.0), -1.0) for r, n in zip(REWARDS, LENGTHS, strict=True)]


# ---- Advantages ------------------------------------------------------------------------------------------------------


def members(i: int) -> list[int]:
    """The rows of a row's group."""
    return [j for j, group in enumerate(GROUPS) if group == GROUPS[i]]


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """With ddof = 1."""
    return math.sqrt(sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1))


def spread(advantages: Sequence[float]) -> Rows:
    """One number per response, for each of its tokens."""
    return [[value] * length for value, length in zip(advantages, LENGTHS, strict=True)]


def centred(rewards: Sequence[float]) -> list[float]:
    """r - mean of the group."""
    return [rewards[i] - mean([rewards[j] for j in members(i)]) for i in range(8)]


def by_group(rewards: Sequence[float], virtual: Sequence[float] = ()) -> Rows:
    """GRPO's; `virtual` rewards count in mean and deviation only (NGRPO)."""
    found: list[float] = []
    for i in range(8):
        group = [*(rewards[j] for j in members(i)), *virtual]
        found.append((rewards[i] - mean(group)) / (std(group) + 1e-6))
    return spread(found)


def by_mean(rewards: Sequence[float]) -> Rows:
    """MaxRL's."""
    return spread([c / (mean([rewards[j] for j in members(i)]) + 1e-6) for i, c in enumerate(centred(rewards))])


def by_batch(rewards: Sequence[float]) -> Rows:
    """ScaleRL's."""
    values = centred(rewards)
    return spread([value / (std(values) + 1e-6) for value in values])


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """r - mean of the others."""
    return [rewards[i] - mean([rewards[j] for j in members(i) if j != i]) for i in range(8)]


def maclaurin(order: int) -> Rows:
    """MaxRL-T's weights times the group's size."""
    found: list[float] = []
    for i in range(8):
        size = len(members(i))
        failures = sum(REWARDS[j] < 1 for j in members(i))
        terms = [
            math.comb(failures - 1, k - 1) / math.comb(size - 1, k - 1) for k in range(2, min(order, failures) + 1)
        ]
        found.append(1.0 if REWARDS[i] == 1 else -sum(terms))
    return spread(found)


def whitened(advantages: Rows) -> Rows:
    """Mean 0 and deviation 1 over all tokens."""
    values = [value for row in advantages for value in row]
    scale = math.sqrt(std(values) ** 2 + 1e-8)
    return [[(value - mean(values)) / scale for value in row] for row in advantages]


def to_go(rewards: Rows) -> Rows:
    """What is still to come, token by token."""
    return [[sum(row[t:]) for t in range(len(row))] for row in rewards]


def gae(rewards: Rows, values: Rows) -> Rows:
    """lambda 0.95, gamma 1, no bootstrap."""
    found: Rows = []
    for row, value in zip(rewards, values, strict=True):
        after = [*value[1:], 0.0]
        deltas = [r + v_next - v for r, v_next, v in zip(row, after, value, strict=True)]
        found.append([sum(0.95 ** (k - t) * deltas[k] for k in range(t, len(row))) for t in range(len(row))])
    return found


def prime() -> Rows:
    """Leave-one-out for outcomes and for process rewards (times 5) against the others' means; to go; whitened."""
    process = [[5 * value for value in row] for row in PROCESS]
    centred_rows = [
        [value * 4 / 3 - sum(mean(process[j]) for j in members(i)) / 3 for value in row]
        for i, row in enumerate(process)
    ]
    return whitened(to_go(plus(at_end(leave_one_out(REWARDS)), centred_rows)))


def disco(scores: Sequence[float], tau: float) -> Rows:
    """G / n+ for positives, -G softmax(s / tau) for negatives."""
    found: list[float] = []
    for i in range(8):
        good = [j for j in members(i) if REWARDS[j] == 1]
        bad = [j for j in members(i) if REWARDS[j] == 0]
        total = sum(math.exp(scores[j] / tau) for j in bad)
        found.append(4 / len(good) if i in good else -4 * math.exp(scores[i] / tau) / total)
    return spread(found)


def best_worst() -> Rows:
    """+- G beta (sigma(-beta h) - smoothing) on the first best and the first worst of each group."""
    ratios = [sum(row) for row in minus(NOW, REFERENCE)]
    found = [0.0] * 8
    for start in (0, 4):
        group = range(start, start + 4)
        best, worst = max(group, key=lambda j: REWARDS[j]), min(group, key=lambda j: REWARDS[j])
        pull = 4 * 0.1 * (1 / (1 + math.exp(0.1 * (ratios[best] - ratios[worst]))) - 0.1)
        found[best], found[worst] = pull, -pull
    return spread(found)


def kimi(tau: float) -> Rows:
    """Length reward (correct: lam, wrong: min(0, lam)), group mean, and the pull to the reference."""
    rewards: list[float] = []
    for i in range(8):
        lengths = [LENGTHS[j] for j in members(i)]
        lam = 0.5 - (LENGTHS[i] - min(lengths)) / (max(lengths) - min(lengths))
        rewards.append(REWARDS[i] + (lam if REWARDS[i] == 1 else min(0.0, lam)))
    drift = [sum(row) for row in minus(NOW, REFERENCE)]
    return spread([c - tau * d for c, d in zip(centred(rewards), drift, strict=True)])


def rto_rewards() -> Rows:
    """clip(0.05 log(dpo / ref), +-0.05) - 0.01 log(old / ref), and the reward at the end."""
    bonus = [[max(min(0.05 * value, 0.05), -0.05) for value in row] for row in minus(DPO, REFERENCE)]
    return plus(plus(at_end(REWARDS), bonus), minus(OLD, REFERENCE), -0.01)


def rectified(weight: float) -> Rows:
    """(A_R - lambda A_C+) / (1 + lambda)."""
    costs = gae(at_end([max(value, 0.0) for value in COST]), COST_VALUES)
    gains = gae(with_kl(0.05), VALUES)
    return [[value / (1 + weight) for value in row] for row in plus(gains, costs, -weight)]


# ---- Surrogates: A x S of a token ------------------------------------------------------------------------------------


def token(denominator: Rows) -> Rows:
    """exp(logp - denominator)."""
    return [[math.exp(value) for value in row] for row in minus(NOW, denominator)]


def sequence() -> Rows:
    """GSPO's: exp of the mean log-ratio."""
    return [[math.exp(mean(row))] * len(row) for row in minus(NOW, OLD)]


def clipped(advantages: Rows, ratios: Rows, low: float, high: float) -> Rows:
    """min(A rho, A clip(rho))."""
    return [
        [min(a * rho, a * max(min(rho, 1 + high), 1 - low)) for a, rho in zip(x, y, strict=True)]
        for x, y in zip(advantages, ratios, strict=True)
    ]


def truncated(advantages: Rows, ratios: Rows, cap: float) -> Rows:
    """A min(rho, cap) logp."""
    return [
        [a * min(rho, cap) * logp for a, rho, logp in zip(x, y, z, strict=True)]
        for x, y, z in zip(advantages, ratios, NOW, strict=True)
    ]


def plain(advantages: Rows) -> Rows:
    """A logp."""
    return [[a * logp for a, logp in zip(x, y, strict=True)] for x, y in zip(advantages, NOW, strict=True)]


def masked(advantages: Rows, divergence: Callable[[int, int], float], limit: float) -> Rows:
    """DPPO's: A min(rho, 20) logp where the divergence in A's direction is small."""

    def value(i: int, t: int) -> float:
        p, q, a = math.exp(NOW[i][t]), math.exp(GEN[i][t]), advantages[i][t]
        away = p > q if a > 0 else p < q
        return 0.0 if away and divergence(i, t) > limit else a * min(p / q, 20.0) * NOW[i][t]

    return rows(value)


def binary(kind: str) -> Callable[[int, int], float]:
    """Of the event "this token"."""

    def value(i: int, t: int) -> float:
        p, q = math.exp(NOW[i][t]), math.exp(GEN[i][t])
        if kind == "tv":
            return abs(p - q)
        return q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))

    return value


def top_two(kind: str) -> Callable[[int, int], float]:
    """Of the token, one more, and the rest."""

    def value(i: int, t: int) -> float:
        p, q = [math.exp(NOW[i][t]), math.exp(SECOND_NOW[i][t])], [math.exp(GEN[i][t]), math.exp(SECOND_GEN[i][t])]
        p, q = [*p, max(1 - sum(p), 1e-12)], [*q, max(1 - sum(q), 1e-12)]
        if kind == "tv":
            return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    return value


# ---- Averages over tokens --------------------------------------------------------------------------------------------


def token_mean(values: Rows) -> float:
    """Over all tokens."""
    return sum(map(sum, values)) / sum(LENGTHS)


def row_mean(values: Rows) -> float:
    """Mean of the rows' means."""
    return mean([mean(row) for row in values])


def row_sum(values: Rows) -> float:
    """Mean of the rows' sums."""
    return mean([sum(row) for row in values])


def constant(values: Rows) -> float:
    """Sum over N x L."""
    return sum(map(sum, values)) / (8 * LIMIT)


def prompt_mean(values: Rows) -> float:
    """Mean over prompts of the mean over their tokens."""
    halves = [(range(4), sum(LENGTHS[:4])), (range(4, 8), sum(LENGTHS[4:]))]
    return mean([sum(sum(values[i]) for i in half) / tokens for half, tokens in halves])


def length_softmax(values: Rows) -> float:
    """lambda-GRPO at lambda = 1: f = G softmax(1 + z / 9), z by the population's deviation."""
    total = 0.0
    for start in (0, 4):
        lengths = LENGTHS[start : start + 4]
        deviation = math.sqrt(mean([(n - mean(lengths)) ** 2 for n in lengths]))
        heights = [1 + (n - mean(lengths)) / deviation / 9 for n in lengths]
        shares = [4 * math.exp(h) / sum(map(math.exp, heights)) for h in heights]
        total += sum(share * sum(values[start + k]) for k, share in enumerate(shares))
    return total / sum(LENGTHS)


# ---- Terms -----------------------------------------------------------------------------------------------------------


def kl(sample: str) -> Rows:
    """k2 or k3 of the current policy to the reference, token by token."""
    kinds: dict[str, Callable[[float], float]] = {"k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) + d - 1}
    return [[kinds[sample](value) for value in row] for row in minus(NOW, REFERENCE)]


def hinge() -> float:
    """DisCO's constraint with half the printed weight, KL = mean of -(logp - old)."""
    return 500 * max(token_mean(minus(OLD, NOW)) - 1e-4, 0.0) ** 2


def value_loss(rewards: Rows, values: Rows) -> float:
    """0.1 x 0.5 x mean of the larger of both squared errors; the new value is 0.1 above the old one."""
    targets = plus(gae(rewards, values), values)
    errors = rows(lambda i, t: (values[i][t] + min(0.1, 0.2) - targets[i][t]) ** 2)
    return 0.05 * token_mean(errors)


# ---- The methods -----------------------------------------------------------------------------------------------------


def whole() -> dict[str, float]:
    """The loss of each method on the batch."""
    group, means, token_old = by_group(REWARDS), [mean(row) for row in NOW], token(OLD)
    grpo = -row_mean(clipped(group, token_old, 0.2, 0.2))
    graded = [1 / (1 + math.exp(-5 * (share - 0.5))) if r < 1 else r for r, share in zip(REWARDS, RTS, strict=True)]
    tulu3 = [-10.0 if cut else r for r, cut in zip(REWARDS, TRUNCATED, strict=True)]
    dr = spread(centred(REWARDS))
    ratio_means = [mean(row) for row in token_old]

    def ppo(rewards: Rows) -> float:
        return -token_mean(clipped(whitened(gae(rewards, VALUES)), token_old, 0.2, 0.2)) + value_loss(rewards, VALUES)

    def divergence(found: Callable[[int, int], float], limit: float) -> float:
        return -constant(masked(dr, found, limit))

    costs = at_end([max(value, 0.0) for value in COST])
    return {
        "reinforce": -row_sum(plain(spread(REWARDS))),
        "reinforce_batch_mean": -row_sum(plain(spread([r - mean(REWARDS) for r in REWARDS]))),
        "ppo": ppo(with_kl(0.05)),
        "grpo": grpo + 0.04 * row_mean(kl("k3")),
        "rloo": -row_sum(plain(spread(leave_one_out([sum(row) for row in with_kl(0.05)])))),
        "dr_grpo": -constant(clipped(dr, token_old, 0.2, 0.2)),
        "dapo": -token_mean(clipped(by_group(overlong()), token_old, 0.2, 0.28)),
        "cispo": -token_mean(truncated(by_group(overlong()), token_old, 5.0)),
        "gspo": -row_mean(clipped(group, sequence(), 3e-4, 4e-4)),
        "gspo_token": -row_mean(clipped(group, sequence(), 3e-4, 4e-4)),
        "maxrl": -token_mean(clipped(by_mean(REWARDS), token_old, 0.2, 0.2)),
        "maxrl_t": -row_sum(clipped(maclaurin(8), token_old, 0.2, 0.2)),
        "dppo": divergence(binary("tv"), 0.15),
        "dppo_kl": divergence(binary("kl"), 0.1),
        "dppo_topk": divergence(top_two("tv"), 0.15),
        "dppo_topk_kl": divergence(top_two("kl"), 0.05),
        "scalerl": -prompt_mean(truncated(by_batch(REWARDS), token(GEN), 5.0)),
        "lambda_grpo": -length_softmax(clipped(group, token_old, 0.2, 0.28)),
        "reinforce_pp": -token_mean(clipped(whitened(to_go(with_kl(0.01))), token_old, 0.2, 0.2)),
        "reinforce_pp_baseline": -token_mean(clipped(whitened(dr), token_old, 0.2, 0.2)) + 0.01 * token_mean(kl("k2")),
        "disco": -row_mean(plain(disco(means, 10.0))) + hinge(),
        "disco_ratio": -row_mean([
            [a * rho for a, rho in zip(x, y, strict=True)]
            for x, y in zip(disco(ratio_means, 1.0), token_old, strict=True)
        ]) + hinge(),
        "sgpo": -row_mean(clipped(by_group(graded), token_old, 0.2, 0.2)) + 0.04 * row_mean(kl("k3")),
        "ngrpo": -token_mean(clipped(by_group(REWARDS, [1.0]), token_old, 0.16, 0.24)),
        "off_policy_grpo": -row_mean(clipped(group, token(GEN), 0.2, 0.2)) + 0.04 * row_mean(kl("k3")),
        "expo": grpo + 0.04 * row_mean(kl("k3")) - 0.04 * mean(EXPLANATION),
        "kimi": -row_sum(plain(kimi(0.1))),
        "online_dpo": -row_sum(plain(best_worst())),
        "rto": ppo(rto_rewards()),
        "prime": -token_mean(clipped(prime(), token_old, 0.2, 0.2)),
        "repo": -token_mean(clipped(rectified(1.0), token_old, 0.2, 0.2))
        + value_loss(with_kl(0.05), VALUES) + value_loss(costs, COST_VALUES),
        "tulu3": ppo(with_kl(0.05, tulu3)),
        "tulu3_1": -token_mean(clipped(group, token_old, 0.2, 0.2)) + 0.01 * token_mean(kl("k3")),
        "rlvr_world": -token_mean(clipped(group, token_old, 0.2, 0.2)) + 0.001 * token_mean(kl("k3")),
    }  # fmt: skip


if __name__ == "__main__":
    for name, number in whole().items():
        print(f"{name}: {number:.7f}")
