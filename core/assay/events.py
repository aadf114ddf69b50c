"""What a run tells while it goes on."""

from collections.abc import Callable, Mapping
from typing import Any

Emit = Callable[[Mapping[str, Any]], None]
"""Receives events: `launch`, `resumed`, `note`, `evaluation`, `step`, `alert`, `done`; each is plain JSON with a key
`event`."""
