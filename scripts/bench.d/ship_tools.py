"""What the tools that ship images do with a registry and with archives, behind one face.

A `place` is REGISTRY/REPOSITORY:TAG. After `hold` a tool has the image at hand in the form in which it
keeps images, so that `push` and `save` cost nothing but that.
"""

import os
import shutil
import subprocess

from measure import run, total
from tools import Buildah, Imgctl, Podman, Tool

HELD = "localhost/held:latest"


class Shipping:
    """buildah and podman: images are unpacked when they come, and packed when they leave."""

    def pull(self, place):
        return run(self.argv("pull", "-q", "--tls-verify=false", f"docker://{place}"))

    # What was pulled lies there as a tree.
    mountable = pull

    def hold(self, place):
        self.pull(place)
        run(self.argv("tag", place, HELD))

    def push(self, place):
        return run(self.argv("push", "-q", "--tls-verify=false", HELD, f"docker://{place}"))

    def save(self, archive):
        return run(self.argv("push", "-q", HELD, f"oci-archive:{archive}"))


class ShipBuildah(Shipping, Buildah):
    pass


class ShipPodman(Shipping, Podman):
    pass


class Skopeo(Tool):
    """Keeps images in OCI layouts, packed."""

    name = "skopeo"

    def layout(self):
        return f"oci:{self.directory}/layout:held"

    def copy(self, *words):
        return run([self.name, "copy", "-q", *words])

    def pull(self, place):
        return self.copy("--src-tls-verify=false", f"docker://{place}", self.layout())

    hold = pull

    def push(self, place):
        return self.copy("--dest-tls-verify=false", self.layout(), f"docker://{place}")

    def save(self, archive):
        return self.copy(self.layout(), f"oci-archive:{archive}")

    def load(self, archive):
        return self.copy(f"oci-archive:{archive}", self.layout())


class Crane(Tool):
    """Keeps images in OCI layouts, packed. Debian does not have it: $CRANE, or `crane` on the PATH."""

    name = "crane"

    @staticmethod
    def program():
        return os.environ.get("CRANE") or shutil.which("crane")

    def pull(self, place):
        return run([self.program(), "pull", "--insecure", "--format", "oci", place, self.directory / "layout"])

    hold = pull

    def push(self, place):
        return run([self.program(), "push", "--insecure", self.directory / "layout", place])


class ShipImgctl(Imgctl):
    def pull(self, place):
        return run(self.argv("--quiet", "pull", "--tls-verify=false", place))

    def mountable(self, place):
        """Pulled, unpacked on the way, and mounted."""
        pulled = run(self.argv("--quiet", "pull", "--unpack", "--tls-verify=false", place))
        mounted = run(self.argv("mount", place))
        run(self.argv("umount", place))
        return total([pulled, mounted])

    def hold(self, place):
        self.pull(place)
        run(self.argv("tag", place, HELD))

    def push(self, place):
        return self.push_as(HELD, place)

    def push_as(self, image, place):
        return run(self.argv("--quiet", "push", "--tls-verify=false", image, place))

    def save(self, archive):
        return run(self.argv("--quiet", "save", "--format", "oci-archive", "-o", archive, HELD))


def ship_tools(names, directory):
    """Those of `names` that are on this machine."""
    classes = {"buildah": ShipBuildah, "podman": ShipPodman, "skopeo": Skopeo, "crane": Crane, "imgctl": ShipImgctl}
    if not Crane.program():
        names = [name for name in names if name != "crane"]
    return [classes[name](directory) for name in names]


def version_of(tool):
    """One line that names the tool, for the report."""
    if tool == "crane":
        words = [Crane.program(), "version"]
    else:
        words = [os.environ["IMGCTL"] if tool == "imgctl" else tool, "--version"]
    text = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return text if text.startswith(tool) else f"{tool} {text}"
