"""Runs schemathesis, with all of its checks, against the service at COVAULT_URL and the document
that it serves. COVAULT_TOKEN opens the platform API, COVAULT_SWEEP_TOKEN the sweep API and
COVAULT_VAULT is a vault.

What the document allows is mostly unknown to a service: no random UUID is that of a vault. So the
copy of the document that cases are made from names this vault and wallets of it, where a UUID of a
vault or a sender's address stands. Nothing else is changed, and what the service answers is
compared with what the document says."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

# How names of payload kinds and of their schemas begin, and the network of their wallets.
FAMILIES = {
    "evm": "EVM",
    "btc": "BITCOIN",
    "tron": "TRON",
    "aptos": "APTOS",
    "sui": "SUI",
    "solana": "SOLANA",
    "sonic": "SOLANA",
    "ton": "TON",
    "stellar": "STELLAR",
    "raw": "EVM",
}


def network_of(name: str) -> str | None:
    found = (network for begin, network in FAMILIES.items() if name.lower().startswith(begin))
    return next(found, None)


class Service:
    def __init__(self) -> None:
        self.base = os.environ["COVAULT_URL"]
        self.vault = os.environ["COVAULT_VAULT"]
        self.token = os.environ["COVAULT_TOKEN"]

    def document(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.base}/openapi.json") as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def wallet(self, network: str) -> str:
        """The address of a new wallet."""
        body = {"vaultUuid": self.vault, "networkType": f"NETWORK_TYPE_{network}"}
        request = urllib.request.Request(
            f"{self.base}/v1/createWallet",
            data=json.dumps(body).encode(),
            headers={"x-mtoken": self.token, "content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            address: str = json.load(answer)["details"]["address"]
        return address


def narrow(document: dict[str, Any], vault: str, wallets: dict[str, str]) -> None:
    """Puts the vault and the wallets into the schemas and examples of requests."""
    for name, schema in document["components"]["schemas"].items():
        properties = schema.get("properties", {})
        if name.endswith("Request") and "vaultUuid" in schema.get("required", []):
            properties["vaultUuid"] = {"type": "string", "enum": [vault]}
        network = network_of(name)
        if name.endswith("Input") and "from" in properties and network is not None:
            properties["from"] = {"type": "string", "enum": [wallets[network]]}
    for item in document["paths"].values():
        content = item.get("post", {}).get("requestBody", {}).get("content", {})
        for example in content.get("application/json", {}).get("examples", {}).values():
            value = example["value"]
            if "vaultUuid" in value:
                value["vaultUuid"] = vault
            for kind, payload in value.items():
                network = network_of(kind)
                if isinstance(payload, dict) and network is not None:
                    payload["from"] = wallets[network]


def main() -> int:
    folder = Path(sys.argv[1])
    service = Service()
    document = service.document()
    wallets = {network: service.wallet(network) for network in set(FAMILIES.values())}
    narrow(document, service.vault, wallets)
    narrowed = folder / "openapi.json"
    narrowed.write_text(json.dumps(document))
    config = Path(__file__).with_name("schemathesis.toml")
    program = Path(sys.executable).with_name("st")
    command = [program, "--config-file", config, "run", narrowed, "--url", service.base]
    return subprocess.run([*map(str, command), *sys.argv[2:]], cwd=folder, check=False).returncode


sys.exit(main())
