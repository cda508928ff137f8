// The JSON-RPC of a Stellar RPC node (stellar/stellar-rpc). There is no network behind it: it reads
// what it gets with Stellar's own SDK, checks it as stellar-core does before it queues a transaction,
// closes ledgers, and applies them to accounts and trust lines. `test_*` methods give coins and
// assets, and make ledgers wait.
import {
  FeeBumpTransaction,
  Keypair,
  Networks,
  TransactionBuilder,
  extractBaseAddress,
  xdr,
} from "@stellar/stellar-sdk";
import { rpc, serve } from "./serve.mjs";

const BASE_FEE = 100n;
const BASE_RESERVE = 5_000_000n;
const MOST = 2n ** 63n - 1n;
// How long a transaction that was applied, or dropped, is not looked at again.
const BANNED_LEDGERS = 10;

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const seconds = () => Math.floor(Date.now() / 1000);

// The ledger that closed last, and the first that the node keeps.
const first = { sequence: 55_000_000, closeTime: seconds() - 86_400 };
let last = { sequence: 55_017_280, closeTime: seconds() - 1 };
let accounts = new Map();
// One transaction per source account, as stellar-core has it.
const queue = new Map();
const applied = new Map();
const banned = new Map();

const lines = (account) => BigInt(account.lines.size);
const reserve = (account, more = 0n) => (2n + lines(account) + more) * BASE_RESERVE;
const available = (account, more) => account.balance - reserve(account, more);
const stroops = (decimal) => {
  const [whole, part = ""] = decimal.split(".");
  return BigInt(whole) * 10_000_000n + BigInt(part.padEnd(7, "0"));
};

// ---- results ------------------------------------------------------------------------------

class Refused extends Error {
  constructor(code, operations) {
    super(code);
    this.code = code;
    this.operations = operations;
  }
}
const must = (condition, code, operations) => {
  if (!condition) throw new Refused(code, operations);
};

const inner = (kind, code) => {
  const union = { createAccount: xdr.CreateAccountResult, payment: xdr.PaymentResult, changeTrust: xdr.ChangeTrustResult };
  return xdr.OperationResult.opInner(xdr.OperationResultTr[kind](union[kind][kind + code]()));
};
const withOperations = ["txSuccess", "txFailed"];
const resultOf = (sent, fee, code, operations = []) => {
  const make = (union) => (withOperations.includes(code) ? union[code](operations) : union[code]());
  const ext = xdr.TransactionResultExt.v0();
  if (!sent.isBump || sent.outerFailed) {
    return new xdr.TransactionResult({ feeCharged: fee, result: make(xdr.TransactionResultResult), ext });
  }
  const pair = new xdr.InnerTransactionResultPair({
    transactionHash: sent.tx.hash(),
    result: new xdr.InnerTransactionResult({
      feeCharged: 0n,
      result: make(xdr.InnerTransactionResultResult),
      ext: xdr.InnerTransactionResultExt.v0(),
    }),
  });
  const result = xdr.TransactionResultResult;
  return new xdr.TransactionResult({
    feeCharged: fee,
    result: code === "txSuccess" ? result.txFeeBumpInnerSuccess(pair) : result.txFeeBumpInnerFailed(pair),
    ext,
  });
};

// ---- what stellar-core checks before it queues a transaction -------------------------------

const invalid = (message) => ({ code: -32602, message });

const parse = (text) => {
  let whole;
  try {
    whole = TransactionBuilder.fromXDR(text, Networks.PUBLIC);
  } catch (error) {
    throw invalid("invalid_xdr");
  }
  if (whole.toXDR() !== text) throw invalid("invalid_xdr: not what the SDK writes");
  const isBump = whole instanceof FeeBumpTransaction;
  const tx = isBump ? whole.innerTransaction : whole;
  return {
    text,
    whole,
    tx,
    isBump,
    hash: hex(whole.hash()),
    source: extractBaseAddress(tx.source),
    payer: extractBaseAddress(isBump ? whole.feeSource : tx.source),
    sequence: BigInt(tx.sequence),
    fee: BigInt(whole.fee),
    // A fee bump pays for one operation more.
    wanted: BASE_FEE * BigInt(tx.operations.length + (isBump ? 1 : 0)),
  };
};

