"""Meets the processes that torchrun started, and sends them home; torch is imported only where there are several."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from assay.training.sharding import ShardedRanks


def meet(device: str) -> "ShardedRanks | None":
    """This process among those that torchrun started; None where it is alone.

    Raises:
        ConfigError: they cannot meet, or torchrun was asked for one process only.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from assay.training.sharding import ShardedRanks, launched

    if not launched():
        raise ConfigError("torchrun: one process has nothing to divide; use --nproc-per-node 2 or more, or assay train")
    return ShardedRanks(device)


def speaks() -> bool:
    """Whether this process speaks for all: the first of those that torchrun started, or one alone."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK") == "0"


def dismiss(ranks: "ShardedRanks") -> None:
    """On rank 0: the run is over; a peer that is gone needs no telling."""
    with suppress(TrainingError), ranks.leading({"do": "end"}):
        pass
