// Calls a running service through the client that was generated into ./client, and prints what
// came back. tests/it/openapi.rs compares it.
import { createSigningRequest, createWallet, executeSigningRequests, getWalletInfo } from "./client";
import { client } from "./client/client.gen";

declare const process: { env: Record<string, string | undefined> };

function variable(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set`);
  return value;
}

async function main(): Promise<void> {
  client.setConfig({ baseUrl: variable("COVAULT_URL"), auth: () => variable("COVAULT_TOKEN") });
  const made = await createWallet({
    body: { vaultUuid: variable("COVAULT_VAULT"), networkType: "NETWORK_TYPE_EVM", ref: "from-typescript" },
    headers: { "idempotency-key": "from-typescript" },
  });
  if (made.error !== undefined) throw new Error(made.error.error.message);
  const address: string = made.data.details.address;
  const found = await getWalletInfo({ body: { address } });
  if (found.error !== undefined) throw new Error(found.error.error.message);
  const asked = await createSigningRequest({
    body: { rawMessage: { from: address, content: "", ecdsaHashFunction: "ECDSA_HASH_FUNCTION_SHA256" } },
  });
  if (asked.error !== undefined) throw new Error(asked.error.error.message);
  const outcome = await executeSigningRequests({ body: { uuid: asked.data.signingRequest.uuid } });
  if (outcome.error !== undefined) throw new Error(outcome.error.error.message);
  const refused = await getWalletInfo({ body: { ref: "nobody's" } });
  console.log(JSON.stringify({
    address,
    ref: found.data.details.ref,
    signatures: outcome.data.signatures?.signatures.length,
    refused: refused.error?.error.message,
    status: refused.response?.status,
  }));
}

main().catch((error: unknown) => {
  console.error(error);
  throw error;
});
