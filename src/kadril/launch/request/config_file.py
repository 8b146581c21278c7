"""The configuration file of horovodrun: flags, as YAML in sections.

    controller: gloo                     --gloo
    params:
      fusion_threshold_mb: 32            --fusion-threshold-mb 32
    timeline:
      filename: trace.json               --timeline-filename trace.json
    stall_check:
      enabled: false                     --no-stall-check

A flag on the command line wins over the file. A key that is not known is an error: a misspelt one
would otherwise change nothing, and nobody would know.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kadril.errors import ConfigError
from kadril.launch.request.horovod_flags import FLAGS, Flag

__all__ = ["read_config_file", "read_sections"]

CONTROLLER = "controller"

# Place in the file: (flag, whether the value says the opposite).
PLACES: dict[str, tuple[Flag, bool]] = {
    **{flag.key: (flag, False) for flag in FLAGS if flag.key},
    **{flag.inverted_key: (flag, True) for flag in FLAGS if flag.inverted_key},
}
SECTIONS = sorted({place.partition(".")[0] for place in PLACES})

KIND_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def read_config_file(path: str) -> dict[str, Any]:
    """Read a file, and return the values of flags by `Flag.dest`.

    Raises:
        ConfigError: it cannot be read, is not YAML, or has a key or a value that is not known.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            "--config-file needs PyYAML; install it: pip install 'kadril[yaml]'"
        ) from None
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--config-file {path}: {error}") from None
    except RecursionError:
        raise ConfigError(f"--config-file {path}: nested too deeply") from None
    try:
        return read_sections({} if content is None else content)
    except ConfigError as error:
        raise ConfigError(f"--config-file {path}: {error}") from None


def read_sections(content: object) -> dict[str, Any]:
    """Return the values of flags, by `Flag.dest`, of what a file holds.

    Raises:
        ConfigError: a key or a value that is not known.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"a file has sections ({', '.join(SECTIONS)}), got {content!r}")
    values: dict[str, Any] = {}
    for section, body in content.items():
        if section == CONTROLLER:
            values.update(read_controller(body))
        elif section not in SECTIONS:
            raise ConfigError(f"no section {section!r}{hint(section, [*SECTIONS, CONTROLLER])}")
        elif body is not None:
            values.update(read_section(section, body))
    return values


def read_controller(body: object) -> dict[str, Any]:
    """Read `controller: gloo` as the flag --gloo, and the other ones likewise."""
    known = ("gloo", "mpi", "jsrun")
    if body is None:
        return {}
    if not isinstance(body, str) or body.lower() not in known:
        raise ConfigError(f"{CONTROLLER} must be one of {', '.join(known)}, got {body!r}")
    return {body.lower(): True}


def read_section(section: str, body: object) -> dict[str, Any]:
    """Return the values of flags of one section."""
    if not isinstance(body, dict):
        raise ConfigError(f"section {section!r} must have keys with values, got {body!r}")
    known = [place.partition(".")[2] for place in PLACES if place.startswith(f"{section}.")]
    values: dict[str, Any] = {}
    for key, value in body.items():
        place = f"{section}.{key}"
        if place not in PLACES:
            raise ConfigError(f"no key {key!r} in section {section!r}{hint(key, known)}")
        if value is None:
            continue
        flag, is_inverted = PLACES[place]
        checked = check_kind(place, flag.kind, value)
        values[flag.dest] = not checked if is_inverted else checked
    return values


def check_kind(place: str, kind: type[Any], value: object) -> Any:
    """Return a value, if it is of the kind that the flag takes."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{place} must be {KIND_NAMES[kind]}, got {value!r}")
    return value


def hint(name: object, known: Collection[str]) -> str:
    """Return the nearest name, or all of them."""
    nearest = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; there are {', '.join(known)}"
