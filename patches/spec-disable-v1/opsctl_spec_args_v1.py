"""Flag of opsctl's spec-disable-v1: known-bad, kept to reproduce the crash of the incident.

Kept apart from the implementation, which imports the worker's modules: the argument parser stays light.
"""

from __future__ import annotations


def add_arguments(parser) -> None:
    """Add the flag to SGLang's argument parser."""
    parser.add_argument(
        "--speculative-disable-batch-threshold",
        type=int,
        default=None,
        help="Known to crash: decode without drafts while more requests run than this.",
    )


def check(server_args) -> None:
    """Refuse a set-up in which another worker runs: it would pass, and say nothing about the patch."""
    if server_args.speculative_disable_batch_threshold is None:
        return
    eagle = server_args.speculative_algorithm in ("EAGLE", "EAGLE3")
    layers = getattr(server_args, "enable_multi_layer_eagle", False)
    if not eagle or layers or not server_args.disable_overlap_schedule:
        raise ValueError(
            "--speculative-disable-batch-threshold is spec-disable-v1's here, and that changes EAGLEWorker, "
            "which does not run in this set-up: SGLANG_ENABLE_SPEC_V2=0 and "
            "--disable-overlap-schedule select it, with EAGLE or EAGLE3"
        )
