"""The GPUs of this machine, as NVML and the kernel tell them. Imports no torch and never fails."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import MissingExtra
from knee.base.units import MB

# Small files that the kernel writes; what cannot be read is None.


def entries(folder: Path) -> list[Path]:
    """What a folder holds, ``mlx5_2`` before ``mlx5_10``; nothing where it cannot be read."""
    try:
        return sorted(
            folder.iterdir(), key=lambda path: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", path.name)]
        )
    except OSError:
        return []


def text_of(file: Path) -> str | None:
    """What a file says, without the ends."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def number_of(file: Path) -> int | None:
    """A count; the kernel writes -1 for what it does not know."""
    text = text_of(file)
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


DOCTOR = "`knee doctor` shows the devices of this machine"
NVML_LIBRARY = "libnvidia-ml.so.1"
NO_DRIVER = f"no NVIDIA driver: {NVML_LIBRARY} is not found"
NO_PACKAGE = "the NVIDIA driver is installed, but the package nvidia-ml-py, which reads it, is not"
NO_GPU = "the NVIDIA driver responds, but shows no GPU"
NVML_ERRORS = {
    4: "this user has no permission to open the NVIDIA devices",
    9: "the NVIDIA driver is installed, but not loaded",
    12: NO_DRIVER,
    18: f"the loaded NVIDIA driver and {NVML_LIBRARY} have different versions: reboot or reload the driver",
}
"""NVML's return code -> what it means here."""
NVLINK_MAX = 18
"""Links asked for where an older nvidia-ml-py does not know how many there can be."""
NVLINK_SPEED_OF_LINK, NVLINK_SPEED_COMMON = 164, 90  # NVML_FI_DEV_NVLINK_GET_SPEED, .._SPEED_MBPS_COMMON
AMD_VENDOR = "0x1002"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One GPU, numbered in the order of the PCI bus; CUDA may number them otherwise."""

    index: int
    name: str | None = None
    memory_bytes: float | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    """The highest that GPU and slot both have: the present one falls when the GPU idles."""
    pcie_width: int | None = None
    nvlinks: int | None = None
    """Active links."""
    nvlink_bytes_per_s: float | None = None
    """All active links together, per direction. The line rate, which lies a little above the data sheet's."""
    mig: bool | None = None
    ecc: bool | None = None
    other_processes: int | None = None
    """Processes that compute on it, this one not counted."""
    trouble: str | None = None
    """Why nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The driver and its library NVML."""

    version: str | None = None
    cuda: str | None = None
    """The newest CUDA it runs."""
    nvml: str | None = None
    trouble: str | None = None
    """Why NVML does not answer."""


def nvml_library() -> str | None:
    """NVML's library, if the driver has brought it."""
    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return None
    return NVML_LIBRARY


def start_nvml() -> tuple[Any, int]:
    """nvidia-ml-py with NVML started, and the number of GPUs; ``MissingExtra`` says why NVML does not answer."""
    try:
        import pynvml
    except ImportError:
        if nvml_library() is not None:
            raise MissingExtra(NO_PACKAGE, hint="pip install nvidia-ml-py") from None
        hint = "power can be read only from NVIDIA GPUs; " + DOCTOR
        raise MissingExtra(NO_DRIVER, hint=hint, code="no-driver") from None
    except Exception as error:  # whatever a broken package does
        raise MissingExtra(f"nvidia-ml-py cannot be loaded: {error}", hint=DOCTOR) from None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise MissingExtra(nvml_in_words(error), hint=DOCTOR, code="no-driver") from None
    except OSError as error:
        raise MissingExtra(f"NVML cannot be loaded: {error}", hint=DOCTOR, code="no-driver") from None


def nvidia_gpus(root: Path) -> tuple[tuple[LocalGpu, ...], NvidiaDriver]:
    """By NVML where it answers, by the kernel module otherwise."""
    try:
        pynvml, count = start_nvml()
    except MissingExtra as error:
        return _without_nvml(root, error.message)
    gpus = tuple(_gpu(pynvml, index) for index in range(count))
    cuda = ask_nvml(pynvml, "nvmlSystemGetCudaDriverVersion")
    driver = NvidiaDriver(
        version=ask_nvml(pynvml, "nvmlSystemGetDriverVersion"),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        nvml=ask_nvml(pynvml, "nvmlSystemGetNVMLVersion"),
        trouble=None if gpus else NO_GPU,
    )
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    return gpus, driver


