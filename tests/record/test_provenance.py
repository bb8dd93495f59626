from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

import boldcast
from boldcast.record import provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout with one commit."""
    package = tmp_path / "src" / "pack"
    (package / "sub").mkdir(parents=True)
    for name in ("__init__.py", "b.py", "sub/a.py"):
        (package / name).write_text(f"# {name}\n")
    (package / "data.toml").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return package


def test_the_source_digest_is_that_of_sha256sum(package: Path) -> None:
    script = "find . -name '*.py' | cut -c3- | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", script], cwd=package, capture_output=True, text=True)
    assert provenance.source_digest(package) == done.stdout.split()[0]


def test_a_clean_checkout_is_its_commit(package: Path) -> None:
    found = provenance.code(package)
    assert found["commit"] == git(package, "rev-parse", "HEAD").strip()
    assert (found["origin"], found["dirty"], found["diff_digest"]) == ("git", False, None)
    assert found["version"] == boldcast.__version__


def test_a_change_is_seen_and_its_digest_does_not_depend_on_settings(package: Path) -> None:
    (package / "b.py").write_text("# changed\n")
    found = provenance.code(package)
    assert found["dirty"] is True
    diff = git(package, "diff", "HEAD", "--full-index", "--binary")
    assert found["diff_digest"] == hashlib.sha256(diff.encode()).hexdigest()
    for key, value in (("diff.noprefix", "true"), ("color.ui", "always"), ("diff.external", "no")):
        git(package, "config", key, value)
    assert provenance.code(package) == found


def test_a_new_module_makes_dirty_but_a_run_folder_does_not(package: Path) -> None:
    (package.parents[1] / "runs").mkdir()
    (package.parents[1] / "runs" / "x").write_text("x")
    assert provenance.code(package)["dirty"] is False
    (package / "new.py").write_text("x")
    assert provenance.code(package)["dirty"] is True


def test_an_environment_inside_a_strangers_checkout_is_not_that_checkout(package: Path) -> None:
    (package.parents[1] / ".gitignore").write_text("venv\n")
    installed = package.parents[1] / "venv" / "pack"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    found = provenance.code(installed)
    assert found["origin"] != "git"
    assert set(found) == set(provenance.code(package))


def test_without_git_the_image_tells_the_commit(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "opt/boldcast").mkdir(parents=True)
    record = {"commit": "c" * 40, "dirty": False}
    (tmp_path / "opt/boldcast/build.json").write_text(json.dumps(record))
    found = provenance.code(tmp_path / "pack", root=tmp_path)
    assert (found["origin"], found["commit"], found["dirty"]) == ("image", "c" * 40, False)


def test_without_anything_the_error_stands_and_names_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = provenance.code(tmp_path, root=tmp_path)
    assert "error" in found["commit"]
    assert str(tmp_path) not in json.dumps(found)
    assert len(found["source_digest"]) == 64


def test_software_names_versions_and_what_is_not_installed() -> None:
    found = provenance.software()
    assert found["python"]["version"] == platform.python_version()
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    assert found["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert set(found["packages"]) >= set(provenance.PACKAGES)


def test_environment_keeps_unset_empty_and_set_apart_and_no_secret() -> None:
    env = {
        "OMP_NUM_THREADS": "1",
        "MKL_CBWR": "",
        "NCCL_TOPO_FILE": "/etc/site/topo.xml",
        "NCCL_API_KEY": "hush",
        "NCCL_HOSTID": "node7",
        "NCCL_COMM_ID": "10.0.0.1:5",
        "CUDA_VISIBLE_DEVICES": "GPU-00000000-1111-2222-3333-444444444444",
        "WANDB_API_KEY": "hush",
        "HOME": "/home/ann",
    }
    found = provenance.environment(env)
    assert found["OMP_NUM_THREADS"] == {"state": "set", "value": "1"}
    assert found["MKL_CBWR"] == {"state": "empty"}
    assert found["CUBLAS_WORKSPACE_CONFIG"] == {"state": "unset"}
    assert found["NCCL_TOPO_FILE"]["value"] == "<path>/topo.xml"
    assert set(found) == {*provenance.ENVIRONMENT, "NCCL_TOPO_FILE"}
    text = json.dumps(found)
    assert not [word for word in ("hush", "node7", "10.0.0", "ann", "GPU-0") if word in text]


LABELS = {
    "org.opencontainers.image.base.digest": "sha256:" + "b" * 64,
    "org.label-schema.build-date": "Monday",
    "deffile": "/w/x/apptainer.def",
    "org.label-schema.usage.apptainer.version": "1.5.0",
}


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        ({}, {}, "none"),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": 'engine="podman-5.1"\n'}, {}, "podman"),
        ({".singularity.d/labels.json": json.dumps(LABELS)}, {}, "apptainer"),
        ({}, {"container": "lxc"}, "container"),
    ],
)
def test_each_runtime_is_recognized(
    tmp_path: Path, files: dict[str, str], env: dict[str, str], kind: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    digests = {"BOLDCAST_OCI_DIGEST": "sha256:" + "a" * 64, "BOLDCAST_SIF_SHA256": "c" * 64}
    found = provenance.image(env | digests, tmp_path)
    assert found["kind"] == kind
    expected: dict[str, Any] = {
        "none": {"oci_digest": None, "sif_sha256": None, "labels": None, "runtime": None},
        "docker": {"oci_digest": "sha256:" + "a" * 64, "sif_sha256": None},
        "podman": {"runtime": "podman-5.1", "oci_digest": "sha256:" + "a" * 64},
        "apptainer": {
            "sif_sha256": "c" * 64,
            "base_digest": "sha256:" + "b" * 64,
            "runtime": "built by apptainer 1.5.0",
            "labels": {
                "org.opencontainers.image.base.digest": "sha256:" + "b" * 64,
                "deffile": "<path>/apptainer.def",
                "org.label-schema.usage.apptainer.version": "1.5.0",
            },
        },
        "container": {"oci_digest": "sha256:" + "a" * 64},
    }[kind]
    assert {name: found[name] for name in expected} == expected


def test_a_digest_not_passed_in_or_malformed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").write_text("")
    assert "was not passed in" in provenance.image({}, tmp_path)["oci_digest"]["error"]
    for odd in ("latest", "sha256:12", "x" * 64, "sha256:" + "a" * 65):
        found = provenance.image({"BOLDCAST_OCI_DIGEST": odd}, tmp_path)
        assert found["oci_digest"] == {"error": "BOLDCAST_OCI_DIGEST is not a SHA-256 digest"}
    named = f"registry.example.org/boldcast@sha256:{'a' * 64}"
    found = provenance.image({"BOLDCAST_OCI_DIGEST": named}, tmp_path)
    assert found["oci_digest"] == "sha256:" + "a" * 64


def test_the_environment_is_read_by_default() -> None:
    found = provenance.environment()
    expected = os.environ.get("OMP_NUM_THREADS")
    assert found["OMP_NUM_THREADS"].get("value") == expected
