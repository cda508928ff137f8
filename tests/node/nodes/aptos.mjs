// The REST API of an Aptos or Movement fullnode, as far as Covault uses it: `aptos.mjs [chain id]`.
// There is no chain behind it: it reads what it gets with the network's own SDK, checks signatures,
// keeps balances and sequence numbers, and refuses what a node refuses. A transaction whose number
// is too new waits; what can be executed is, a moment later. `/test/*` gives coins.
import {
  AccountAddress,
  AccountAuthenticatorNoAccountAuthenticator,
  AuthenticationKey,
  Deserializer,
  EntryFunction,
  Hex,
  SignedTransaction,
  TransactionAuthenticatorEd25519,
  TransactionAuthenticatorSingleSender,
  TransactionExecutableEntryFunction,
  TransactionInnerPayloadV1,
  TransactionPayloadEntryFunction,
  U64,
  generateSigningMessageForTransaction,
  parseTypeTag,
} from "@aptos-labs/ts-sdk";
import { createHash } from "node:crypto";
import { raw, serve } from "./serve.mjs";

const CHAIN = Number(process.argv[2] ?? 1);
const BLOCK_MS = 250;
const BCS = "application/x.aptos.signed_transaction+bcs";
const PRICE = 100n;
const MOST_PRICE = 10_000_000_000n;
const LEAST_GAS = 2n;
const MOST_GAS = 2_000_000n;
const ORDERLESS = 2n ** 64n - 1n;
const ORDERLESS_S = 60n;
// Of one account.
const MOST_WAITING = 100;
// Units of gas: of a call, and of an account or a store of coins that is new.
const CALL_GAS = 9n;
const NEW_GAS = 995n;

const COIN = "0x1::aptos_coin::AptosCoin";
const TILL = AccountAddress.from(`0x${"c0ffee".padStart(64, "0")}`).toString();

const accounts = new Map();
const coins = new Set([COIN]);
const assets = new Set();
const known = new Map();
const memos = [];
let version = 1000n;
let head = Date.now();

const account = (address) => {
  if (!accounts.has(address))
    accounts.set(address, { there: false, number: 0n, units: new Map(), waiting: new Map(), orderless: new Map(), executed: [] });
  return accounts.get(address);
};
// The chain's coin is also a fungible asset, 0xa.
const key = (asset) => (asset === AccountAddress.A.toString() ? COIN : asset);
const units = (address, asset) => accounts.get(address)?.units.get(key(asset)) ?? 0n;

class Problem extends Error {
  constructor(status, code, words, number = null) {
    super(words);
    this.answer = raw(status, { message: words, error_code: code, vm_error_code: number });
  }
}
const NUMBERS = { INVALID_SIGNATURE: 1, INVALID_AUTH_KEY: 2, SEQUENCE_NUMBER_TOO_OLD: 3, SEQUENCE_NUMBER_TOO_NEW: 4, INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE: 5, TRANSACTION_EXPIRED: 6, SENDING_ACCOUNT_DOES_NOT_EXIST: 7 };
// The chain would not have the transaction at all.
class Discard extends Error {}
// It would, and it fails.
class Abort extends Error {}
const must = (condition, status, kind = Discard) => {
  if (!condition) throw new kind(status);
};

const read = (request) => {
  if (request.headers["content-type"] !== BCS) throw new Problem(415, "web_framework_error", "unsupported content type");
  let signed;
  try {
    const from = new Deserializer(request.body);
    signed = SignedTransaction.deserialize(from);
    from.assertFinished();
  } catch (error) {
    throw new Problem(400, "invalid_input", `Failed to deserialize input into SignedTransaction: ${error.message}`);
  }
  // BCS has one form.
  if (!Buffer.from(signed.bcsToBytes()).equals(request.body)) throw new Problem(400, "invalid_input", "not canonical");
  const { raw_txn: transaction, authenticator } = signed;
  const { payload } = transaction;
  const inner = payload instanceof TransactionInnerPayloadV1;
  const executable = inner ? payload.executable : payload;
  const known = executable instanceof TransactionPayloadEntryFunction || executable instanceof TransactionExecutableEntryFunction;
  if (!known) throw new Problem(400, "invalid_input", "only entry functions are known here");
  return {
    bytes: request.body,
    hash: hash(request.body),
    transaction,
    authenticator,
    sender: transaction.sender.toStringLong(),
    number: transaction.sequence_number,
    nonce: inner ? payload.extra_config.replayProtectionNonce : undefined,
    entry: executable.entryFunction,
    price: transaction.gas_unit_price,
    most: transaction.max_gas_amount,
    end: transaction.expiration_timestamp_secs,
  };
};
const sha3 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha3-256")).digest();
const hash = (bytes) => `0x${sha3(sha3("APTOS::Transaction"), Buffer.from([0]), bytes).toString("hex")}`;

