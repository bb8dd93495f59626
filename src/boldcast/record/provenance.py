"""What was found: which code, which software, which environment, which image.

Every field is a value, null where the question does not apply, or ``{"error": text}``; nothing here
raises, because a run must not fail for want of a fact about it. What was *found* is never read back
into a run.

Example
-------
>>> code()["version"]
'0.1.0'
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boldcast
from boldcast.files import sha256_bytes, sha256_file
from boldcast.record.privacy import hidden, is_secret_name

PACKAGES = (
    "torch", "triton", "mamba-ssm", "causal-conv1d", "einops", "transformers", "numpy", "scipy",
    "nibabel", "nilearn", "safetensors", "orjson", "fire", "nvidia-ml-py", "matplotlib", "rich",
    "tensorboard", "wandb",
)  # fmt: skip
"""Distributions whose version is recorded; of NVIDIA's libraries, all that are installed."""

ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY", "CAUSAL_CONV1D_DETERMINISTIC", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "DNNL_MAX_CPU_ISA",
    "GLOO_SOCKET_IFNAME", "LD_PRELOAD", "MAMBA_DETERMINISTIC", "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_IB_DISABLE",
    "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE",
    "NCCL_PROTO", "NCCL_SOCKET_IFNAME", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TRITON_CACHE_AUTOTUNING", "TRITON_CACHE_DIR",
    "TRITON_DEFAULT_FP_FUSION", "TRITON_F32_DEFAULT", "TRITON_INTERPRET",
)  # fmt: skip
"""Variables always recorded, also when unset."""

_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "KMP_", "MAMBA_", "MKL_", "NCCL_", "OMP_", "ONEDNN_",
    "TORCH_NCCL_", "TRITON_",
)  # fmt: skip
_IDENTIFYING = re.compile(r"HOST|ADDR|COMM_ID|(?:^|_)USER(?:NAME)?(?:_|$)")
_DIGEST = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_TIMED_LABEL = re.compile(r"date|created|time", re.IGNORECASE)


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``read`` returns, or ``{"error": text}`` when it raises."""
    try:
        return read(*arguments)
    except Exception as error:
        return {"error": hidden(f"{error}" or type(error).__name__)}


def source_digest(package: Path) -> str:
    """Return the SHA-256 over the ``.py`` files of a package, by content and relative path.

    It is the digest of what ``sha256sum`` prints for those files in byte order of their paths, so
    it is the same in a checkout, an installed wheel and an image.
    """
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    listing = (f"{sha256_file(files[name])}  {name}\n" for name in sorted(files))
    return sha256_bytes("".join(listing).encode())


def code(package: Path | None = None, root: Path = Path("/")) -> dict[str, Any]:
    """Return the identity of the running code.

    Parameters
    ----------
    package : Path, optional
        Folder of the package; by default that of boldcast.
    root : Path
        Root of the file system, for the image's build record.

    Returns
    -------
    dict
        ``origin`` (``git``, ``image``, ``vcs install`` or ``wheel``), ``version``, ``commit``,
        ``dirty``, ``diff_digest`` (null when clean), ``source_digest``.
    """
    package = package or Path(boldcast.__file__).parent
    found: dict[str, Any] = {"version": boldcast.__version__}
    found["source_digest"] = attempt(source_digest, package)
    git: dict[str, Any] = attempt(_git_identity, package)
    if "error" not in git:
        return found | git
    build = attempt(_json_file, root / "opt/boldcast/build.json")
    if "error" not in build and isinstance(build.get("commit"), str):
        return found | {"origin": "image", "commit": build["commit"], **_unchanged(build)}
    installed = attempt(_direct_url_commit)
    if isinstance(installed, str):
        return found | {"origin": "vcs install", "commit": installed, **_unchanged({})}
    return found | {"origin": "wheel", "commit": git, "dirty": git, "diff_digest": git}


def software() -> dict[str, Any]:
    """Return the interpreter, platform, C library and versions of the packages that matter."""
    return {
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "compiler": platform.python_compiler(),
        },
        "platform": {"system": platform.system(), "machine": platform.machine()},
        "libc": attempt(lambda: os.confstr("CS_GNU_LIBC_VERSION")),
        "packages": attempt(_packages),
    }


def environment(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the variables that can change bits or speed, unset, empty and set kept apart.

    Only names of `ENVIRONMENT` and of the libraries' own prefixes are looked at; of these, names
    that may hold a secret or an address are left out altogether.

    Returns
    -------
    dict
        Name to ``{"state": "unset"}``, ``{"state": "empty"}`` or
        ``{"state": "set", "value": text}``.
    """
    env = os.environ if env is None else env
    names = {*ENVIRONMENT, *(name for name in env if name.startswith(_PREFIXES))}
    kept = sorted(n for n in names if not is_secret_name(n) and not _IDENTIFYING.search(n))
    return {name: _state(env.get(name)) for name in kept}


