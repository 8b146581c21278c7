"""The proof that two processes belong to the same job.

    peer                                                     rank 0
      | <-------------- CHALLENGE: nonce of rank 0 -------------|
      |--- CLAIM: version, job, generation, rank, size,         |
      |    nonce of the peer, proof --------------------------> | checks the proof before anything
      | <-------------- WELCOME or REFUSED: proof, a word ------| else
      | checks the proof of rank 0                              |

A proof is an HMAC-SHA256 under the job's secret over both nonces and every field of the claim; a
label keeps the proof of one side from being sent back as that of the other. Since rank 0's nonce is
made for each connection, a recorded claim is worthless on the next one. The layout of a claim is
the same in every version of the protocol, so that a peer of another version can be told so.

A rank that connects to another one, wherever that is, makes the same exchange with the process that
listens on the other's host, with a claim that names both ranks and the group (`LinkClaim`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import struct

from kadril.world.wire import Kind, WireError

__all__ = [
    "NONCE_BYTES",
    "PROTOCOL_VERSION",
    "SECRET_BYTES",
    "Claim",
    "LinkClaim",
    "check_claim",
    "check_verdict",
    "digest",
    "make_claim",
    "make_nonce",
    "make_verdict",
]

PROTOCOL_VERSION = 1
SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32

# magic, version, generation, rank, size, digest of the job's name, nonce of the peer
CLAIM = struct.Struct("!8sIQII32s32s")
MAGIC = b"kadril/1"

# The same, with source and target in place of rank and size, and the digest of a group's label.
LINK_CLAIM = struct.Struct("!8sIQII32s32s32s")
LINK_MAGIC = b"kadril/L"


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claim of a process about who it is."""

    rank: int
    size: int
    job: str
    generation: int
    version: int = PROTOCOL_VERSION

    def pack(self, nonce: bytes) -> bytes:
        """The fields as bytes of fixed length."""
        return CLAIM.pack(
            MAGIC, self.version, self.generation, self.rank, self.size, digest(self.job), nonce
        )


@dataclasses.dataclass(frozen=True)
class LinkClaim:
    """A connection between two ranks, as the one that connects describes it.

    Attributes:
        source: world rank that connects.
        target: world rank that it wants to reach.
        job: name of the job.
        generation: number of the world within the job.
        group: digest of the label of the group that it is for.
        version: of the protocol.
    """

    source: int
    target: int
    job: str
    generation: int
    group: bytes
    version: int = PROTOCOL_VERSION

    def pack(self, nonce: bytes) -> bytes:
        """The fields as bytes of fixed length."""
        place = (self.version, self.generation, self.source, self.target)
        return LINK_CLAIM.pack(LINK_MAGIC, *place, digest(self.job), nonce, self.group)


def digest(name: str) -> bytes:
    """A name of any length as bytes of fixed length."""
    return hashlib.sha256(name.encode()).digest()


def make_nonce() -> bytes:
    """Bytes that nobody can foresee."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, label: bytes, *parts: bytes) -> bytes:
    """HMAC over parts whose lengths are fixed, save the last: so no two lists of parts collide."""
    return hmac.new(secret, label + b"\0" + b"".join(parts), hashlib.sha256).digest()


def make_claim(secret: bytes, claim: Claim | LinkClaim, challenge: bytes) -> bytes:
    """The payload of a CLAIM frame that answers `challenge`."""
    body = claim.pack(make_nonce())
    return body + proof(secret, b"kadril peer", challenge, body)


def check_claim(secret: bytes, payload: bytes, challenge: bytes, job: str) -> Claim | LinkClaim:
    """Check the proof of a claim; only then read its fields.

    Args:
        secret: of the job.
        payload: of the CLAIM frame.
        challenge: the nonce that was sent on this connection.
        job: the name of the job it has to be for.

    Raises:
        WireError: the proof is wrong, the claim is for another job, or this is no claim at all.
    """
    if len(payload) not in (CLAIM.size + PROOF_BYTES, LINK_CLAIM.size + PROOF_BYTES):
        raise WireError(f"a claim of {len(payload)} bytes")
    body, given = payload[:-PROOF_BYTES], payload[-PROOF_BYTES:]
    if not hmac.compare_digest(given, proof(secret, b"kadril peer", challenge, body)):
        raise WireError("the proof is wrong: another secret, or a replayed claim")
    magic, version, generation, rank, size, job_digest, _nonce = CLAIM.unpack(body[: CLAIM.size])
    if magic != (MAGIC if len(body) == CLAIM.size else LINK_MAGIC):
        raise WireError("the claim has a foreign layout")
    if not hmac.compare_digest(job_digest, digest(job)):
        raise WireError("the claim is for another job")
    if magic == LINK_MAGIC:
        return LinkClaim(rank, size, job, generation, body[CLAIM.size :], version)
    return Claim(rank=rank, size=size, job=job, generation=generation, version=version)


def make_verdict(secret: bytes, challenge: bytes, claim: bytes, kind: Kind, text: bytes) -> bytes:
    """The payload of a WELCOME or REFUSED frame: rank 0's proof, and a message to the peer."""
    return proof(secret, b"kadril rank 0", challenge, claim, bytes([kind]), text) + text


def check_verdict(
    secret: bytes, challenge: bytes, claim: bytes, kind: Kind, payload: bytes
) -> bytes:
    """Check rank 0's proof, and return its message.

    Raises:
        WireError: whoever answered does not know the secret.
    """
    given, text = payload[:PROOF_BYTES], payload[PROOF_BYTES:]
    expected = proof(secret, b"kadril rank 0", challenge, claim, bytes([kind]), text)
    if not hmac.compare_digest(given, expected):
        raise WireError("the answer does not come from rank 0 of this job")
    return text
