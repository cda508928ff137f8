// The HTTP API of a Tron node, as far as Covault uses it. There is no chain behind it: it checks
// what it gets with TronWeb's own protocol code, keeps balances, and refuses what a node refuses.
// `/test/*` gives coins and tokens.
import { createHash } from "node:crypto";
import { TronWeb, utils } from "tronweb";
import { raw, serve } from "./serve.mjs";

const { Transaction } = globalThis.TronWebProto;
const proto = globalThis.TronWebProto;
const sha256 = (bytes) => createHash("sha256").update(bytes).digest();
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const base58 = (bytes) => TronWeb.address.fromHex(hex(bytes));

// sun per byte of a transaction, per unit of energy, and for an account that is not there yet.
const PRICES = { getTransactionFee: 1000, getEnergyFee: 100, getCreateAccountFee: 100_000, getCreateNewAccountFeeInSystemContract: 1_000_000 };
// Energy of a token transfer.
const TRANSFER_ENERGY = 64_000;
const RESULT_BYTES = 64;

const accounts = new Map();
const tokens = new Map();
const known = new Map();
const blocks = [];

const account = (name) => {
  if (!accounts.has(name)) accounts.set(name, { balance: 0n, assets: new Map(), there: false });
  return accounts.get(name);
};
const nextBlock = () => {
  const number = 70_000_000 + blocks.length;
  const id = Buffer.alloc(32);
  id.writeBigUInt64BE(BigInt(number));
  sha256(Buffer.from(String(number))).copy(id, 8, 8);
  blocks.push({ number, id, timestamp: Date.now() });
  return blocks.at(-1);
};
nextBlock();
const head = () => {
  const last = blocks.at(-1);
  return Date.now() - last.timestamp >= 3000 ? nextBlock() : last;
};

const shown = ({ number, id, timestamp }) => ({
  blockID: hex(id),
  block_header: { raw_data: { number, timestamp, txTrieRoot: "0".repeat(64), parentHash: "0".repeat(64), version: 31 } },
});

class Refused extends Error {
  constructor(code, words) {
    super(words);
    this.code = code;
  }
}
const must = (condition, code, words) => {
  if (!condition) throw new Refused(code, words);
};

const word = (text) => BigInt(`0x${text}`);
const addressOfWord = (text) => base58(Buffer.from(`41${text.slice(24)}`, "hex"));

