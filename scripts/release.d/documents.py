#!/usr/bin/env python3
"""The documents of a release: an SBOM of what is linked into imgctl (SPDX 2.3), and provenance (in-toto
statement v1, SLSA provenance v1) of all its files. Both are functions of the sources and the toolchain.

    documents.py sbom VERSION OUTPUT
    documents.py provenance VERSION OUTPUT FILE…
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
# Debian's packages of the C library that is linked statically, by architecture.
C_LIBRARY = {"amd64": ["libc6-dev", "libc6-dev-amd64-cross"], "arm64": ["libc6-dev-arm64-cross", "libc6-dev"]}


def run(*words):
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def time():
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(output, document):
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    pathlib.Path(output).write_text(text, encoding="utf-8")


def linked():
    """The packages that are linked into imgctl, and what each of them uses, by ID."""
    filters = [word for target in TARGETS for word in ("--filter-platform", target)]
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", *filters))
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    root = metadata["resolve"]["root"]
    edges, waiting = {}, [root]
    while waiting:
        package = waiting.pop()
        if package in edges:
            continue
        # Build scripts, procedural macros and tests are not in the binary.
        uses = [
            dependency["pkg"]
            for dependency in nodes[package]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            and not any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
        ]
        edges[package] = sorted(set(uses))
        waiting.extend(uses)
    return root, packages, edges


def sbom(version, output):
    root, packages, edges = linked()
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}

    def identifier(package):
        name = re.sub(r"[^A-Za-z0-9.-]", "-", packages[package]["name"])
        return f"SPDXRef-Package-{name}-{re.sub(r'[^A-Za-z0-9.-]', '-', packages[package]['version'])}"

    described = []
    for package in sorted(edges, key=lambda p: (p != root, packages[p]["name"], packages[p]["version"])):
        value = packages[package]
        licence = (value["license"] or "NOASSERTION").replace(" / ", "/").replace("/", " OR ")
        entry = {
            "SPDXID": identifier(package),
            "name": value["name"],
            "versionInfo": version if package == root else value["version"],
            "supplier": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": licence,
            "copyrightText": "NOASSERTION",
        }
        checksum = checksums.get((value["name"], value["version"]))
        if checksum:
            url = f"https://crates.io/api/v1/crates/{value['name']}/{value['version']}/download"
            entry["downloadLocation"] = url
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
            purl = f"pkg:cargo/{value['name']}@{value['version'].replace('+', '%2B')}"
            entry["externalRefs"] = [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
            ]
        described.append(entry)
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", identifier(root))]
    for package in sorted(edges):
        relationships += [(identifier(package), "DEPENDS_ON", identifier(used)) for used in edges[package]]
    for architecture, names in C_LIBRARY.items():
        found = c_library(architecture, names)
        if found:
            described.append(found)
            relationships.append((identifier(root), "STATIC_LINK", found["SPDXID"]))
    digest = hashlib.sha256((ROOT / "Cargo.lock").read_bytes()).hexdigest()
    write(output, {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"imgctl-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/imgctl-{version}-{digest}",
        "creationInfo": {"created": time(), "creators": [f"Tool: imgctl-scripts-release-{version}"]},
        "packages": described,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relationships
        ],
    })


def c_library(architecture, names):
    for name in names:
        words = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Architecture} ${Version}", name]
        try:
            status, package, found = run(*words).split()
        except (OSError, subprocess.CalledProcessError, ValueError):
            continue
        if status.startswith("ii") and package in (architecture, "all"):
            return {
                "SPDXID": f"SPDXRef-Package-glibc-{architecture}",
                "name": name,
                "versionInfo": found,
                "supplier": "Organization: Debian",
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
                "licenseConcluded": "NOASSERTION",
                "licenseDeclared": "LGPL-2.1-or-later",
                "copyrightText": "NOASSERTION",
                "comment": f"GNU C library, linked statically into imgctl for {architecture}",
                "externalRefs": [{
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": f"pkg:deb/debian/{name}@{found.replace('+', '%2B')}?arch={package}",
                }],
            }
    return None


def provenance(version, output, files):
    source = {"uri": os.environ["IMGCTL_RELEASE_SOURCE"]}
    commit = os.environ.get("IMGCTL_RELEASE_COMMIT")
    if commit:
        source["digest"] = {"gitCommit": commit}
    dependencies = [
        source,
        {"name": "Cargo.lock", "digest": {"sha256": sha256(ROOT / "Cargo.lock")}},
    ]
    certificates = os.environ.get("CA_CERTIFICATES", "/etc/ssl/certs/ca-certificates.crt")
    if os.path.exists(certificates):
        dependencies.append({"name": "ca-certificates.crt", "digest": {"sha256": sha256(certificates)}})
    builder = "urn:imgctl:scripts:release"
    if os.environ.get("GITHUB_ACTIONS") == "true" and os.environ.get("GITHUB_WORKFLOW_REF"):
        builder = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_WORKFLOW_REF']}"
    write(output, {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": os.path.basename(file), "digest": {"sha256": sha256(file)}} for file in sorted(files)
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:imgctl:release:v1",
                "externalParameters": {"version": version, "source": source["uri"]},
                "internalParameters": {
                    "rustc": run("rustc", "--version").strip(),
                    "targets": TARGETS,
                    "sourceDateEpoch": os.environ["SOURCE_DATE_EPOCH"],
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": builder}},
        },
    })


match sys.argv[1:]:
    case ["sbom", version, output]:
        sbom(version, output)
    case ["provenance", version, output, *files]:
        provenance(version, output, files)
    case _:
        sys.exit(__doc__)
