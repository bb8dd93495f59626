"""run/setup, with a Python that only notes what it is asked: installs once, heals, refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Stands for the system's Python and, copied into .venv, for the environment's own.
PYTHON = r"""#!/bin/bash
case "$*" in
--version) echo "Python 3.11.9" ;;
"-m venv "*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" && echo venv >>"$LOG" ;;
*--dry-run*) echo "{\"version\": \"2.13.0$LOCAL\"}" ;;
*"-m pip install"*)
    for word in "$@"; do [[ ! -f $word ]] || grep -o '^[a-z-]*==' "$word" >>"$LOG"; done
    echo "force=${MAMBA_FORCE_BUILD:-} $*" >>"$LOG"
    [[ -z ${FAIL:-} ]]
    ;;
*"print("*) (cd -- "${0%/*}/.." && pwd -P) ;;
esac
"""


class Tree:
    """A copy of what run/setup reads, in a folder with a space in its name."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a clone"
        self.log = folder / "log"
        for name in ("run/setup", "pyproject.toml"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "container").mkdir()
        for lock in (ROOT / "container").glob("*.lock"):
            shutil.copy(lock, self.root / "container")
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def setup(self, *arguments: str, local: str = "+cpu", **extra: str) -> tuple[int, str, str]:
        """Run run/setup; return its exit code, what it said, and what it did with Python."""
        self.log.write_text("")
        environment = {"PATH": "/usr/bin:/bin", "BOLDCAST_VARIANT": "cpu", "LOCAL": local}
        environment |= {"BOLDCAST_PYTHON": str(self.python), "LOG": str(self.log)} | extra
        command = [str(self.root / "run/setup"), *arguments]
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
        assert done.stdout == ""
        return done.returncode, done.stderr, self.log.read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_installs_by_hash_once_and_is_silent_afterwards(tree: Tree) -> None:
    code, _, did = tree.setup()
    assert code == 0
    assert "--require-hashes --only-binary :all:" in did
    assert "torch==" in did
    assert "pytest==" not in did
    assert "--no-build-isolation --editable" in did
    assert tree.setup() == (0, "", "")


def test_dev_adds_to_an_environment_that_is_in_order(tree: Tree) -> None:
    tree.setup()
    code, _, did = tree.setup("--dev")
    assert code == 0
    assert "venv" not in did.splitlines()
    assert "pytest==" in did
    assert "torch==" not in did
    assert tree.setup("--dev") == (0, "", "")


def test_mamba_is_built_after_the_wheels_and_never_downloads_one(tree: Tree) -> None:
    _, _, did = tree.setup("--dev")
    lines = did.splitlines()
    assert lines.count("mamba-ssm==") == 1
    built = lines[lines.index("mamba-ssm==") + 1]
    assert built.startswith("force=TRUE")
    assert "--require-hashes --no-build-isolation" in built
    assert lines.index("triton==") < lines.index("mamba-ssm==")


@pytest.mark.parametrize("name", ["container/requirements-cpu.lock", "pyproject.toml"])
def test_a_change_of_what_is_installed_is_noticed(tree: Tree, name: str) -> None:
    tree.setup()
    path = tree.root / name
    path.write_text(path.read_text() + "# changed\n")
    code, _, did = tree.setup()
    assert code == 0
    assert "torch==" in did


def test_an_interrupted_set_up_starts_over(tree: Tree) -> None:
    code, _, _ = tree.setup(FAIL="1")
    assert code != 0
    (tree.root / ".venv/half").touch()
    code, said, did = tree.setup()
    assert code == 0
    assert "interrupted" in said
    assert did.startswith("venv\n")
    assert not (tree.root / ".venv/half").exists()
    assert tree.setup() == (0, "", "")


def test_a_moved_clone_gets_a_new_environment(tree: Tree) -> None:
    tree.setup()
    (tree.root / ".venv/bin/python").write_text(PYTHON.replace("pwd -P", "echo /elsewhere"))
    assert tree.setup()[2].startswith("venv\n")


def test_without_a_cpu_build_of_torch_the_cuda_lock_is_taken_and_said(tree: Tree) -> None:
    code, said, did = tree.setup(local="")
    assert code == 0
    assert "3 GB" in said
    assert "triton==" in did


def test_another_variant_gets_a_new_environment(tree: Tree) -> None:
    tree.setup()
    code, _, did = tree.setup(BOLDCAST_VARIANT="cuda")
    assert code == 0
    assert did.startswith("venv\n")
    assert "triton==" in did


def test_unusable_requests_are_refused_before_anything_is_made(tree: Tree) -> None:
    code, said, _ = tree.setup(BOLDCAST_VARIANT="gpu")
    assert (code, "must be cpu or cuda, but is gpu" in said) == (2, True)
    code, said, _ = tree.setup("--develop")
    assert (code, "--develop" in said) == (2, True)
    assert not (tree.root / ".venv").exists()


def test_a_python_without_venv_is_refused_with_the_remedy(tree: Tree, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "flock", "sha256sum", "cat", "env"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/bash\n[[ $* != *ensurepip* ]]\n")
    (tools / "python3").chmod(0o755)
    code, said, _ = tree.setup(PATH=str(tools), BOLDCAST_PYTHON="")
    assert code == 2
    assert "its `venv` module" in said
    assert not (tree.root / ".venv").exists()
