"""Checks an address proof of Covault offline: see address-proofs.md. Needs `pip install cryptography`.
python verify_address.py PINS.json < ANSWERS    (one JSON answer of the API per line)
PINS.json: {"nodes": ["ssh-ed25519 AAAA..."], "threshold": 2, "vault": "uuid", "ref": "order 5"}, where the
nodes are all that hold shares, and, if you like, "rootKey" and "network". Shares that moved: "generations":
[{"nodes", "threshold"}, ...] instead. Each line of the output is the address, or "refused: ..."."""
import base64
import json
import sys
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TEXT = ("covault address statement v1\nvault: {vaultUuid}\nroot: {rootPublicKey}\nthreshold: {threshold}\n"
        "holders: {holders}\npath: {keyPath}\nnetwork: {networkType}\naddress: {address}\nref: {ref}\n")


def key_of(line):
    """The 32 bytes at the end of an OpenSSH line are the Ed25519 key."""
    kind, blob = line.split()[:2]
    blob = base64.b64decode(blob, validate=True)
    if kind != "ssh-ed25519" or len(blob) != 51:
        raise ValueError("not an ssh-ed25519 key")
    return blob[19:]


def has_signed(key, text, signature):
    try:
        return Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(signature), text) is None
    except InvalidSignature:
        return False


def verify_address(answer, pins):
    """The address of an answer (or of its `details`), or an error. pins["ref"]: what you asked for."""
    details = answer.get("details") or answer
    proof = details.get("addressProof") or {}
    if proof.get("address") is None or proof["address"] != details["address"]:
        raise ValueError("no proof of this address")
    pinned = {"vaultUuid": str(pins["vault"]), "ref": pins.get("ref") or "", "rootPublicKey": pins.get("rootKey")}
    for field, value in {**pinned, "networkType": pins.get("network")}.items():
        if value is not None and proof[field] != value:
            raise ValueError(f"the proof is of another {field}")
    said = [(key_of(one["nodeKey"]), one["signature"]) for one in proof["statements"]]
    for of in pins.get("generations", [pins]):
        nodes, threshold = {key_of(line).hex() for line in of["nodes"]}, of["threshold"]
        own = {"threshold": threshold, "holders": " ".join(sorted(nodes)), "ref": proof["ref"].encode().hex()}
        text = TEXT.format(**{**proof, **own}).encode()
        signed = {key for key, by in said if key.hex() in nodes and has_signed(key, text, by)}
        if type(threshold) is int and 1 <= threshold <= len(signed):
            return details["address"]
    raise ValueError("too few pinned nodes have signed this address as one of a key that they hold")


if __name__ == "__main__":
    pins, code, answers = json.load(open(sys.argv[1], encoding="utf-8")), 0, list(filter(str.strip, sys.stdin))
    for answer in answers:
        try:
            print(verify_address(json.loads(answer), pins))
        except Exception as error:  # Whatever is wrong with it, the next one is looked at.
            code = print(f"refused: {error!r}") or 1
    sys.exit(code if answers else 1)  # Nothing was verified.
