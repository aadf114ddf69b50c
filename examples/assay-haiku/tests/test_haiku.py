"""The whole test of this package: the suite that every verifier passes."""

from pathlib import Path

from assay.testing import reward_suite

test_haiku = reward_suite("haiku", cases=Path(__file__).parents[1] / "cases.jsonl")
