"""Secrets of services: read from the environment, refused where no HTTP header can carry them, and shown nowhere."""

import os

from pydantic import SecretStr

from assay.errors import ConfigError


def read_token(name: str | None, *, where: str) -> SecretStr | None:
    """The token in the environment variable `name`, or None without a name; `where` begins the error's sentence.

    Raises:
        ConfigError: the variable is not set, or holds what an HTTP client refuses with an error that shows it all (a
            line end, a space, a letter outside ASCII). The sentence names the variable and never its value.
    """
    if name is None:
        return None
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(f"{where}: the environment variable {name!r} is not set or empty; export it, or leave it out")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: the environment variable {name!r} holds no token: found a space, a line end or another sign "
            "than printable ASCII; export it without"
        )
    return SecretStr(token)
