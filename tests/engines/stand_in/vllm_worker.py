"""Loaded by vLLM's worker where there is no GPU: what its `nccl` backend asks of CUDA is answered by doing nothing.

The backend itself, its packing and its NCCL binding are vLLM's own; the library is the one in `VLLM_NCCL_SO_PATH`.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from vllm.distributed.weight_transfer import packed_tensor
from vllm.utils import torch_utils

STREAM = SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
torch.accelerator.current_device_index = lambda: "cpu"
torch.accelerator.device_index = lambda index: nullcontext()
torch.accelerator.synchronize = lambda *_: None
torch.cuda.stream = lambda stream: nullcontext()
packed_tensor._get_streams = lambda device, count: (STREAM,) * count
torch_utils._StreamPlaceholder.cuda_stream = 0


class Extension:
    """Nothing further."""
