"""Devices and links by name, from their makers' data sheets, and the machine this runs on, measured."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from eval.loading.simulated_link import Link
from keep_agent.errors import ConfigError

SHARED = "shared"
THIS_CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """What a processor can do at best; how much of it a model attains is another matter.

    :param flops: bfloat16 multiplications and additions per second, dense
    :param memory: bytes per second from its own memory
    :param link: name of the usual way from host memory to its own
    """

    name: str
    flops: float
    memory: float
    link: str


DEVICES = {
    # NVIDIA RTX A6000 data sheet: 309.7 tensor TFLOPS with sparsity, half of it dense; 768 GB/s; PCIe 4.0 x16
    "a6000": Device("a6000", 154.8e12, 768e9, "pcie4"),
    # NVIDIA H200 (SXM) data sheet: 1,979 bf16 TFLOPS with sparsity, half of it dense; 4.8 TB/s; PCIe 5.0 x16
    "h200": Device("h200", 989e12, 4.8e12, "pcie5"),
    # NVIDIA Jetson AGX Orin technical brief, 64 GB: the GPU's 170 sparse int8 TOPS are 85 dense, and 42.5 TFLOPS in
    # 16 bits; LPDDR5 at 204.8 GB/s, which the processor shares
    "orin": Device("orin", 42.5e12, 204.8e9, SHARED),
}

LINKS = {
    # 16 lanes at 16 GT/s in 128b/130b: 31.5 GB/s. From pinned memory nvbandwidth shows some 25 (A100)
    "pcie4": Link("pcie4", 25e9, latency=10e-6, per_copy=2e-6),
    # 16 lanes at 32 GT/s: 63 GB/s, and the same share of it
    "pcie5": Link("pcie5", 50e9, latency=10e-6, per_copy=2e-6),
    # SSD of the fourth generation, x4: up to 7.5 GB/s read in order (Samsung 990 Pro data sheet), less in pieces of
    # hundreds of kB; a read takes some 80 us, many are under way at a time
    "nvme": Link("nvme", 6e9, latency=80e-6, per_copy=5e-6),
    # host and device are one memory (Jetson, Apple, a CPU): blocks are read where they lie
    SHARED: Link(SHARED, math.inf),
}  # latency and per_copy are orders of magnitude: what a driver takes to begin a copy, and to queue one more


def device_named(name: str) -> Device:
    """A preset, or this CPU (``cpu``), measured now. Raises ConfigError for other names."""
    if name == THIS_CPU:
        return measure_cpu()
    if name not in DEVICES:
        raise ConfigError(f"device {name!r} is unknown: use one of {', '.join([*DEVICES, THIS_CPU])}")
    return DEVICES[name]


def link_named(name: str) -> Link:
    """A preset, or a number of GB/s without latency. Raises ConfigError for other names."""
    if name in LINKS:
        return LINKS[name]
    try:
        gigabytes = float(name)
    except ValueError:
        raise ConfigError(f"link {name!r} is unknown: use one of {', '.join(LINKS)}, or a number of GB/s") from None
    return Link(f"{gigabytes:g} GB/s", gigabytes * 1e9)


def measure_cpu(size: int = 1024, nbytes: int = 1 << 26, times: int = 7) -> Device:
    """Rates of a square bfloat16 product and of a copy on this CPU, with torch's threads: medians."""
    import torch  # here: data sheets need none

    left, right = torch.ones(2, size, size, dtype=torch.bfloat16)
    here, there = torch.ones(2, nbytes, dtype=torch.uint8)
    product = _median(lambda: left @ right, times)
    copy = _median(lambda: there.copy_(here), times)
    return Device(THIS_CPU, 2 * size**3 / product, 2 * nbytes / copy, SHARED)  # a copy reads and writes


def _median(work: Callable[[], object], times: int) -> float:
    work()  # warm
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
