"""`python -m inferway` as somebody at a terminal has it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from tests.support.processes import ROOT


@dataclass
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def inferway(*arguments: str, **environ: str) -> Done:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("INFERWAY_")} | environ
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferway", *arguments),
        cwd=ROOT,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())
