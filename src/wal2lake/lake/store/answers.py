"""Reads the answers with which an object store refuses a request. Pure.

In: exceptions of obstore, which have a class for a few kinds of answers and a text for the rest.
Out: status and code of the answer, whether to repeat the request, and the StorageError to raise.

Repeated are requests without an answer (no connection, a time-out, an answer that was cut off) and
answers that mean "later": 408, 429, 5xx (503 SlowDown among them), and S3's 409 to one of two
conditional requests at the same time. Everything else would be refused again.

Sources: object_store 0.14, ``client/retry.rs`` (texts and kinds); S3, "Error responses"; Azure,
"Blob service error codes"; Google Cloud Storage, "HTTP status and error codes for XML".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from wal2lake.errors import StorageError
from wal2lake.lake.store.errors import MissingFileError

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_QUERY: Final = re.compile(r"\?[^\s\"]*")
"""A URL's query, which may hold a signature."""

_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})

_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})

_BAD_CREDENTIALS: Final = frozenset(
    {
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
"""Codes for credentials that are wrong or have expired; their status is 400 or 403."""

_REFUSED: Final = frozenset({400, 403})
"""Statuses of answers that may be about credentials if they have no code."""

_NO_CREDENTIALS: Final = re.compile(
    r"token request|getting credentials|169\.254\.|metadata\.google", re.IGNORECASE
)
"""Texts of obstore's errors about getting credentials from the machine or from a token's server."""

_COMMAND: Final = re.compile(r"External .*provider: CredentialsCommandFailed: (.*)")
"""Text for a command that gave no credentials, with the reason."""

_NO_ANSWER: Final = "HTTP error: "
"""Text before the reason why there is no whole answer. Other errors without a status are the
client's own."""

_NO_REQUEST: Final = "builder error"
"""Text for a request that could not be made, as of a URL without TLS."""

_BEYOND: Final = "Wanted range starting at"
"""Text for an answer with another range than the one that was asked for: Azure's for a range that
begins at the end of an object."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How a cloud's credentials are given."""

    keys: str
    """Settings of [store]."""
    printed: str
    """Members of a command's JSON."""


_WORDS: Final[Mapping[str, _Words]] = {
    "s3": _Words(
        "access_key_id and secret_access_key", "AccessKeyId and SecretAccessKey"
    ),
    "gs": _Words("credentials_file", "access_token"),
    "abfss": _Words("account_key or sas_token", "accessToken"),
}
"""By scheme of the URL."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """A request that was not carried out, or of which that is not known."""

    status: int | None
    """HTTP status; None: there was no whole answer."""
    code: str | None
    """The store's own word, as ``SlowDown``."""
    again: bool
    """True if the same request may succeed later."""
    is_known: bool
    """False if the request may have been carried out."""
    refuses_keys: bool = False
    """True if the store refuses the credentials, or may do so: an answer to HEAD has no code."""


def answer_of(error: Exception) -> StoreAnswer:
    """Read an exception of obstore."""
    text = _text(error)
    if _COMMAND.search(text) or _NO_CREDENTIALS.search(
        text.partition("status code")[0]
    ):
        return StoreAnswer(401, None, again=False, is_known=True)
    status, code = _STATUS.search(text), _CODE.search(text)
    word = None if code is None else code[1]
    if status is None:
        again = _NO_ANSWER in text and _NO_REQUEST not in text
        return StoreAnswer(None, word, again=again, is_known=_NO_REQUEST in text)
    number = int(status[1])
    return StoreAnswer(
        401 if word in _BAD_CREDENTIALS else number,
        word,
        again=number in _LATER,
        is_known=number < 500 and number != 408,
        refuses_keys=number == 401
        or word in _BAD_CREDENTIALS
        or (word is None and number in _REFUSED),
    )


def is_beyond_the_end(error: Exception) -> bool:
    """Whether a range that was asked for begins at the end of the object, or beyond."""
    return answer_of(error).status == 416 or _BEYOND in _text(error)


def error_of(action: str, place: str, error: Exception, seconds: float) -> StorageError:
    """Build the error of an operation on an object that has failed for good. ``seconds``: time
    within which one request had to be answered."""
    answer, original = answer_of(error), original_of(error)
    text = f'could not {action} "{place}"'
    words = _WORDS[place.partition("://")[0]]
    if isinstance(error, FileNotFoundError) and answer.code not in _NO_BUCKET:
        return MissingFileError(f"{text}: there is no such object", original=original)
    if answer.code in _NO_BUCKET:
        return StorageError(
            f"{text}: the bucket does not exist",
            sqlstate="58P01",
            hint="Create the bucket, or correct its name in the URL.",
            original=original,
        )
    command = _COMMAND.search(original)
    if command is not None:
        return StorageError(
            f"{text}: the command for credentials of the object store failed",
            sqlstate="28000",
            detail=f"The credentials_command of [store] gave none: {command[1]}.",
            hint="Run it as the node's operating system user: it must print JSON with"
            f" {words.printed} within 30 seconds.",
            original=original,
        )
    if answer.status == 401 or isinstance(error, UnauthenticatedError):
        return StorageError(
            f"{text}: there are no valid credentials for the object store",
            sqlstate="28000",
            hint=f"Set {words.keys}, or credentials_command, of [store],"
            " or give the machine an identity that the store knows.",
            original=original,
        )
    if answer.status == 403 or isinstance(error, PermissionDeniedError):
        return StorageError(
            f"{text}: permission denied",
            sqlstate="42501",
            hint="Allow the node's identity to list the bucket, and to read, write and"
            " delete its objects.",
            original=original,
        )
    if answer.status is None and not answer.again:
        reason = "the client of the object store failed"
    elif answer.status is None:
        reason = f"no whole answer within {seconds:g} seconds"
    else:
        word = f" ({answer.code})" if answer.code else ""
        reason = f"the object store answered with status {answer.status}{word}"
    return StorageError(f"{text}: {reason}", sqlstate="58030", original=original)


def original_of(error: Exception) -> str:
    """Return the library's text for the server log, on one line and without signatures."""
    text = " ".join(_QUERY.sub("", _text(error)).split())
    return f"{type(error).__name__}: {text}"


def _text(error: Exception) -> str:
    return str(error).partition("\n\nDebug source:")[0]
