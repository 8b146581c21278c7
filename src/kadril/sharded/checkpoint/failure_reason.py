"""Why a file could not be written, in the words that users look for."""

from __future__ import annotations

import errno

__all__ = ["reason_of"]


def reason_of(error: BaseException) -> str:
    """The reason of a failure in one line, such as "No space left on device (ENOSPC)".

    Torch wraps what the system said in errors of its own, with tracebacks in their text.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            code = errno.errorcode.get(cause.errno, str(cause.errno))
            return f"{cause.strerror} ({code})"
        cause = cause.__cause__ or cause.__context__
    return str(error) or repr(error)
