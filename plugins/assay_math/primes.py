"""Small number theory: square-free parts, prime factors, perfect roots."""

import math
from functools import lru_cache

PRIMES = tuple(n for n in range(2, 1000) if all(n % d for d in range(2, math.isqrt(n) + 1)))
"""The primes below 1000."""


@lru_cache(maxsize=4096)
def square_free(value: int) -> tuple[int, tuple[int, ...], int]:
    """`value = outside^2 * product(primes) * rest`, with small primes taken out and `rest` free of them."""
    outside = 1
    primes: list[int] = []
    for prime in PRIMES:
        if prime * prime > value:
            break
        count = 0
        while value % prime == 0:
            value //= prime
            count += 1
        outside *= prime ** (count // 2)
        if count % 2:
            primes.append(prime)
    root = math.isqrt(value)
    if root * root == value:
        return outside * root, tuple(primes), 1
    return outside, tuple(primes), value


@lru_cache(maxsize=1024)
def factors(value: int) -> dict[int, int]:
    """Prime factors below 1000 with their counts; what is left stands as one factor."""
    found: dict[int, int] = {}
    for prime in PRIMES:
        while value % prime == 0:
            value //= prime
            found[prime] = found.get(prime, 0) + 1
    if value > 1:
        found[value] = 1
    return found


def perfect_root(value: int, degree: int) -> int | None:
    """The exact root of that degree, or None."""
    if value < 2:
        return value
    guess = round(value ** (1 / degree)) if value.bit_length() < 1_000 else 0
    for candidate in (guess - 1, guess, guess + 1):
        if candidate > 0 and candidate**degree == value:
            return candidate
    return None
