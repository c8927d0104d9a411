"""Who is told when a run has ended: one POST to an address that the site file only refers to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from opsctl.secret import SecretRef, Strict

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?charset=[\w-]+)?")


class Webhook(Strict):
    """One POST when a run of a server has ended."""

    url: SecretRef = Field(description="Its address, by reference: most hold a key. https alone.")
    when: Literal["always", "failure"] = Field(
        "always", description="failure: only when the exit code is not 0."
    )
    template: Path | None = Field(
        None, description="Jinja2 file that makes the body. Default: a JSON object with `text`."
    )
    content_type: str = Field("application/json", description="Of the body.")
    token: SecretRef | None = Field(None, description="Sent as `Authorization: Bearer ...`.")
    secret: SecretRef | None = Field(
        None, description="Key of the HMAC-SHA256 of the body, sent as `X-Opsctl-Signature`."
    )
    ca_file: Path | None = Field(None, description="Certificate authority to trust instead.")
    timeout_s: float = Field(10.0, gt=0, le=60, description="Longest time for all of it.")

    @field_validator("content_type")
    @classmethod
    def _media_type(cls, value: str) -> str:
        if not _MEDIA_TYPE.fullmatch(value):
            raise ValueError("write it as application/json")
        return value
