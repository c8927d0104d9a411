"""fakepve, an independent Proxmox API server, over real TLS on loopback."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

TOKEN_ID, TOKEN = "root@pam!ops", "token-7f3a"


@contextmanager
def fake_node(folder: Path) -> Iterator[SimpleNamespace]:
    """Serve until the block ends; gives ``pve``, ``url`` and ``ca``."""
    fakepve = pytest.importorskip("fakepve")
    from fakepve.certs import make_cert

    cert, key, _ = make_cert(str(folder))
    pve = fakepve.FakePve(host="127.0.0.1", port=0)
    pve.time_scale = 0.02
    pve.apitokens[TOKEN_ID] = TOKEN
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(pve.start(cert, key), loop).result(10)
    url = f"https://127.0.0.1:{pve.port}"
    yield SimpleNamespace(pve=pve, url=url, ca=Path(cert), loop=loop)
    asyncio.run_coroutine_threadsafe(pve.stop(), loop).result(10)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    with warnings.catch_warnings():
        # the fake leaves the transports of refused TLS handshakes to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        loop.close()
        del pve
        gc.collect()
