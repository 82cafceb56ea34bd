"""Converts between a client's character set and UTF-8, which a node uses inside.

Comes in: PostgreSQL's encoding names, and bytes. Goes out: names of Python's codecs, and converted
text.

SQL_ASCII means no conversion. An encoding is refused as unknown if Python lacks it (EUC_TW,
MULE_INTERNAL), or if Python's codec has other characters in place of ASCII's (JOHAB,
SHIFT_JIS_2004: a backslash would become a currency sign).

Source: src/common/encnames.c; PostgreSQL manual, section 23.3.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from wal2lake.errors import UsageError

_CODECS: Final = {
    "BIG5": "cp950",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "GB18030": "gb18030",
    "GBK": "gbk",
    "ISO_8859_5": "iso8859_5",
    "ISO_8859_6": "iso8859_6",
    "ISO_8859_7": "iso8859_7",
    "ISO_8859_8": "iso8859_8",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "LATIN1": "iso8859_1",
    "LATIN2": "iso8859_2",
    "LATIN3": "iso8859_3",
    "LATIN4": "iso8859_4",
    "LATIN5": "iso8859_9",
    "LATIN6": "iso8859_10",
    "LATIN7": "iso8859_13",
    "LATIN8": "iso8859_14",
    "LATIN9": "iso8859_15",
    "LATIN10": "iso8859_16",
    "SJIS": "cp932",
    "SQL_ASCII": "utf-8",
    "UHC": "cp949",
    "UTF8": "utf-8",
    "WIN866": "cp866",
    "WIN874": "cp874",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1255": "cp1255",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
}

_ALIASES: Final = {
    "unicode": "UTF8",
    "iso88591": "LATIN1",
    "iso88592": "LATIN2",
    "iso88593": "LATIN3",
    "iso88594": "LATIN4",
    "iso88599": "LATIN5",
    "iso885910": "LATIN6",
    "iso885913": "LATIN7",
    "iso885914": "LATIN8",
    "iso885915": "LATIN9",
    "iso885916": "LATIN10",
    "koi8": "KOI8R",
    "shiftjis": "SJIS",
    "mskanji": "SJIS",
    "win": "WIN1251",
    "alt": "WIN866",
    "abc": "WIN1258",
    "tcvn": "WIN1258",
    "vscii": "WIN1258",
    "windows949": "UHC",
    "windows950": "BIG5",
    "windows932": "SJIS",
    "windows936": "GBK",
    **{f"windows{n}": f"WIN{n}" for n in (866, 874, *range(1250, 1259))},
}


def _squeeze(name: str) -> str:
    """clean_encoding_name(): a name without punctuation, in lower case."""
    return "".join(c for c in name if c.isascii() and c.isalnum()).lower()


_NAMES: Final = {**_ALIASES, **{_squeeze(name): name for name in _CODECS}}


def canonical_encoding(name: str) -> str | None:
    """PostgreSQL's name of an encoding, for any spelling; None if it is not known."""
    return _NAMES.get(_squeeze(name))


def codec_name(encoding: str) -> str:
    """The name of Python's codec for a canonical name."""
    return _CODECS[encoding]


def is_utf8(encoding: str) -> bool:
    """Whether bytes in this encoding need no conversion."""
    return _CODECS[encoding] == "utf-8"


def decode_text(data: bytes, encoding: str) -> str:
    """Decode a client's bytes; raises UsageError (22021)."""
    try:
        return data.decode(_CODECS[encoding])
    except UnicodeDecodeError as error:
        shown_bytes = data[error.start : max(error.end, error.start + 1)][:8]
        # The message shows the first byte of an incomplete sequence, as pg_verify_mbstr() does.
        shown_bytes = shown_bytes or data[error.start : error.start + 1]
        name = "UTF8" if encoding == "SQL_ASCII" else encoding
        raise UsageError(
            f'invalid byte sequence for encoding "{name}": {_hex(shown_bytes)}',
            sqlstate="22021",
        ) from None


def convert_column(
    column: Sequence[bytes | None], encoding: str
) -> Sequence[bytes | None]:
    """Convert UTF-8 values to the client's encoding; raises UsageError (22P05).

    A value that is not valid UTF-8, which only a source with SQL_ASCII produces, cannot be
    converted and raises 22021.
    """
    encode = codecs.lookup(_CODECS[encoding]).encode
    out: list[bytes | None] = []
    for value in column:
        if value is None or value.isascii():
            # An ASCII string has the same bytes in every client encoding.
            out.append(value)
            continue
        try:
            out.append(encode(value.decode("utf-8"))[0])
        except UnicodeDecodeError as error:
            shown_bytes = value[error.start : error.start + 1]
            raise UsageError(
                f'invalid byte sequence for encoding "UTF8": {_hex(shown_bytes)}',
                sqlstate="22021",
            ) from None
        except UnicodeEncodeError as error:
            character = error.object[error.start].encode("utf-8")
            raise UsageError(
                f"character with byte sequence {_hex(character)} in encoding "
                f'"UTF8" has no equivalent in encoding "{encoding}"',
                sqlstate="22P05",
            ) from None
    return out


def _hex(data: bytes) -> str:
    return " ".join(f"0x{byte:02x}" for byte in data)
