"""Flags of opsctl's spec-disable-v2: decode without drafts while many requests run.

Kept apart from the implementation, which imports the workers: the argument parser stays light.
"""

from __future__ import annotations


def add_arguments(parser) -> None:
    """Add the two flags to SGLang's argument parser."""
    parser.add_argument(
        "--speculative-disable-batch-threshold",
        type=int,
        default=None,
        help="Decode without drafts while more requests run than this. Drafting stops above "
        "threshold + margin running requests and comes back at threshold or fewer.",
    )
    parser.add_argument(
        "--speculative-disable-batch-margin",
        type=int,
        default=1,
        help="Hysteresis of --speculative-disable-batch-threshold, in requests.",
    )


def check(server_args) -> None:
    """Refuse a set-up in which the flag would silently do nothing, or which was never tried."""
    threshold = server_args.speculative_disable_batch_threshold
    if threshold is None:
        return
    reason = _unsupported(server_args)
    if threshold < 1 or server_args.speculative_disable_batch_margin < 0:
        reason = "the threshold is at least 1, the margin at least 0"
    if reason:
        raise ValueError(f"--speculative-disable-batch-threshold: {reason}")


def _unsupported(server_args) -> str:
    if server_args.speculative_algorithm not in ("EAGLE", "EAGLE3"):
        return f"it works with EAGLE and EAGLE3, not with {server_args.speculative_algorithm}"
    if server_args.disable_overlap_schedule:
        return (
            "it needs the overlap worker of speculative decoding (SGLANG_ENABLE_SPEC_V2=1, "
            "topk 1, no --disable-overlap-schedule); the other worker has no plain decode step"
        )
    for name in (
        "enable_dp_attention",
        "enable_two_batch_overlap",
        "enable_pdmux",
        "enable_multi_layer_eagle",
        "speculative_adaptive",
        "enable_lora",
    ):
        if getattr(server_args, name, False):
            return f"not together with --{name.replace('_', '-')}"
    if server_args.pp_size > 1:
        return "not together with pipeline parallelism"
    if server_args.disaggregation_mode != "null":
        return "not together with disaggregated prefill and decode"
    return ""