// Takes signatures off `left` that are by the account.
const signedBy = (account, hash, left) => {
  const key = Keypair.fromPublicKey(account);
  const hint = hex(key.signatureHint());
  const found = left.findIndex(
    (one) => !one.used && hex(one.hint.value) === hint && key.verify(hash, one.signature.value),
  );
  if (found < 0) return false;
  left[found].used = true;
  return true;
};

const checkSignatures = (whole, wanted) => {
  const left = whole.signatures.map(({ hint, signature }) => ({ hint, signature, used: false }));
  const signers = new Set(wanted);
  const missing = [...signers].filter((account) => !signedBy(account, whole.hash(), left));
  return { missing, spare: left.some(({ used }) => !used) };
};

const sourceOf = (sent, operation) => (operation.source ? extractBaseAddress(operation.source) : sent.source);

const checkInner = (sent, payer) => {
  const { tx } = sent;
  must(tx.operations.length > 0, "txMissingOperation");
  const { minTime, maxTime } = tx.timeBounds ?? { minTime: "0", maxTime: "0" };
  must(Number(minTime) <= last.closeTime, "txTooEarly");
  must(maxTime === "0" || Number(maxTime) >= last.closeTime, "txTooLate");
  const { minLedger = 0, maxLedger = 0 } = tx.ledgerBounds ?? {};
  must(minLedger <= last.sequence, "txTooEarly");
  must(maxLedger === 0 || maxLedger > last.sequence, "txTooLate");
  if (payer) must(sent.fee >= sent.wanted, "txInsufficientFee");
  const account = accounts.get(sent.source);
  must(account, "txNoAccount");
  const least = tx.minAccountSequence;
  const inOrder = least === undefined ? account.sequence + 1n === sent.sequence : account.sequence >= BigInt(least) && account.sequence < sent.sequence;
  must(inOrder, "txBadSeq");
  const sources = tx.operations.map((operation) => sourceOf(sent, operation));
  const { missing, spare } = checkSignatures(tx, [sent.source, ...sources]);
  must(!missing.includes(sent.source), "txBadAuth");
  if (payer) must(available(account) >= sent.fee, "txInsufficientBalance");
  const results = tx.operations.map((operation, index) => {
    if (!accounts.has(sources[index])) return xdr.OperationResult.opNoAccount();
    if (missing.includes(sources[index])) return xdr.OperationResult.opBadAuth();
    const known = ["createAccount", "payment", "changeTrust"].includes(operation.type);
    return known ? inner(operation.type, "Success") : xdr.OperationResult.opNotSupported();
  });
  must(results.every(({ type }) => type === "opInner"), "txFailed", results);
  must(!spare, "txBadAuthExtra");
};

const check = (sent) => {
  if (!sent.isBump) return checkInner(sent, true);
  sent.outerFailed = true;
  must(sent.fee >= sent.wanted, "txInsufficientFee");
  // It offers at least as much per operation as the transaction in it.
  const innerFee = BigInt(sent.tx.fee) * BigInt(sent.tx.operations.length + 1);
  must(sent.fee * BigInt(Math.max(1, sent.tx.operations.length)) >= innerFee, "txInsufficientFee");
  const payer = accounts.get(sent.payer);
  must(payer, "txNoAccount");
  const { missing, spare } = checkSignatures(sent.whole, [sent.payer]);
  must(missing.length === 0, "txBadAuth");
  must(available(payer) >= sent.fee, "txInsufficientBalance");
  must(!spare, "txBadAuthExtra");
  sent.outerFailed = false;
  checkInner(sent, false);
};

