"""Secrets by reference: read at the moment of use, never kept in a file of ours, a log or an argv."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from opsctl.errors import ConfigError


class Strict(BaseModel):
    """A model that refuses what it does not know."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class SecretRef(Strict):
    """Where a secret is read from, at the moment it is needed: exactly one of the three."""

    env: str | None = Field(None, description="Name of an environment variable of opsctl.")
    file: Path | None = Field(None, description="File that holds the secret and nothing else.")
    command: list[str] | None = Field(
        None, description="Command (argv) that prints it, within 10 s."
    )

    @model_validator(mode="after")
    def _one(self) -> SecretRef:
        if sum(x is not None for x in (self.env, self.file, self.command)) != 1:
            raise ValueError("a secret is read from exactly one of env, file, command")
        return self

    def resolve(self) -> str:
        """Return the secret. Raises ConfigError (never with the secret in it)."""
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ConfigError(
                    f"the environment variable {self.env} is not set",
                    next_step=f"export {self.env}=..., or read the secret from a file or a command",
                    code="missing-variable",
                    subject=self.env,
                )
            return value
        if self.file is not None:
            try:
                return self.file.expanduser().read_text().strip()
            except OSError as error:
                raise ConfigError(f"{self.file}: {error.strerror}", code="secret-file") from error
        assert self.command is not None
        try:
            done = subprocess.run(self.command, capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"the secret command {self.command[0]} did not run: {type(error).__name__}"
            ) from error
        if done.returncode != 0:
            raise ConfigError(f"the secret command {self.command[0]} exited {done.returncode}")
        return done.stdout.decode(errors="replace").strip()
