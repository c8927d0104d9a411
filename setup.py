"""Packages of the wheel: opsctl, and the folders of data that stand beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

DATA_FOLDERS = [name for name in ("playbooks", "templates", "patches") if Path(name).is_dir()]

setup(
    packages=[
        *find_packages(include=["opsctl", "opsctl.*"]),
        *(f"opsctl_data.{n}" for n in DATA_FOLDERS),
    ],
    package_dir={f"opsctl_data.{name}": name for name in DATA_FOLDERS},
    package_data={f"opsctl_data.{name}": ["*", "**/*"] for name in DATA_FOLDERS},
)
