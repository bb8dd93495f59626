"""A run as a DataLad run record: the commit message by which `datalad rerun` repeats it.

DataLad hands the command to a shell and fills in what stands between braces, in the command and in
the names of inputs and outputs. A record from a stranger must not use either, so every word is
quoted and every brace doubled, and the program is always ``boldcast``.

Source: the run record as ``datalad run`` writes it (datalad 1.x, ``core/local/run.py``).

Example
-------
>>> print(commit_message(Path("runs/demo/manifest.json")).splitlines()[0])   # doctest: +SKIP
[DATALAD RUNCMD] boldcast train run/tiny.toml
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boldcast.errors import DataRefused
from boldcast.record.fields import RELATIVE, matches
from boldcast.record.manifest import MANIFEST, load

_EXIT = {"completed": 0, "failed": 1, "diverged": 7, "stopped": 75}


def commit_message(path: Path) -> str:
    """Return the commit message that holds the run record of a manifest.

    Parameters
    ----------
    path : Path
        Manifest file, or the run folder that holds it.

    Raises
    ------
    DataRefused
        If it is no manifest, or the run has not ended.
    """
    record = run_record(load(path))
    subject = re.sub(r"[^\x20-\x7e]", "?", record["cmd"])[:60]
    body = json.dumps(record, indent=1, sort_keys=True)
    return (
        f"[DATALAD RUNCMD] {subject}\n\n"
        f"=== Do not change lines below ===\n{body}\n^^^ Do not change lines above ^^^\n"
    )


def run_record(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run record alone, as JSON values.

    The data set's id is left out, as DataLad itself does where there is none; scan files are known
    by digest, not by path, so the only input that can be named is the configuration file.
    """
    status = manifest["results"]["status"]
    if status not in _EXIT:
        raise DataRefused(
            f"`results.status` must say how the run ended, but is {status!r}. Export it when the "
            "run is over."
        )
    argv = list(manifest["requested"]["argv"])
    words = argv[1:] if argv[:1] == ["boldcast"] else argv
    folder = _run_dir(words, manifest)
    outputs = sorted({*manifest["results"]["digests"], MANIFEST}) if folder else []
    return {
        "chain": [],
        "cmd": _literal(shlex.join(["boldcast", *words])),
        "exit": _EXIT[status],
        "extra_inputs": [],
        "inputs": [_literal(name) for name in words[1:2] if _is_config(name)],
        "outputs": [_literal(f"{folder}/{name}") for name in outputs],
        "pwd": ".",
    }


def _is_config(word: str) -> bool:
    elsewhere = word.startswith(("<path>", "~"))
    return word.endswith(".toml") and matches(word, RELATIVE) and not elsewhere


def _run_dir(words: list[str], manifest: Mapping[str, Any]) -> str | None:
    """Return the run folder relative to the data set, None if it was elsewhere."""
    joined = dict(word.split("=", 1) for word in words if word.startswith("--run_dir="))
    split = dict(zip(words, words[1:], strict=False))
    requested = manifest["requested"]
    name = f"{requested['config'].get('name', 'run')}-{requested['config_digest'][:8]}"
    asked = joined.get("--run_dir") or split.get("--run_dir") or f"runs/{name}"
    relative = asked.removeprefix("./").rstrip("/")
    elsewhere = relative.startswith(("<path>", "~"))  # an absolute path, as it is recorded
    return relative if matches(relative, RELATIVE) and not elsewhere else None


def _literal(text: str) -> str:
    """Return a text that DataLad's placeholders leave as it is."""
    return text.replace("{", "{{").replace("}", "}}")