def set_variables(prefix: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables under ``prefix`` that are set, as `environment` would hold them."""
    return {
        name: state.get("value", "")
        for name, state in environment(env).items()
        if name.startswith(prefix) and state["state"] != "unset"
    }


def image(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> dict[str, Any]:
    """Return the identity of the container image, as far as it can be known from inside.

    A container cannot see its own digest, so whoever starts it passes ``BOLDCAST_OCI_DIGEST`` or
    ``BOLDCAST_SIF_SHA256``. Outside a container every fact but ``kind`` is null.

    Returns
    -------
    dict
        ``kind`` (``none``, ``docker``, ``podman``, ``apptainer`` or ``container``), ``oci_digest``,
        ``sif_sha256``, ``base_digest``, ``labels``, ``runtime``.
    """
    env = os.environ if env is None else env
    kind = attempt(_image_kind, env, root)
    if kind == "none":
        facts = ("oci_digest", "sif_sha256", "base_digest", "labels", "runtime")
        return {"kind": kind, **dict.fromkeys(facts)}
    build = attempt(_json_file, root / "opt/boldcast/build.json")
    labels = attempt(_labels, root) if kind == "apptainer" else None
    sif = _passed(env, "BOLDCAST_SIF_SHA256") if kind == "apptainer" else None
    base = build.get("base_digest") or (labels or {}).get("org.opencontainers.image.base.digest")
    return {
        "kind": kind,
        "oci_digest": _passed(env, "BOLDCAST_OCI_DIGEST"),
        "sif_sha256": sif,
        "base_digest": base or {"error": "neither the build record nor a label names it"},
        "labels": labels,
        "runtime": attempt(_runtime, kind, root),
    }


def _git(folder: Path, *arguments: str) -> str:
    # A user's settings must not change the bytes of a diff, nor start a pager or a helper program.
    plain = ("-c", "core.fsmonitor=false", "-c", "diff.algorithm=myers")
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", *plain, "-C", str(folder), *arguments],
        capture_output=True,
        check=False,
        timeout=20,
        env=env | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
    )
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RuntimeError(f"git {arguments[0]}: {message[0] if message else 'failed'}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _git_identity(package: Path) -> dict[str, Any]:
    # An environment inside somebody's checkout is not that checkout's code: ours is tracked.
    _git(package, "ls-files", "--error-unmatch", "__init__.py")
    top = Path(_git(package, "rev-parse", "--show-toplevel").rstrip("\n"))
    commit = _git(top, "rev-parse", "--verify", "HEAD").strip()
    diff = _git(
        top, "diff", "HEAD", "--binary", "--full-index", "--no-color", "--no-ext-diff",
        "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/",
    )  # fmt: skip
    untracked = _git(package, "ls-files", "--others", "--exclude-standard", ".")
    return {
        "origin": "git",
        "commit": commit,
        "dirty": bool(diff or untracked),
        "diff_digest": sha256_bytes(diff.encode("utf-8", "surrogateescape")) if diff else None,
    }


def _unchanged(build: Mapping[str, Any]) -> dict[str, Any]:
    return {"dirty": bool(build.get("dirty", False)), "diff_digest": build.get("diff_digest")}


def _direct_url_commit() -> str:
    text = importlib.metadata.distribution("boldcast").read_text("direct_url.json") or "{}"
    return str(json.loads(text)["vcs_info"]["commit_id"])


def _packages() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for found in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
        if name in PACKAGES or name.startswith("nvidia-"):
            # The first one on the path is the one that is imported.
            versions[name] = versions.get(name) or found.version
    return versions


def _state(value: str | None) -> dict[str, str]:
    if value is None:
        return {"state": "unset"}
    if not value:
        return {"state": "empty"}
    return {"state": "set", "value": hidden(value.encode("utf-8", "backslashreplace").decode())}


def _image_kind(env: Mapping[str, str], root: Path) -> str:
    if (root / ".singularity.d").is_dir() or env.get("APPTAINER_CONTAINER"):
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return "container" if env.get("container") else "none"


def _labels(root: Path) -> dict[str, str]:
    labels = _json_file(root / ".singularity.d/labels.json")
    return {
        name: hidden(str(value))
        for name, value in labels.items()
        if not is_secret_name(name) and not _TIMED_LABEL.search(name)
    }


def _runtime(kind: str, root: Path) -> Any:
    if kind == "podman":
        text = (root / "run/.containerenv").read_text()
        if match := re.search(r'^engine="([^"]*)"', text, re.MULTILINE):
            return match[1]
    elif kind == "apptainer":
        version = _json_file(root / ".singularity.d/labels.json")
        if built := version.get("org.label-schema.usage.apptainer.version"):
            return f"built by apptainer {built}"
    return {"error": f"{kind} does not tell its version inside"}


def _passed(env: Mapping[str, str], name: str) -> Any:
    value = env.get(name, "")
    if not value:
        return {"error": f"{name} was not passed in when the container was started"}
    if not _DIGEST.search(value) or len(value.split("@")[-1].removeprefix("sha256:")) != 64:
        return {"error": f"{name} is not a SHA-256 digest"}
    return value.split("@")[-1]


def _json_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise RuntimeError(f"{path.name}: {error.strerror}") from None
    if not isinstance(value, dict):
        raise RuntimeError(f"{path.name} holds no object")
    return value
