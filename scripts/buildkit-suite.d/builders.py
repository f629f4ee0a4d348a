"""Builds one case with imgctl and with a BuildKit that can be reached."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

LIMIT = 120
# Attributes of the frontend and the flags that mean the same; other attributes are no command line.
FLAGS = {"target": "--target", "platform": "--platform", "add-hosts": "--add-host", "shm-size": "--shm-size", "ulimit": "--ulimit"}


class NoFlags(Exception):
    """The attributes are not those of a command line."""


def flags(attributes, directory):
    """The attributes as flags of docker, which imgctl and buildx have."""
    found = []
    for name, value in attributes.items():
        kind, _, rest = name.partition(":")
        if kind == "build-arg":
            found.append(f"--build-arg={rest}={value}")
        elif kind == "label":
            found.append(f"--label={rest}={value}")
        elif kind == "context" and "://" in value and not value.startswith(("input:", "local:")):
            found.append(f"--build-context={rest}={value}")
        elif kind == "no-cache":
            found.append("--no-cache" if not value else f"--no-cache-filter={value}")
        elif kind == "filename":
            found.append(f"--file={directory / value}")
        elif kind in FLAGS:
            found.append(f"{FLAGS[kind]}={value}")
        else:
            raise NoFlags(f"the attribute {name}")
    return found


def run(words, stderr=subprocess.STDOUT, **more):
    try:
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=stderr, timeout=LIMIT, **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, f"no end after {LIMIT} s".encode())


class Imgctl:
    def __init__(self, program, work, bases):
        self.program, self.work = program, work
        for name, context in bases.items():
            self.call("build", "--quiet", "--compression=gzip", "-t", name, str(context), check=True)

    def call(self, *words, **more):
        return run([self.program, "--root", str(self.work / "imgctl"), *words], **more)

    def layout(self, name):
        """The image as an OCI layout, for the other builder."""
        path = self.work / "bases" / name.replace("/", "_").replace(":", "_")
        path.parent.mkdir(exist_ok=True)
        self.call("copy", name, f"oci:{path}:latest", check=True)
        return path

    def build(self, case, directory, to):
        words = ["--progress=plain", "--save-image=false", "--compression=gzip", "--network=none", "--allow=network.host"]
        return self.call("build", *words, *flags(case.attributes, directory), "-o", f"type=oci,dest={to}", str(directory))

    def check(self, case, directory):
        words = ["build", "--check", "--json", "--quiet", *flags(case.attributes, directory), str(directory)]
        return self.call(*words, stderr=subprocess.DEVNULL)


class Buildctl:
    """buildctl before a daemon."""

    def __init__(self, program, address, bases):
        self.program, self.address, self.bases = program, address, bases

    def build(self, case, directory, to):
        words = [self.program, "--addr", self.address, "build", "--progress=plain", "--frontend=dockerfile.v0"]
        words += [f"--local=context={directory}", f"--local=dockerfile={directory}", f"--output=type=oci,dest={to}"]
        flags(case.attributes, directory)
        attributes = {"force-network-mode": "none", **case.attributes}
        for name, value in attributes.items():
            words += ["--opt", f"{name}={value}"]
        for name, (path, digest) in self.bases.items():
            words += [f"--oci-layout={name.replace(':', '-')}={path}"]
            if f"context:{name}" not in attributes:
                words += ["--opt", f"context:{name}=oci-layout://{name.replace(':', '-')}@{digest}"]
        return run(words)


class Buildx:
    """docker buildx with its builder."""

    def __init__(self, words, bases):
        self.words, self.bases = words, bases

    def build(self, case, directory, to):
        words = [*self.words, "build", "--progress=plain", "--provenance=false", f"--output=type=oci,dest={to}"]
        words += [f"--build-context={name}=oci-layout://{path}@{digest}" for name, (path, digest) in self.bases.items()]
        return run([*words, *flags(case.attributes, directory), str(directory)])


@contextlib.contextmanager
def daemon(program, work):
    """A buildkitd of our own, as root, that goes with the run; returns its address."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="imgctl-buildkitd."))
    address = f"unix://{root}/socket"
    with open(work / "buildkitd.log", "wb") as log:
        words = [program, "--addr", address, "--root", str(root / "root"), "--oci-worker-snapshotter=native"]
        words += ["--config", "/dev/null", "--oci-worker-net=host", "--allow-insecure-entitlement=network.host"]
        child = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            for _ in range(300):
                if (root / "socket").exists():
                    break
                if child.poll() is not None:
                    raise SystemExit(f"{program} does not start: see {work}/buildkitd.log")
                time.sleep(0.1)
            yield address
        finally:
            child.terminate()
            child.wait()
            shutil.rmtree(root, ignore_errors=True)


def reachable():
    """What a person has running: BUILDKIT_HOST with buildctl, or a builder of docker buildx."""
    if os.environ.get("BUILDKIT_HOST") and shutil.which("buildctl"):
        return lambda bases: Buildctl("buildctl", os.environ["BUILDKIT_HOST"], bases)
    if shutil.which("docker") and run(["docker", "buildx", "inspect", "--bootstrap"]).returncode == 0:
        return lambda bases: Buildx(["docker", "buildx"], bases)
    return None
