"""Registries on loopback, with their content on tmpfs: Debian's docker-registry, and ours."""

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

# As Debian's own configuration, but silent: a line for each request would be part of what is measured.
CONFIG = """version: 0.1
log:
  level: error
  accesslog:
    disabled: {quiet}
storage:
  cache:
    blobdescriptor: inmemory
  filesystem:
    rootdirectory: {data}
http:
  addr: {address}
"""
TICKS = os.sysconf("SC_CLK_TCK")
# A line of an access log in Apache's combined format.
ACCESS = re.compile(r'"(GET|PUT|PATCH|POST) (\S+) \S+" (\d+) (\d+)')


def free_port(address="127.0.0.1"):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Registry:
    """A registry process over `data`, which is made if it is not there; stopped by `close`."""

    def __init__(self, data, logs=False, address="127.0.0.1"):
        self.data = Path(data)
        self.data.mkdir(parents=True, exist_ok=True)
        self.address = f"{address}:{free_port(address)}"
        self.log = []
        self.child = subprocess.Popen(
            self.argv(logs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
        # It stops when nobody reads what it says.
        self.reader = threading.Thread(target=lambda: self.log.extend(self.child.stdout), daemon=True)
        self.reader.start()
        self.wait()

    def wait(self):
        """Until it answers."""
        end = time.monotonic() + 20
        while time.monotonic() < end and self.child.poll() is None:
            try:
                socket.create_connection(self.address.split(":")).close()
                return
            except OSError:
                time.sleep(0.02)
        self.child.kill()
        raise RuntimeError(f"{self.name} does not start: {''.join(self.log[-3:])}")

    def peak(self):
        """Peak memory in MiB."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def cpu(self):
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def accesses(self):
        """Method, path, status and bytes of what was asked for so far."""
        found = (ACCESS.search(line) for line in list(self.log))
        return [(m[1], m[2], int(m[3]), int(m[4])) for m in found if m]

    def close(self, remove=True):
        self.child.terminate()
        self.child.wait(20)
        self.reader.join(5)
        if remove:
            shutil.rmtree(self.data, ignore_errors=True)


class DockerRegistry(Registry):
    name = "docker-registry"

    def argv(self, logs):
        config = self.data.with_suffix(".yml")
        config.write_text(CONFIG.format(quiet="false" if logs else "true", data=self.data, address=self.address))
        return [self.name, "serve", config]


class Serve(Registry):
    name = "imgctl"

    def argv(self, logs):
        quiet = [] if logs else ["--disable-logging"]
        return [os.environ["IMGCTL"], "registry", "serve", self.data, "--addr", self.address, *quiet]
