"""Make the hash locks in this folder from requirements.in and requirements-dev.in.

One resolution covers everything, so that a package has one version in every lock; each lock is
then the part of it that its inputs need. A lock holds only files for CPython on x86-64 Linux, and
a source archive only where no wheel exists. It is installed with ``--require-hashes --no-deps``.

Example
-------
``just lock`` keeps the present versions where it can; ``just lock --upgrade`` takes the newest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker, default_environment
from packaging.utils import canonicalize_name, parse_wheel_filename

FOLDER = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# What torch's CPU build requires: PyPI's list without CUDA and Triton.
TORCH_CPU_REQUIRES = (
    "filelock",
    "typing-extensions>=4.10.0",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
)
# What `import mamba_ssm` needs. Its own list adds compilers for kernels that boldcast does not use,
# and its source archive cannot say so without torch being installed.
MAMBA_REQUIRES = ("torch", "triton", "einops", "transformers", "packaging", "setuptools")

HEADER = """\
# Made by `just lock` from {inputs}; do not edit.
# For CPython {first} to {last} on x86-64 Linux; install with --require-hashes --no-deps.
"""


@dataclass(frozen=True)
class Pin:
    """One line of a lock: a package, its version, when it applies and the files allowed for it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        condition = f" ; {self.marker}" if self.marker else ""
        parts = [f"{self.name}=={self.version}{condition}", *(f"--hash={h}" for h in self.hashes)]
        return " \\\n    ".join(parts)


def main() -> None:
    """Write requirements-cpu.lock, requirements-cuda.lock and requirements-dev.lock."""
    text = (FOLDER / "requirements.in").read_text()
    dev = (FOLDER / "requirements-dev.in").read_text()
    base = re.sub(r"^.*# cuda$\n", "", text, flags=re.MULTILINE)
    preferred = [] if "--upgrade" in sys.argv[1:] else sorted(FOLDER.glob("*.lock"))

    everything = resolve(text + dev, preferred=preferred)
    cpu = resolve(base, torch_cpu=True, pinned=everything)
    cuda = resolve(text, pinned=everything)
    dev_cpu = resolve(text + dev, torch_cpu=True, pinned=everything)
    cpu_wheels = re.findall(r"^# cpu-wheel: torch (\S+)$", text, flags=re.MULTILINE)
    # Without the local version pip would take PyPI's CUDA build, whose libraries are not here.
    cpu_pins = [with_wheels(pin, cpu_wheels, local="+cpu") for pin in cpu]
    write("requirements-cpu.lock", "requirements.in", cpu_pins)
    write("requirements-cuda.lock", "requirements.in", [with_wheels(p, cpu_wheels) for p in cuda])
    in_cpu = {pin.name for pin in cpu}
    dev_pins = [pin for pin in dev_cpu if pin.name not in in_cpu]
    write("requirements-dev.lock", "requirements-dev.in and the CUDA-only lines", dev_pins)


def with_wheels(pin: Pin, cpu_wheels: Iterable[str], *, local: str = "") -> Pin:
    """Return the pin of torch with its CPU wheels allowed as well, any other pin as it is."""
    if pin.name != "torch":
        return pin
    hashes = tuple(sorted({*pin.hashes, *cpu_wheels}))
    return replace(pin, version=pin.version + local, hashes=hashes)


