// The HTTP API (toncenter v2) of a TON node over @ton/sandbox: the real TVM. `/test/*` gives coins
// and jettons, loses messages, and shows what happened.
import { Blockchain, internal } from "@ton/sandbox";
import {
  Address, Cell, Dictionary, TupleBuilder, beginCell, contractAddress, loadMessage, storeMessage,
} from "@ton/core";
import { sha256_sync } from "@ton/crypto";
import { raw, serve } from "./serve.mjs";

// The reference jetton of TEP-74 (ton-blockchain/token-contract, MIT), compiled.
const MINTER = "te6ccgECDgEAAqMAART/APSkE/S88sgLAQIBYgIDAgLMBAUCA3pgDA0B9dkGOASS+B8ADoaYGAuNhJL4HwfSB9IBj9ABi465D9ABj9ABg51NoAAWmP6Z/2omh9AH0gamoYQAqpOF1HGZqamxsommOC+XAkgX0gfQBqGBBoQDBrkP0AGBKIGigheASKUCgZ5CgCfQEsZ4tmZmT2qnBBCD3uy+8pOF1AYAk7PwUIgG4KhAJqgoB5CgCfQEsZ4sA54tmZJFkZYCJegB6AGWAZJB8gDg6ZGWBZQPl/+ToO8AMZGWCrGeLKAJ9AQnltYlmZmS4/YBBPSO4DY3NwH6APpA+ChUEgZwVCATVBQDyFAE+gJYzxYBzxbMySLIywES9AD0AMsAyfkAcHTIywLKB8v/ydBQBscF8uBKoQNFRchQBPoCWM8WzMzJ7VQB+kAwINcLAcMAkVvjDeCCECx2uXNScLrjAjU3NyPAA+MCNQLABAcICQoAPoIQ1TJ223CAEMjLBVADzxYi+gISy2rLH8s/yYBC+wAB/jZfA4IImJaAFaAVvPLgSwL6QNMAMJXIIc8WyZFt4oIQ0XNUAHCAGMjLBVAFzxYk+gIUy2oTyx8Uyz8j+kQwcLqOM/goRANwVCATVBQDyFAE+gJYzxYBzxbMySLIywES9AD0AMsAyfkAcHTIywLKB8v/ydDPFpZsInABywHi9AALADQzUDXHBfLgSQP6QDBZyFAE+gJYzxbMzMntVABCjhhRJMcF8uBJ1DBDAMhQBPoCWM8WzMzJ7VTgXwWED/LwAArJgED7AAB9rbz2omh9AH0gamoYNhj8FAC4KhAJqgoB5CgCfQEsZ4sA54tmZJFkZYCJegB6AGWAZPyAODpkZYFlA+X/5OhAAB+vFvaiaH0AfSBqahg/qpBA";
const WALLET = "te6ccgECEgEAAzQAART/APSkE/S88sgLAQIBYgIDAgLMBAUAG6D2BdqJofQB9IH0gahhAgHUBgcCAUgICQDDCDHAJJfBOAB0NMDAXGwlRNfA/AL4PpA+kAx+gAxcdch+gAx+gAwc6m0AALTH4IQD4p+pVIgupUxNFnwCOCCEBeNRRlSILqWMUREA/AJ4DWCEFlfB7y6k1nwCuBfBIQP8vCAAET6RDBwuvLhTYAIBIAoLAgEgEBEB8QD0z/6APpAIfAB7UTQ+gD6QPpA1DBRNqFSKscF8uLBKML/8uLCVDRCcFQgE1QUA8hQBPoCWM8WAc8WzMkiyMsBEvQA9ADLAMkg+QBwdMjLAsoHy//J0AT6QPQEMfoAINdJwgDy4sR3gBjIywVQCM8WcPoCF8trE8yAMA/c7UTQ+gD6QPpA1DAI0z/6AFFRoAX6QPpAU1vHBVRzbXBUIBNUFAPIUAT6AljPFgHPFszJIsjLARL0APQAywDJ+QBwdMjLAsoHy//J0FANxwUcsfLiwwr6AFGooYIImJaAggiYloAStgihggjk4cCgGKEn4w8l1wsBwwAjgDQ4PAK6CEBeNRRnIyx8Zyz9QB/oCIs8WUAbPFiX6AlADzxbJUAXMI5FykXHiUAioE6CCCOThwKoAggiYloCgoBS88uLFBMmAQPsAECPIUAT6AljPFgHPFszJ7VQAcFJ5oBihghBzYtCcyMsfUjDLP1j6AlAHzxZQB88WyXGAEMjLBSTPFlAG+gIVy2oUzMlx+wAQJBAjAA4QSRA4N18EAHbCALCOIYIQ1TJ223CAEMjLBVAIzxZQBPoCFstqEssfEss/yXL7AJM1bCHiA8hQBPoCWM8WAc8WzMntVADbO1E0PoA+kD6QNQwB9M/+gD6QDBRUaFSSccF8uLBJ8L/8uLCggjk4cCqABagFrzy4sOCEHvdl97Iyx8Vyz9QA/oCIs8WAc8WyXGAGMjLBSTPFnD6AstqzMmAQPsAQBPIUAT6AljPFgHPFszJ7VSAAgyAINch7UTQ+gD6QPpA1DAE0x+CEBeNRRlSILqCEHvdl94TuhKx8uLF0z8x+gAwE6BQI8hQBPoCWM8WAc8WzMntVIA==";
const MINT = 21;
const INTERNAL_TRANSFER = 0x178d4519;

