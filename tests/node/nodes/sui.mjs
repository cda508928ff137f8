// The gRPC of a Sui full node (sui.rpc.v2), as gRPC-Web, as far as Covault uses it. There is no
// network behind it: it reads what it gets with the network's own SDK, checks signatures, objects,
// gas and validity as validators do, runs what moves coins, and keeps objects with their versions
// and address balances (SIP-58). `/test/*` gives coins, moves epochs and tells what was executed.
import { bcs } from "@mysten/sui/bcs";
import { GrpcStatusCode, GrpcTypes as types } from "@mysten/sui/grpc";
import { TransactionDataBuilder } from "@mysten/sui/transactions";
import { fromBase58, normalizeStructTag, normalizeSuiAddress, parseStructTag, toBase58 } from "@mysten/sui/utils";
import { verifyTransactionSignature } from "@mysten/sui/verify";
import { blake2b } from "@noble/hashes/blake2b";
import { raw, serve } from "./serve.mjs";

const CHAIN = "4btiuiMPvEENsttpZC7CZ53DruC3MAgfznDbASZ7DR6S";
const TYPE = "application/grpc-web+proto";
const SUI = normalizeStructTag("0x2::sui::SUI");
const FRAMEWORK = normalizeSuiAddress("0x2");
const PRICE = 750n;
const MOST_PRICE = 100_000n;
const MOST_BUDGET = 50_000_000_000n;
// Units of gas that anything takes, and MIST of storage of one coin.
const UNITS = 1000n;
const STORAGE = 988_000n;
const REBATE = (storage) => (storage * 99n) / 100n;
const MOCK_BALANCE = 1_000_000_000_000_000_000n;
const FINAL_MS = 150;
// A node gives no more at once, so that there are pages.
const PAGE = 3;

let epoch = 700n;
let epochStart = Date.now();
let count = 0n;
// By id: {id, type, owner, last: version or undefined, versions: Map}.
const objects = new Map();
const funds = new Map();
const executed = new Map();
const refusals = [];
// `id:version` to the digest of the transaction that has it.
const locks = new Map();

const hash = (...parts) => blake2b(Buffer.concat(parts.map((part) => Buffer.from(part))), { dkLen: 32 });
const hex = (bytes) => `0x${Buffer.from(bytes).toString("hex")}`;
const fundsOf = (owner, type) => funds.get(`${owner} ${type}`) ?? 0n;

// ---- what is refused ----------------------------------------------------------------------

class Problem extends Error {
  constructor(code, words) {
    super(words);
    this.code = code;
  }
}
const must = (condition, words, code = "INVALID_ARGUMENT") => {
  if (!condition) throw new Problem(code, words);
};
// It is executed, and fails.
class Abort extends Error {
  constructor(kind, words) {
    super(words);
    this.kind = types.ExecutionError_ExecutionErrorKind[kind];
  }
}
const expect = (condition, kind, words) => {
  if (!condition) throw new Abort(kind, words);
};

// ---- objects ------------------------------------------------------------------------------

const digestOf = ({ id, type, owner }, { version, balance, previous, rebate }) => {
  const contents = Buffer.concat([bcs.Address.serialize(id).toBytes(), bcs.u64().serialize(balance).toBytes()]);
  const object = bcs.Object.serialize({
    data: {
      Move: {
        type: type === SUI ? { GasCoin: true } : { Coin: type },
        hasPublicTransfer: true,
        version,
        contents,
      },
    },
    owner: { AddressOwner: owner },
    previousTransaction: previous,
    storageRebate: rebate,
  });
  return toBase58(hash("Object::", object.toBytes()));
};
const write = (id, type, owner, version, balance, previous) => {
  const object = objects.get(id) ?? { id, type, versions: new Map() };
  object.owner = owner;
  const state = { version, balance, previous, rebate: STORAGE };
  state.digest = digestOf(object, state);
  object.versions.set(version, { owner, ...state });
  object.last = version;
  objects.set(id, object);
};
const shown = (object, version, paths) => {
  const state = object.versions.get(version);
  const all = {
    object_id: { objectId: object.id },
    version: { version },
    digest: { digest: state.digest },
    owner: { owner: types.Owner.create({ kind: types.Owner_OwnerKind.ADDRESS, address: state.owner }) },
    object_type: { objectType: normalizeStructTag(`0x2::coin::Coin<${object.type}>`) },
    previous_transaction: { previousTransaction: state.previous },
    storage_rebate: { storageRebate: state.rebate },
    balance: { balance: state.balance },
  };
  const picked = paths.map((path) => {
    must(all[path], `invalid read_mask path: ${path}`);
    return all[path];
  });
  return types.Object.create(Object.assign({}, ...picked));
};
const owned = (owner, type) =>
  [...objects.values()]
    .filter((object) => object.last !== undefined && object.owner === owner && object.type === type)
    .map((object) => ({ object, ...object.versions.get(object.last) }))
    .sort((one, other) => (one.balance > other.balance ? -1 : 1));

