// The HTTP API (toncenter v2) of a TON node over @ton/sandbox: the real TVM. `/test/*` gives coins
// and jettons.
import { Blockchain, internal } from "@ton/sandbox";
import {
  Address, Cell, TupleBuilder, beginCell, contractAddress, loadMessage, storeMessage,
} from "@ton/core";
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
// The hashes of external messages that were taken, and of what came of them.
const taken = new Map();

const ok = (result) => ({ ok: true, result });
const no = (status, error) => raw(status, { ok: false, error, code: status });

const state = (account) => {
  const kind = account.account?.storage.state.type ?? "uninit";
  return { active: "active", uninit: "uninitialized", frozen: "frozen" }[kind];
};

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
    last_transaction_id: { lt: account.lastTransactionLt.toString(), hash: "" },
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
  const hash = cell.hash().toString("base64");
  chain.now = now();
  const message = loadMessage(cell.beginParse());
  if (message.info.type !== "external-in") return no(500, "not an external message");
  let result;
  try {
    result = await chain.sendMessage(message);
  } catch (error) {
    // The words of a real node: the contract did not accept the message.
    return no(500, `LITE_SERVER_UNKNOWN: cannot apply external message to current state : External message was not accepted: ${error.message.split("\n")[0]}`);
  }
  taken.set(hash, result.transactions[0]);
  return ok({ "@type": "raw.extMessageInfo", hash });
};

const transactions = async (text, limit) => {
  const list = await chain.getTransactions(Address.parse(text), { limit });
  return list.map((transaction) => {
    const message = beginCell().store(storeMessage(transaction.inMessage)).endCell();
    return {
      utime: transaction.now,
      transaction_id: { lt: transaction.lt.toString(), hash: transaction.hash().toString("base64") },
      fee: transaction.totalFees.coins.toString(),
      in_msg: {
        hash: message.hash().toString("base64"),
        source: transaction.inMessage.info.src?.toString?.() ?? "",
        value: (transaction.inMessage.info.value?.coins ?? 0n).toString(),
      },
      out_msgs: [],
    };
  });
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

const mint = async (text, amount) => {
  chain.now = now();
  const owner = Address.parse(text);
  const code = Cell.fromBase64(WALLET);
  const data = beginCell()
    .storeCoins(0).storeAddress(treasury.address).storeRef(beginCell().endCell()).storeRef(code)
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

const jettons = async (minter, owner) => {
  const wallet = await wallets(Address.parse(minter), Address.parse(owner));
  try {
    const result = await chain.runGetMethod(wallet, "get_wallet_data");
    return result.stackReader.readBigNumber().toString();
  } catch {
    return "0";
  }
};

serve(async ({ path, query, json }) => {
  switch (path.replace("/api/v2", "")) {
    case "/getAddressInformation":
      return ok(await information(query.get("address")));
    case "/getAddressBalance":
      return ok((await information(query.get("address"))).balance);
    case "/runGetMethod":
      return ok(await run(json()));
    case "/sendBoc":
    case "/sendBocReturnHash":
      return send(json().boc);
    case "/getTransactions":
      return ok(await transactions(query.get("address"), Number(query.get("limit") ?? 10)));
    case "/getMasterchainInfo":
      return ok({ last: { workchain: -1, shard: "-9223372036854775808", seqno: 1 } });
    case "/test/give":
      return give(json().address, json().amount);
    case "/test/mint":
      return mint(json().owner, json().amount);
    case "/test/jettons":
      return jettons(json().minter, json().owner);
    // The fees that the transactions of an account took in all, in nanoton.
    case "/test/fees": {
      const list = await chain.getTransactions(Address.parse(json().address), { limit: 1000 });
      return list.reduce((sum, transaction) => sum + transaction.totalFees.coins, 0n).toString();
    }
    default:
      return no(404, "no such method");
  }
});
