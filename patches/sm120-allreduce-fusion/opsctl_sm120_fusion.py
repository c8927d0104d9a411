"""opsctl's sm120-allreduce-fusion: let FlashInfer's fused all-reduce run on SM120 (RTX PRO 6000, RTX 50).

Experimental: it was never run on such a GPU. It stays off, with the reason in the log, unless every pair of
visible GPUs can reach each other's memory and FlashInfer's kernels can be built for SM120.
"""

from __future__ import annotations

import inspect
import logging

import torch

logger = logging.getLogger(__name__)


def is_supported() -> bool:
    """Say whether the fused all-reduce may be used on this machine's SM120 GPUs."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 12:
        return False
    reason = _missing_peer() or _admit_sm120()
    if reason:
        logger.warning("opsctl sm120-allreduce-fusion: off: %s", reason)
        return False
    logger.info("opsctl sm120-allreduce-fusion: ready (use --enable-flashinfer-allreduce-fusion)")
    return True


def _missing_peer() -> str:
    """Name two GPUs that cannot reach each other's memory: the kernel would hang or fault there."""
    count = torch.cuda.device_count()
    for first in range(count):
        for second in range(count):
            if first != second and not torch.cuda.can_device_access_peer(first, second):
                return f"GPU {first} cannot reach the memory of GPU {second} (no peer access)"
    return ""


def _admit_sm120() -> str:
    """Have FlashInfer build its all-reduce for SM120 too; 0.6.3 names only SM90 and SM100."""
    try:
        from flashinfer.jit import comm
    except ImportError as error:
        return f"FlashInfer cannot be imported ({error})"
    if "12" in inspect.getsource(comm.gen_trtllm_comm_module):
        return ""  # this FlashInfer admits it by itself
    context = getattr(comm, "current_compilation_context", None)
    if context is None:
        return "this FlashInfer is not the one that the patch was read against (0.6.3)"

    class WithSm120:
        """The compilation context, with SM120 among the majors that are asked for."""

        def __getattr__(self, name):
            return getattr(context, name)

        def get_nvcc_flags_list(self, supported_major_versions=None):
            majors = supported_major_versions
            if majors is not None and 10 in majors and 12 not in majors:
                majors = [*majors, 12]
            return context.get_nvcc_flags_list(supported_major_versions=majors)

    comm.current_compilation_context = WithSm120()
    return ""
