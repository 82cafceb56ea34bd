"""The fuzz target of wire/ over its corpus and mutations of it (tests/fakes/fuzz.py).

With a fixed seed it is as repeatable as any other test. ``WAL2LAKE_FUZZ_SECONDS=600`` goes on
for as long with seeds of its own and says which one failed; ``WAL2LAKE_FUZZ_SEED`` repeats it.
"""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes import fuzz

CORPUS = Path(__file__).parent / "corpus" / "wire"
INPUTS = {path.stem: fuzz.decode(path.read_bytes()) for path in CORPUS.glob("*.bin")}

MUTATIONS_OF_EACH = 40
SEED = 20260101

# What a violation, a traceback and NumPy's arrays of no rows take; and an input's bytes as
# Arrow columns, 64-bit cursors and offsets beside them.
MEMORY_BYTES = 1 << 20
MEMORY_FACTOR = 200


def one(
    payloads: fuzz.Input, seed: int, directory: Path, *, name: str = "input"
) -> None:
    """Check an input; one that fails is kept, to be looked at and added to the corpus."""
    try:
        fuzz.check(payloads, random.Random(seed))
    except BaseException as error:
        path = directory / f"{name}-{seed}.bin"
        path.write_bytes(fuzz.encode(payloads))
        error.add_note(f"input: {path}, seed {seed}")
        raise


def test_a_corpus_file_is_what_it_was_written_as() -> None:
    assert len(INPUTS) >= 40
    for path in CORPUS.glob("*.bin"):
        assert fuzz.encode(fuzz.decode(path.read_bytes())) == path.read_bytes()
    # Any other file is an input too.
    assert fuzz.decode(b"\0\0\0\2ab\xff\xff\xff\xffcd\0") == [b"ab", b"cd\0"]


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_an_input_and_its_mutations_are_messages_or_a_violation_in_any_chunking(
    name: str, tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {name}")
    others = [INPUTS[other] for other in sorted(INPUTS)]
    one(INPUTS[name], SEED, tmp_path)
    for _ in range(MUTATIONS_OF_EACH):
        seed = rng.getrandbits(32)
        mutation = fuzz.mutated(INPUTS[name], others, random.Random(seed))
        one(mutation, seed, tmp_path, name=name)


def test_no_input_takes_memory_out_of_proportion(tmp_path: Path) -> None:
    """Whatever counts and lengths it claims."""
    rng = random.Random(SEED)
    others = [INPUTS[other] for other in sorted(INPUTS)]
    inputs = [INPUTS[name] for name in sorted(INPUTS)]
    inputs += [fuzz.mutated(p, others, rng) for p in inputs if p]
    one(INPUTS["stream-every-kind"], SEED, tmp_path)  # what is made once
    before = pa.default_memory_pool()
    tracemalloc.start()
    try:
        for payloads in inputs:
            pool = pa.proxy_memory_pool(before)
            pa.set_memory_pool(pool)
            tracemalloc.reset_peak()
            base = tracemalloc.get_traced_memory()[0]
            one(payloads, SEED, tmp_path)
            peak = tracemalloc.get_traced_memory()[1] - base
            bound = MEMORY_BYTES + MEMORY_FACTOR * sum(map(len, payloads))
            assert peak < bound, payloads
            assert pool.max_memory() < bound, payloads
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def test_a_run_as_long_as_wanted(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Mutations of mutations; one of a fixed seed unless the environment says more."""
    seconds = float(os.environ.get("WAL2LAKE_FUZZ_SECONDS", "0"))
    only = os.environ.get("WAL2LAKE_FUZZ_SEED")
    directory = tmp_path_factory.mktemp("fuzz")
    others = [INPUTS[name] for name in sorted(INPUTS)]
    deadline = time.monotonic() + seconds
    source = random.SystemRandom()
    again = True
    while again:
        again = only is None and time.monotonic() < deadline
        seed = int(only or SEED) if not again else source.getrandbits(32)
        rng = random.Random(seed)
        payloads = fuzz.mutated(rng.choice(others), others, rng)
        while rng.random() < 0.5:
            payloads = fuzz.mutated(payloads, others, rng)
        one(payloads, seed, directory, name="long")
