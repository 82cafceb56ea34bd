"""A type of the user's own that is called citext, but is a composite, was read as if its binary
form were text: its bytes came into the table."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from wal2lake.model import Oid
from wal2lake.pgtypes import RemoteType, convert_sent, mapping_for

NAME = "public.citext"
PAIR = RemoteType(Oid(90001), NAME, "c", True, Oid(0), (Oid(25), Oid(25)))


def test_it_is_read_as_what_it_is() -> None:
    fields = b"".join(struct.pack("!Ii", 25, 1) + text for text in (b"a", b"b"))
    sent = pa.array([struct.pack("!i", 2) + fields], pa.binary())
    mapping = mapping_for(PAIR.oid, type_name=NAME)
    types = {int(PAIR.oid): PAIR}
    found = convert_sent(sent, np.array([True]), PAIR.oid, types, mapping)
    assert found.array.to_pylist() == ["(a,b)"]