const signature = ({ transaction, authenticator, sender }) => {
  must(authenticator instanceof TransactionAuthenticatorEd25519, "INVALID_SIGNATURE");
  const message = generateSigningMessageForTransaction({ rawTransaction: transaction });
  const { public_key: publicKey, signature } = authenticator;
  must(publicKey.verifySignature({ message, signature }), "INVALID_SIGNATURE");
  must(AuthenticationKey.fromPublicKey({ publicKey }).derivedAddress().toStringLong() === sender, "INVALID_AUTH_KEY");
};

// What the chain looks at before it runs anything.
const prologue = (sent) => {
  const { sender, number, nonce, price, most, end } = sent;
  const now = BigInt(Math.floor(head / 1000));
  must(sent.transaction.chain_id.chainId === CHAIN, "BAD_CHAIN_ID");
  must(most <= MOST_GAS, "MAX_GAS_UNITS_EXCEEDS_MAX_GAS_UNITS_BOUND");
  must(most >= LEAST_GAS, "MAX_GAS_UNITS_BELOW_MIN_TRANSACTION_GAS_UNITS");
  must(price >= PRICE, "GAS_UNIT_PRICE_BELOW_MIN_BOUND");
  must(price <= MOST_PRICE, "GAS_UNIT_PRICE_ABOVE_MAX_BOUND");
  must(end > now, "TRANSACTION_EXPIRED");
  must(accounts.get(sender)?.there, "SENDING_ACCOUNT_DOES_NOT_EXIST");
  const from = account(sender);
  if (nonce === undefined) {
    must(number >= from.number, "SEQUENCE_NUMBER_TOO_OLD");
    must(number <= from.number, "SEQUENCE_NUMBER_TOO_NEW");
  } else {
    must(number === ORDERLESS, "SEQUENCE_NUMBER_TOO_NEW");
    must(end <= now + ORDERLESS_S, "TRANSACTION_EXPIRATION_TOO_FAR_IN_FUTURE");
    must(!from.executed.some((done) => done.nonce === nonce), "NONCE_ALREADY_USED");
  }
  must(units(sender, COIN) >= most * price, "INSUFFICIENT_BALANCE_FOR_TRANSACTION_FEE");
};

// Arguments, each in BCS.
const address = (from) => AccountAddress.deserialize(from).toStringLong();
const u64 = (from) => from.deserializeU64();
const text = (from) => from.deserializeStr();
const numbers = (from) => from.deserializeVector(U64).map(({ value }) => value);
const maybe = (from) => from.deserializeOption(U64)?.value;
const args = (entry, types, ...readers) => {
  must(entry.type_args.length === types, "Transaction Executed and Committed with Error NUMBER_OF_TYPE_ARGUMENTS_MISMATCH", Abort);
  must(entry.args.length === readers.length, "Transaction Executed and Committed with Error NUMBER_OF_ARGUMENTS_MISMATCH", Abort);
  return readers.map((reader, place) => {
    try {
      const from = new Deserializer(entry.args[place].bcsToBytes());
      const value = reader(from);
      from.assertFinished();
      return value;
    } catch {
      throw new Abort("Transaction Executed and Committed with Error FAILED_TO_DESERIALIZE_ARGUMENT");
    }
  });
};

