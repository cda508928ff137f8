// Checks an address proof of Covault offline, with nothing but Node.js: see address-proofs.md.
//   node verify-address.mjs PINS.json < ANSWERS    (one JSON answer of the API per line)
// PINS.json: {"nodes": ["ssh-ed25519 AAAA..."], "threshold": 2, "vault": "uuid", "ref": "order 5"}, where the
// nodes are all that hold shares, and, if you like, "rootKey" and "network". Shares that moved: "generations":
// [{"nodes", "threshold"}, ...] instead. Each line of the output is the address, or "refused: ...".
import { createPublicKey, verify } from "node:crypto";
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";

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
  demand(pins.vault && proof.vaultUuid === pins.vault, "the proof is of another vault");
  demand(proof.address === details.address, "the proof is of another address");
  demand(proof.ref === (pins.ref ?? ""), "the proof is of another reference");
  demand(!pins.rootKey || proof.rootPublicKey === pins.rootKey, "the proof is of another root key");
  demand(!pins.network || proof.networkType === pins.network, "the proof is of another network");
  for (const { nodes, threshold } of pins.generations ?? [pins]) {
    demand(Number.isInteger(threshold) && threshold > 0, "threshold must be pinned: a number");
    const holders = [...new Set(nodes.map(keyOf))].sort();
    const text = "covault address statement v1\n" + `vault: ${proof.vaultUuid}\nroot: ${proof.rootPublicKey}\n` +
      `threshold: ${threshold}\nholders: ${holders.join(" ")}\npath: ${proof.keyPath}\n` +
      `network: ${proof.networkType}\naddress: ${proof.address}\nref: ${Buffer.from(proof.ref).toString("hex")}\n`;
    const by = proof.statements.map(({ nodeKey, signature }) => [keyOf(nodeKey), signature]);
    const signed = by.filter(([key, signature]) => holders.includes(key) && hasSigned(key, text, signature));
    if (new Set(signed.map(([key]) => key)).size >= threshold) return details.address;
  }
  throw new Error("too few pinned nodes have signed this address as one of a key that they hold");
}

const called = process.argv[1] ?? "";
if (existsSync(called) && realpathSync(called) === realpathSync(fileURLToPath(import.meta.url))) {
  const pins = JSON.parse(readFileSync(process.argv[2], "utf8"));
  const answers = readFileSync(0, "utf8").split("\n").filter((line) => line.trim());
  if (answers.length === 0) process.exitCode = 1; // Nothing was verified.
  for (const line of answers) {
    try {
      console.log(verifyAddress(JSON.parse(line), pins));
    } catch (error) {
      console.log(`refused: ${error.message.replace(/[^ -~]/g, "?")}`);
      process.exitCode = 1;
    }
  }
}
