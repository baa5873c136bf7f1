"""A real JupyterLab on loopback with a token, on a copy of the notebooks and with a home of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import kvlab.lab

# What `make lab` sets for a reader, and: what is scrolled out of sight is drawn, too.
OVERRIDES = Path(kvlab.lab.__file__).with_name("overrides.json")
FOR_TESTS = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}


@dataclass(frozen=True)
class Lab:
    port: int
    token: str

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self.token}&reset"


@contextmanager
def running_lab(notebooks: Path, home: Path, start_within_s: float = 90) -> Iterator[Lab]:
    work = home / "notebooks"
    shutil.copytree(notebooks, work)
    settings = home / "settings"
    for name, values in {**json.loads(OVERRIDES.read_text(encoding="utf-8")), **FOR_TESTS}.items():
        file = settings / f"{name.replace(':', '/')}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = Lab(port, secrets.token_hex(16))
    folders = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = {**os.environ, **{name: str(home / name.lower()) for name in folders}, "JUPYTER_TOKEN": lab.token}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}"]
    command += ["--LabApp.expose_app_in_browser=True", f"--LabApp.workspaces_dir={home / 'workspaces'}"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += [f"--LabApp.user_settings_dir={settings}"]
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            _wait(server, lab, start_within_s, home / "server.log")
            yield lab
        finally:
            server.terminate()
            server.wait(30)


def _wait(server: subprocess.Popen[bytes], lab: Lab, limit_s: float, log: Path) -> None:
    address = f"http://127.0.0.1:{lab.port}/api/status?token={lab.token}"
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start: {log.read_text(errors='replace')[-2000:]}")