// A framework's function, or one of the only other module: what it moves, and what it keeps.
const FUNCTIONS = {
  "0x1::aptos_account::transfer": (entry) => {
    const [to, amount] = args(entry, 0, address, u64);
    return { moves: [{ asset: COIN, to, amount }] };
  },
  "0x1::aptos_account::transfer_coins": (entry) => {
    const [to, amount] = args(entry, 1, address, u64);
    return { moves: [{ asset: entry.type_args[0].toString(), to, amount }] };
  },
  "0x1::primary_fungible_store::transfer": (entry) => {
    const [asset, to, amount] = args(entry, 1, address, address, u64);
    must(entry.type_args[0].toString() === "0x1::fungible_asset::Metadata", "Move abort in 0x1::object: ERESOURCE_DOES_NOT_EXIST(0x60007): The object does not have the resource", Abort);
    return { moves: [{ asset: AccountAddress.from(asset).toString(), to, amount, fungible: true }] };
  },
  [`${TILL}::till::pay`]: (entry) => {
    const [shop, to, amount, memo, lines, tip] = args(entry, 1, address, address, u64, text, numbers, maybe);
    must(memo.length > 0, `Move abort in ${TILL}::till: ENO_MEMO(0x10001): say what it is for`, Abort);
    const moves = [{ asset: COIN, to, amount }];
    if (tip !== undefined) moves.push({ asset: COIN, to: shop, amount: tip });
    return { moves, memo: { shop, to, amount, memo, lines, tip, of: entry.type_args[0].toString() } };
  },
};

const MODULE = {
  address: TILL,
  name: "till",
  friends: [],
  exposed_functions: [
    {
      name: "pay",
      visibility: "public",
      is_entry: true,
      is_view: false,
      generic_type_params: [{ constraints: ["key"] }],
      params: ["&signer", "0x1::object::Object<T0>", "address", "u64", "0x1::string::String", "vector<u64>", "0x1::option::Option<u64>"],
      return: [],
    },
    { name: "count", visibility: "public", is_entry: false, is_view: true, generic_type_params: [], params: [], return: ["u64"] },
  ],
  structs: [],
};

// Runs it on a copy of what it may change; `keep` makes the copy count.
const run = (sent) => {
  const { sender, entry, price, most } = sent;
  const changed = new Map();
  const seen = (address, asset) => changed.get(`${address} ${asset}`)?.amount ?? units(address, asset);
  const set = (address, asset, amount) => changed.set(`${address} ${asset}`, { address, asset: key(asset), amount });
  let gas = CALL_GAS;
  let memo;
  let status = "Executed successfully";
  let success = true;
  try {
    const { module_name: module, function_name: name } = entry;
    const called = FUNCTIONS[`${module.address.toString()}::${module.name.identifier}::${name.identifier}`];
    must(called, "Transaction Executed and Committed with Error LINKER_ERROR", Abort);
    const effect = called(entry);
    for (const { asset, to, amount, fungible } of effect.moves) {
      if (fungible) must(assets.has(asset) || key(asset) === COIN, "Move abort in 0x1::object: EOBJECT_DOES_NOT_EXIST(0x60002): An object does not exist at this address", Abort);
      else must(coins.has(asset), "Move abort in 0x1::coin: ECOIN_INFO_NOT_PUBLISHED(0x60003): CoinType hasn't been initialized as a coin", Abort);
      const poor = fungible
        ? "Move abort in 0x1::fungible_asset: EINSUFFICIENT_BALANCE(0x10004): Insufficient balance to withdraw or transfer."
        : "Move abort in 0x1::coin: EINSUFFICIENT_BALANCE(0x10006): Not enough coins to complete transaction";
      must(seen(sender, key(asset)) >= amount, poor, Abort);
      if (!accounts.get(to)?.units.has(key(asset)) && !changed.has(`${to} ${key(asset)}`)) gas += NEW_GAS;
      set(sender, key(asset), seen(sender, key(asset)) - amount);
      set(to, key(asset), seen(to, key(asset)) + amount);
    }
    memo = effect.memo;
    must(gas <= most, "Out of gas", Abort);
    must(seen(sender, COIN) >= gas * price, "Move abort in 0x1::transaction_validation: PROLOGUE_ECANT_PAY_GAS_DEPOSIT(0x203ed): ", Abort);
  } catch (error) {
    if (!(error instanceof Abort)) throw error;
    [success, status, memo] = [false, error.message, undefined];
    changed.clear();
    if (gas > most) gas = most;
  }
  const keep = () => {
    set(sender, COIN, seen(sender, COIN) - gas * price);
    for (const { address, asset, amount } of changed.values()) {
      account(address).units.set(asset, amount);
      account(address).there = true;
    }
    if (memo) memos.push({ from: sender, ...memo });
  };
  return { success, status, gas, keep };
};

