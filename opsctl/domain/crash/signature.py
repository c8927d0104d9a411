"""Signatures: the same fault gets the same name on every host, rank, path and level of load."""

from __future__ import annotations

import hashlib
import re

# Order matters: the specific shape first, bare numbers last.
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\x1b\[[0-9;]*m", ""),
        (r"^[-*]+ +", ""),
        (r"GPU-[0-9a-fA-F-]{8,}", "<gpu>"),
        (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{4,}\b", "<id>"),
        (r"\(PCI:[0-9a-fA-F:.]+\)", "(<pci>)"),
        (r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b", "<pci>"),
        (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
        (r"\w+://[^\s'\",)]+", "<url>"),
        (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?", "<host>"),
        (r"\[[0-9a-fA-F:]+:[0-9a-fA-F:]*\](?::\d+)?", "<host>"),
        (r"\b(?:[A-Za-z0-9-]+\.)*[A-Za-z][A-Za-z0-9-]*:\d{2,5}\b(?!\w)", "<host>"),
        (r"(?<![\w<])(?:~|\.{1,2})?/(?:[\w.+@=-]+/)*([\w.+@=-]+)", r"<path>/\1"),
        (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b", "<id>"),
        (r"\bline \d+", "line N"),
        (r"(sglang::scheduler|scheduler|Worker)(?:_(?:gpu|tp|dp|ep|pp|TP|DP|EP|PP)?\d+)+", r"\1"),
        (r"\b(?:TP|DP|EP|PP|ATTN_DP|ATTN_TP|MOE_DP|rank|Rank|RANK|gpu|GPU|cuda:)\s?\d+", "<rank>"),
        (r"\b(dimension|dim=?|Errno|Xid|errno|error code|exit code|signal|status|code[=:]?)"
         r"(\s?\(?-?)(\d+)", r"\1\2#\3#"),
        (r"(Xid \(<pci>\): )(\d+)", r"\1#\2#"),
        (r"(?<![\w#])-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?=[A-Z]i?B\b|ms\b|s\b)", "N"),
        (r"(?<![\w#])-?\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?![\w#])", "N"),
        (r"#(\d+)#", r"\1"),
        (r"\b[KMGT]i?B\b", "B"),
        (r"\s+", " "),
    )
)  # fmt: skip

_LONG_LIST = re.compile(r"((?:[^\s,\[\]]+, ?){6})[^\[\]]*")
_QUOTED_ID = re.compile(r"'(?:<id>|N|[0-9a-f]{16,})'")


def normalise(text: str) -> str:
    """Return a message without what differs between hosts, runs, ranks and levels of load.

    Kept on purpose: error numbers, dimensions, exit codes, signals and Xid numbers, because they name
    the fault.
    """
    text = text[:600]
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    text = _QUOTED_ID.sub("'<id>'", text)
    return _LONG_LIST.sub(r"\1...", text).strip()[:240]


def make_signature(category: str, text: str, frames: tuple[str, ...]) -> tuple[str, str]:
    """Return the signature and the normalised words it was made of.

    Args:
        category: the verdict.
        text: the line that decided.
        frames: the server's own frames, innermost last; the last two take part.
    """
    words = " | ".join([category, normalise(text), *frames[-2:]])
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    return f"{category}:{digest}", words
