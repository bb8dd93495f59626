from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boldcast.errors import DataRefused
from boldcast.files import canonical_json, sha256_bytes
from boldcast.record.manifest import load, manifest_id, open_manifest, seal
from boldcast.record.verify import verify


def bad(path: Path, data: Path | None = None) -> list[str]:
    return [finding.name for finding in verify(path, data) if not finding.ok]


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest the way a careful forger would: with a matching id."""
    manifest = load(run)
    change(manifest)
    manifest["id"] = manifest_id(manifest)
    (run / "manifest.json").write_bytes(canonical_json(manifest))


def test_an_untouched_run_verifies(run: Path) -> None:
    findings = verify(run)
    assert [finding for finding in findings if not finding.ok] == []
    names = {finding.name for finding in findings}
    assert {"manifest id", "config digest", "trace digest", "model.safetensors"} <= names
    assert "checkpoints/step_00000002" in names


FILES = [
    "manifest.json",
    "config.toml",
    "trace.jsonl",
    "model.safetensors",
    "evaluation.json",
    "checkpoints/step_00000002/model.safetensors",
    "checkpoints/step_00000002/optimizer.safetensors",
    "checkpoints/step_00000002/digests.json",
]


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_anywhere_is_found_and_named(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    stride = max(1, len(whole) // 40)
    for place in {*range(0, len(whole), stride), len(whole) - 1}:
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        (run / name).write_bytes(changed)
        found = bad(run)
        assert any(name in f or f.startswith("manifest") for f in found), (place, found)
    (run / name).write_bytes(whole)
    assert bad(run) == []


@pytest.mark.parametrize("name", FILES[1:])
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert name in bad(run)


def test_extra_files_and_links_are_named(run: Path, tmp_path: Path) -> None:
    (run / "extra.bin").write_bytes(b"x")
    (run / "checkpoints/step_00000002/extra").write_bytes(b"x")
    (run / "link").symlink_to(tmp_path)
    assert bad(run) == [
        "checkpoints/step_00000002/extra", "extra.bin", "link", "checkpoints/step_00000002",
    ]  # fmt: skip


def test_volatile_files_do_not_matter(run: Path) -> None:
    (run / "events.jsonl").write_text("{}\n")
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events").write_text("x")
    assert bad(run) == []


def test_a_forged_digest_with_matching_id_is_found_by_the_file(run: Path) -> None:
    rewrite(run, lambda m: m["results"]["digests"].update({"config.toml": "0" * 64}))
    assert bad(run) == ["config.toml"]


def test_a_config_that_differs_from_the_manifest_is_found(run: Path) -> None:
    rewrite(run, lambda m: m["requested"]["config"]["train"].update(steps=301))
    findings = {f.name: f for f in verify(run) if not f.ok}
    assert set(findings) == {"config digest", "config"}
    assert "train.steps" in findings["config"].detail


def test_a_shortened_trace_with_resealed_file_digest_is_found(run: Path) -> None:
    first = (run / "trace.jsonl").read_bytes().splitlines(keepends=True)[0]
    (run / "trace.jsonl").write_bytes(first)
    change = {"trace.jsonl": sha256_bytes(first)}
    rewrite(run, lambda m: m["results"]["digests"].update(change))
    assert bad(run) == ["trace digest", "steps"]


def test_a_checkpoint_is_checked_by_its_own_listing_in_an_open_run(run: Path, blocks: Any) -> None:
    open_manifest(run, blocks)
    assert bad(run) == []
    (run / "checkpoints/step_00000002/model.safetensors").write_bytes(b"other")
    assert bad(run) == ["checkpoints/step_00000002"]


def test_a_checkpoint_listing_cannot_lead_outside(run: Path, tmp_path: Path, blocks: Any) -> None:
    (tmp_path / "outside").write_bytes(b"x")
    place = run / "checkpoints/step_00000002/digests.json"
    listing = {"../../../outside": sha256_bytes(b"x"), **json.loads(place.read_text())}
    place.write_text(json.dumps(listing, separators=(",", ":")) + "\n")
    open_manifest(run, blocks)
    assert bad(run) == ["checkpoints/step_00000002"]


def test_a_checkpoint_listing_is_not_read_through_a_link(
    run: Path, tmp_path: Path, blocks: Any
) -> None:
    place = run / "checkpoints/step_00000002/digests.json"
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    open_manifest(run, blocks)
    name = "checkpoints/step_00000002"
    assert bad(run) == [f"{name}/digests.json", name]


def test_a_link_to_an_equal_file_outside_is_no_artifact(run: Path, tmp_path: Path) -> None:
    (run / "model.safetensors").rename(tmp_path / "outside")
    (run / "model.safetensors").symlink_to(tmp_path / "outside")
    assert bad(run) == ["model.safetensors", "model.safetensors"]


def test_a_kept_manifest_is_checked_with_what_lies_beside_it(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("manifest.json", "trace.jsonl"):
        shutil.copy(run / name, kept / name)
    assert bad(kept / "manifest.json") == []
    details = {f.name: f.detail for f in verify(kept / "manifest.json")}
    assert details["elsewhere"] == "6 artifacts are not beside the manifest"
    assert "model.safetensors" in bad(kept)
    (kept / "trace.jsonl").write_bytes(b"")
    assert bad(kept / "manifest.json") == ["trace.jsonl", "trace digest", "steps"]


def test_data_are_recognized_by_content(run: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "renamed.mat").write_bytes(b"scan")
    assert bad(run, data) == []
    (data / "deep" / "renamed.mat").write_bytes(b"scam")
    assert bad(run, data) == ["data"]


def test_sealing_passes_over_a_link_instead_of_failing(run: Path, blocks: Any) -> None:
    (run / "latest").symlink_to("checkpoints/step_00000002")
    seal(run, blocks, {"status": "completed", "steps": 2}, [])
    assert "latest" not in load(run)["results"]["digests"]


def test_nothing_at_the_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="there is none"):
        verify(tmp_path / "nowhere")


def test_a_folder_without_a_manifest_fails(tmp_path: Path) -> None:
    assert bad(tmp_path) == ["manifest"]
