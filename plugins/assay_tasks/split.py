"""Which half a question belongs to: decided by its text alone, so that no question can be in both."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Literal

from pydantic import Field

from assay.component import Options

Part = Literal["all", "train", "held_out"]


class SplitOptions(Options):
    """Options of the split; give the training source and the evaluation source the same values but for `part`."""

    part: Part = "all"
    """Which questions to offer: `train`, `held_out`, or `all`."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the questions that is held out, between 0 and 1; only read where `part` is not `all`."""
    split_seed: int = 0
    """Another seed holds out other questions."""

    def offers(self, question: str) -> bool:
        """Whether a question belongs to `part`."""
        if self.part == "all":
            return True
        digest = hashlib.sha256(f"{self.split_seed}:{normalized(question)}".encode()).digest()
        held_out = int.from_bytes(digest[:8], "big") < self.held_out * 2**64
        return held_out == (self.part == "held_out")


def normalized(question: str) -> str:
    """The question without what does not change it: Unicode form, case, runs of white space."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())
