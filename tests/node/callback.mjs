// The program that decides for a client signer, with a decoder that Covault has no part in (protobufjs) and the schema as
// it is committed. Approves messages whose content is `approve`, and prints what it was asked. tests/it/client_signer.rs
// starts it with a port.

import http from "node:http";
import { fileURLToPath } from "node:url";
import protobuf from "protobufjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const root = new protobuf.Root();
root.resolvePath = (_, path) => (path.startsWith("google/") ? here(`node_modules/protobufjs/${path}`) : path);
root.loadSync(here("../../core/proto/platform.proto"));
const SigningRequest = root.lookupType("mpcvault.platform.v1.SigningRequest");

http
  .createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const asked = SigningRequest.decode(Buffer.concat(chunks));
      const kind = asked.type;
      const content = kind === "evmMessage" ? Buffer.from(asked.evmMessage.content).toString() : "";
      const vault = asked.vaultUuid?.value ?? "";
      console.log(`asked ${asked.uuid} ${vault} ${kind} ${content}`);
      response.writeHead(content === "approve" ? 200 : 403);
      response.end();
    });
  })
  .listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