def resolve(
    requirements: str,
    *,
    torch_cpu: bool = False,
    pinned: Iterable[Pin] = (),
    preferred: Sequence[Path] = (),
) -> list[Pin]:
    """Return the pins that ``requirements`` need, from ``pinned``, else near ``preferred``."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "in.txt").write_text(requirements)
        (scratch / "pinned.txt").write_text("".join(f"{p.name}=={p.version}\n" for p in pinned))
        (scratch / "uv.toml").write_text(uv_settings(torch_cpu=torch_cpu))
        output = scratch / "pylock.toml"
        if preferred:
            output.write_text(preferences(preferred))
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"),
            *("--python-version", PYTHONS[0], "--fork-strategy", "fewest"),
            *("--config-file", str(scratch / "uv.toml")),
            *("--constraint", str(scratch / "pinned.txt")),
            *("--output-file", str(output), str(scratch / "in.txt")),
        ]
        subprocess.run(command, check=True)
        packages = tomllib.loads(output.read_text())["packages"]
    pins = [pin for package in packages if (pin := as_pin(package))]
    return sorted(pins, key=lambda pin: pin.name)


def preferences(locks: Iterable[Path]) -> str:
    """Return the present pins as a lock in uv's form: it stays near an output file that exists."""
    lines = ['lock-version = "1.0"\ncreated-by = "boldcast"\n']
    for lock in locks:
        for name, version in re.findall(r"^([a-z0-9-]+)==([^ +]+)", lock.read_text(), re.MULTILINE):
            lines.append(f'[[packages]]\nname = "{name}"\nversion = "{version}"\n')
    return "".join(lines)


def uv_settings(*, torch_cpu: bool) -> str:
    """Return uv's configuration: what packages require where their own word does not serve."""
    tables: dict[str, tuple[str, ...]] = {"mamba-ssm": MAMBA_REQUIRES}
    if torch_cpu:
        tables["torch"] = TORCH_CPU_REQUIRES
    entries = [f'{{ name = "{n}", requires-dist = {list(r)} }}' for n, r in tables.items()]
    return f"dependency-metadata = [{', '.join(entries)}]\n"


def as_pin(package: Mapping[str, Any]) -> Pin | None:
    """Return a package of uv's lock as a pin, or None if x86-64 Linux never needs it."""
    marker = for_linux(str(package.get("marker", "")))
    if marker is None:
        return None
    wheels = [w for w in package.get("wheels", ()) if usable(file_name(w))]
    files = wheels or [package["sdist"]]
    hashes = sorted({f"sha256:{file['hashes']['sha256']}" for file in files})
    name = canonicalize_name(str(package["name"]))
    return Pin(name, str(package["version"]), marker, tuple(hashes))


def file_name(wheel: Mapping[str, Any]) -> str:
    """Return a wheel's file name, given or as the end of its address."""
    return str(wheel.get("name") or str(wheel["url"]).rpartition("/")[2])


def for_linux(marker: str) -> str | None:
    """Return ``marker`` simplified for x86-64 Linux: empty if always true, None if never."""
    if not marker:
        return ""
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"}
    fixed: dict[str, Any] = {**default_environment()} | linux | {"os_name": "posix"}
    python = [{"python_version": v, "python_full_version": f"{v}.7"} for v in PYTHONS]
    true_for = [
        v for v, p in zip(PYTHONS, python, strict=True) if Marker(marker).evaluate(fixed | p)
    ]
    if len(true_for) == len(PYTHONS):
        return ""
    return " or ".join(f"python_version == '{v}'" for v in true_for) or None


def usable(wheel: str) -> bool:
    """Tell whether a wheel installs on one of ``PYTHONS`` on x86-64 Linux with glibc."""
    for tag in parse_wheel_filename(wheel.replace("%2B", "+"))[3]:
        platform = tag.platform == "any" or re.fullmatch(r"(many)?linux.*_x86_64", tag.platform)
        minor = re.fullmatch(r"cp3(\d+)", tag.interpreter)
        own = minor and f"3.{minor[1]}" in PYTHONS and tag.abi == tag.interpreter
        stable = minor and tag.abi in ("abi3", "none") and int(minor[1]) <= 14
        if platform and (own or stable or tag.interpreter in ("py3", "py311")):
            return True
    return False


def write(name: str, inputs: str, pins: Iterable[Pin]) -> None:
    """Write one lock."""
    lines = [HEADER.format(inputs=inputs, first=PYTHONS[0], last=PYTHONS[-1])]
    (FOLDER / name).write_text("".join([*lines, *(f"{pin}\n" for pin in pins)]))


if __name__ == "__main__":
    main()
