"""imgctl and its peers behind one face: the same jobs, each in the tool's own words.

A tool has a store of its own below `directory`, made empty by `reset`. A job gives the cost of what
belongs to it and nothing else.
"""

import os
import shutil
import subprocess
from pathlib import Path

from measure import run, total

IMAGE = "localhost/bench:latest"


class Tool:
    def __init__(self, directory):
        self.directory = Path(directory) / self.name
        self.reset()

    def reset(self):
        """Forgets everything."""
        self.unmount()
        for line in reversed(Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()):
            mounted = line.split()[1]
            if mounted.startswith(str(self.directory)):
                subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def unmount(self):
        pass


class Containers(Tool):
    """What buildah and podman share: a store, names of transports."""

    def argv(self, *words):
        own = ["--root", self.directory / "root", "--runroot", self.directory / "run", "--storage-driver", "overlay"]
        return [self.name, *own, *words]

    def build(self, context):
        return run(self.argv("build", "--layers", "-q", "-t", IMAGE, "-f", context / "Kubefile", context))

    def version(self):
        return run([self.name, "--version"])

    def images(self):
        return run(self.argv("images"))

    def save(self, archive):
        return run(self.argv("push", "-q", IMAGE, f"oci-archive:{archive}:{IMAGE}"))

    def load(self, archive):
        return run(self.argv("pull", "-q", f"oci-archive:{archive}"))


class Buildah(Containers):
    name = "buildah"

    def mount(self):
        made, container = run(self.argv("from", "--pull-never", IMAGE), keep_output=True)
        mounted = run(self.argv("mount", container))
        run(self.argv("rm", container))
        return total([made, mounted])


class Podman(Containers):
    name = "podman"

    def mount(self):
        cost = run(self.argv("image", "mount", IMAGE))
        run(self.argv("image", "umount", IMAGE))
        return cost

    def unpack(self, layout):
        return run(self.argv("pull", "-q", f"oci:{layout}:bench"))


class Umoci(Tool):
    name = "umoci"

    def version(self):
        return run([self.name, "--version"])

    def unpack(self, layout):
        return run([self.name, "unpack", "--image", f"{layout}:bench", self.directory / "bundle"])


class Imgctl(Tool):
    name = "imgctl"
    mounted = False

    def argv(self, *words):
        return [os.environ["IMGCTL"], "--root", self.directory / "root", *words]

    def build(self, context, *more):
        return run(self.argv("--quiet", "build", *more, "-t", IMAGE, "-f", context / "Kubefile", context))

    def version(self):
        return run([os.environ["IMGCTL"], "--version"])

    def images(self):
        return run(self.argv("images"))

    def save(self, archive):
        return run(self.argv("--quiet", "save", "--format", "oci-archive", "-o", archive, IMAGE))

    def load(self, archive):
        return run(self.argv("--quiet", "load", "-i", archive))

    def mount(self, backend="overlay"):
        cost = run(self.argv("mount", "--backend", backend, IMAGE))
        self.mounted = True
        self.unmount()
        return cost

    def first_mount(self):
        """Of an image whose layers were never unpacked: unpack and mount."""
        return self.mount()

    def erofs_mount(self):
        """Of such an image too, without unpacking it."""
        return self.mount("erofs")

    def unmount(self):
        if self.mounted:
            run(self.argv("umount", IMAGE))
            self.mounted = False


def layout_for_peers(imgctl, context, target):
    """The image with gzip layers as an OCI layout called `bench`, which every peer can read."""
    imgctl.build(context, "--compression", "gzip")
    run(imgctl.argv("--quiet", "save", "--format", "oci-dir", "-o", target, IMAGE))
    _, names = run(["umoci", "list", "--layout", target], keep_output=True)
    if "bench" not in names.split():
        run(["umoci", "tag", "--image", f"{target}:{names.split()[0]}", "bench"])
