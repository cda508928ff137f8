"""Assertions of WebAuthn as python-fido2 makes and judges them, for core/src/approval (tests/vectors/approvals/fido2.json).

Needs `pip install fido2==2.2.1`. Prints the vectors; the keys are of this file and protect nothing.
"""

import hashlib
import json

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from fido2.cose import ES256, EdDSA
from fido2.webauthn import AuthenticatorData, CollectedClientData

RP_ID = "console.example.com"
ORIGIN = "https://console.example.com"
CHALLENGE = hashlib.sha256(b"an approval").digest()
UP, UV, BE, BS = 1, 4, 8, 16


def assertion(name, key, cose, sign, flags, good):
    data = AuthenticatorData.create(hashlib.sha256(RP_ID.encode()).digest(), flags, 7)
    client = CollectedClientData.create(CollectedClientData.TYPE.GET, CHALLENGE, ORIGIN)
    signature = sign(bytes(data) + client.hash)
    # Its own judgement.
    cose.verify(bytes(data) + client.hash, signature)
    assert data.is_user_verified() == bool(flags & UV)
    spki = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return {
        "name": name,
        "rpId": RP_ID,
        "origin": ORIGIN,
        "challenge": CHALLENGE.hex(),
        "spki": spki.hex(),
        "backupEligible": bool(flags & BE),
        "authenticatorData": bytes(data).hex(),
        "clientDataJSON": bytes(client).hex(),
        "signature": signature.hex(),
        "good": good,
    }


p256 = ec.derive_private_key(0x1234567890ABCDEF, ec.SECP256R1())
edwards = ed25519.Ed25519PrivateKey.from_private_bytes(b"7" * 32)
es256 = ("ES256", p256, ES256.from_cryptography_key(p256.public_key()))
eddsa = ("Ed25519", edwards, EdDSA.from_cryptography_key(edwards.public_key()))
vectors = []
for name, key, cose in (es256, eddsa):
    if name == "ES256":
        sign = lambda message, key=key: key.sign(message, ec.ECDSA(hashes.SHA256()))
    else:
        sign = key.sign
    for what, flags, good in (
        ("", UP | UV, True),
        (", synced", UP | UV | BE | BS, True),
        (", not yet synced", UP | UV | BE, True),
        (", user not verified", UP, False),
        (", user not present", UV, False),
    ):
        vectors.append(assertion(name + what, key, cose, sign, flags, good))
print(json.dumps(vectors, indent=1))
