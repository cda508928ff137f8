// Checks an address proof of Covault offline, with nothing but Node.js: see address-proofs.md.
//   node verify-address.mjs PINS.json < ANSWERS    (one JSON answer of the API per line)
// PINS.json: {"nodes": ["ssh-ed25519 AAAA..."], "threshold": 2, "vault": "uuid", "ref": "order 5"}
// and, if you like, "rootKey" and "network". Each line of the output is the address, or "refused: ...".
import { createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

// The 32 bytes at the end of an OpenSSH line are the Ed25519 key.
const keyOf = (line) => {
  const blob = Buffer.from(line.trim().split(/\s+/)[1] ?? "", "base64");
  if (!line.trim().startsWith("ssh-ed25519 ") || blob.length !== 51) throw new Error("not an ssh-ed25519 key");
  return blob.subarray(19).toString("hex");
};

const hasSigned = (key, text, signature) => {
  const der = Buffer.from("302a300506032b6570032100" + key, "hex");
  const publicKey = createPublicKey({ key: der, format: "der", type: "spki" });
  return verify(null, Buffer.from(text), publicKey, Buffer.from(signature, "base64"));
};

// The address of an answer (or of its `details`), or an error. `pins.ref` is the one that you asked for.
export function verifyAddress(answer, pins) {
  const details = answer.details ?? answer;
  const proof = details.addressProof;
  const demand = (fits, problem) => { if (!fits) throw new Error(problem); };
  demand(proof, "no address proof");
  demand(pins.threshold > 0 && pins.vault, "threshold and vault must be pinned");
  demand(proof.address === details.address, "the proof is of another address");
  demand(proof.vaultUuid === pins.vault, "the proof is of another vault");
  demand(proof.ref === (pins.ref ?? ""), "the proof is of another reference");
  demand(!pins.rootKey || proof.rootPublicKey === pins.rootKey, "the proof is of another root key");
  demand(!pins.network || proof.networkType === pins.network, "the proof is of another network");
  const text = "covault address statement v1\n" +
    `vault: ${proof.vaultUuid}\nroot: ${proof.rootPublicKey}\npath: ${proof.keyPath}\n` +
    `network: ${proof.networkType}\naddress: ${proof.address}\n` +
    `ref: ${Buffer.from(proof.ref).toString("hex")}\n`;
  const pinned = new Set(pins.nodes.map(keyOf));
  const signed = new Set();
  for (const { nodeKey, signature } of proof.statements) {
    const key = keyOf(nodeKey);
    if (pinned.has(key) && hasSigned(key, text, signature)) signed.add(key);
  }
  demand(signed.size >= pins.threshold, `only ${signed.size} pinned nodes have signed this address`);
  return details.address;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const pins = JSON.parse(readFileSync(process.argv[2], "utf8"));
  for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    try {
      console.log(verifyAddress(JSON.parse(line), pins));
    } catch (error) {
      console.log(`refused: ${error.message}`);
      process.exitCode = 1;
    }
  }
}