// ---- reading and checking -----------------------------------------------------------------

const RESERVED = Buffer.alloc(20, 0xac);
// A reference that is a piece of the sender's address balance instead.
const reservation = ({ digest }) => {
  const bytes = Buffer.from(fromBase58(digest));
  if (!bytes.subarray(12).equals(RESERVED)) return undefined;
  return { amount: bytes.readBigUInt64LE(0), epoch: BigInt(bytes.readUInt32LE(8)) };
};

const read = (bytes) => {
  let data;
  try {
    data = bcs.TransactionData.parse(bytes);
  } catch (error) {
    throw new Problem("INVALID_ARGUMENT", `invalid transaction: ${error.message}`);
  }
  // BCS has one form.
  must(Buffer.from(bcs.TransactionData.serialize(data).toBytes()).equals(Buffer.from(bytes)), "invalid transaction: not canonical");
  const { kind, sender, gasData, expiration } = data.V1;
  const program = kind.ProgrammableTransaction;
  must(program, "only programmable transactions are known here");
  return {
    digest: TransactionDataBuilder.getDigestFromBytes(bytes),
    sender,
    payment: gasData.payment,
    gasOwner: gasData.owner,
    price: BigInt(gasData.price),
    budget: BigInt(gasData.budget),
    expiration,
    program,
    inputs: program.inputs.flatMap((input) => input.Object?.ImmOrOwnedObject ?? []),
  };
};

const number = (version) => `0x${BigInt(version).toString(16)}`;
// The object of a reference, as it is now.
const live = ({ objectId, version, digest }, sender) => {
  const object = objects.get(objectId);
  const state = object?.versions.get(object.last);
  must(state && state.version >= BigInt(version), `Could not find the referenced object ${objectId} at version Some(SequenceNumber(${version})).`, "ABORTED");
  must(
    state.version === BigInt(version) && state.digest === digest,
    `Transaction is rejected as invalid by more than 1/3 of validators by stake (non-retriable). Non-retriable errors: [Object ID ${objectId} Version ${number(version)} Digest ${digest} is not available for consumption, current version: ${number(state.version)}]`,
  );
  must(object.owner === sender, `Transaction was not signed by the correct sender: Object ${objectId} is owned by account address ${object.owner}, but given owner/signer address is ${sender}`);
  return { id: objectId, type: object.type, owner: sender, balance: state.balance, version: state.version, rebate: state.rebate };
};

