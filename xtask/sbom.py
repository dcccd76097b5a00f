"""Writes a CycloneDX 1.6 document of what is in the binaries: every crate that is linked or runs at build time."""

import datetime
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import uuid

ROOTS = ["ron", "ron-kms-bin", "svc-passport-bin", "ron-ledger-bin", "svc-wallet-bin", "svc-rewarder-bin", "svc-admin-bin"]


def cargo_metadata(features):
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = next(line.split(": ")[1] for line in host.splitlines() if line.startswith("host: "))
    command += ["--filter-platform", target]
    if features:
        command += ["--features", features]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout), target


def linked(features):
    """Names and versions that a build of the binaries really takes; metadata alone also lists what tests switch on."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]
    for root in ROOTS:
        command += ["--package", root]
    if features:
        command += ["--features", features]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {(words[0], words[1].removeprefix("v")) for words in (line.split() for line in lines) if words}


def checksums():
    with open("Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(p["name"], p["version"]): p.get("checksum") for p in packages}


def used(nodes, roots, wanted):
    """Packages that the roots reach without dev-dependencies, each with what it needs itself."""
    graph, waiting = {}, list(roots)
    while waiting:
        name = waiting.pop()
        if name in graph:
            continue
        needs = set()
        for dep in nodes[name]["deps"]:
            if dep["pkg"] in wanted and any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"]):
                needs.add(dep["pkg"])
        graph[name] = sorted(needs)
        waiting += needs
    return graph


def expression(text):
    """Older crates write MIT/Apache-2.0 for what SPDX calls MIT OR Apache-2.0."""
    return text.replace("/", " OR ") if text else None


def component(package, sums):
    ref = f"pkg:cargo/{package['name']}@{package['version']}"
    found = {
        "type": "library",
        "bom-ref": ref,
        "name": package["name"],
        "version": package["version"],
        "purl": ref,
        "scope": "required",
    }
    if package.get("description"):
        found["description"] = " ".join(package["description"].split())
    if package.get("license"):
        found["licenses"] = [{"expression": expression(package["license"])}]
    digest = sums.get((package["name"], package["version"]))
    if digest:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if package.get("repository"):
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def document(features):
    metadata, target = cargo_metadata(features)
    packages = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    roots = [i for i, p in packages.items() if p["name"] in ROOTS and p["id"] in metadata["workspace_members"]]
    taken = linked(features)
    graph = used(nodes, roots, {i for i, p in packages.items() if (p["name"], p["version"]) in taken})
    sums = checksums()
    refs = {i: f"pkg:cargo/{packages[i]['name']}@{packages[i]['version']}" for i in graph}
    version = packages[roots[0]]["version"]
    with open("Cargo.lock", "rb") as file:
        lock = file.read()
    name = f"ron {version} {target} {features} {hashlib.sha256(lock).hexdigest()}"
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    stamp = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    top = f"ron@{version}"
    edges = [{"ref": refs[i], "dependsOn": sorted(refs[d] for d in needs)} for i, needs in graph.items()]
    edges.append({"ref": top, "dependsOn": sorted(refs[i] for i in roots)})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "version": 1,
        "metadata": {
            "timestamp": stamp,
            "component": {
                "type": "application",
                "bom-ref": top,
                "name": "ron",
                "version": version,
                "properties": [
                    {"name": "ron:target", "value": target},
                    {"name": "ron:features", "value": features or "default"},
                ],
            },
        },
        "components": sorted((component(packages[i], sums) for i in graph), key=lambda c: c["bom-ref"]),
        "dependencies": sorted(edges, key=lambda e: e["ref"]),
    }


if __name__ == "__main__":
    json.dump(document(os.environ.get("FEATURES", "")), sys.stdout, indent=1, sort_keys=True)
    print()
