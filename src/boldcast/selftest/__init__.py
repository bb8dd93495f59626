"""``boldcast selftest``: prove on this machine's CPU that the installation keeps its promises.

The real command line trains a tiny model on made-up data in a temporary folder, on one and on two
ranks joined by Gloo; nothing is fetched and no GPU is used. What it leaves is then compared byte by
byte, and what must be noticed is planted, to see that it is.

``driver`` runs commands, ``study`` makes the data, ``checks`` judge what commands left (pure
functions, so that a test can show each of them something wrong), ``plan`` says what runs when and
``table`` prints.

Example
-------
>>> run(out=None, as_json=False)  # doctest: +SKIP
0
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from boldcast.selftest import plan, table
from boldcast.selftest.driver import Driver
from boldcast.selftest.report import Report

__all__ = ["run"]


def run(out: Path | None, as_json: bool) -> int:
    """Run every check; return 0 if all hold, else 1 and keep the folder for a look.

    Parameters
    ----------
    out : Path or None
        Where to write the result as JSON.
    as_json : bool
        Print JSON instead of the table.
    """
    folder = Path(tempfile.mkdtemp(prefix="boldcast-selftest-"))
    report = Report(say=lambda line: print(line, file=sys.stderr, flush=True))
    ok = False
    try:
        with Driver(folder) as driver:
            plan.run(driver, report)
        ok = report.ok
        table.show(report, None if ok else folder, out, as_json)
    except KeyboardInterrupt:
        ok = True  # nothing to look at
        raise
    finally:
        if ok:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if ok else 1
