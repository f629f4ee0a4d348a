"""Reads OCI archives of builders into what is compared: the merged tree, the configuration, the history."""
import gzip
import hashlib
import io
import json
import subprocess
import tarfile

# What the result says about the command line or the clock, not about the file.
CONFIG = ["Env", "Cmd", "Entrypoint", "WorkingDir", "User", "Labels", "ExposedPorts", "Volumes", "StopSignal", "OnBuild", "Healthcheck", "Shell"]


class Layout:
    def __init__(self, path):
        with tarfile.open(path) as archive:
            self.files = {m.name.removeprefix("./"): archive.extractfile(m).read() for m in archive if m.isfile()}

    def blob(self, digest):
        return self.files["blobs/" + digest.replace(":", "/")]

    def document(self, digest):
        return json.loads(self.blob(digest))

    def manifests(self):
        """By platform; attestations are left out."""
        todo, found = [entry["digest"] for entry in json.loads(self.files["index.json"])["manifests"]], {}
        while todo:
            document = self.document(todo.pop(0))
            if "manifests" in document:
                todo += [
                    entry["digest"] for entry in document["manifests"]
                    if "vnd.docker.reference.type" not in entry.get("annotations", {})
                ]
                continue
            config = self.document(document["config"]["digest"])
            name = "/".join(filter(None, [config.get("os"), config.get("architecture"), config.get("variant")]))
            found[name] = (document, config)
        return found

    def tree(self, manifest):
        tree = {}
        for layer in manifest.get("layers") or []:
            data = self.blob(layer["digest"])
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            elif data[:4] == b"\x28\xb5\x2f\xfd":
                data = subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
            apply(tree, data)
        return tree


def below(tree, path):
    return [name for name in tree if name == path or name.startswith(path + "/")]


def apply(tree, data):
    own = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = member.name.strip("/").removeprefix("./")
            if path in ("", "."):
                continue
            folder, _, name = path.rpartition("/")
            if name == ".wh..wh..opq":
                for old in [old for old in below(tree, folder) if old != folder]:
                    del tree[old]
                continue
            if name.startswith(".wh."):
                for old in below(tree, f"{folder}/{name[4:]}".strip("/")):
                    del tree[old]
                continue
            entry = {"kind": member.type.decode(), "mode": oct(member.mode & 0o7777), "owner": f"{member.uid}:{member.gid}"}
            if member.isfile():
                entry["kind"] = "0"
                entry["content"] = hashlib.sha256(archive.extractfile(member).read()).hexdigest()[:12]
            elif member.issym():
                entry["target"] = member.linkname
                del entry["mode"]
            elif member.islnk():
                target = member.linkname.strip("/").removeprefix("./")
                entry = dict(own.get(target) or tree.get(target) or entry)
            own[path] = entry
    for path, entry in own.items():
        if entry["kind"] != "5":
            for old in below(tree, path):
                del tree[old]
        tree[path] = entry


def history(config):
    """The steps that have a layer, and the others. The texts differ on purpose, whether a RUN or WORKDIR without a
    result has a layer, and that triggers are steps (docs/kubefile.md)."""
    return [
        None if entry.get("created_by", "").startswith(("RUN", "WORKDIR")) else bool(entry.get("empty_layer"))
        for entry in config.get("history") or []
        if not entry.get("created_by", "").startswith("ONBUILD")
    ]


def differences(ours, theirs, is_random=False):
    """Compares two OCI archives; returns lines."""
    found = []
    ours, theirs = Layout(ours), Layout(theirs)
    mine, other = ours.manifests(), theirs.manifests()
    if set(mine) != set(other):
        found.append(f"platforms: {sorted(mine)}, BuildKit {sorted(other)}")
    for platform in sorted(set(mine) & set(other)):
        (manifest, config), (their_manifest, their_config) = mine[platform], other[platform]
        tree, their_tree = ours.tree(manifest), theirs.tree(their_manifest)
        for path in sorted(set(tree) | set(their_tree)):
            one, two = tree.get(path), their_tree.get(path)
            if is_random and one and two:
                one, two = {**one, "content": ""}, {**two, "content": ""}
            if one != two:
                found.append(f"/{path}: {tree.get(path)}, BuildKit {their_tree.get(path)}")
        for key in CONFIG:
            # No value and an empty one are the same.
            one, two = ((each.get("config") or {}).get(key) or None for each in (config, their_config))
            if key == "WorkingDir":
                one, two = one or "/", (two or "/").replace("\\", "/")
            if one != two:
                found.append(f"{key}: {one}, BuildKit {two}")
        if history(config) != history(their_config):
            found.append(f"history: {history(config)}, BuildKit {history(their_config)}")
    return found
