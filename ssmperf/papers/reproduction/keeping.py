"""The folder of a reproduction: one file per piece of a claim, so that nothing that has ended runs twice.

reproduce.json                          when, where and how
longhorn-parameters/counts/result.json  the numbers of a piece; beside it what the piece kept, such as runs
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.reading import parse
from ssmperf.errors import UnreadableRun, UsageError

SCHEMA_VERSION = 1
META_FILE, RESULT_FILE = "reproduce.json", "result.json"
PIECE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# facts that all pieces of a folder share
FIXED = ("device", "hardware", "preset", "seeds", "corpus_sha256", "default_text")
VERSION_FILE = "version"  # of the claim whose piece has begun


def is_folder(path: Path) -> bool:
    """Tell whether a path is the folder of a reproduction."""
    return (path / META_FILE).is_file()


@dataclass(frozen=True, slots=True)
class Folder:
    """A reproduction's folder. meta: the contents of `reproduce.json`."""

    path: Path
    meta: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path, meta: Mapping[str, Any], *, resume: bool) -> Folder:
        """Start a reproduction in a folder that does not exist or is empty, or continue the one in it.

        Raises:
            UsageError: the folder is not empty and not to be resumed, was made with another device, preset,
                number of seeds or text, or cannot be written.
            UnreadableRun: it holds other files, or those of a newer version.
        """
        try:
            present = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
            if present and not resume:
                raise UsageError(f"{path} already exists and is not empty: pass --resume or another --out")
            if present and META_FILE not in present:
                raise UnreadableRun(f"{path} holds no {META_FILE} but other files: no folder of `reproduce`")
            if present:
                before = _read(path / META_FILE)
                for name in FIXED:
                    if name in before and before[name] != meta.get(name):
                        raise UsageError(
                            f"{path} was made with {name} {before[name]!s:.80}, not {meta.get(name)!s:.80}: "
                            "pass the same, or another --out"
                        )
                meta = {**meta, "created": before.get("created", meta.get("created"))}
            path.mkdir(parents=True, exist_ok=True)
            _write(path / META_FILE, {"schema_version": SCHEMA_VERSION, **meta})
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        return cls(path, meta)

    @classmethod
    def found(cls, path: Path) -> Folder:
        """Open the folder of a reproduction to read it.

        Raises:
            UnreadableRun: it is no folder of a reproduction, is damaged, or is of a newer version of ssmperf.
        """
        meta = _read(path / META_FILE)
        for name, kind in (("device", str), ("preset", str), ("seeds", int | None), ("corpus", str | None)):
            if not isinstance(meta.get(name), kind):
                raise UnreadableRun(f"{path / META_FILE} is damaged: {name} is {meta.get(name)!r:.40}")
        return cls(path, meta)

    def of_piece(self, claim: str, piece: str) -> Path:
        """Name the folder of a piece.

        Raises:
            UsageError: the piece's name is no name of a folder.
        """
        if not PIECE.fullmatch(piece):
            raise UsageError(f"claim {claim}: a piece has a name such as T64-seed0, got {piece!r:.80}")
        return self.path / claim.replace(":", "-") / piece

    def begin(self, claim: str, version: int, piece: str) -> Path:
        """Make the folder of a piece; remove the files of another version of the claim.

        Raises:
            UsageError: it cannot be written.
        """
        folder = self.of_piece(claim, piece)
        mark, result = folder / VERSION_FILE, folder / RESULT_FILE
        try:
            if result.exists() or (mark.exists() and mark.read_text() != str(version)):
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            mark.write_text(str(version))
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
        return folder

    def has_results(self, claim: str, pieces: Iterable[str]) -> bool:
        """Tell whether any piece has a result, of whichever version of the claim."""
        return any((self.of_piece(claim, piece) / RESULT_FILE).exists() for piece in pieces)

    def read(self, claim: str, version: int, piece: str) -> Mapping[str, Any] | None:
        """Read the result of a piece; None if it has none, or one of another version of the claim.

        Raises:
            UnreadableRun: the file is damaged, or of a newer version of ssmperf.
        """
        file = self.of_piece(claim, piece) / RESULT_FILE
        if not file.exists():
            return None
        kept = _read(file)
        if kept.get("version") != version:
            return None
        if not isinstance(kept.get("numbers"), dict):
            raise UnreadableRun(f"{file} is damaged: it has no numbers")
        if not isinstance(kept.get("spent_s", 0.0), int | float):
            raise UnreadableRun(f"{file} is damaged: spent_s is {kept['spent_s']!r:.40}, no number")
        return kept

    def write(self, claim: str, version: int, piece: str, numbers: Mapping[str, Any], spent_s: float) -> None:
        """Keep the result of a piece. Raises UsageError."""
        folder = self.of_piece(claim, piece)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(
                folder / RESULT_FILE,
                {
                    "schema_version": SCHEMA_VERSION,
                    "claim": claim,
                    "version": version,
                    "piece": piece,
                    "spent_s": round(spent_s, 3),
                    "numbers": dict(numbers),
                },
            )
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        found = parse(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"cannot read {file}: {error}") from error
    schema = found.get("schema_version") if isinstance(found, dict) else None
    if not isinstance(schema, int):
        raise UnreadableRun(f"{file} is damaged: it has no schema_version")
    if schema > SCHEMA_VERSION:
        raise UnreadableRun(f"{file} has schema {schema}; this ssmperf reads up to {SCHEMA_VERSION}: upgrade")
    return dict(found)


def _write(file: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that the file is either the old or the new one. Raises ValueError for NaN."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")  # several processes may share a folder
    with temporary.open("w") as out:
        json.dump(data, out, indent=1, allow_nan=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