const shown = (sent) => ({
  hash: sent.hash,
  sender: sent.sender,
  sequence_number: sent.number.toString(),
  max_gas_amount: sent.most.toString(),
  gas_unit_price: sent.price.toString(),
  expiration_timestamp_secs: sent.end.toString(),
});
const result = (sent, { success, status, gas }) => ({
  type: "user_transaction",
  version: version.toString(),
  ...shown(sent),
  success,
  vm_status: status,
  gas_used: gas.toString(),
  timestamp: `${head}000`,
});

const execute = (from, sent) => {
  try {
    prologue(sent);
  } catch (error) {
    if (!(error instanceof Discard)) throw error;
    console.log(`dropped ${sent.hash}: ${error.message}`);
    known.delete(sent.hash);
    return;
  }
  const outcome = run(sent);
  outcome.keep();
  version += 1n;
  if (sent.nonce === undefined) from.number += 1n;
  const done = { nonce: sent.nonce, number: sent.number, shown: result(sent, outcome) };
  from.executed.push(done);
  known.set(sent.hash, done.shown);
  console.log(`executed ${sent.hash} number ${sent.number}: ${outcome.status}`);
};

const block = () => {
  head = Date.now();
  const now = BigInt(Math.floor(head / 1000));
  for (const from of accounts.values()) {
    for (const waiting of [from.waiting, from.orderless])
      for (const [place, sent] of waiting)
        if (sent.end <= now) {
          waiting.delete(place);
          known.delete(sent.hash);
        }
    for (;;) {
      const next = from.waiting.get(from.number);
      if (!next) break;
      from.waiting.delete(from.number);
      const { number } = from;
      execute(from, next);
      if (from.number === number) break;
    }
    for (const [nonce, sent] of from.orderless) {
      from.orderless.delete(nonce);
      execute(from, sent);
    }
  }
};
setInterval(block, BLOCK_MS);

const submit = (request) => {
  const sent = read(request);
  try {
    signature(sent);
    prologue(sent);
  } catch (error) {
    if (!(error instanceof Discard)) throw error;
    // It waits for its turn.
    if (error.message !== "SEQUENCE_NUMBER_TOO_NEW")
      throw new Problem(400, "vm_error", `Invalid transaction: Type: Validation Code: ${error.message}`, NUMBERS[error.message] ?? 0);
  }
  const from = account(sent.sender);
  const [waiting, place] = sent.nonce === undefined ? [from.waiting, sent.number] : [from.orderless, sent.nonce];
  const there = waiting.get(place);
  if (there) {
    const other = (what) => new Problem(400, "invalid_transaction_update", `Transaction already in mempool with a ${what}`);
    const payload = (sent) => Buffer.from(sent.transaction.payload.bcsToBytes());
    if (!payload(there).equals(payload(sent))) throw other("different payload");
    if (there.end !== sent.end) throw other("different expiration timestamp");
    if (there.most !== sent.most) throw other("different max gas amount");
    if (there.price > sent.price) throw other("higher gas price");
    known.delete(there.hash);
  } else if (waiting.size >= MOST_WAITING) {
    throw new Problem(507, "mempool_is_full", `Mempool over capacity for account. Number of seq number transactions from account: ${waiting.size}`);
  }
  waiting.set(place, sent);
  const pending = { type: "pending_transaction", ...shown(sent) };
  known.set(sent.hash, pending);
  return raw(202, pending);
};

const simulate = (request) => {
  const sent = read(request);
  const { authenticator } = sent;
  const nobody = authenticator instanceof TransactionAuthenticatorSingleSender && authenticator.sender instanceof AccountAuthenticatorNoAccountAuthenticator;
  const answer = (outcome) => [result(sent, outcome)];
  try {
    if (!nobody) {
      try {
        signature(sent);
      } catch (error) {
        if (error.message !== "INVALID_SIGNATURE") throw error;
        prologue(sent);
        return answer(run(sent));
      }
      throw new Problem(400, "invalid_input", "Simulated transactions must not have a valid signature");
    }
    prologue(sent);
    return answer(run(sent));
  } catch (error) {
    if (!(error instanceof Discard)) throw error;
    return answer({ success: false, status: `Transaction Executed and Committed with Error ${error.message}`, gas: 0n });
  }
};