const send = (text) => {
  const sent = parse(text);
  const answer = (status, more) => ({
    status,
    hash: sent.hash,
    latestLedger: last.sequence,
    latestLedgerCloseTime: String(last.closeTime),
    ...more,
  });
  if (banned.has(sent.hash)) return answer("TRY_AGAIN_LATER");
  const other = queue.get(sent.source);
  if (other?.hash === sent.hash) return answer("DUPLICATE");
  try {
    must(!other || sent.sequence >= other.sequence, "txBadSeq");
    if (other) return answer("TRY_AGAIN_LATER");
    check(sent);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const result = resultOf(sent, sent.wanted, error.code, error.operations);
    return answer("ERROR", { errorResultXdr: result.toXdr("base64") });
  }
  queue.set(sent.source, sent);
  return answer("PENDING");
};

// ---- ledgers -------------------------------------------------------------------------------

const copy = () =>
  new Map(
    [...accounts].map(([name, account]) => [
      name,
      { ...account, lines: new Map([...account.lines].map(([asset, line]) => [asset, { ...line }])) },
    ]),
  );

const run = {
  createAccount(source, { destination, startingBalance }) {
    const amount = stroops(startingBalance);
    must(amount > 0n && destination !== source, "Malformed");
    must(!accounts.has(destination), "AlreadyExist");
    must(amount >= 2n * BASE_RESERVE, "LowReserve");
    must(available(accounts.get(source)) >= amount, "Underfunded");
    accounts.get(source).balance -= amount;
    accounts.set(destination, { balance: amount, sequence: BigInt(last.sequence) << 32n, lines: new Map() });
  },
  payment(source, { destination, asset, amount: decimal }) {
    const amount = stroops(decimal);
    must(amount > 0n, "Malformed");
    const to = extractBaseAddress(destination);
    if (asset.isNative()) {
      must(accounts.has(to), "NoDestination");
      must(available(accounts.get(source)) >= amount, "Underfunded");
      accounts.get(source).balance -= amount;
      accounts.get(to).balance += amount;
      return;
    }
    const name = asset.toString();
    const issuer = asset.getIssuer();
    must(accounts.has(to), "NoDestination");
    if (to !== issuer) {
      const line = accounts.get(to).lines.get(name);
      must(line, "NoTrust");
      must(line.balance + amount <= line.limit, "LineFull");
      line.balance += amount;
    }
    if (source !== issuer) {
      const line = accounts.get(source).lines.get(name);
      must(line, "SrcNoTrust");
      must(line.balance >= amount, "Underfunded");
      line.balance -= amount;
    }
  },
  changeTrust(source, { line: asset, limit: decimal }) {
    const limit = stroops(decimal);
    must(asset.getIssuer?.() !== undefined && asset.getIssuer() !== source, "Malformed");
    const account = accounts.get(source);
    const name = asset.toString();
    const line = account.lines.get(name);
    if (limit === 0n) {
      must(line, "TrustLineMissing");
      must(line.balance === 0n, "InvalidLimit");
      account.lines.delete(name);
      return;
    }
    must(accounts.has(asset.getIssuer()), "NoIssuer");
    if (line) {
      must(limit >= line.balance, "InvalidLimit");
      line.limit = limit;
      return;
    }
    must(available(account, 1n) >= 0n, "LowReserve");
    account.lines.set(name, { balance: 0n, limit, asset });
  },
};

const apply = (sent) => {
  const results = [];
  const before = copy();
  let failed = false;
  for (const operation of sent.tx.operations) {
    try {
      run[operation.type](sourceOf(sent, operation), operation);
      results.push(inner(operation.type, "Success"));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      results.push(inner(operation.type, error.code));
      failed = true;
    }
  }
  if (failed) accounts = before;
  return resultOf(sent, sent.wanted, failed ? "txFailed" : "txSuccess", results);
};