const chain = await Blockchain.create();
// By the clock: messages have an end of their life.
const now = () => Math.floor(Date.now() / 1000);
const treasury = await chain.treasury("tests");

// How many messages will be taken, and then lost on their way.
let lost = 0;

const ok = (result) => ({ ok: true, result });
const no = (status, error) => raw(status, { ok: false, error, code: status });

const state = (account) => {
  const kind = account.account?.storage.state.type ?? "uninit";
  return { active: "active", uninit: "uninitialized", frozen: "frozen" }[kind];
};

const hash = (value) => Buffer.from(value.toString(16).padStart(64, "0"), "hex").toString("base64");

const information = async (text) => {
  const { account } = await chain.getContract(Address.parse(text));
  const storage = account.account?.storage;
  const init = storage?.state.type === "active" ? storage.state.state : undefined;
  const cell = (cell) => cell?.toBoc().toString("base64") ?? "";
  return {
    "@type": "raw.fullAccountState",
    balance: (storage?.balance.coins ?? 0n).toString(),
    code: cell(init?.code),
    data: cell(init?.data),
    state: state(account),
    last_transaction_id: {
      "@type": "internal.transactionId",
      lt: account.lastTransactionLt.toString(),
      hash: hash(account.lastTransactionHash),
    },
    sync_utime: now(),
  };
};

const stackItem = ([type, value]) => {
  if (type === "num") return { type: "int", value: BigInt(value) };
  const cell = Cell.fromBase64(value?.bytes ?? value);
  return { type: type === "tvm.Cell" || type === "cell" ? "cell" : "slice", cell };
};

const shownItem = (item) => {
  if (item.type === "int") {
    const sign = item.value < 0n ? "-" : "";
    return ["num", `${sign}0x${(item.value < 0n ? -item.value : item.value).toString(16)}`];
  }
  if (item.cell) return ["cell", { bytes: item.cell.toBoc().toString("base64") }];
  return [item.type, null];
};

const run = async ({ address, method, stack }) => {
  try {
    const result = await chain.runGetMethod(Address.parse(address), method, (stack ?? []).map(stackItem));
    return { gas_used: Number(result.gasUsed), stack: result.stack.map(shownItem), exit_code: result.exitCode };
  } catch (error) {
    // As a node answers for an account without code.
    return { gas_used: 0, stack: [], exit_code: error.exitCode ?? -13 };
  }
};

const send = async (text) => {
  const cell = Cell.fromBase64(text);
  chain.now = now();
  const message = loadMessage(cell.beginParse());
  if (message.info.type !== "external-in") return no(500, "not an external message");
  if (lost > 0) {
    lost -= 1;
    return ok({ "@type": "ok" });
  }
  try {
    await chain.sendMessage(message);
  } catch (error) {
    // The words of a real node: the contract did not accept the message.
    const said = "LITE_SERVER_UNKNOWN: cannot apply external message to current state : External message was not accepted\n";
    const rejected = `${said}Cannot run message on account: inbound external message rejected by`;
    return no(
      500,
      error.exitCode === undefined
        ? `${rejected} account ${message.info.dest} before smart-contract execution`
        : `${rejected} transaction ${cell.hash().toString("hex")}:\nexitcode=${error.exitCode}, steps=12, gas_used=0\nVM Log (truncated):\n`,
    );
  }
  return ok({ "@type": "ok" });
};

// From the last one back. The sandbox lists them in an order that turns around with every call.
const history = async (text) => {
  const list = await chain.getTransactions(Address.parse(text));
  return list.sort((one, other) => (one.lt < other.lt ? 1 : -1));
};

const base64 = (cell) => cell.toBoc().toString("base64");

const shownMessage = (message) => {
  const { info, body } = message;
  const address = (address) => address?.toString() ?? "";
  return {
    "@type": "ext.message",
    hash: beginCell().store(storeMessage(message)).endCell().hash().toString("base64"),
    source: info.type === "external-in" ? "" : address(info.src),
    destination: address(info.dest),
    value: (info.value?.coins ?? 0n).toString(),
    fwd_fee: (info.forwardFee ?? 0n).toString(),
    body_hash: body.hash().toString("base64"),
    msg_data: { "@type": "msg.dataRaw", body: base64(body), init_state: "" },
  };
};

