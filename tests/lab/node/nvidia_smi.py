#!/usr/bin/python3 -IS
"""The lab's nvidia-smi: the table, -L and the --query forms that scripts around servers use."""

# ruff: noqa: UP031 (columns read better as %-30s)

import ctypes
import sys
import time

ull, u32 = ctypes.c_ulonglong, ctypes.c_uint
MIB = 1 << 20


class Memory(ctypes.Structure):
    _fields_ = [("version", u32), ("total", ull), ("reserved", ull), ("free", ull), ("used", ull)]


class Process(ctypes.Structure):
    _fields_ = [("pid", u32), ("used", ull), ("gi", u32), ("ci", u32)]


class NvmlError(Exception):
    def __init__(self, code, words):
        super().__init__(words)
        self.code = code


class Nvml:
    """The few calls that are needed, each with its error checked."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInit_v2")

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise NvmlError(code, self.library.nvmlErrorString(code).decode())

    def number(self, name, *arguments, kind=u32):
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def text(self, name, *arguments):
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, 96)
        return buffer.value.decode()

    def processes(self, handle, kind):
        found = (Process * 256)()
        count = u32(256)
        name = f"nvmlDeviceGet{kind}RunningProcesses_v2"
        self.call(name, handle, ctypes.byref(count), found)
        return [(found[i].pid, found[i].used) for i in range(count.value)]


def or_na(read, form="%s"):
    """Return what ``read`` gives, or [N/A] as nvidia-smi prints it."""
    try:
        return form % read()
    except NvmlError as error:
        return "[Insufficient Permissions]" if error.code == 4 else "[N/A]"


class Gpu:
    """One GPU with lazily read values."""

    def __init__(self, nvml, index):
        self.nvml, self.index = nvml, index
        self.handle = ctypes.c_void_p(
            nvml.number("nvmlDeviceGetHandleByIndex_v2", index, kind=ctypes.c_void_p)
        )
        self.name = nvml.text("nvmlDeviceGetName", self.handle)
        self.uuid = nvml.text("nvmlDeviceGetUUID", self.handle)

    def memory(self):
        block = Memory(version=0x02000028)
        self.nvml.call("nvmlDeviceGetMemoryInfo_v2", self.handle, ctypes.byref(block))
        return block

    def number(self, name):
        return self.nvml.number(name, self.handle)

    def utilisation(self):
        rates = (u32 * 2)()
        self.nvml.call("nvmlDeviceGetUtilizationRates", self.handle, rates)
        return rates[0]

    def bus(self):
        return "00000000:%02X:00.0" % (0x01 + 0x20 * self.index)

    def mig(self):
        modes = (u32 * 2)()
        where = ctypes.addressof(modes)
        self.nvml.call(
            "nvmlDeviceGetMigMode", self.handle, ctypes.c_void_p(where), ctypes.c_void_p(where + 4)
        )
        return "Enabled" if modes[0] else "Disabled"

    def holders(self):
        """Return (pid, type, bytes, name) of compute and graphics processes."""
        rows = []
        for kind, letter in (("Compute", "C"), ("Graphics", "G")):
            try:
                found = self.nvml.processes(self.handle, kind)
            except NvmlError:
                continue
            rows += [(pid, letter, used, process_name(pid)) for pid, used in found]
        return rows


def process_name(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().split(b"\0")[0].decode("utf-8", "replace") or "[Not Found]"
    except OSError:
        return "[Not Found]"


FIELDS = {
    "index": lambda gpu: str(gpu.index),
    "name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "gpu_uuid": lambda gpu: gpu.uuid,
    "pci.bus_id": lambda gpu: gpu.bus(),
    "gpu_bus_id": lambda gpu: gpu.bus(),
    "driver_version": lambda gpu: gpu.nvml.text("nvmlSystemGetDriverVersion"),
    "memory.total": lambda gpu: or_na(lambda: gpu.memory().total // MIB, "%d MiB"),
    "memory.used": lambda gpu: or_na(lambda: gpu.memory().used // MIB, "%d MiB"),
    "memory.free": lambda gpu: or_na(lambda: gpu.memory().free // MIB, "%d MiB"),
    "memory.reserved": lambda gpu: or_na(lambda: gpu.memory().reserved // MIB, "%d MiB"),
    "utilization.gpu": lambda gpu: or_na(gpu.utilisation, "%d %%"),
    "temperature.gpu": lambda gpu: or_na(
        lambda: gpu.nvml.number("nvmlDeviceGetTemperature", gpu.handle, 0)
    ),
    "mig.mode.current": lambda gpu: or_na(gpu.mig),
    "compute_cap": lambda gpu: "12.0",
}


def query_gpus(gpus, names, style):
    print_csv(names, [[FIELDS[name](gpu) for name in names] for gpu in gpus], style)


def query_apps(gpus, names, style):
    rows = []
    for gpu in gpus:
        for pid, letter, used, name in gpu.holders():
            if letter != "C":
                continue
            amount = "[N/A]" if used == 2**64 - 1 else "%d MiB" % (used // MIB)
            values = {"pid": str(pid), "process_name": name, "name": name, "used_memory": amount}
            values["used_gpu_memory"] = amount
            rows.append([values.get(key) or FIELDS[key](gpu) for key in names])
    print_csv(names, rows, style)


def print_csv(names, rows, style):
    if "noheader" not in style:
        units = "" if "nounits" in style else " [MiB]"
        print(", ".join(n + units if "memory" in n else n for n in names))
    for row in rows:
        if "nounits" in style:
            row = [value.replace(" MiB", "").replace(" %", "") for value in row]
        print(", ".join(row))


def table(nvml, gpus):
    """Print the table that people grep."""
    driver = nvml.text("nvmlSystemGetDriverVersion")
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
    head = "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |"
    bar = "+{}+{}+{}+".format("-" * 41, "-" * 24, "-" * 22)
    print(time.strftime("%a %b %e %H:%M:%S %Y"))
    print("+%s+" % ("-" * 89))
    print(head % (driver, driver, "%d.%d" % (cuda // 1000, cuda % 1000 // 10)))
    print(bar)
    print(
        "| %-39s | %-22s | %-20s |"
        % ("GPU  Name", "Bus-Id          Disp.A", "Volatile Uncorr. ECC")
    )
    print("| %-39s | %22s | %-20s |" % ("Fan  Temp", "Memory-Usage", "GPU-Util  Compute M."))
    print(bar.replace("-", "="))
    for gpu in gpus:
        heat = or_na(lambda gpu=gpu: nvml.number("nvmlDeviceGetTemperature", gpu.handle, 0), "%dC")
        used = or_na(lambda gpu=gpu: gpu.memory().used // MIB, "%dMiB")
        total = or_na(lambda gpu=gpu: gpu.memory().total // MIB, "%dMiB")
        load = or_na(gpu.utilisation, "%d%%")
        print("| %3d  %-34s | %-18s Off | %20s |" % (gpu.index, gpu.name[:34], gpu.bus(), "0"))
        print("| N/A  %-34s | %9s / %10s | %8s %11s |" % (heat, used, total, load, "Default"))
        print(bar)
    print("\n+%s+" % ("-" * 89))
    print("| %-87s |" % "Processes:")
    print("| %5s %9s %5s   %-50s %12s |" % ("GPU", "PID", "Type", "Process name", "GPU Memory"))
    print("|%s|" % ("=" * 89))
    for gpu in gpus:
        for pid, letter, used, name in gpu.holders():
            amount = "N/A" if used == 2**64 - 1 else "%dMiB" % (used // MIB)
            print("| %5d %9d %5s   %-50s %12s |" % (gpu.index, pid, letter, name[-50:], amount))
    print("+%s+" % ("-" * 89))


def fail_to_start(error):
    """Say what nvidia-smi says when NVML does not start."""
    if error.code == 9:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
            "that the latest NVIDIA driver is installed and running.\n"
        )
    else:
        print(f"Failed to initialize NVML: {error}")
    return 9 if error.code == 9 else 18


def main(arguments):
    options = dict(word.split("=", 1) if "=" in word else (word, "") for word in arguments)
    try:
        nvml = Nvml()
    except OSError:
        print("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.")
        return 12
    except NvmlError as error:
        return fail_to_start(error)
    gpus = []
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            gpus.append(Gpu(nvml, index))
        except NvmlError as error:
            print(
                "Unable to determine the device handle for GPU%d: %s.  "
                "Reboot the system to recover this GPU" % (index, error)
            )
            return 15
    style = options.get("--format", "csv").split(",")
    if "-L" in options or "--list-gpus" in options:
        for gpu in gpus:
            print("GPU %d: %s (UUID: %s)" % (gpu.index, gpu.name, gpu.uuid))
    elif "--query-gpu" in options:
        query_gpus(gpus, options["--query-gpu"].replace(" ", "").split(","), style)
    elif "--query-compute-apps" in options:
        query_apps(gpus, options["--query-compute-apps"].replace(" ", "").split(","), style)
    else:
        table(nvml, gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
