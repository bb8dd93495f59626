"""The repository keeps its promises: locks, wheel, recipes and what may not stand in a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]
CPU, CUDA, DEV = (ROOT / f"container/requirements-{name}.lock" for name in ("cpu", "cuda", "dev"))
# sha256sum of the files: torch's CPU build and PyPI's for CPython 3.11, mamba-ssm's sources.
TORCH_CPU_311 = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
TORCH_PYPI_311 = "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7"
MAMBA_SDIST = "104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"


def pins(lock: Path) -> dict[str, tuple[str, set[str]]]:
    """Read a lock's entries: name to version and hashes; anything else in it is an error."""
    found = {}
    hashes_shape = r"((?: +--hash=sha256:\w{64})+)"
    shape = r"([a-z0-9-]+)==([\w.+]+)(?: ; python_version == '3\.\d+')?" + hashes_shape
    text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    for entry in text.replace("\\\n", "").splitlines():
        name, version, hashes = re.fullmatch(shape, entry.strip()).groups()
        found[name] = (version, set(re.findall(r"sha256:(\w{64})", hashes)))
    return found


@pytest.mark.parametrize("lock", [CPU, CUDA, DEV], ids=lambda lock: lock.stem)
def test_every_line_of_a_lock_is_a_pin_with_hashes(lock: Path) -> None:
    assert len(pins(lock)) > 25


def test_the_cpu_lock_holds_nothing_of_cuda() -> None:
    names = set(pins(CPU))
    assert {name for name in names if name.startswith(("nvidia", "cuda"))} == {"nvidia-ml-py"}
    assert names.isdisjoint({"triton", "mamba-ssm"})


def test_the_cuda_lock_holds_the_cpu_lock_and_what_torch_and_mamba_need_beside_it() -> None:
    cuda = pins(CUDA)
    assert set(pins(CPU)) <= set(cuda)
    assert cuda["triton"][0] == "3.7.1"
    assert cuda["mamba-ssm"] == ("2.3.2.post1", {MAMBA_SDIST})
    assert {"nvidia-nccl-cu13", "nvidia-cudnn-cu13", "cuda-toolkit"} <= set(cuda)


def test_a_package_has_one_version_in_all_locks() -> None:
    for name, (version, _) in {**pins(DEV), **pins(CPU)}.items():
        if name in pins(CUDA):
            assert version.removesuffix("+cpu") == pins(CUDA)[name][0], name


def test_torch_is_the_same_release_everywhere_and_both_builds_are_allowed() -> None:
    assert pins(CPU)["torch"][0] == "2.13.0+cpu"
    assert pins(CUDA)["torch"][0] == "2.13.0"
    for lock in (CPU, CUDA):
        assert {TORCH_CPU_311, TORCH_PYPI_311} <= pins(lock)["torch"][1]


def test_this_environment_is_what_the_locks_say() -> None:
    lock = CUDA if any(d.name == "nvidia-cublas" for d in metadata.distributions()) else CPU
    asked = {name: version for name, (version, _) in {**pins(lock), **pins(DEV)}.items()}
    if sys.version_info >= (3, 12):
        del asked["importlib-resources"]
    found = {name: metadata.version(name) for name in asked}
    assert found == asked


def test_requirements_cover_what_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["project"]["dependencies"] + project["build-system"]["requires"]
    for extra in project["project"]["optional-dependencies"].values():
        declared += extra
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in declared}
    assert names <= set(pins(CUDA))


def test_the_wheel_holds_every_module_and_the_presets(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    source = ROOT / "src"
    files = [p for p in (source / "boldcast").rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert {str(path.relative_to(source)) for path in files} <= held
    presets = {f"boldcast/presets/{path.name}" for path in (ROOT / "run").glob("*.toml")}
    assert {name for name in held if name.startswith("boldcast/presets/")} == presets
    assert len(presets) >= 3


def project_files() -> list[Path]:
    """Return the files that make up the repository, generated and downloaded ones left out."""
    folders = ["src", "tests", "run", "container", "manifests", ".ci"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    return [path for path in files if "__pycache__" not in path.parts]


def test_no_file_names_a_package_index_or_a_machine() -> None:
    words = [
        "pypi" + ".org",
        "python" + "hosted",
        "download." + "pytorch",
        "/" + "work/",
        "/opt/" + "w",
    ]
    found = [
        (str(path.relative_to(ROOT)), word)
        for path in project_files()
        for word in words
        if word.encode() in path.read_bytes()
    ]
    assert found == []


def test_names_that_the_package_uses_are_ignored_at_the_root_only() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    inside = {path.name for path in (ROOT / "src/boldcast").rglob("*") if path.is_dir()}
    for name in inside - {"__pycache__"}:
        assert name not in ignored
        assert f"{name}/" not in ignored
    assert {"/.venv/", "/data/", "/runs/"} <= set(ignored)


@pytest.mark.parametrize("script", ["run/setup", "run/example", "run/test", ".ci/run"])
def test_scripts_run_and_stop_at_the_first_failure(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text


def test_just_lists_documented_recipes_in_groups() -> None:
    just = Path(sys.executable).with_name("just")
    command = [just, "--justfile", ROOT / "justfile", "--dump", "--dump-format", "json"]
    dumped = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    public = {name: r for name, r in dumped["recipes"].items() if not r["private"]}
    wanted = "example test check format train bench-1gpu bench-2gpu selftest lock"
    assert set(wanted.split()) <= set(public)
    for recipe in public.values():
        assert recipe["doc"]
        assert recipe["attributes"][0].keys() == {"group"}
    assert dumped["settings"]["positional_arguments"]
    assert dumped["settings"]["shell"]["arguments"] == ["-euo", "pipefail", "-c"]