// Seconds between ledgers, at least.
let step = 1;
const close = () => {
  last = { sequence: last.sequence + 1, closeTime: Math.max(last.closeTime + step, seconds()) };
  for (const [hash, until] of banned) if (until <= last.sequence) banned.delete(hash);
  const set = [...queue.values()];
  queue.clear();
  const good = set.filter((sent) => {
    try {
      check(sent);
      return true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return false;
    }
  });
  // Fees are taken, and numbers used, before anything is applied.
  for (const sent of good) {
    accounts.get(sent.payer).balance -= sent.wanted;
    accounts.get(sent.source).sequence = sent.sequence;
  }
  for (const sent of good) {
    const result = apply(sent);
    const ok = ["txSuccess", "txFeeBumpInnerSuccess"].includes(result.result.type);
    applied.set(sent.hash, { sent, ledger: last, result, ok });
  }
  for (const { hash } of set) banned.set(hash, last.sequence + BANNED_LEDGERS);
};

let timer;
const pace = (milliseconds, slow) => {
  clearInterval(timer);
  step = slow ?? 1;
  // The time of slow ledgers passes only where something waits for one.
  const next = () => (slow && queue.size === 0) || close();
  if (milliseconds > 0) timer = setInterval(next, milliseconds);
};
pace(1000);

// ---- what is asked -------------------------------------------------------------------------

const accountEntry = (name) => {
  const account = accounts.get(name);
  if (!account) return undefined;
  return xdr.LedgerEntryData.account(
    new xdr.AccountEntry({
      accountId: Keypair.fromPublicKey(name).xdrPublicKey(),
      balance: account.balance,
      seqNum: account.sequence,
      numSubEntries: account.lines.size,
      inflationDest: null,
      flags: 0,
      homeDomain: "",
      thresholds: new Uint8Array([1, 0, 0, 0]),
      signers: [],
      ext: xdr.AccountEntryExt.v0(),
    }),
  );
};

const lineEntry = (name, wanted) => {
  for (const { asset, balance, limit } of accounts.get(name)?.lines.values() ?? []) {
    const form = asset.toTrustLineXdrObject();
    if (form.toXdr("base64") !== wanted.toXdr("base64")) continue;
    const accountId = Keypair.fromPublicKey(name).xdrPublicKey();
    return xdr.LedgerEntryData.trustline(
      new xdr.TrustLineEntry({ accountId, asset: form, balance, limit, flags: 1, ext: xdr.TrustLineEntryExt.v0() }),
    );
  }
  return undefined;
};

const nameOf = (id) => new Keypair({ type: "ed25519", publicKey: id.ed25519.value }).publicKey();

const entryOf = (text) => {
  let key;
  try {
    key = xdr.LedgerKey.fromXdr(text, "base64");
  } catch (error) {
    throw invalid(`cannot unmarshal key value ${text}`);
  }
  if (key.type === "account") return accountEntry(nameOf(key.account.accountId));
  if (key.type === "trustline") return lineEntry(nameOf(key.trustLine.accountId), key.trustLine.asset);
  return undefined;
};

const getTransaction = (hash) => {
  if (!/^[0-9a-f]{64}$/i.test(hash)) throw invalid(`unexpected hash length (${hash?.length})`);
  const span = {
    latestLedger: last.sequence,
    latestLedgerCloseTime: String(last.closeTime),
    oldestLedger: first.sequence,
    oldestLedgerCloseTime: String(first.closeTime),
    txHash: hash,
  };
  const found = applied.get(hash);
  if (!found) return { ...span, status: "NOT_FOUND" };
  return {
    ...span,
    status: found.ok ? "SUCCESS" : "FAILED",
    ledger: found.ledger.sequence,
    createdAt: String(found.ledger.closeTime),
    applicationOrder: 1,
    feeBump: found.sent.isBump,
    envelopeXdr: found.sent.text,
    resultXdr: found.result.toXdr("base64"),
  };
};

