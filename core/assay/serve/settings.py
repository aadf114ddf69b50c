"""What the operator of a server chooses."""

import ipaddress
from dataclasses import dataclass

from assay.errors import ConfigError
from assay.tokens import read_token

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Bounds and secrets of one server."""

    token: str | None = None
    """What `Authorization: Bearer ...` must say; None lets everybody in who reaches the loopback interface."""
    max_body_bytes: int = 8 * MIB
    queue: int = 1000
    """Items that may be under way at once, of all requests together."""
    deadline_s: float = 60.0
    """Longest time that a request may take; also that of a request which names none."""
    body_s: float = 30.0
    """Longest time that a request's body may take to arrive."""
    headers_s: float = 10.0
    """Longest time that a connection may take to say what it wants."""
    drain_s: float = 9.0
    """Time that requests under way get when the server is told to stop."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def client_token(name: str | None, *, host: str) -> str | None:
    """The token in the variable `name`; raises `ConfigError` where it cannot be one, or is needed and not named."""
    if name is None and not is_loopback(host):
        raise ConfigError(
            f"assay serve: --host {host}: others can reach this address, so a token is needed; export one and name "
            "its variable, for example --token-env ASSAY_TOKEN"
        )
    token = read_token(name, where="assay serve: --token-env")
    return None if token is None else token.get_secret_value()