const take = (transaction, bytes) => {
  const data = transaction.getRawData();
  const body = Buffer.from(data.serializeBinary());
  // What was signed is what these bytes say, in the only form that TronWeb writes.
  must(bytes.includes(body), "OTHER_ERROR", "raw data is not in its canonical form");
  const id = sha256(body);
  const txid = hex(id);
  must(!known.has(txid), "DUP_TRANSACTION_ERROR", "Dup transaction.");
  const now = head().timestamp;
  must(data.getExpiration() > now && data.getExpiration() <= now + 86_400_000, "TRANSACTION_EXPIRATION_ERROR", "Transaction expired");
  const block = blocks.find(({ number, id }) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64BE(BigInt(number));
    return hex(bytes.subarray(6)) === hex(data.getRefBlockBytes_asU8()) && hex(id.subarray(8, 16)) === hex(data.getRefBlockHash_asU8());
  });
  must(block, "TAPOS_ERROR", "Tapos check error");
  must(data.getContractList().length === 1, "CONTRACT_VALIDATE_ERROR", "one contract is expected");
  const contract = data.getContractList()[0];
  const any = contract.getParameter();
  const [, kind] = any.getTypeUrl().split("type.googleapis.com/protocol.");
  const message = proto[kind]?.deserializeBinary(any.getValue_asU8());
  must(message, "CONTRACT_VALIDATE_ERROR", `no contract ${any.getTypeUrl()}`);
  const owner = base58(message.getOwnerAddress_asU8());
  must(transaction.getSignatureList_asU8().length === 1, "SIGERROR", "one signature is expected");
  const signer = utils.crypto.ecRecover(txid, hex(transaction.getSignatureList_asU8()[0]));
  must(TronWeb.address.fromHex(signer) === owner, "SIGERROR", "Validate signature error: the signer is not the owner");
  const sender = account(owner);
  must(sender.there, "CONTRACT_VALIDATE_ERROR", "Contract validate error : Validate TransferContract error, no OwnerAccount.");
  let fee = BigInt((bytes.length + RESULT_BYTES) * PRICES.getTransactionFee);
  let result = "SUCCESS";
  const moved = [];
  const open = (name) => {
    if (!account(name).there) fee = BigInt(PRICES.getCreateAccountFee + PRICES.getCreateNewAccountFeeInSystemContract);
  };
  if (kind === "TransferContract") {
    const to = base58(message.getToAddress_asU8());
    const amount = BigInt(message.getAmount());
    must(to !== owner, "CONTRACT_VALIDATE_ERROR", "Contract validate error : Cannot transfer TRX to yourself.");
    must(amount > 0n, "CONTRACT_VALIDATE_ERROR", "Contract validate error : Amount must be greater than 0.");
    open(to);
    must(sender.balance >= amount + fee, "CONTRACT_VALIDATE_ERROR", "Contract validate error : Validate TransferContract error, balance is not sufficient.");
    moved.push(() => {
      sender.balance -= amount;
      account(to).balance += amount;
      account(to).there = true;
    });
  } else if (kind === "TransferAssetContract") {
    const to = base58(message.getToAddress_asU8());
    const amount = BigInt(message.getAmount());
    const name = Buffer.from(message.getAssetName_asU8()).toString();
    open(to);
    must((sender.assets.get(name) ?? 0n) >= amount && amount > 0n, "CONTRACT_VALIDATE_ERROR", "Contract validate error : assetBalance is not sufficient.");
    must(sender.balance >= fee, "CONTRACT_VALIDATE_ERROR", "Contract validate error : Validate TransferAssetContract error, insufficient fee.");
    moved.push(() => {
      sender.assets.set(name, sender.assets.get(name) - amount);
      account(to).assets.set(name, (account(to).assets.get(name) ?? 0n) + amount);
      account(to).there = true;
    });
  } else if (kind === "TriggerSmartContract") {
    const token = tokens.get(base58(message.getContractAddress_asU8()));
    must(token, "CONTRACT_VALIDATE_ERROR", "Contract validate error : No contract or not a valid smart contract");
    must(Number(message.getCallValue()) === 0, "CONTRACT_VALIDATE_ERROR", "this contract takes no coins");
    const input = hex(message.getData_asU8());
    must(input.startsWith("a9059cbb") && input.length === 136, "CONTRACT_VALIDATE_ERROR", "only transfer(address,uint256) is known here");
    const energy = BigInt(TRANSFER_ENERGY * PRICES.getEnergyFee);
    must(sender.balance >= fee, "BANDWITH_ERROR", "account resource insufficient");
    const limit = BigInt(data.getFeeLimit());
    const to = addressOfWord(input.slice(8, 72));
    const amount = word(input.slice(72));
    if (limit < energy || sender.balance < fee + energy) {
      result = "OUT_OF_ENERGY";
      fee += limit < energy ? limit : energy;
    } else if ((token.get(owner) ?? 0n) < amount) {
      result = "REVERT";
      fee += energy;
    } else {
      fee += energy;
      moved.push(() => {
        token.set(owner, token.get(owner) - amount);
        token.set(to, (token.get(to) ?? 0n) + amount);
      });
    }
  } else {
    throw new Refused("CONTRACT_VALIDATE_ERROR", `${kind} is not known here`);
  }
  for (const move of moved) move();
  sender.balance -= fee;
  known.set(txid, { fee: Number(fee), result, raw_data_hex: hex(body) });
  return txid;
};

