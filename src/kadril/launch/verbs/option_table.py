"""`kadril env`: every option with its variable, value and default; or docs/options.md."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Mapping

from kadril.config import IDENTITY_VARIABLES, OTHER_VARIABLES, Config, variable
from kadril.errors import ConfigError
from kadril.horovod_variables import HONOURED, read_options

__all__ = ["describe", "main", "meanings", "page"]


def meanings() -> dict[str, str]:
    """Return what each option means, as the docstring of `Config` tells it."""
    # An attribute is indented by four columns and ends where the next one begins.
    _, _, attributes = (inspect.getdoc(Config) or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


def show(value: object) -> str:
    """Return a value as it would be written in a shell."""
    return str(value) if value != "" else "''"


def describe(environment: Mapping[str, str]) -> str:
    """Return the table of options, then the variables a launcher set, where there are any."""
    lines = []
    meaning = meanings()
    try:
        horovod = read_options(environment)
    except ConfigError:  # which `main` tells of
        horovod = {}
    for field in dataclasses.fields(Config):
        name = variable(field.name)
        default = show(field.default)
        if name in environment:
            lines.append(f"{name}={show(environment[name])}    (default {default})")
        elif field.name in horovod:
            origin, text = horovod[field.name]
            lines.append(f"{name}={show(text)}    (from {origin}, default {default})")
        else:
            lines.append(f"{name}={default}    (default)")
        lines += indented(meaning.get(field.name, ""))
    lines += ["", "no options of init(), but variables only:"]
    for name, other in OTHER_VARIABLES.items():
        default = f"default {other.default}" if name in environment else "default"
        lines.append(f"{name}={show(environment.get(name, other.default))}    ({default})")
        lines += indented(other.meaning)
    identity = [
        f"{name}={environment[name]}" for name in sorted(IDENTITY_VARIABLES) if name in environment
    ]
    if identity:
        lines += ["", "set by a launcher for this process:", *identity]
    return "\n".join(lines)


def indented(text: str) -> list[str]:
    """Return a text as lines that stand below another one."""
    return textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")


PAGE = """\
# Options

Made by `kadril env --markdown` from the class `Config` in `src/kadril/config.py`.

Set the variable, or give the option to `kadril.init(patience=60)`. An argument wins over the
variable, and the variable over Horovod's for the same thing. `kadril env` lists the options with
the values of your shell. A `KADRIL_*` variable that is no option is warned about, with the nearest
name.

| option | variable | default | meaning | Horovod's variable |
|---|---|---|---|---|
"""

OTHERS = """
These are no options of `kadril.init()`, but variables only:

| variable | default | meaning |
|---|---|---|
"""


def page() -> str:
    """The options as a page of Markdown."""
    meaning = meanings()
    rows = []
    for field in dataclasses.fields(Config):
        horovod = [name for name, what in HONOURED.items() if what.option == field.name]
        default = "" if field.default == "" else f"`{field.default}`"
        cells = [f"`{field.name}`", f"`{variable(field.name)}`", default]
        cells += [meaning[field.name], ", ".join(f"`{name}`" for name in horovod)]
        rows.append(f"| {' | '.join(cells)} |\n")
    others = [
        f"| `{name}` | `{other.default}` | {other.meaning} |\n"
        for name, other in OTHER_VARIABLES.items()
    ]
    return PAGE + "".join(rows) + OTHERS + "".join(others)


def main(argv: list[str]) -> int:
    """Print the table. The exit code is 1 where a value makes no sense."""
    parser = argparse.ArgumentParser(
        prog="kadril env", description="List every option with its variable, value and default."
    )
    parser.add_argument("--markdown", action="store_true", help="print docs/options.md instead")
    if parser.parse_args(argv).markdown:
        print(page(), end="", flush=True)
        return 0
    print(describe(os.environ), flush=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Config.from_environment()
        except ConfigError as error:
            print(f"kadril env: {error}", file=sys.stderr)
            return 1
        finally:
            for warning in caught:
                print(f"kadril env: {warning.message}", file=sys.stderr)
    return 0
