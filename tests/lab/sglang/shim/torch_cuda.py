"""torch without CUDA: calls that SGLang's CPU path still makes do nothing."""

import os


def without_cuda(torch):
    """Patch torch; a build that sees a GPU is left alone."""
    if torch.cuda.is_available():
        return
    torch.cuda.synchronize = _nothing
    torch.cuda.empty_cache = _nothing
    torch.Tensor.record_stream = _nothing
    if torch.version.cuda is not None:
        # NCCL's name is answered by a stand-in (cuda_stubs.py); SGLang is to find none, as beside a CPU build
        os.environ.setdefault("SGLANG_NCCL_SO_PATH", "libnccl.so.2 (none without a GPU)")
        return  # torchvision fits this build, and registers its operators by itself
    # torchvision is a CUDA build, torch is not: it imports once these two operators are defined.
    library = torch.library.Library("torchvision", "DEF")
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    library.define("nms" + boxes)
    library.define("qnms" + boxes)
    torch._opsctl_lab_library = library  # defined for as long as this lives


def _nothing(*args, **kwargs):
    return None
