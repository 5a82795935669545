"""Fills a folder with a model of Hugging Face and marks it as whole; what is whole is left alone.

Files that have come are kept when an attempt fails, and the next one goes on from them. Exits with 1, and says why,
when all attempts have failed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0


def main() -> int:
    repository, revision = os.environ["MODEL_REPOSITORY"], os.environ["MODEL_REVISION"]
    folder = Path(os.environ["MODEL_FOLDER"])
    attempts = int(os.environ["MODEL_ATTEMPTS"])
    pause_s = float(os.environ.get("MODEL_PAUSE_S", _FIRST_PAUSE_S))
    mark, wanted = folder / ".inferway-complete", f"{repository}@{revision}"
    if mark.is_file() and mark.read_text() == wanted:
        print(f"{wanted} is in {folder} already", flush=True)
        return 0

    from huggingface_hub import snapshot_download  # type: ignore[import-not-found, unused-ignore]

    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, attempts + 1):
        try:
            snapshot_download(repo_id=repository, revision=revision, local_dir=str(folder))
        except Exception as error:
            # Whatever it was: the library raises dozens of kinds, and the next attempt decides.
            print(
                f"attempt {attempt} of {attempts} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True
            )
            if attempt < attempts:
                time.sleep(min(_LONGEST_PAUSE_S, pause_s * 2 ** (attempt - 1)))
            continue
        mark.write_text(wanted)
        print(f"{wanted} is in {folder}", flush=True)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
