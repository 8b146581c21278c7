"""Files that keep what each rank wrote, byte for byte.

    --output-dir DIR          DIR/rank.3.out            DIR/rank.3.err
    --output-filename DIR     DIR/rank.03/stdout        DIR/rank.03/stderr     (as horovodrun does)

In the second the number has as many digits as the last rank's, so that names sort.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from kadril.launch.options import LaunchError, RunOptions

__all__ = ["LogFiles", "Stream"]

Stream: TypeAlias = Literal["out", "err"]


class LogFiles:
    """The open files of all ranks.

    Raises:
        LaunchError: a directory or a file cannot be written.
    """

    def __init__(self, options: RunOptions) -> None:
        self._files: dict[tuple[int, Stream], list[BinaryIO]] = {}
        asked_for = "--output-dir"
        try:
            for option, rank, stream, path in plan(options):
                asked_for = option
                path.parent.mkdir(parents=True, exist_ok=True)
                # Unbuffered: a log that ends before the crash is useless.
                opened = path.open("wb", buffering=0)
                self._files.setdefault((rank, stream), []).append(opened)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"cannot keep logs: {error}; give {asked_for} a directory that you can write to",
                exit_code=2,
            ) from None

    def write(self, rank: int, stream: Stream, data: bytes) -> str:
        """Keep some bytes.

        Returns:
            why a log ends here, or nothing.
        """
        files = self._files.get((rank, stream), [])
        for file in list(files):
            try:
                file.write(data)
            except OSError as error:
                files.remove(file)
                path = file.name
                file.close()
                return f"the log {path} ends early: {error}; the ranks go on"
        return ""

    def close(self) -> None:
        """Close all files."""
        for files in self._files.values():
            for file in files:
                file.close()


def plan(options: RunOptions) -> list[tuple[str, int, Stream, Path]]:
    """Return all files: the option that asks for each, its rank, stream and path."""
    streams: tuple[Stream, Stream] = ("out", "err")
    files: list[tuple[str, int, Stream, Path]] = []
    for rank in range(options.num_places):
        if options.output_dir is not None:
            for stream in streams:
                path = Path(options.output_dir, f"rank.{rank}.{stream}")
                files.append(("--output-dir", rank, stream, path))
        if options.output_filename is not None:
            number = str(rank).zfill(len(str(options.num_places - 1)))
            for stream in streams:
                path = Path(options.output_filename, f"rank.{number}", f"std{stream}")
                files.append(("--output-filename", rank, stream, path))
    return files
