"""The "kadril" logger: its level, and a place for its lines where the program has set up none."""

from __future__ import annotations

import logging

from kadril.config import Config
from kadril.errors import ConfigError

__all__ = ["set_up_logging"]

logger = logging.getLogger("kadril")

FORMAT = "%(asctime)s kadril[%(process)d] %(levelname)s: %(message)s"


def set_up_logging(config: Config) -> None:
    """Set the level that `config` names.

    Python prints lines below WARNING nowhere unless somebody installed a handler. A program that
    logs has; in one that does not, KADRIL_LOG_LEVEL=INFO would show nothing, so then kadril's lines
    go to stderr.

    Raises:
        ConfigError: there is no such level.
    """
    try:
        logger.setLevel(config.log_level.upper())
    except ValueError:
        raise ConfigError(
            "KADRIL_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL,"
            f" got {config.log_level!r}"
        ) from None
    if logger.level < logging.WARNING and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
