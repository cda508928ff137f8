// A gRPC client that Covault has no part in (@grpc/grpc-js), from the schema as it is committed.
// Calls the service at COVAULT_GRPC with COVAULT_TOKEN and COVAULT_VAULT, and prints what it saw; over TLS with the
// certificate of COVAULT_CERTIFICATE, where that is set, and then with messages that gzip has compressed;
// tests/it/grpc.rs compares it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { Transaction } from "ethers";

const { COVAULT_GRPC: target, COVAULT_TOKEN: token, COVAULT_VAULT: vault } = process.env;
const rounds = 200;
const lanes = 4;

const definition = loader.loadSync("platform.proto", {
  includeDirs: [fileURLToPath(new URL("../../core/proto", import.meta.url))],
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { PlatformAPI } = grpc.loadPackageDefinition(definition).mpcvault.platform.v1;
const certificate = process.env.COVAULT_CERTIFICATE;
const credentials = certificate
  ? grpc.credentials.createSsl(readFileSync(certificate))
  : grpc.credentials.createInsecure();
const options = certificate ? { "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip } : {};
const client = new PlatformAPI(target, credentials, options);
const plain = new grpc.Client(target, credentials);

function metadata(values) {
  const metadata = new grpc.Metadata();
  for (const [name, value] of Object.entries(values)) metadata.set(name, value);
  return metadata;
}

/** Calls an operation and gives its answer and the metadata that came before it. */
function call(operation, request, more = {}) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 60_000;
    let first;
    const sent = metadata({ "x-mtoken": token, ...more });
    client[operation](request, sent, { deadline }, (error, answer) =>
      error ? reject(error) : resolve({ ...answer, metadata: first }),
    ).on("metadata", (received) => (first = received));
  });
}

/** The error of a call that must fail. */
async function refused(operation, request, more) {
  try {
    const answer = await call(operation, request, more);
    throw new Error(`${operation} was not refused: ${JSON.stringify(answer)}`);
  } catch (error) {
    if (error.code === undefined) throw error;
    return { code: grpc.status[error.code], details: error.details };
  }
}

const wallet = { vaultUuid: vault, networkType: "NETWORK_TYPE_EVM" };
const address = (await call("createWallet", wallet)).details.address;
const raw = (text) => ({
  rawMessage: {
    from: address,
    content: Buffer.from(text),
    ecdsaHashFunction: "ECDSA_HASH_FUNCTION_SHA256",
  },
});
const seen = {};

// A wrapper that is there and 0 is not one that is missing.
const payment = {
  chainId: 1,
  from: address,
  to: address,
  value: "1",
  gasFee: { maxFee: { value: "1000000000" }, gasLimit: { value: "21000" } },
  nonce: { value: 0 },
};
const zero = await call("createSigningRequest", {
  evmSendNative: payment,
  broadcastTx: { value: false },
});
seen.nonce = zero.signingRequest.evmSendNative.nonce;
const sent = await call("executeSigningRequests", { uuid: zero.signingRequest.uuid });
seen.signedNonce = Transaction.from(sent.signedTransaction).nonce;

// A request can be executed in the moment that it was created.
let finished;
async function lane(number) {
  let good = 0;
  for (let round = number; round < rounds; round += lanes) {
    const { signingRequest } = await call("createSigningRequest", raw(`message ${round}`));
    const outcome = await call("executeSigningRequests", { uuid: signingRequest.uuid });
    assert.equal(outcome.error, null);
    assert.equal(outcome.signatures.signatures.length, 1);
    finished = signingRequest.uuid;
    good += 1;
  }
  return good;
}
const done = await Promise.all(Array.from({ length: lanes }, (_, number) => lane(number)));
seen.executed = done.reduce((sum, good) => sum + good, 0);
seen.status = (await call("getSigningRequestDetails", { uuid: finished })).signingRequest.status;

// One that waits (for a chain node that is not there) can be rejected, once; a finished one not.
const { gasFee: _, nonce: __, ...unpriced } = payment;
const waiting = await call("createSigningRequest", {
  evmSendNative: { ...unpriced, chainId: 31337 },
});
const { uuid } = waiting.signingRequest;
seen.rejected = (await call("rejectSigningRequest", { uuid })).error;
seen.afterwards = (await call("getSigningRequestDetails", { uuid })).signingRequest.status;
const denied = await call("executeSigningRequests", { uuid });
seen.denied = denied.error.executeSigningRequestsErrorCode;
seen.rejectedTwice = (await refused("rejectSigningRequest", { uuid })).code;
seen.rejectedFinished = (await refused("rejectSigningRequest", { uuid: finished })).code;

seen.noToken = (await refused("getWalletList", { vaultUuid: vault }, { "x-mtoken": "" })).code;
seen.wrongToken = (await refused("getWalletList", { vaultUuid: vault }, { "x-mtoken": "no" })).code;
seen.badUuid = await refused("getSigningRequestDetails", { uuid: "nonsense" });
seen.unknownUuid = await refused("getSigningRequestDetails", {
  uuid: "00000000-0000-4000-8000-000000000000",
});
await call("createWallet", { ...wallet, ref: "from-grpc" });
seen.duplicate = (await refused("createWallet", { ...wallet, ref: "from-grpc" })).code;

const key = { "idempotency-key": "from-grpc" };
const one = await call("createWallet", wallet, key);
const two = await call("createWallet", wallet, { ...key, "x-request-id": "again-1" });
assert.equal(one.details.address, two.details.address);
seen.replayed = [one, two].map((answer) => answer.metadata.get("idempotency-replayed"));
seen.requestId = two.metadata.get("x-request-id");

// The messages of these two are short enough to be written by hand.
const bytes = (buffer) => buffer;
seen.health = await new Promise((resolve, reject) => {
  const path = "/grpc.health.v1.Health/Check";
  plain.makeUnaryRequest(path, bytes, bytes, Buffer.alloc(0), (error, answer) =>
    // status: SERVING
    error ? reject(error) : resolve(answer.equals(Buffer.from([8, 1]))),
  );
});
seen.services = await new Promise((resolve, reject) => {
  const path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
  const stream = plain.makeBidiStreamRequest(path, bytes, bytes);
  stream.on("error", reject);
  stream.on("data", (answer) => {
    const text = answer.toString("latin1");
    resolve(["PlatformAPI", "SweepAPI"].filter((name) => text.includes(`v1.${name}`)));
  });
  // list_services: "*"
  stream.write(Buffer.from([0x3a, 1, 0x2a]));
  stream.end();
});

console.log(JSON.stringify(seen));
client.close();
plain.close();
