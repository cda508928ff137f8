"""The program that decides for a client signer, with a decoder that Covault has no part in (Google's protobuf) and the
schema as it is committed. Approves messages whose content is `approve`, and prints what it was asked.
tests/it/client_signer.rs starts it with a port and the compiled schema."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PORT, SCHEMA = int(sys.argv[1]), sys.argv[2]
pool = descriptor_pool.DescriptorPool()
files = descriptor_pb2.FileDescriptorSet()
with open(SCHEMA, "rb") as schema:
    files.ParseFromString(schema.read())
for file in files.file:
    pool.Add(file)
descriptor = pool.FindMessageTypeByName("mpcvault.platform.v1.SigningRequest")
SigningRequest = message_factory.GetMessageClass(descriptor)


class Decision(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = SigningRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        kind = asked.WhichOneof("type")
        content = asked.evm_message.content.decode() if kind == "evm_message" else ""
        print("asked", asked.uuid, asked.vault_uuid.value, kind, content, flush=True)
        self.send_response(200 if content == "approve" else 403)
        self.send_header("content-length", "0")
        self.end_headers()


server = HTTPServer(("127.0.0.1", PORT), Decision)
print("listening", flush=True)
server.serve_forever()