// What validators look at before anything runs.
const check = (sent, mock) => {
  const { sender, payment, gasOwner, price, budget, expiration, program, inputs } = sent;
  must(gasOwner === sender || (payment.length && !payment.some(reservation)), "others pay with coins alone here");
  must(price >= PRICE, `Gas price ${price} under reference gas price (RGP) ${PRICE}`);
  must(price < MOST_PRICE, `Gas price cannot exceed ${MOST_PRICE - 1n} mist`);
  must(budget <= MOST_BUDGET, `Gas budget: ${budget} is higher than max: ${MOST_BUDGET}`);
  must(budget >= UNITS * price, `Gas budget: ${budget} is lower than min: ${UNITS * price}`);
  const during = expiration.ValidDuring;
  if (during) {
    must(during.chain === CHAIN, "Invalid chain id in the expiration");
    must(during.maxEpoch !== null && BigInt(during.maxEpoch) <= BigInt(during.minEpoch) + 1n, "Invalid expiration: two epochs at most");
    must(BigInt(during.minEpoch) <= epoch && epoch <= BigInt(during.maxEpoch), "Transaction Expired");
  }
  if (expiration.Epoch !== undefined) must(epoch <= BigInt(expiration.Epoch), "Transaction Expired");

  const coins = payment.filter((reference) => !reservation(reference)).map((reference) => live(reference, gasOwner));
  const reserved = payment.map(reservation).filter(Boolean);
  must(coins.every(({ type }) => type === SUI), "Gas object is not an owned object of type Coin<SUI>");
  must(payment.length <= 256, "Size limit exceeded: maximum number of gas payment objects is 256");
  must(reserved.every((piece) => piece.epoch === epoch), "Invalid withdraw reservation: of another epoch");
  const used = inputs.map((reference) => live(reference, sender));
  const ids = [...coins, ...used].map(({ id }) => id);
  must(new Set(ids).size === ids.length, "Mutable object cannot appear more than one in one transaction");
  must(mock || ids.length > 0 || during, "Transactions must either have address-owned inputs, or a ValidDuring expiration");

  // All that is taken out of address balances has to be there at the same time.
  const wanted = new Map();
  const want = (type, amount) => wanted.set(type, (wanted.get(type) ?? 0n) + amount);
  for (const { FundsWithdrawal: withdrawal } of program.inputs) {
    if (!withdrawal) continue;
    must(withdrawal.withdrawFrom.Sender, "Invalid withdraw reservation: only of the sender");
    want(normalizeStructTag(withdrawal.typeArg.Balance), BigInt(withdrawal.reservation.MaxAmountU64));
  }
  const reservedSum = reserved.reduce((sum, { amount }) => sum + amount, 0n);
  want(SUI, reservedSum + (payment.length || mock ? 0n : budget));
  for (const [type, amount] of wanted)
    must(amount <= fundsOf(sender, type), `Invalid withdraw reservation: ${amount} of ${type}, available ${fundsOf(sender, type)}`);
  const gas = coins.reduce((sum, { balance }) => sum + balance, reservedSum);
  if (payment.length) must(gas >= budget, `Balance of gas object ${gas} is lower than the needed amount: ${budget}`);
  return { coins, used, gas, reservedSum };
};

// ---- running ------------------------------------------------------------------------------