const fees = (p90) => ({
  max: "10000",
  min: "100",
  mode: "100",
  ...Object.fromEntries([10, 20, 30, 40, 50, 60, 70, 80].map((percent) => [`p${percent}`, "100"])),
  p90,
  p95: "1000",
  p99: "5000",
  transactionCount: "50",
  ledgerCount: 10,
});

// Parameters go by name, as the real one wants it.
const named = (methods) =>
  Object.fromEntries(
    Object.entries(methods).map(([name, method]) => [
      name,
      (params) => {
        if (Array.isArray(params) && params.length > 0) throw invalid("array arguments are not accepted");
        return method(params);
      },
    ]),
  );

serve(
  rpc(
    named({
      getHealth: () => ({ status: "healthy", latestLedger: last.sequence, oldestLedger: first.sequence }),
      getNetwork: () => ({ passphrase: Networks.PUBLIC, protocolVersion: 23 }),
      getLatestLedger: () => ({ id: "00".repeat(32), sequence: last.sequence, protocolVersion: 23 }),
      getFeeStats: () => ({
        inclusionFee: fees("250"),
        sorobanInclusionFee: fees("100"),
        latestLedger: last.sequence,
      }),
      getLedgerEntries: ({ keys }) => {
        if (!Array.isArray(keys) || keys.length > 200) throw invalid("key count exceeds maximum supported (200)");
        const found = keys.map((key) => ({ key, entry: entryOf(key) })).filter(({ entry }) => entry);
        return {
          entries: found.map(({ key, entry }) => ({
            key,
            xdr: entry.toXdr("base64"),
            lastModifiedLedgerSeq: last.sequence,
          })),
          latestLedger: last.sequence,
        };
      },
      sendTransaction: ({ transaction }) => send(transaction),
      getTransaction: ({ hash }) => getTransaction(hash),
      getEvents: () => ({ events: [], cursor: "", latestLedger: last.sequence, oldestLedger: first.sequence }),

      // Lumens, for an account that may have to be made.
      test_fund: ({ address, amount }) => {
        const account = accounts.get(address);
        if (account) account.balance += BigInt(amount);
        else accounts.set(address, { balance: BigInt(amount), sequence: BigInt(last.sequence) << 32n, lines: new Map() });
      },
      test_account: ({ address }) => {
        const account = accounts.get(address);
        return account && { balance: account.balance, sequence: account.sequence };
      },
      // A new account that issues an asset.
      test_issuer: () => {
        const issuer = Keypair.random().publicKey();
        accounts.set(issuer, { balance: 100_000_000n, sequence: 1n, lines: new Map() });
        return issuer;
      },
      // Some of an asset, for an account that has a trust line for it.
      test_issue: ({ address, asset, amount }) => {
        const line = accounts.get(address)?.lines.get(asset);
        if (!line || line.balance + BigInt(amount) > MOST) throw invalid("there is no room for it on a trust line");
        line.balance += BigInt(amount);
      },
      test_assetBalance: ({ address, asset }) => accounts.get(address)?.lines.get(asset)?.balance ?? null,
      // What a ledger has of a transaction: the fee that was taken, and what it says.
      test_applied: ({ hash }) => {
        const found = applied.get(hash);
        if (!found) return null;
        const { sent, result, ledger, ok } = found;
        return {
          ok,
          fee: result.feeCharged,
          offered: sent.fee,
          ledger: ledger.sequence,
          sequence: sent.sequence,
          memo: sent.tx.memo.value == null ? null : Buffer.from(sent.tx.memo.value).toString(),
          timeBounds: sent.tx.timeBounds ?? null,
          operations: sent.tx.operations.map(({ type }) => type),
        };
      },
      // Closes a ledger so often; 0: only by test_close. With `slow` their times are so many seconds apart.
      test_pace: ({ milliseconds, slow }) => pace(milliseconds, slow),
      test_close: () => {
        close();
        return last;
      },
    }),
  ),
);
