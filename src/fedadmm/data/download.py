"""Downloads with pooch: checked, continued where they broke off, and complete or not there."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedadmm.core.errors import DataError

_CHUNK = 1 << 16
_TIMEOUT = (10, 30)
"""Seconds to wait for a connection, and for the next bytes."""


def download(address: str, sha256: str, size: int, target: Path, *, progress: bool = False) -> None:
    """Put a file where it belongs, if it has the expected size and checksum.

    What has arrived of an interrupted download waits beside the target as `.NAME.part` and is
    continued the next time, if the server can do that; otherwise nothing stays behind.
    """
    import pooch
    import requests

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(
            address,
            known_hash=f"sha256:{sha256}",
            fname=target.name,
            path=target.parent,
            downloader=_Resuming(target.with_name(f".{target.name}.part"), size, progress),
        )
    except (requests.exceptions.RequestException, OSError) as error:
        raise DataError(
            f"{target.name}: cannot be downloaded from {address} ({type(error).__name__}); put the "
            f"file into {target.parent} yourself, or into its folder under FEDADMM_DATA"
        ) from None
    except ValueError:
        raise DataError(
            f"{target.name}: what {address} sent is not the expected file (its checksum differs); "
            f"put the right file into {target.parent} yourself"
        ) from None
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch, whose own ones start again from the first byte."""

    part: Path
    size: int
    progress: bool

    def __call__(self, address: str, output_file: str, _: Any) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        if have < self.size:
            self._fetch(address, have)
        os.replace(self.part, output_file)

    def _fetch(self, address: str, have: int) -> None:
        import requests

        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with requests.get(address, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            response.raise_for_status()
            continues = response.status_code == requests.codes.partial_content
            resumable = continues or response.headers.get("Accept-Ranges") == "bytes"
            try:
                self._receive(response, have if continues else 0)
            except ValueError:
                self.part.unlink()
                raise
            except BaseException:
                if not resumable:
                    self.part.unlink(missing_ok=True)
                raise

    def _receive(self, response: Any, have: int) -> None:
        import requests
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        bar = Progress(*columns, console=Console(stderr=True), disable=not self.progress)
        name = self.part.name.removeprefix(".").removesuffix(".part")
        with self.part.open("ab" if have else "wb") as stream, bar:
            task = bar.add_task(name, total=self.size, completed=have)
            for chunk in response.iter_content(_CHUNK):
                have += len(chunk)
                if have > self.size:
                    raise ValueError("more bytes than expected")
                stream.write(chunk)
                bar.advance(task, len(chunk))
        if have < self.size:
            raise requests.exceptions.ConnectionError("the connection ended early")
