"""Checks a webhook of Covault: see deposits.md. Needs `pip install cryptography` for "keys", and nothing for "secret".
python verify_webhook.py < WEBHOOK.json    {"headers": {...}, "body": "the raw body", "secret": "whsec_...",
"keys": what GET /v1/webhooks/keys answers}; leave out "secret" or "keys" to check by the other alone."""
import base64
import hashlib
import hmac
import json
import sys
import time

TOLERANCE_SECONDS = 300
# Anybody can sign with the key of a setting that was left empty.
SECRET_BYTES = 24


def is_by(keys, message, signature):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    for key in keys["keys"]:
        public = base64.urlsafe_b64decode(key["x"] + "=" * (-len(key["x"]) % 4))
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
            return True
        except InvalidSignature:
            pass
    return False


def verify_webhook(body, headers, secret=None, keys=None, now=None):
    """The event of a webhook, or an error. `body` is the raw body, as text; `headers` are in lower case."""
    event_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        raise ValueError("too old, or too new")
    signed = f"{event_id}.{timestamp}.{body}".encode()
    signatures = [one.split(",", 1) for one in headers["webhook-signature"].split(" ")]
    of = lambda version: [base64.b64decode(text) for is_of, text in signatures if is_of == version]
    if not secret and not keys:
        raise ValueError("nothing to check by")
    if secret:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        if len(key) < SECRET_BYTES:
            raise ValueError("the secret is too short")
        mac = hmac.new(key, signed, hashlib.sha256).digest()
        if not any(hmac.compare_digest(mac, one) for one in of("v1")):
            raise ValueError("v1 is wrong")
    if keys:
        if not any(is_by(keys, signed, one) for one in of("v1a")):
            raise ValueError("v1a is wrong")
        if not is_by(keys, body.encode(), base64.b64decode(headers["signature"])):
            raise ValueError("Signature is wrong")
    event = json.loads(body)
    if event["id"] != event_id:
        raise ValueError("the id is of another event")
    return event


if __name__ == "__main__":
    webhook = json.load(sys.stdin)
    try:
        print(verify_webhook(webhook.pop("body"), webhook.pop("headers"), **webhook)["id"])
    except Exception as error:  # Whatever is wrong with it.
        print(f"refused: {error!r}")
        sys.exit(1)