// Gives the effects, and `keep`, which makes them count.
const run = (sent, { coins, used, gas, reservedSum }, mock) => {
  const { sender, payment, gasOwner, price, budget, program, digest } = sent;
  const next = [...coins, ...used].reduce((most, { version }) => (version > most ? version : most), 0n) + 1n;
  const paysFromFunds = !mock && (payment.length === 0 || reservation(payment[0]) !== undefined);
  const hasGasCoin = mock || payment.length > 0;

  const begin = () => {
    const state = { coins: new Map(), gone: new Set(), moved: new Map(), gas: mock ? MOCK_BALANCE : gas, created: 0 };
    for (const coin of used) state.coins.set(coin.id, { ...coin });
    if (reservedSum) state.moved.set(`${sender} ${SUI}`, -reservedSum);
    return state;
  };
  let state = begin();
  const move = (owner, type, amount) => {
    const key = `${owner} ${type}`;
    state.moved.set(key, (state.moved.get(key) ?? 0n) + amount);
  };

  const commands = () => {
    // What the budget may take is out of reach.
    if (hasGasCoin) state.gas -= budget;
    const results = [];
    const input = (index) => program.inputs[index] ?? expect(false, "COMMAND_ARGUMENT_ERROR", "no such input");
    const pure = (argument) => Buffer.from(input(argument.Input).Pure.bytes, "base64");
    const address = (argument) => hex(pure(argument));
    const u64 = (argument) => pure(argument).readBigUInt64LE(0);
    const created = (type, balance) => {
      const coin = { id: hex(hash(fromBase58(digest), [state.created++])), type, balance, owner: undefined, isNew: true };
      return coin;
    };
    const place = ({ Result, NestedResult }) => (NestedResult ? NestedResult : [Result, 0]);
    const coin = (argument) => {
      if (argument.GasCoin) {
        expect(hasGasCoin, "COMMAND_ARGUMENT_ERROR", "Invalid usage of the gas coin");
        return { type: SUI, isGas: true, get balance() { return state.gas; }, set balance(value) { state.gas = value; } };
      }
      const found =
        argument.Input === undefined
          ? results[place(argument)[0]]?.[place(argument)[1]]
          : state.coins.get(input(argument.Input).Object?.ImmOrOwnedObject?.objectId);
      expect(found && !found.taken, "COMMAND_ARGUMENT_ERROR", "Argument without value");
      return found;
    };
    const take = (argument) => {
      const found = coin(argument);
      expect(!found.isGas, "COMMAND_ARGUMENT_ERROR", "Invalid usage of the gas coin");
      found.taken = true;
      if (!found.isNew) state.gone.add(found.id);
      return found;
    };
    for (const command of program.commands) {
      const result = [];
      if (command.SplitCoins) {
        const source = coin(command.SplitCoins.coin);
        for (const argument of command.SplitCoins.amounts) {
          const amount = u64(argument);
          expect(source.balance >= amount, "INSUFFICIENT_COIN_BALANCE", "Insufficient coin balance for operation.");
          source.balance -= amount;
          result.push(created(source.type, amount));
        }
      } else if (command.MergeCoins) {
        const into = coin(command.MergeCoins.destination);
        for (const argument of command.MergeCoins.sources) {
          const from = take(argument);
          expect(from.type === into.type, "COMMAND_ARGUMENT_ERROR", "Type mismatch");
          into.balance += from.balance;
        }
      } else if (command.TransferObjects) {
        const to = address(command.TransferObjects.address);
        for (const argument of command.TransferObjects.objects) {
          const object = take(argument);
          state.gone.delete(object.id);
          state.coins.set(object.id, { ...object, taken: true, owner: to });
        }
      } else if (command.MoveCall) {
        const { package: name, module, function: called, typeArguments, arguments: given } = command.MoveCall;
        expect(name === FRAMEWORK && module === "coin", "FUNCTION_NOT_FOUND", "Function Not Found.");
        const type = normalizeStructTag(typeArguments[0]);
        const taken = () => {
          const object = take(given[0]);
          expect(object.type === type, "TYPE_ARGUMENT_ERROR", "Type mismatch");
          return object;
        };
        if (called === "zero") result.push(created(type, 0n));
        else if (called === "destroy_zero") expect(taken().balance === 0n, "MOVE_ABORT", "Move abort in 0x2::balance: ENonZero");
        else if (called === "send_funds") move(address(given[1]), type, taken().balance);
        else if (called === "redeem_funds") {
          const withdrawal = input(given[0].Input).FundsWithdrawal;
          expect(withdrawal && normalizeStructTag(withdrawal.typeArg.Balance) === type, "COMMAND_ARGUMENT_ERROR", "Type mismatch");
          const amount = BigInt(withdrawal.reservation.MaxAmountU64);
          move(sender, type, -amount);
          result.push(created(type, amount));
        } else expect(false, "FUNCTION_NOT_FOUND", "Function Not Found.");
      } else expect(false, "FEATURE_NOT_YET_SUPPORTED", "not known here");
      results.push(result);
    }
    expect(results.flat().every(({ taken }) => taken), "UNUSED_VALUE_WITHOUT_DROP", "Unused result without the drop ability.");
    if (hasGasCoin) state.gas += budget;
  };
  const cost = () => {
    const written = [...state.coins.values()].filter(({ id }) => !state.gone.has(id)).length + (paysFromFunds ? 0 : 1);
    const rebates = [...coins, ...used].reduce((sum, { rebate }) => sum + rebate, 0n);
    return { computation: UNITS * price, storage: STORAGE * BigInt(written), rebate: REBATE(rebates) };
  };
  let failure;
  try {
    commands();
    const { computation, storage, rebate } = cost();
    expect(computation + storage - rebate <= budget, "INSUFFICIENT_GAS", "Insufficient Gas.");
  } catch (error) {
    if (!(error instanceof Abort)) throw error;
    failure = error;
    state = begin();
  }
  const { computation, storage, rebate } = cost();
  const net = computation + storage - rebate;
  if (payment.length === 0 && !mock) move(sender, SUI, -net);
  else state.gas -= net;

  const keep = () => {
    for (const { id } of coins) objects.get(id).last = undefined;
    for (const { id } of used) objects.get(id).last = undefined;
    for (const { id, type, owner, balance } of state.coins.values()) {
      if (!state.gone.has(id)) write(id, type, owner, next, balance, digest);
    }
    if (paysFromFunds) {
      if (payment.length) move(sender, SUI, state.gas);
    } else write(coins[0].id, SUI, gasOwner, next, state.gas, digest);
    for (const [key, amount] of state.moved) funds.set(key, (funds.get(key) ?? 0n) + amount);
  };
  const effects = types.TransactionEffects.create({
    transactionDigest: digest,
    epoch,
    status: types.ExecutionStatus.create({
      success: !failure,
      error: failure && types.ExecutionError.create({ kind: failure.kind, description: failure.message, errorDetails: { oneofKind: undefined } }),
    }),
    gasUsed: types.GasCostSummary.create({
      computationCost: computation,
      storageCost: storage,
      storageRebate: rebate,
      nonRefundableStorageFee: 0n,
    }),
  });
  return { effects, net, failure, keep };
};

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const execute = async (bytes, signatures) => {
  const sent = read(bytes);
  const { digest, sender, payment, gasOwner, inputs } = sent;
  const signers = [...new Set([sender, gasOwner])];
  must(signatures.length === signers.length, `Invalid user signature: Expect ${signers.length} signer signatures but got ${signatures.length}`);
  const texts = signatures.map((signature) => Buffer.from(signature).toString("base64"));
  for (const address of signers) {
    const tries = await Promise.allSettled(texts.map((text) => verifyTransactionSignature(bytes, text, { address })));
    if (tries.some(({ status }) => status === "fulfilled")) continue;
    throw new Problem("INVALID_ARGUMENT", `Invalid user signature: ${tries[0].reason.message}`);
  }
  if (!executed.has(digest)) {
    check(sent, false);
    const wanted = [...payment.filter((reference) => !reservation(reference)), ...inputs].map(({ objectId, version }) => `${objectId}:${version}`);
    for (const name of wanted) {
      const holder = locks.get(name) ?? digest;
      must(holder === digest, `Object ${name} already locked by a different transaction: ${holder}`, "FAILED_PRECONDITION");
      locks.set(name, digest);
    }
    await pause(FINAL_MS);
    if (!executed.has(digest)) {
      const outcome = run(sent, check(sent, false), false);
      outcome.keep();
      count += 1n;
      console.log(`executed ${digest}: ${outcome.failure?.message ?? "success"}`);
      executed.set(digest, { ...outcome, used: wanted, sender, expiration: sent.expiration, price: sent.price, budget: sent.budget });
    }
  }
  return transaction(digest, executed.get(digest).effects);
};

