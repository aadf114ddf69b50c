"""A verifier that is wrong in one way on about a quarter of the answers; `FAULT` in the environment says how."""

import os
import time
import zlib

from assay import Rollout, Task, Verdict


def reward_of(text: str) -> float:
    """Share of digits in the text, unless it is one of the answers that bring out the fault."""
    if zlib.crc32(text.encode()) % 4 == 0:
        fault = os.environ.get("FAULT", "")
        if fault == "hang":
            time.sleep(3600)
        if fault == "crash":
            os._exit(3)
        if fault == "raise":
            raise ValueError("the verifier has a bug")
        if fault == "nan":
            return float("nan")
        if fault == "huge":
            return 1e9
    return sum(character.isdigit() for character in text) / max(1, len(text))


def score(_task: Task, rollout: Rollout) -> Verdict:
    """The same as a verifier of assay."""
    return Verdict.score(reward_of(rollout.text))
