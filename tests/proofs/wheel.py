"""The wheel requires all that it needs: it works in an environment that has nothing else.

    python tests/proofs/wheel.py OUT

OUT gets the wheel and the environment; it must not exist. Needs a package index.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(out: Path) -> None:
    (out / "empty").mkdir(parents=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out / "dist", ROOT)
    venv.create(out / "venv", with_pip=True)
    python = out / "venv" / "bin" / "python"
    run(
        python, "-m", "pip", "install", "-q", "-c", ROOT / "ci/constraints.txt", *(out / "dist").glob("*.whl")
    )
    run(python, ROOT / "ci" / "installed.py", ROOT, folder=out / "empty")


def run(*command: str | Path, folder: Path = ROOT) -> None:
    subprocess.run(command, check=True, cwd=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