const name = (text) => (text?.startsWith("41") ? TronWeb.address.fromHex(text) : text);
const constant = ({ owner_address, contract_address, function_selector, parameter, data }) => {
  const token = tokens.get(name(contract_address));
  if (!token) return { result: { code: "CONTRACT_VALIDATE_ERROR", message: hex(Buffer.from("Smart contract is not exist.")) } };
  const yes = (value) => ({
    result: { result: true },
    energy_used: TRANSFER_ENERGY,
    constant_result: [value.toString(16).padStart(64, "0")],
    transaction: { ret: [{}] },
  });
  const call = data ?? { "balanceOf(address)": "70a08231", "decimals()": "313ce567", "transfer(address,uint256)": "a9059cbb" }[function_selector] + (parameter ?? "");
  if (call.startsWith("70a08231")) return yes(token.get(addressOfWord(call.slice(8, 72))) ?? 0n);
  if (call.startsWith("313ce567")) return yes(6n);
  // "false", as the most used token says of transfers that go through.
  if (call.startsWith("a9059cbb") && (token.get(name(owner_address)) ?? 0n) >= word(call.slice(72, 136))) return yes(0n);
  return {
    result: { result: true, message: hex(Buffer.from("REVERT opcode executed")) },
    energy_used: 700,
    constant_result: [""],
    transaction: { ret: [{ ret: "FAILED" }] },
  };
};

const get = ({ address }) => {
  const found = accounts.get(name(address));
  if (!found?.there) return {};
  return {
    address: name(address),
    balance: Number(found.balance),
    assetV2: [...found.assets].map(([key, value]) => ({ key, value: Number(value) })),
  };
};

serve(({ path, json }) => {
  const body = () => json() ?? {};
  switch (path.replace("/walletsolidity/", "/wallet/")) {
    case "/wallet/getnowblock":
      return shown(head());
    case "/wallet/getblockbynum": {
      const block = blocks.find(({ number }) => number === body().num);
      return block ? shown(block) : {};
    }
    case "/wallet/getaccount":
      return get(body());
    case "/wallet/getaccountresource":
      return { freeNetLimit: 0, TotalNetLimit: 43200000000, TotalEnergyLimit: 180000000000 };
    case "/wallet/getcontract": {
      const contract = name(body().value);
      return tokens.has(contract) ? { contract_address: contract, consume_user_resource_percent: 100 } : {};
    }
    case "/wallet/getchainparameters":
      return { chainParameter: Object.entries(PRICES).map(([key, value]) => ({ key, value })) };
    case "/wallet/triggerconstantcontract":
      return constant(body());
    case "/wallet/broadcasthex": {
      const bytes = Buffer.from(body().transaction, "hex");
      const txid = hex(sha256(Transaction.deserializeBinary(bytes).getRawData().serializeBinary()));
      try {
        return { result: true, code: "SUCCESS", txid: take(Transaction.deserializeBinary(bytes), bytes), message: "SUCCESS" };
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        return { result: false, code: error.code, txid, message: error.message };
      }
    }
    case "/wallet/gettransactionbyid": {
      const found = known.get(body().value);
      return found ? { txID: body().value, raw_data_hex: found.raw_data_hex, ret: [{ contractRet: found.result }] } : {};
    }
    case "/wallet/gettransactioninfobyid": {
      const found = known.get(body().value);
      return found ? { id: body().value, fee: found.fee, receipt: { result: found.result } } : {};
    }
    case "/test/give": {
      const to = account(body().address);
      to.balance += BigInt(body().amount);
      to.there = true;
      return {};
    }
    case "/test/asset":
      account(body().address).assets.set(body().asset, BigInt(body().amount));
      return {};
    case "/test/token": {
      const contract = base58(Buffer.concat([Buffer.from([0x41]), sha256(Buffer.from(`token ${tokens.size}`)).subarray(0, 20)]));
      tokens.set(contract, new Map([[body().owner, BigInt(body().amount)]]));
      return { contract };
    }
    case "/test/block":
      return shown(nextBlock());
    default:
      return raw(404, { Error: "no such method" });
  }
});
