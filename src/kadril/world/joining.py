"""Join the hub that rank 0 serves."""

from __future__ import annotations

import os
from collections.abc import Callable

from kadril.errors import RendezvousError
from kadril.world.deadline import Backoff, Deadline
from kadril.world.fields import unpack
from kadril.world.handshake import NONCE_BYTES, Claim, LinkClaim, check_verdict, make_claim
from kadril.world.place import Place
from kadril.world.wire import Connection, Frame, Kind, PeerClosedError, WireError

__all__ = ["find", "introduce", "join"]

# Rank 0 closes without a word on a proof it cannot check. A crowd of strangers may push a
# connection out at just that moment too, hence more than one try.
MAX_SILENT_REFUSALS = 3

# Seconds to wait for a challenge before connecting anew, and twice as many each further time. A
# listener that closes just then can leave a connection that only this end takes for established.
CHALLENGE_SECONDS = 1.0
MAX_CHALLENGE_SECONDS = 10.0

# Rank 0 says how long it will wait; its word about the outcome takes a moment more.
SLACK_SECONDS = 5.0


def join(
    place: Place,
    secret: bytes,
    mine: Claim,
    timeout: float,
    is_cancelled: Callable[[], bool] | None = None,
) -> Connection:
    """Connect to rank 0, prove oneself, check rank 0's proof, wait until all ranks have come.

    Raises:
        RendezvousError: rank 0 did not answer, refused, is not what it claims to be, or said that
            the meeting failed.
    """
    deadline = Deadline(timeout, is_cancelled)
    backoff = Backoff()
    for _ in range(MAX_SILENT_REFUSALS):
        connection, challenge = find(place, mine.rank, deadline, timeout)
        try:
            verdict = introduce(connection, secret, mine, challenge, deadline)
            if verdict is not None:
                _await_start(connection, mine, _admitted(verdict, mine), deadline)
                return connection
        except TimeoutError:
            connection.close()
            raise _unanswered(place, mine.rank, timeout, "rank 0") from None
        except WireError as error:
            connection.close()
            raise RendezvousError(
                f"rank {mine.rank}: whoever listens at {place} is not rank 0 of this job: {error}"
            ) from error
        except BaseException:
            connection.close()
            raise
        connection.close()
        backoff.sleep(deadline)
    raise RendezvousError(
        f"rank {mine.rank}: rank 0 at {place} did not accept the proof of this process."
        " It belongs to another job, or read another secret: do all ranks have the same"
        " KADRIL_JOB and KADRIL_SECRET_FILE?"
    )


def find(
    place: Place, rank: int, deadline: Deadline, timeout: float, listener: str = "rank 0"
) -> tuple[Connection, bytes]:
    """Connect until whoever listens answers with a challenge.

    It may take until rank 0 itself has come as far as `init()`. A connection that is closed before
    the challenge was pushed out by others, or waited at a listener that went away: try again. One
    on which nothing comes may have lost its other end without a word: try again, too, less and less
    often, since rank 0 may also be late.

    Args:
        place: where to connect.
        rank: of this process.
        deadline: until when to try.
        timeout: the seconds of the deadline, for messages.
        listener: who listens there, for messages.

    Raises:
        RendezvousError: nobody answered, or somebody else.
    """
    backoff = Backoff()
    patience = CHALLENGE_SECONDS
    while True:
        try:
            connection = Connection(place.connect(deadline))
        except TimeoutError:
            raise _unanswered(place, rank, timeout, listener) from None
        try:
            _check_owner(connection, place, rank)
            frame = connection.receive(Deadline(min(patience, deadline.remaining)))
            if frame.kind is not Kind.CHALLENGE or len(frame.payload) != NONCE_BYTES:
                raise RendezvousError(
                    f"rank {rank}: what listens at {place} is no kadril rendezvous"
                )
        except PeerClosedError:
            connection.close()
            backoff.sleep(deadline)
        except TimeoutError:
            connection.close()
            patience = min(2.0 * patience, MAX_CHALLENGE_SECONDS)
            if deadline.expired:
                raise _unanswered(place, rank, timeout, listener) from None
        except WireError as error:
            connection.close()
            raise _unanswered(place, rank, timeout, listener) from error
        except BaseException:
            connection.close()
            raise
        else:
            return connection, frame.payload


def _check_owner(connection: Connection, place: Place, rank: int) -> None:
    if not connection.is_local:
        return  # its proof has to do
    _pid, uid = connection.credentials()
    if uid != os.geteuid():
        raise RendezvousError(
            f"rank {rank} runs as user {os.geteuid()}, and user {uid} listens at {place}."
            " Run all ranks as one user"
        )


def introduce(
    connection: Connection,
    secret: bytes,
    mine: Claim | LinkClaim,
    challenge: bytes,
    deadline: Deadline,
) -> Frame | None:
    """Send the claim and check the answer; None where rank 0 closed without one."""
    claim = make_claim(secret, mine, challenge)
    try:
        connection.send(Kind.CLAIM, claim, deadline=deadline)
        connection.trust()
        frame = connection.receive(deadline)
    except PeerClosedError:
        return None
    text = check_verdict(secret, challenge, claim, frame.kind, frame.payload)
    return Frame(frame.kind, text)


def _admitted(verdict: Frame, mine: Claim) -> float:
    """The seconds that rank 0 will wait for the others."""
    if verdict.kind is not Kind.WELCOME:
        raise RendezvousError(f"rank {mine.rank}: rank 0 refused: {verdict.payload.decode()}")
    remaining = unpack(verdict.payload, {"remaining": float}, "rank 0")["remaining"]
    return float(remaining)  # type: ignore[arg-type]


def _await_start(
    connection: Connection, mine: Claim, seconds_of_rank_0: float, deadline: Deadline
) -> None:
    patience = Deadline(max(deadline.remaining, seconds_of_rank_0) + SLACK_SECONDS)
    try:
        frame = connection.receive(patience)
    except PeerClosedError:
        raise RendezvousError(
            f"rank {mine.rank}: rank 0 left or died while the ranks were meeting."
            " Its own output says why"
        ) from None
    except TimeoutError:
        raise RendezvousError(
            f"rank {mine.rank}: rank 0 answered, and then said nothing for {patience.elapsed:.0f}"
            " s. It may be stopped: see the state of its process"
        ) from None
    if frame.kind is Kind.FAILED:
        raise RendezvousError(f"rank {mine.rank}: {frame.payload.decode()}")
    if frame.kind is not Kind.START:
        raise WireError(f"it sent {frame.kind.name} where START was due")


def _unanswered(place: Place, rank: int, timeout: float, listener: str) -> RendezvousError:
    return RendezvousError(
        f"rank {rank}: {listener} did not answer at {place} within {timeout:g} s. See whether it"
        " was started and reached kadril.init(), or raise KADRIL_CONNECT_TIMEOUT"
    )
