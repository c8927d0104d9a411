"""What the lab says when it cannot go on: one sentence."""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot do what was asked; the message is the whole report."""