const transactions = async (query) => {
  const list = await history(query.get("address"));
  const [lt, at] = [query.get("lt"), query.get("hash")];
  const first = list.findIndex(
    (one) => lt === null || (one.lt === BigInt(lt) && one.hash().toString("base64") === at),
  );
  if (first < 0) return no(500, "LITE_SERVER_UNKNOWN: cannot locate transaction in block with specified logical time");
  const part = list.slice(first, first + Number(query.get("limit") ?? 10));
  return ok(part.map((one) => ({
    "@type": "ext.transaction",
    utime: one.now,
    transaction_id: { lt: one.lt.toString(), hash: one.hash().toString("base64") },
    fee: one.totalFees.coins.toString(),
    in_msg: one.inMessage ? shownMessage(one.inMessage) : undefined,
    out_msgs: [...one.outMessages.values()].map(shownMessage),
  })));
};

// A message from outside to a v5r1 wallet. Its hash is the normalized one (TEP-467).
const order = ({ info, init, body }) => {
  const slice = body.beginParse();
  const [opcode, , validUntil, seqno] = [1, 2, 3, 4].map(() => slice.loadUint(32));
  const normal = { info: { type: "external-in", dest: info.dest, importFee: 0n }, body };
  return {
    opcode,
    validUntil,
    seqno,
    deploys: Boolean(init),
    hash: beginCell().store(storeMessage(normal, { forceRef: true })).endCell().hash().toString("hex"),
  };
};

// What passed through a wallet, in nanoton: fees of its transactions and of its messages, what
// these carried, and what came; and its orders, from the first one on.
const account = async (text) => {
  const sums = { fees: 0n, sent: 0n, received: 0n, orders: [] };
  for (const one of await history(text)) {
    sums.fees += one.totalFees.coins;
    if (one.inMessage?.info.type === "internal") sums.received += one.inMessage.info.value.coins;
    else sums.orders.unshift(order(one.inMessage));
    for (const { info } of one.outMessages.values()) {
      sums.sent += info.value.coins;
      sums.fees += info.forwardFee;
    }
  }
  return sums;
};

// What a message can have with it: so many cells, whose carriage costs.
const cargo = (cells) => {
  let cell = beginCell().endCell();
  for (let number = 0; number < cells; number += 1) {
    cell = beginCell().storeBuffer(Buffer.alloc(120, number)).storeRef(cell).endCell();
  }
  return base64(cell);
};

const give = async (text, amount) => {
  chain.now = now();
  await chain.sendMessage(
    internal({ from: treasury.address, to: Address.parse(text), value: BigInt(amount), bounce: false }),
  );
};

const wallets = async (minter, owner) => {
  const stack = new TupleBuilder();
  stack.writeAddress(owner);
  const result = await chain.runGetMethod(minter, "get_wallet_address", stack.build());
  return result.stackReader.readAddress();
};

// TEP-64, on the chain: 6 decimals.
const text = (words) => beginCell().storeUint(0, 8).storeStringTail(words).endCell();
const content = beginCell()
  .storeUint(0, 8)
  .storeDict(
    Dictionary.empty(Dictionary.Keys.Buffer(32), Dictionary.Values.Cell())
      .set(sha256_sync("name"), text("Token"))
      .set(sha256_sync("decimals"), text("6")),
  )
  .endCell();

const mint = async (text, amount) => {
  chain.now = now();
  const owner = Address.parse(text);
  const code = Cell.fromBase64(WALLET);
  const data = beginCell()
    .storeCoins(0).storeAddress(treasury.address).storeRef(content).storeRef(code)
    .endCell();
  const init = { code: Cell.fromBase64(MINTER), data };
  const minter = contractAddress(0, init);
  const transfer = beginCell()
    .storeUint(INTERNAL_TRANSFER, 32).storeUint(0, 64).storeCoins(BigInt(amount))
    .storeAddress(null).storeAddress(null).storeCoins(0).storeMaybeRef(null)
    .endCell();
  const body = beginCell()
    .storeUint(MINT, 32).storeUint(0, 64).storeAddress(owner).storeCoins(20_000_000n).storeRef(transfer)
    .endCell();
  await chain.sendMessage(
    internal({ from: treasury.address, to: minter, value: 100_000_000n, bounce: true, body, stateInit: init }),
  );
  return { minter: minter.toString(), wallet: (await wallets(minter, owner)).toString() };
};

serve(async ({ path, query, json }) => {
  switch (path.replace("/api/v2", "")) {
    case "/getAddressInformation":
      return ok(await information(query.get("address")));
    case "/getAddressState":
      return ok((await information(query.get("address"))).state);
    case "/runGetMethod":
      return ok(await run(json()));
    case "/sendBoc":
    case "/sendBocReturnHash":
      return send(json().boc);
    case "/getTransactions":
      return transactions(query);
    case "/test/give":
      return give(json().address, json().amount);
    case "/test/mint":
      return mint(json().owner, json().amount);
    case "/test/cargo":
      return cargo(json().cells);
    case "/test/lose":
      lost = json().count;
      return lost;
    case "/test/account":
      return account(json().address);
    default:
      return no(404, "no such method");
  }
});