def _without_nvml(root: Path, trouble: str) -> tuple[tuple[LocalGpu, ...], NvidiaDriver]:
    """The kernel module alone tells its version and the GPUs' names."""
    proc = root / "proc/driver/nvidia"
    version = re.search(r"^(?>.*?Kernel Module).*?\s(\d++\.[\d.]+)", text_of(proc / "version") or "", re.M)
    files = sorted((proc / "gpus").glob("*/information"))  # folders are PCI addresses, of hexadecimal digits
    models = [re.search(r"^Model:\s*(.+)$", text_of(file) or "", re.M) for file in files]
    gpus = tuple(LocalGpu(index=index, name=model[1] if model else None) for index, model in enumerate(models))
    return gpus, NvidiaDriver(version=version[1] if version else None, trouble=trouble)


def nvml_in_words(error: Any) -> str:
    """Why NVML does not answer."""
    return NVML_ERRORS.get(getattr(error, "value", None) or 0, f"NVML does not respond: {error}")


def ask_nvml(nvml: Any, call: str, *arguments: Any) -> Any:
    """One answer of NVML, or None: boards, drivers and permissions differ in what they tell."""
    try:
        answer = getattr(nvml, call)(*arguments)
    except (nvml.NVMLError, AttributeError, TypeError):  # the last two: nvidia-ml-py is older than the call
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _gpu(nvml: Any, index: int) -> LocalGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return LocalGpu(index=index, trouble=nvml_in_words(error))

    def ask(what: str, *arguments: Any) -> Any:
        return ask_nvml(nvml, f"nvmlDeviceGet{what}", handle, *arguments)

    memory, limit_mw, running = ask("MemoryInfo"), ask("EnforcedPowerLimit"), ask("ComputeRunningProcesses")
    mig, ecc = ask("MigMode"), ask("EccMode")  # each is [now, after a reset]
    nvlinks, nvlink_bytes_per_s = _nvlink(ask, getattr(nvml, "NVML_NVLINK_MAX_LINKS", NVLINK_MAX))
    return LocalGpu(
        index=index,
        name=ask("Name"),
        memory_bytes=None if memory is None else float(memory.total),
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        pcie_generation=ask("MaxPcieLinkGeneration"),
        pcie_width=ask("CurrPcieLinkWidth"),
        nvlinks=nvlinks,
        nvlink_bytes_per_s=nvlink_bytes_per_s,
        mig=None if mig is None else bool(mig[0]),
        ecc=None if ecc is None else bool(ecc[0]),
        other_processes=None if running is None else sum(process.pid != os.getpid() for process in running),
    )


def _nvlink(ask: Callable[..., Any], links: int) -> tuple[int | None, float | None]:
    """Active links, and what they carry together."""
    states = [ask("NvLinkState", link) for link in range(links)]
    if all(state is None for state in states):
        return None, None
    rates = [_nvlink_rate(ask, link) for link, state in enumerate(states) if state]
    known = [rate for rate in rates if rate is not None]
    return len(rates), sum(known) if len(known) == len(rates) else None


def _nvlink_rate(ask: Callable[..., Any], link: int) -> float | None:
    """Newer GPUs tell the speed of each link, older ones a speed that all share."""
    for field in ((NVLINK_SPEED_OF_LINK, link), NVLINK_SPEED_COMMON):
        answer = ask("FieldValues", [field])
        if answer is not None and answer[0].nvmlReturn == 0 and answer[0].value.uiVal:
            return float(answer[0].value.uiVal) * MB
    return None


def amd_gpus(root: Path, *, after: int) -> Iterator[LocalGpu]:
    """AMD's cards as the kernel describes them, where its compute driver is loaded."""
    if not (root / "sys/class/kfd").exists():
        return
    cards = [card / "device" for card in entries(root / "sys/class/drm") if re.fullmatch(r"card\d+", card.name)]
    for index, card in enumerate((card for card in cards if text_of(card / "vendor") == AMD_VENDOR), start=after):
        memory = number_of(card / "mem_info_vram_total")
        yield LocalGpu(
            index=index,
            name=text_of(card / "product_name") or f"AMD device {text_of(card / 'device') or 'of unknown type'}",
            memory_bytes=None if memory is None else float(memory),
            pcie_width=number_of(card / "current_link_width"),
        )