const name = (text) => {
  try {
    return AccountAddress.from(text).toStringLong();
  } catch {
    throw new Problem(400, "web_framework_error", `failed to parse path \`${text}\``);
  }
};
const asset = (text) => {
  if (!text.includes("::")) return AccountAddress.from(name(text)).toString();
  try {
    return parseTypeTag(text).toString();
  } catch {
    throw new Problem(400, "web_framework_error", `failed to parse path \`${text}\``);
  }
};
const ledger = () => ({
  chain_id: CHAIN,
  epoch: "1",
  ledger_version: version.toString(),
  oldest_ledger_version: "0",
  ledger_timestamp: `${head}000`,
  node_role: "full_node",
  oldest_block_height: "0",
  block_height: version.toString(),
});
const missing = (code, what) => new Problem(404, code, `${what} not found by Ledger version(${version})`);

const REST = [
  ["GET", /^\/?$/, () => ledger()],
  ["GET", /^\/estimate_gas_price$/, () => ({ deprioritized_gas_estimate: Number(PRICE), gas_estimate: Number(PRICE), prioritized_gas_estimate: 150 })],
  [
    "GET",
    /^\/accounts\/([^/]+)$/,
    (_, text) => {
      const found = accounts.get(name(text));
      // Aptos has accounts without a resource (AIP-115).
      if (!found?.there && CHAIN !== 1) throw missing("account_not_found", "Account");
      return { sequence_number: (found?.number ?? 0n).toString(), authentication_key: name(text) };
    },
  ],
  ["GET", /^\/accounts\/([^/]+)\/balance\/([^/]+)$/, (_, owner, of) => raw(200, units(name(owner), asset(of)).toString())],
  [
    "GET",
    /^\/accounts\/([^/]+)\/module\/([^/]+)$/,
    (_, owner, module) => {
      if (name(owner) !== TILL || module !== MODULE.name) throw missing("module_not_found", "Module");
      return { bytecode: "0xa11ceb0b", abi: MODULE };
    },
  ],
  [
    "GET",
    /^\/accounts\/([^/]+)\/transactions$/,
    ({ query }, owner) => {
      const [start, limit] = [BigInt(query.get("start") ?? 0), Number(query.get("limit") ?? 25)];
      const { executed } = account(name(owner));
      const ordered = executed.filter(({ nonce, number }) => nonce === undefined && number >= start);
      return ordered.slice(0, limit).map(({ shown }) => shown);
    },
  ],
  [
    "GET",
    /^\/transactions\/by_hash\/(0x[0-9a-f]{64})$/,
    (_, hash) => {
      if (!known.has(hash)) throw missing("transaction_not_found", "Transaction");
      return known.get(hash);
    },
  ],
  ["POST", /^\/transactions\/simulate$/, simulate],
  ["POST", /^\/transactions$/, submit],
];

const TEST = {
  "/test/give": ({ address, amount }) => {
    const to = account(name(address));
    to.units.set(COIN, units(name(address), COIN) + BigInt(amount));
    to.there = true;
    return {};
  },
  "/test/coin": ({ type, owner, amount }) => {
    const coin = parseTypeTag(type).toString();
    coins.add(coin);
    account(name(owner)).units.set(coin, BigInt(amount));
    return { coin };
  },
  "/test/asset": ({ owner, amount }) => {
    const metadata = new Hex(sha3(`asset ${assets.size}`)).toString();
    assets.add(metadata);
    account(name(owner)).units.set(metadata, BigInt(amount));
    return { metadata };
  },
  "/test/memos": () => memos,
  "/test/till": () => ({ address: TILL }),
};

serve((request) => {
  const { method, path } = request;
  if (path.startsWith("/test/")) return TEST[path](request.json());
  try {
    const below = path.startsWith("/v1") ? decodeURIComponent(path.slice(3)) : "nowhere";
    for (const [wanted, pattern, answer] of REST) {
      const found = method === wanted && below.match(pattern);
      if (found) return answer(request, ...found.slice(1));
    }
    throw new Problem(404, "web_framework_error", "not found");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    console.log(`${method} ${path}: ${error.message}`);
    return error.answer;
  }
});
