"""Keep people, machines and secrets out of a record that is meant to be passed on.

What is done, and what it is worth:

* Secrets: values that belong to a name like ``token`` or ``password``, or that look like a known
  token, are replaced. A secret under an innocent name is not recognized.
* Paths: an absolute path keeps its last part alone, everywhere; the home folder itself becomes
  ``~``, and a folder named like the user ``<user>``.
* Subjects: stored as a hash salted with a digest of the data's own bytes. The salt is not stored
  and cannot be derived from the record. Whoever holds the data can compute the salt, and for public
  data that is everybody. Digests of what names subjects, such as that of a configuration with
  ``data.held_out``, are not salted: who knows the rest of it can try likely names against them.
* GPU identifiers: hashed with a fixed prefix, so that two records can be told to come from the same
  board. They are too random to be guessed; someone who can read the board can confirm it.

Example
-------
>>> redact_argv(["boldcast", "train", "--api_key", "abc"], home="/home/x", user="x")
['boldcast', 'train', '--api_key', '<redacted>']
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Sequence

from boldcast.files import sha256_bytes

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|credential|cookie|api[_-]?key|access[_-]?key|private"
    r"|(?:^|[_.-])(?:key|auth|pwd)(?:$|[_.-])",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abpr]-|AKIA|nvapi-)[A-Za-z0-9_-]{8,}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# Not the slashes of a URL, nor one between words.
_ABSOLUTE = re.compile(r"(?<![\w.~<>/-])/(?=[\w.~-])(?:[^\s/:;,='\"]+/)*([^\s/:;,='\"]*)")
_GPU_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9A-Fa-f][0-9A-Fa-f/-]{7,}")


def is_secret_name(name: str) -> bool:
    """Say whether a variable or flag of this name may hold a secret."""
    return bool(_SECRET_NAME.search(name))


def hide_secrets(text: str) -> str:
    """Replace tokens of known form and logins in URLs."""
    return _SECRET_VALUE.sub(REDACTED, _URL_LOGIN.sub(REDACTED, text))


def hide_paths(text: str) -> str:
    """Reduce every absolute path in ``text`` to ``<path>/`` and its last part."""
    return _ABSOLUTE.sub(lambda match: f"<path>/{match[1]}" if match[1] else "<path>", text)


def hide_place(text: str, home: str | None = None, user: str | None = None) -> str:
    """Reduce a text that as a whole is an absolute path, spaces included, to its last part."""
    home = os.path.expanduser("~") if home is None else home
    user = _user_name() if user is None else user
    path = text.rstrip("/")
    if path and path == home.rstrip("/"):
        return "~"
    if not text.startswith("/"):
        return text
    last = path.rpartition("/")[2]
    return f"<path>/{'<user>' if last == user else last}" if last else "<path>"


def hide_gpu_ids(text: str) -> str:
    """Replace GPU and MIG identifiers by their hash."""
    return _GPU_UUID.sub(lambda match: hashed_gpu(match[0]), text)


def hidden(text: str) -> str:
    """Return ``text`` without secrets, absolute paths and GPU identifiers."""
    return hide_paths(hide_gpu_ids(hide_secrets(text)))


def redact_argv(argv: Sequence[str], home: str | None = None, user: str | None = None) -> list[str]:
    """Return argv as received, without secrets, absolute paths and user name.

    Parameters
    ----------
    argv : sequence of str
        ``sys.argv``; of the first element only the program's name is kept.
    home, user : str, optional
        Home folder and name of the user; by default those of this process.
    """
    home = os.path.expanduser("~") if home is None else home
    user = _user_name() if user is None else user
    kept: list[str] = []
    secret_next = False
    for index, text in enumerate(argv):
        flag, equals, _ = text.partition("=")
        is_flag = flag.startswith("-")
        if secret_next and not is_flag:
            text = REDACTED
        elif is_flag and equals and is_secret_name(flag):
            text = f"{flag}={REDACTED}"
        secret_next = is_flag and not equals and is_secret_name(flag)
        text = os.path.basename(text) if index == 0 else _hide_places(text, home, user)
        kept.append(hide_secrets(text).encode("utf-8", "backslashreplace").decode())
    return kept


def subject_salt(data: bytes) -> str:
    """Return the salt for subject identifiers: a digest of (a piece of) the data themselves.

    Parameters
    ----------
    data : bytes
        Bytes only a holder of the data has, for example the first MiB of the packed series; not
        a digest that the record holds, or the record alone would give the salt away.
    """
    return hashlib.sha256(b"boldcast/subject-salt/1\n" + data).hexdigest()


def hashed_subject(subject: str, salt: str) -> str:
    """Return 16 hexadecimal characters that stand for a subject under ``salt``."""
    return sha256_bytes(f"boldcast/subject/1\n{salt}\n{subject}".encode())[:16]


def hashed_gpu(uuid: str) -> str:
    """Return 16 hexadecimal characters that stand for a GPU or MIG identifier."""
    return sha256_bytes(f"boldcast/gpu/1\n{uuid}".encode())[:16]


def _hide_places(text: str, home: str, user: str) -> str:
    flag, equals, value = text.partition("=") if text.startswith("-") else ("", "", text)
    text = hide_paths(f"{flag}{equals}{hide_place(value, home, user)}")
    return re.sub(rf"(?<=/){re.escape(user)}(?=/|$)", "<user>", text) if user else text


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a number that has no name
        return os.environ.get("USER", "")
