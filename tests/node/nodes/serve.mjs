// What all nodes here share: an HTTP server on a free port of this machine, which is printed, and
// which ends with its parent.
import { createServer } from "node:http";

const read = async (request) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
};

// `answer({method, path, query, headers, body})` gives what `raw` makes, maybe with `headers`, or a
// value for JSON.
export const serve = (answer) => {
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://node");
    try {
      const body = await read(request);
      const result = await answer({
        method: request.method,
        path: url.pathname,
        query: url.searchParams,
        headers: request.headers,
        body,
        json: () => JSON.parse(body.toString() || "null"),
      });
      const raw = result && result.raw !== undefined;
      response.writeHead(raw ? (result.status ?? 200) : 200, {
        ...(raw ? result.headers : {}),
        "content-type": raw ? (result.type ?? "application/json") : "application/json",
      });
      response.end(raw ? result.raw : JSON.stringify(result, replacer));
    } catch (error) {
      console.error(error);
      response.writeHead(500, { "content-type": "application/json" });
      response.end(JSON.stringify({ error: String(error?.message ?? error) }));
    }
  });
  server.listen(0, "127.0.0.1", () => console.log(`listening ${server.address().port}`));
  // The test holds the other end.
  process.stdin.resume();
  process.stdin.on("end", () => process.exit(0));
};

const replacer = (_, value) => (typeof value === "bigint" ? value.toString() : value);

export const raw = (status, value, type) => ({
  status,
  type,
  raw: typeof value === "string" || Buffer.isBuffer(value) ? value : JSON.stringify(value, replacer),
});

// Answers JSON-RPC calls with `methods[name](params)`; a thrown {code, message, data} is the error.
export const rpc = (methods) => async (request) => {
  const call = request.json();
  const answer = { jsonrpc: "2.0", id: call.id };
  try {
    const method = methods[call.method];
    if (!method) throw { code: -32601, message: "Method not found" };
    return { ...answer, result: (await method(call.params ?? [])) ?? null };
  } catch (error) {
    if (error instanceof Error) console.error(error);
    return {
      ...answer,
      error: { code: error.code ?? -32603, message: String(error.message), data: error.data },
    };
  }
};
