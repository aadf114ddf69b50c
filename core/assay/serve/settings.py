"""What the operator of a server chooses."""

import ipaddress
import os
from dataclasses import dataclass

from assay.errors import ConfigError

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


def read_token(name: str | None, *, host: str) -> str | None:
    """The token in the variable `name`; raises `ConfigError` where it is not set, or needed and not named."""
    if name is None:
        if not is_loopback(host):
            raise ConfigError(
                f"assay serve: --host {host}: others can reach this address, so a token is needed; export one and name "
                "its variable, for example --token-env ASSAY_TOKEN"
            )
        return None
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(f"assay serve: --token-env {name}: this variable is not set or empty; export it first")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"assay serve: --token-env {name}: a token is printable ASCII without spaces; choose another")
    return token
