"""Devices and links by name, from data sheets, and this machine's measured CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eval.loading.simulate import Link
from keep_agent.errors import ConfigError

SHARED = "shared"
THIS_CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """Peak rates of a processor; a model attains a share of them."""

    name: str
    flops: float  # bfloat16 multiplications and additions per second, dense
    memory: float  # bytes per second from the device's memory
    link: str  # name of the link from host memory to the device's memory


DEVICES = {
    # NVIDIA RTX A6000 data sheet: 309.7 tensor TFLOPS with sparsity, half of it dense; 768 GB/s; PCIe 4.0 x16
    "a6000": Device("a6000", 154.8e12, 768e9, "pcie4"),
    # NVIDIA H200 (SXM) data sheet: 1,979 bf16 TFLOPS with sparsity, half of it dense; 4.8 TB/s; PCIe 5.0 x16
    "h200": Device("h200", 989e12, 4.8e12, "pcie5"),
    # NVIDIA Jetson AGX Orin technical brief, 64 GB: the GPU's 170 sparse int8 TOPS are 85 dense, and 42.5 TFLOPS in
    # 16 bits; LPDDR5 at 204.8 GB/s, shared by CPU and GPU
    "orin": Device("orin", 42.5e12, 204.8e9, SHARED),
}

LINKS = {
    # 16 lanes at 16 GT/s in 128b/130b: 31.5 GB/s. nvbandwidth measures about 25 from pinned memory (A100)
    "pcie4": Link("pcie4", 25e9, latency=10e-6, per_copy=2e-6),
    # 16 lanes at 32 GT/s: 63 GB/s; we assume the same attained share as for pcie4
    "pcie5": Link("pcie5", 50e9, latency=10e-6, per_copy=2e-6),
    # PCIe 4.0 x4 SSD: up to 7.5 GB/s for sequential reads (Samsung 990 Pro data sheet), less in pieces of hundreds of
    # kB; a read takes about 80 us, and many run at a time
    "nvme": Link("nvme", 6e9, latency=80e-6, per_copy=5e-6),
    # host and device share memory (Jetson, Apple, CPU): blocks are read in place
    SHARED: Link(SHARED, math.inf),
}  # latency and per_copy are rough estimates of a driver's time to start a job, and each copy in it


def device_named(name: str) -> Device:
    """Return a preset, or measure this CPU (``cpu``). Raises ConfigError for other names."""
    if name == THIS_CPU:
        return measure_cpu()
    if name not in DEVICES:
        raise ConfigError(f"device {name!r} is unknown: use one of {', '.join([*DEVICES, THIS_CPU])}")
    return DEVICES[name]


def link_named(name: str) -> Link:
    """Return a preset, or for a number of GB/s a link without latency. Raises ConfigError for other names."""
    if name in LINKS:
        return LINKS[name]
    try:
        gigabytes = float(name)
    except ValueError:
        raise ConfigError(f"link {name!r} is unknown: use one of {', '.join(LINKS)}, or a number of GB/s") from None
    return Link(f"{gigabytes:g} GB/s", gigabytes * 1e9)


def measure_cpu(samples: int = 7) -> Device:
    """Measure this CPU's rates with torch's threads: medians of a bfloat16 matrix product and of a copy."""
    import torch  # lazy: data sheets need no torch

    from eval.latency.machine import RateMeter, Rates

    meter = RateMeter(torch.device("cpu"), torch.bfloat16)
    rates = Rates.median([meter.sample() for _ in range(samples)])
    return Device(THIS_CPU, rates.flops, rates.bandwidth, SHARED)
