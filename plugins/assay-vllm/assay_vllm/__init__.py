"""A plug-in of vLLM: the weight transfer backend `assay_file`, which reads new weights from files on the same host.

It is installed into vLLM's own environment, knows nothing of assay, and imports vLLM only when it is called.
"""

import contextlib

__all__ = ["register"]


def register() -> None:
    """Make the backend known; vLLM calls this in each of its processes, and more than once in some."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # registered before in this process
        WeightTransferEngineFactory.register_engine("assay_file", "assay_vllm.engine", "FileEngine")
