"""Where something was measured: the machine, in words and in plain values."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import provenance


def machine(device: str) -> str:
    """The machine, in words."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}; torch {torch.__version__}, Python {platform.python_version()}"
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, one thread; torch {torch.__version__}, Python {platform.python_version()}"


def measured_here() -> dict[str, Any]:
    """What a file of figures says of where they come from: a CPU, its cores, the code, its versions, and when."""
    made = provenance("cpu")
    return {
        "machine": machine("cpu"),
        "cores": os.cpu_count(),
        "git_commit": made["git_commit"],
        "python": made["python"],
        "versions": made["versions"],
        "finished": made["finished"],
    }