const transaction = (digest, effects) => types.ExecutedTransaction.create({ digest, effects, checkpoint: 1n });

const simulate = ({ transaction: { bcs: encoded }, checks, doGasSelection }) => {
  const sent = read(encoded.value);
  must(checks === undefined || checks === types.SimulateTransactionRequest_TransactionChecks.ENABLED, "checks are made here");
  const mock = sent.payment.length === 0 && !doGasSelection;
  try {
    return transaction(sent.digest, run(sent, check(sent, mock), mock).effects);
  } catch (error) {
    // So it is on full nodes.
    if (error instanceof Problem) throw new Problem("INTERNAL", error.message);
    throw error;
  }
};

// ---- gRPC-Web -----------------------------------------------------------------------------

const valid = (text) => {
  must(/^0x[0-9a-f]{64}$/.test(text ?? ""), `invalid owner: ${text}`);
  return text;
};
const timestamp = (ms) => ({ seconds: BigInt(Math.floor(ms / 1000)), nanos: 0 });
const METHODS = {
  "LedgerService/GetServiceInfo": () => ({ chainId: CHAIN, chain: "mainnet", epoch, checkpointHeight: count, server: "stub" }),
  "LedgerService/GetEpoch": () => ({ epoch: types.Epoch.create({ epoch, start: timestamp(epochStart), referenceGasPrice: PRICE }) }),
  "LedgerService/GetTransaction": ({ digest }) => {
    must(executed.has(digest), `Transaction ${digest} not found`, "NOT_FOUND");
    return { transaction: transaction(digest, executed.get(digest).effects) };
  },
  "LedgerService/BatchGetObjects": ({ requests, readMask }) => ({
    objects: requests.map(({ objectId, version }) => {
      const object = objects.get(objectId);
      const wanted = version ?? object?.last;
      if (object?.versions.has(wanted)) return { result: { oneofKind: "object", object: shown(object, wanted, readMask.paths) } };
      const error = { code: GrpcStatusCode.NOT_FOUND, message: `Object ${objectId} not found`, details: [] };
      return { result: { oneofKind: "error", error } };
    }),
  }),
  "StateService/ListOwnedObjects": ({ owner, objectType, pageSize, pageToken, readMask }) => {
    const tag = parseStructTag(objectType);
    must(tag.module === "coin" && tag.name === "Coin", "only coins are known here");
    const all = owned(valid(owner), normalizeStructTag(tag.typeParams[0]));
    const start = pageToken ? Buffer.from(pageToken).readUInt32LE(0) : 0;
    const end = start + Math.min(pageSize ?? 50, PAGE);
    const token = Buffer.alloc(4);
    token.writeUInt32LE(end, 0);
    return {
      objects: all.slice(start, end).map(({ object }) => shown(object, object.last, readMask.paths)),
      nextPageToken: end < all.length ? new Uint8Array(token) : undefined,
    };
  },
  "StateService/GetBalance": ({ owner, coinType }) => {
    const type = normalizeStructTag(coinType);
    const coinBalance = owned(valid(owner), type).reduce((sum, { balance }) => sum + balance, 0n);
    const addressBalance = fundsOf(owner, type);
    return { balance: types.Balance.create({ coinType: type, balance: coinBalance + addressBalance, addressBalance, coinBalance }) };
  },
  "TransactionExecutionService/ExecuteTransaction": async ({ transaction, signatures }) => ({
    transaction: await execute(transaction.bcs.value, signatures.map(({ bcs: { value } }) => value)),
  }),
  "TransactionExecutionService/SimulateTransaction": (request) => ({ transaction: simulate(request), commandOutputs: [] }),
};

