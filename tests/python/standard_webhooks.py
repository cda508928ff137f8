"""Checks `v1` of a webhook by the package standardwebhooks. Takes and says what docs/verify_webhook.py does."""
import json
import sys

from standardwebhooks.webhooks import Webhook

webhook = json.load(sys.stdin)
try:
    print(Webhook(webhook["secret"]).verify(webhook["body"], webhook["headers"])["id"])
except Exception as error:  # Whatever is wrong with it.
    print(f"refused: {error!r}")
