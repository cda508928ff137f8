"""Checks an address proof of Covault offline: see address-proofs.md. Needs `pip install cryptography`.
python verify_address.py PINS.json < ANSWERS    (one JSON answer of the API per line)
PINS.json: {"nodes": ["ssh-ed25519 AAAA..."], "threshold": 2, "vault": "uuid", "ref": "order 5"}
and, if you like, "rootKey" and "network". Each line of the output is the address, or "refused: ..."."""
import base64
import json
import sys
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def key_of(line):
    """The 32 bytes at the end of an OpenSSH line are the Ed25519 key."""
    kind, blob = line.split()[:2]
    blob = base64.b64decode(blob, validate=True)
    if kind != "ssh-ed25519" or len(blob) != 51:
        raise ValueError("not an ssh-ed25519 key")
    return blob[19:]


def has_signed(key, text, signature):
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(base64.b64decode(signature), text)
        return True
    except InvalidSignature:
        return False


def verify_address(answer, pins):
    """The address of an answer (or of its `details`), or ValueError. pins["ref"]: what you asked for."""
    details = answer.get("details") or answer
    proof = details.get("addressProof") or {}
    if proof.get("address") is None or proof["address"] != details["address"]:
        raise ValueError("no proof of this address")
    pinned = {"vaultUuid": pins["vault"], "ref": pins.get("ref", "")}
    pinned |= {"rootPublicKey": pins["rootKey"]} if pins.get("rootKey") else {}
    pinned |= {"networkType": pins["network"]} if pins.get("network") else {}
    for field, value in pinned.items():
        if proof[field] != value:
            raise ValueError(f"the proof is of another {field}")
    text = ("covault address statement v1\nvault: {vaultUuid}\nroot: {rootPublicKey}\npath: {keyPath}\n"
            "network: {networkType}\naddress: {address}\n").format(**proof)
    text = (text + f"ref: {proof['ref'].encode().hex()}\n").encode()
    nodes = {key_of(line) for line in pins["nodes"]}
    said = {key_of(one["nodeKey"]) for one in proof["statements"]
            if key_of(one["nodeKey"]) in nodes and has_signed(key_of(one["nodeKey"]), text, one["signature"])}
    if pins["threshold"] < 1 or len(said) < pins["threshold"]:
        raise ValueError(f"only {len(said)} pinned nodes have signed this address")
    return details["address"]


if __name__ == "__main__":
    pins, code = json.load(open(sys.argv[1], encoding="utf-8")), 0
    for answer in filter(str.strip, sys.stdin):
        try:
            print(verify_address(json.loads(answer), pins))
        except (ValueError, KeyError, TypeError) as error:
            code = 1
            print(f"refused: {error!r}")
    sys.exit(code)
