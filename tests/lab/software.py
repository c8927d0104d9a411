"""What is installed on the lab's GPU machines: the NVML library, nvidia-smi, and a server environment."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tests.lab import gpus, nvml, standin
from tests.lab.enter import must
from tests.lab.instance import Instance
from tests.lab.rootfs import Layer

HERE = Path(__file__).parent
SERVER_HOME = "opt/sglang"  # as in the design's site file: /opt/sglang/bin/python
MODEL = "models/GLM-5-NVFP4"
SYSTEM_PYTHON = "/usr/bin/python3"


def multiarch() -> str:
    """Return Debian's name of this architecture's library folder, e.g. x86_64-linux-gnu."""
    found = sysconfig.get_config_var("MULTIARCH")
    return str(found) if found else must(["gcc", "-print-multiarch"]).strip()


def install_gpu_software(layer: Layer, instance: Instance) -> None:
    """Install the NVML library where the loader finds it by name, and nvidia-smi."""
    folder, library = f"usr/lib/{multiarch()}", f"libnvidia-ml.so.{gpus.DRIVER}"
    layer.copy(nvml.compiled_library(instance), f"{folder}/{library}", 0o755)
    layer.link(f"{folder}/libnvidia-ml.so.1", library)
    layer.copy(HERE / "node" / "nvidia_smi.py", "usr/bin/nvidia-smi", 0o755)


def install_server(layer: Layer) -> None:
    """Install the stand-in for SGLang as pip would, in an environment of its own, and a model folder."""
    version = must(
        [SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    ).strip()
    home = layer.upper / SERVER_HOME
    layer.link(f"{SERVER_HOME}/bin/python", SYSTEM_PYTHON)
    layer.link(f"{SERVER_HOME}/bin/python3", "python")
    layer.put(
        f"{SERVER_HOME}/pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n",
    )
    packages = home / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    standin.install(packages)
    layer.put(f"{MODEL}/config.json", '{"architectures": ["Glm5ForCausalLM"]}\n')
