"""A slow line in front of a server: forwards TCP connections at a limited rate and counts the bytes of
both directions. All connections share the rate (a token bucket)."""

import socket
import threading
import time

CHUNK = 64 << 10


class Bucket:
    def __init__(self, rate):
        self.rate, self.lock, self.free = rate, threading.Lock(), time.monotonic()

    def take(self, count):
        """Waits until `count` bytes may pass."""
        with self.lock:
            self.free = max(self.free, time.monotonic() - 0.01) + count / self.rate
            wait = self.free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


class Link:
    """Listens at `address` and forwards to `target` with `mbit` Mbit/s in each direction."""

    def __init__(self, target, mbit):
        host, port = target.rsplit(":", 1)
        self.target, self.down, self.up = (host, int(port)), 0, 0
        self.lock = threading.Lock()
        self.buckets = {name: Bucket(mbit * 125_000) for name in ("down", "up")}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for source, sink, name in ((server, client, "down"), (client, server, "up")):
                threading.Thread(target=self.forward, args=(source, sink, name), daemon=True).start()

    def forward(self, source, sink, name):
        try:
            while data := source.recv(CHUNK):
                self.buckets[name].take(len(data))
                with self.lock:
                    setattr(self, name, getattr(self, name) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def moved(self):
        """Bytes of both directions so far."""
        return self.down + self.up

    def close(self):
        self.listener.close()
