"""The handshake: a proof counts for one claim, one challenge, one secret and one direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.world.handshake import (
    PROTOCOL_VERSION,
    Claim,
    check_claim,
    check_verdict,
    make_claim,
    make_nonce,
    make_verdict,
)
from kadril.world.wire import MAX_STRANGER_FRAME, Kind, WireError, encode

SECRET = bytes(range(32))
CHALLENGE = b"c" * 32
CLAIM = Claim(rank=3, size=8, job="a job", generation=2)


@given(
    rank=st.integers(0, 2**32 - 1),
    size=st.integers(0, 2**32 - 1),
    generation=st.integers(0, 2**64 - 1),
    job=st.text(),
    version=st.integers(0, 2**32 - 1),
)
def test_a_claim_arrives_as_it_was_made(
    rank: int, size: int, generation: int, job: str, version: int
) -> None:
    claim = Claim(rank=rank, size=size, job=job, generation=generation, version=version)
    payload = make_claim(SECRET, claim, CHALLENGE)
    assert check_claim(SECRET, payload, CHALLENGE, job) == claim
    assert len(encode(Kind.CLAIM, payload)) < MAX_STRANGER_FRAME


@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_byte_of_a_claim_can_be_changed(position: int, flip: int) -> None:
    payload = bytearray(make_claim(SECRET, CLAIM, CHALLENGE))
    payload[position % len(payload)] ^= flip
    with pytest.raises(WireError, match="proof is wrong"):
        check_claim(SECRET, bytes(payload), CHALLENGE, CLAIM.job)


@given(payload=st.binary(max_size=400))
def test_arbitrary_bytes_are_no_claim(payload: bytes) -> None:
    with pytest.raises(WireError):
        check_claim(SECRET, payload, CHALLENGE, CLAIM.job)


def test_a_claim_is_for_one_challenge_secret_and_job() -> None:
    payload = make_claim(SECRET, CLAIM, CHALLENGE)
    with pytest.raises(WireError, match="proof is wrong"):
        check_claim(SECRET, payload, make_nonce(), CLAIM.job)
    with pytest.raises(WireError, match="proof is wrong"):
        check_claim(bytes(32), payload, CHALLENGE, CLAIM.job)
    with pytest.raises(WireError, match="another job"):
        check_claim(SECRET, payload, CHALLENGE, "another job")


def test_two_claims_of_one_rank_differ() -> None:
    """The peer's own nonce: rank 0's answer to one claim does not fit another."""
    first, second = (make_claim(SECRET, CLAIM, CHALLENGE) for _ in range(2))
    assert first != second
    verdict = make_verdict(SECRET, CHALLENGE, first, Kind.WELCOME, b"")
    with pytest.raises(WireError, match="not come from rank 0"):
        check_verdict(SECRET, CHALLENGE, second, Kind.WELCOME, verdict)


@given(text=st.binary(max_size=300), position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_byte_of_a_verdict_can_be_changed(text: bytes, position: int, flip: int) -> None:
    claim = make_claim(SECRET, CLAIM, CHALLENGE)
    verdict = make_verdict(SECRET, CHALLENGE, claim, Kind.REFUSED, text)
    assert check_verdict(SECRET, CHALLENGE, claim, Kind.REFUSED, verdict) == text
    changed = bytearray(verdict)
    changed[position % len(changed)] ^= flip
    with pytest.raises(WireError):
        check_verdict(SECRET, CHALLENGE, claim, Kind.REFUSED, bytes(changed))
    with pytest.raises(WireError):
        check_verdict(SECRET, CHALLENGE, claim, Kind.WELCOME, verdict)


def test_a_refusal_cannot_be_turned_into_a_proof_of_a_peer() -> None:
    """Rank 0 signs what it says under a label of its own."""
    claim = make_claim(SECRET, CLAIM, CHALLENGE)
    verdict = make_verdict(SECRET, CHALLENGE, claim, Kind.WELCOME, b"")
    with pytest.raises(WireError):
        check_claim(SECRET, claim[:-32] + verdict[:32], CHALLENGE, CLAIM.job)


def test_the_layout_of_a_claim_is_fixed_for_all_versions() -> None:
    """A peer of another version must be readable, or it cannot be told that it is one."""
    payload = Claim(rank=1, size=2, job="j", generation=3, version=4).pack(b"n" * 32)
    assert payload[:28].hex() == "6b616472696c2f31" + "00000004" + "0000000000000003" + (
        "00000001" + "00000002"
    )
    assert payload[60:] == b"n" * 32
    assert PROTOCOL_VERSION == 1
