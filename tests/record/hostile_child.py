"""Run command lines under limits and watch what they do; a job comes as JSON, answers go as JSON.

The audit hook refuses to start anything, to write outside the folder allowed and to open what is
forbidden; each refusal is part of the answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import time
import traceback

from boldcast.cli import run

STARTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty",
    "socket.connect", "pty.spawn", "webbrowser.open",
)  # fmt: skip
WRITES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.link": 1, "shutil.rmtree": 0}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Case = dict[str, str | list[list[str]]]


class Forbidden(BaseException):
    """Something was about to be done that no record may bring about."""


def main() -> None:
    job = json.load(sys.stdin)
    import numpy  # noqa: F401  # before the limits: its libraries are opened once
    import safetensors  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"], job["seconds"]))
    current: list[Case] = []
    sys.addaudithook(lambda event, arguments: watch(event, arguments, current))
    answers = {}
    for name, case in job["cases"].items():
        current[:] = [case]
        answers[name] = answer(case)
    current.clear()
    print(json.dumps(answers))


def answer(case: Case) -> dict[str, object]:
    said, codes, start = io.StringIO(), [], time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        for words in case["commands"]:
            try:
                codes.append(run(words))
            except BaseException:
                codes.append(-1)
                traceback.print_exc()
    return {"codes": codes, "said": said.getvalue(), "cpu_s": time.process_time() - start}


def watch(event: str, arguments: tuple[object, ...], current: list[Case]) -> None:
    if not current:
        return
    allowed, forbidden = current[0]["allowed"], current[0]["forbidden"]
    if event in STARTS:
        raise Forbidden(f"started {event} {arguments!r}")
    if event in WRITES and not inside(arguments[WRITES[event]], allowed):
        raise Forbidden(f"wrote {event} {arguments!r}")
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        if arguments[2] & WRITING and not inside(arguments[0], allowed):
            raise Forbidden(f"wrote {arguments!r}")
        if inside(os.path.realpath(arguments[0]), forbidden):
            raise Forbidden(f"read {arguments!r}")


def inside(path: object, folder: object) -> bool:
    text = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
    return text == folder or text.startswith(f"{folder}/")


if __name__ == "__main__":
    main()
