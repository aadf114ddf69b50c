"""Best-of-n by a reward source, against majority vote and the oracle."""
