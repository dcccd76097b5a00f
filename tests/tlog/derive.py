"""Derives the tiles, the root and every proof path of a log from its entries alone, as RFC 6962 and C2SP tlog-tiles define
them, and compares them byte by byte with what the service serves. Standard library only; shares no code with the service.

usage: derive.py <base url> <token file> <entries in the log>
"""
import base64, hashlib, http.client, json, socket, sys


def ask(url, token=None):
    """GET over a Unix socket, unix:/path/name.sock/...: the answer's status and body."""
    path, rest = url.removeprefix("unix:").split(".sock", 1)
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(20)
    connection.sock.connect(path + ".sock")
    connection.request("GET", rest, headers={"Authorization": "Bearer " + token} if token else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def get(url, token=None):
    code, body = ask(url, token)
    assert code == 200, f"{url}: {code}"
    return body


def status(url):
    return ask(url)[0]


def leaf(data):
    return hashlib.sha256(b"\0" + data).digest()


def node(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def root(hashes):
    """Merkle tree hash by the recursive definition."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    return node(root(hashes[:k]), root(hashes[k:]))


def path(index, hashes):
    """Inclusion path by the recursive definition."""
    if len(hashes) == 1:
        return []
    k = 1
    while k * 2 < len(hashes):
        k *= 2
    if index < k:
        return path(index, hashes[:k]) + [root(hashes[k:])]
    return path(index - k, hashes[k:]) + [root(hashes[:k])]


def tile_name(index):
    parts = [f"{index % 1000:03d}"]
    while index >= 1000:
        index //= 1000
        parts.insert(0, f"x{index % 1000:03d}")
    return "/".join(parts)


def widths(count):
    """Index and width of each tile over `count` hashes."""
    for index in range(0, (count + 255) // 256):
        yield index, min(256, count - index * 256)


def suffix(width):
    return "" if width == 256 else f".p/{width}"


def entries(base, token, size):
    found = []
    for index, width in widths(size):
        bundle = get(f"{base}/tile/entries/{tile_name(index)}{suffix(width)}", token)
        at = 0
        for _ in range(width):
            length = int.from_bytes(bundle[at:at + 2], "big")
            found.append(bundle[at + 2:at + 2 + length])
            at += 2 + length
        assert at == len(bundle), "bytes are left in a bundle"
    return found


def main():
    base, token_file, least = sys.argv[1], sys.argv[2], int(sys.argv[3])
    token = open(token_file).read().strip()
    text = get(base + "/checkpoint").decode()
    origin, size, root64 = text.split("\n")[:3]
    size = int(size)
    assert size >= least, f"{size} entries are covered, {least} were made"
    data = entries(base, token, size)
    assert len(data) == size
    level = [leaf(d) for d in data]
    assert base64.b64encode(root(level)).decode() == root64, "the root is another"

    compared, height = 0, 0
    leaves = level
    while level:
        for index, width in widths(len(level)):
            got = get(f"{base}/tile/{height}/{tile_name(index)}{suffix(width)}")
            assert got == b"".join(level[index * 256:index * 256 + width]), f"tile {height}/{index} is another"
            compared += 1
            if width > 1:  # a narrower tile of the same place is a prefix
                part = get(f"{base}/tile/{height}/{tile_name(index)}.p/{width - 1}")
                assert part == got[:-32], "a partial tile is no prefix"
        full = len(level) // 256
        level = [root(level[i * 256:(i + 1) * 256]) for i in range(full)]
        height += 1
    assert status(f"{base}/tile/0/{tile_name(size // 256)}.p/0") == 404
    assert status(f"{base}/tile/{height + 1}/000") == 404

    for index in sorted({0, 1, size // 2, size // 3, 255 % size, 256 % size, size - 1}):
        lines = get(f"{base}/proof/{index}").decode().split("\n")
        assert lines[:2] == ["c2sp.org/tlog-proof@v1", f"index {index}"], lines[:2]
        end = lines.index("")
        covered = int(lines[end + 2])
        if covered > size:
            continue  # a newer checkpoint came meanwhile
        expected = [base64.b64encode(h).decode() for h in path(index, leaves[:covered])]
        assert lines[2:end] == expected, f"the proof of {index} is another"

    counters = {}
    for d in data:
        fields = json.loads(d)
        assert len(d) <= 4096
        assert json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == d, "not canonical"
        if fields.get("key_op_counter") is not None:
            counters[fields["key"]] = counters.get(fields["key"], 0) + 1
            assert fields["key_op_counter"] == counters[fields["key"]], "a counter has a gap"
    print(f"{origin}: {size} entries, {compared} tiles, {len(counters)} keys agree")


main()