const frame = (flags, bytes) => {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
};
const call = async ({ path, headers, body }) => {
  if (headers["content-type"] !== TYPE) return raw(415, "not gRPC-Web", "text/plain");
  const name = path.replace("/sui.rpc.v2.", "");
  try {
    must(METHODS[name], "", "UNIMPLEMENTED");
    const method = name.split("/")[1];
    const request = types[`${method}Request`].fromBinary(body.subarray(5, 5 + body.readUInt32BE(1)));
    const answer = types[`${method}Response`].create(await METHODS[name](request));
    const message = types[`${method}Response`].toBinary(answer);
    return raw(200, Buffer.concat([frame(0, Buffer.from(message)), frame(0x80, Buffer.from("grpc-status:0\r\n"))]), TYPE);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    console.log(`${name}: ${error.code} ${error.message}`);
    if (name.endsWith("ExecuteTransaction")) refusals.push(error.message);
    // Without a message the status stands in the headers.
    const status = { "grpc-status": String(GrpcStatusCode[error.code]), "grpc-message": encodeURIComponent(error.message) };
    return { ...raw(200, Buffer.alloc(0), TYPE), headers: status };
  }
};

// ---- for tests ----------------------------------------------------------------------------

const GENESIS = toBase58(new Uint8Array(32).fill(1));
const tag = (type) => normalizeStructTag(type ?? SUI);
const TEST = {
  "/test/give": ({ address, type, amount }) => {
    count += 1n;
    write(hex(hash("given", String(count))), tag(type), address, 10n + count, BigInt(amount), GENESIS);
    return {};
  },
  "/test/funds": ({ address, type, amount }) => {
    funds.set(`${address} ${tag(type)}`, BigInt(amount));
    return {};
  },
  // Another transaction uses a coin, and leaves its balance unchanged.
  "/test/use": ({ objectId }) => {
    const { id, type, owner, last, versions } = objects.get(objectId);
    write(id, type, owner, last + 1n, versions.get(last).balance, GENESIS);
    return {};
  },
  "/test/coins": ({ address, type }) =>
    owned(address, tag(type)).map(({ object, version, digest, balance }) => ({ objectId: object.id, version, digest, balance })),
  "/test/epoch": () => {
    epoch += 1n;
    epochStart = Date.now();
    return { epoch };
  },
  "/test/now": () => ({ epoch, chain: CHAIN, price: PRICE }),
  "/test/executed": () =>
    [...executed].map(([digest, { net, failure, used, price, budget, expiration }]) => ({
      digest,
      success: !failure,
      error: failure?.message,
      fee: net,
      used,
      price,
      budget,
      expiration: expiration.$kind,
    })),
  "/test/refusals": () => refusals,
};

serve((request) => (request.path.startsWith("/test/") ? TEST[request.path](request.json()) : call(request)));
