// Calls a running service through openapi-fetch, with the types that openapi-typescript made of the document (./api), and
// prints what came back. tests/it/openapi.rs compares it.
import createClient from "openapi-fetch";
import type { paths } from "./api";

declare const process: { env: Record<string, string | undefined> };

function variable(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set`);
  return value;
}

async function main(): Promise<void> {
  const client = createClient<paths>({
    baseUrl: variable("COVAULT_URL"),
    headers: { "x-mtoken": variable("COVAULT_TOKEN") },
  });
  const made = await client.POST("/v1/createWallet", {
    body: { vaultUuid: variable("COVAULT_VAULT"), networkType: "NETWORK_TYPE_EVM", ref: "from-openapi-fetch" },
    params: { header: { "idempotency-key": "from-openapi-fetch" } },
  });
  if (made.error !== undefined) throw new Error(made.error.error.message);
  const address: string = made.data.details.address;
  const found = await client.POST("/v1/getWalletInfo", { body: { address } });
  if (found.error !== undefined) throw new Error(found.error.error.message);
  const asked = await client.POST("/v1/createSigningRequest", {
    body: { rawMessage: { from: address, content: "", ecdsaHashFunction: "ECDSA_HASH_FUNCTION_SHA256" } },
  });
  if (asked.error !== undefined) throw new Error(asked.error.error.message);
  const outcome = await client.POST("/v1/executeSigningRequests", { body: { uuid: asked.data.signingRequest.uuid } });
  if (outcome.error !== undefined) throw new Error(outcome.error.error.message);
  const refused = await client.POST("/v1/getWalletInfo", { body: { ref: "nobody's" } });
  console.log(JSON.stringify({
    address,
    ref: found.data.details.ref,
    signatures: outcome.data.signatures?.signatures.length,
    refused: refused.error?.error.message,
    status: refused.response.status,
  }));
}

main().catch((error: unknown) => {
  console.error(error);
  throw error;
});
