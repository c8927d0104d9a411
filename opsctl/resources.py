"""Find the folders of data that ship with opsctl: playbooks, templates, patches."""

from __future__ import annotations

from pathlib import Path

from opsctl.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent


def folder(name: str, package: Path = PACKAGE) -> Path:
    """Return the folder ``name`` that belongs to this opsctl.

    A wheel installs it as ``opsctl_data/<name>`` beside the package (setup.py says so). In a checkout it
    stands beside the package itself, and only there: in site-packages a folder of that name is not ours.

    Raises:
        ConfigError: if the installation has no such folder.
    """
    installed = package.parent / "opsctl_data" / name
    if installed.is_dir():
        return installed
    checkout = package.parent / name
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    raise ConfigError(
        f"this opsctl was installed without its folder {name}",
        subject=str(package.parent),
        next_step="install it again from its wheel, or run it from a checkout",
        code="installation-incomplete",
    )
