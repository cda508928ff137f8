// Asks libraries that Covault does not use whether its answers are right.
// Reads one JSON object from standard input, {"ask": name, ...}, and prints one.
import { readFileSync } from "node:fs";
import { ethers } from "ethers";
import * as bitcoin from "bitcoinjs-lib";
import nacl from "tweetnacl";
import {
  ComputeBudgetProgram,
  Keypair,
  PublicKey,
  SystemProgram,
  Transaction,
  TransactionMessage,
  VersionedTransaction,
} from "@solana/web3.js";
import { ed25519 } from "@noble/curves/ed25519";
import * as stellar from "@stellar/stellar-sdk";

const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));
const ethersSignature = ({ R, S, V }) =>
  ethers.Signature.from({ r: R, s: S, yParity: Number(V) });

// The Stellar account of a seed (hex).
const stellarKey = (seed) => stellar.Keypair.fromRawEd25519Seed(Buffer.from(seed, "hex"));

const answers = {
  // Who signed this 32-byte digest (hex)?
  recover: ({ digest, signature }) => ({
    address: ethers.recoverAddress(digest, ethersSignature(signature)),
  }),
  sha256: ({ content }) => ({ digest: ethers.sha256(bytes(content)) }),
  // Who signed this text with personal_sign?
  personal: ({ content, signature }) => ({
    address: ethers.verifyMessage(bytes(content), ethersSignature(signature)),
  }),
  // Who signed this eth_signTypedData_v4 payload, say ethers, viem and MetaMask?
  typedData: async ({ payload, signature: parts }) => {
    const { recoverTypedDataAddress } = await import("viem");
    const { recoverTypedSignature } = await import("@metamask/eth-sig-util");
    const { EIP712Domain: _, ...types } = payload.types;
    const { domain, primaryType, message } = payload;
    const signature = ethersSignature(parts).serialized;
    const domainTypes = { name: "string", version: "string", chainId: "uint256" };
    // In the order of EIP-712, whatever that of the JSON is.
    const EIP712Domain = Object.entries(domainTypes)
      .filter(([name]) => name in domain)
      .map(([name, type]) => ({ name, type }));
    const data = { ...payload, types: { ...types, EIP712Domain } };
    return {
      addresses: [
        ethers.verifyTypedData(domain, types, message, signature),
        await recoverTypedDataAddress({ domain, types, primaryType, message, signature }),
        ethers.getAddress(recoverTypedSignature({ data, signature, version: "V4" })),
      ],
    };
  },
  // Call data of a function of an ABI.
  callData: ({ abi, function: name, values }) => ({
    data: new ethers.Interface(abi).encodeFunctionData(name, values),
  }),
  // Is this Ed25519 signature (base64) of the content by the Solana address good?
  ed25519: ({ content, signature, address }) => ({
    valid: nacl.sign.detached.verify(
      bytes(content),
      bytes(signature),
      new PublicKey(address).toBytes(),
    ),
  }),
  // The script of a mainnet address, and the regtest address that has the same.
  bitcoinRegtest: ({ address }) => {
    const script = bitcoin.address.toOutputScript(address);
    return {
      script: Buffer.from(script).toString("hex"),
      address: bitcoin.address.fromOutputScript(script, bitcoin.networks.regtest),
    };
  },
  // A transaction made elsewhere: the wallet pays another account, which has signed already.
  solanaForeign: ({ from, lamports, blockhash, version }) => {
    const other = Keypair.generate();
    const payer = new PublicKey(from);
    const transfer = SystemProgram.transfer({ fromPubkey: payer, toPubkey: other.publicKey, lamports });
    // The other account has to sign too.
    transfer.keys[1].isSigner = true;
    const message = new TransactionMessage({
      payerKey: payer,
      recentBlockhash: blockhash,
      instructions: [transfer],
    });
    const transaction = new VersionedTransaction(
      version === "v0" ? message.compileToV0Message() : message.compileToLegacyMessage(),
    );
    transaction.sign([other]);
    return {
      transaction: Buffer.from(transaction.serialize()).toString("base64"),
      other: other.publicKey.toBase58(),
    };
  },
  // A RawTransaction in BCS as @aptos-labs/ts-sdk writes it, that sends the chain's coin; with a
  // nonce it is orderless (AIP-123).
  aptosTransaction: async ({ chainId, from, to, amount, number, nonce, gas, price, expires }) => {
    const sdk = await import("@aptos-labs/ts-sdk");
    const address = (text) => sdk.AccountAddress.from(text);
    const entry = sdk.EntryFunction.build("0x1::aptos_account", "transfer", [], [
      address(to),
      new sdk.U64(BigInt(amount)),
    ]);
    const payload =
      nonce === undefined
        ? new sdk.TransactionPayloadEntryFunction(entry)
        : new sdk.TransactionInnerPayloadV1(
            new sdk.TransactionExecutableEntryFunction(entry),
            new sdk.TransactionExtraConfigV1(undefined, BigInt(nonce)),
          );
    const transaction = new sdk.RawTransaction(
      address(from),
      nonce === undefined ? BigInt(number) : 2n ** 64n - 1n,
      payload,
      BigInt(gas),
      BigInt(price),
      BigInt(expires),
      new sdk.ChainId(chainId),
    );
    return { transaction: Buffer.from(transaction.bcsToBytes()).toString("base64") };
  },
  // What does this signed Solana transaction say, and are its signatures good?
  solanaTransaction: ({ transaction }) => {
    const parsed = Transaction.from(bytes(transaction));
    // What limits and prices the computation comes before what is done.
    const isBudget = ({ programId }) => programId.equals(ComputeBudgetProgram.programId);
    const [transfer, ...more] = parsed.instructions.filter((instruction) => !isBudget(instruction));
    return {
      valid: parsed.verifySignatures() && more.length === 0,
      feePayer: parsed.feePayer.toBase58(),
      blockhash: parsed.recentBlockhash,
      program: transfer.programId.toBase58(),
      to: transfer.keys[1].pubkey.toBase58(),
      lamports: Buffer.from(transfer.data).readBigUInt64LE(4).toString(),
    };
  },
  stellarAccount: ({ seed }) => ({ address: stellarKey(seed).publicKey() }),
  // A Stellar transaction made elsewhere, in which the wallet pays another account twice.
  // `own`: it is the wallet's; `foreign`: it is the other account's, which has signed it, and the
  // wallet pays in it; `bump`: the other account pays the wallet, and the wallet the fee.
  stellarForeign: ({ form, from, seed, sequence, amount, maxTime }) => {
    const other = stellarKey(seed);
    const source = form === "own" ? from : other.publicKey();
    const builder = new stellar.TransactionBuilder(new stellar.Account(source, sequence), {
      fee: "150",
      networkPassphrase: stellar.Networks.PUBLIC,
      timebounds: { minTime: 0, maxTime },
      memo: stellar.Memo.text("elsewhere"),
    });
    const [payer, destination] = form === "bump" ? [undefined, from] : [from, other.publicKey()];
    for (let count = 0; count < 2; count += 1) {
      const asset = stellar.Asset.native();
      builder.addOperation(stellar.Operation.payment({ source: payer, destination, asset, amount }));
    }
    const inner = builder.build();
    if (form !== "own") inner.sign(other);
    const whole =
      form === "bump"
        ? stellar.TransactionBuilder.buildFeeBumpTransaction(from, "200", inner, stellar.Networks.PUBLIC)
        : inner;
    return { transaction: whole.toXDR(), hash: Buffer.from(whole.hash()).toString("hex") };
  },
  // A payment of SUI out of these coins, as BCS or as the SDK's JSON.
  suiTransaction: async ({ form, from, to, amount, coins, price, budget, spent, gasOwner }) => {
    const { Transaction } = await import("@mysten/sui/transactions");
    const transaction = new Transaction();
    transaction.setSender(from);
    const whole = spent ? transaction.objectRef(spent) : transaction.gas;
    const [coin] = transaction.splitCoins(whole, [BigInt(amount)]);
    transaction.transferObjects([coin], to);
    transaction.setGasPrice(price);
    transaction.setGasBudget(budget);
    transaction.setGasPayment(coins);
    if (gasOwner) transaction.setGasOwner(gasOwner);
    const bytes = await transaction.build();
    const payload = form === "json" ? await transaction.toJSON() : bytes;
    return { payload: Buffer.from(payload).toString("base64"), bytes: Buffer.from(bytes).toString("base64") };
  },
  // What does the SDK's own client say when it sends this signed transaction to a node?
  suiExecute: async ({ url, signed }) => {
    const { GrpcWebFetchTransport, SuiGrpcClient } = await import("@mysten/sui/grpc");
    const transport = new GrpcWebFetchTransport({ baseUrl: url, format: "binary" });
    const client = new SuiGrpcClient({ network: "mainnet", transport });
    const { txBytes, signatures } = JSON.parse(signed);
    try {
      const transaction = new Uint8Array(Buffer.from(txBytes, "base64"));
      const executed = await client.core.executeTransaction({ transaction, signatures });
      return { digest: executed.Transaction.digest, success: executed.Transaction.status.success };
    } catch (error) {
      return { error: error.message };
    }
  },
  // What does this signed EVM transaction say?
  evmTransaction: ({ transaction }) => {
    const parsed = ethers.Transaction.from(transaction);
    return {
      from: parsed.from,
      to: parsed.to,
      hash: parsed.hash,
      nonce: parsed.nonce,
      value: parsed.value.toString(),
      chainId: parsed.chainId.toString(),
      type: parsed.type,
    };
  },
  // Which address has this private key (hex), and which the child of this extended one?
  keyAddress: ({ privateKey }) => ({ address: ethers.computeAddress(`0x${privateKey}`) }),
  childAddress: ({ extendedPrivateKey, path }) => ({
    address: ethers.HDNodeWallet.fromExtendedKey(extendedPrivateKey).derivePath(path).address,
  }),
  // Which Solana address has this Ed25519 scalar (hex, little-endian)?
  scalarAddress: ({ privateKey }) => {
    const scalar = BigInt(`0x${Buffer.from(privateKey, "hex").reverse().toString("hex")}`);
    const point = ed25519.ExtendedPoint.BASE.multiply(scalar).toRawBytes();
    return { address: new PublicKey(point).toBase58() };
  },
  // The creation code of tests/node/Token.sol with its supply.
  tokenCode: async ({ supply }) => {
    const { default: solc } = await import("solc");
    const source = readFileSync(new URL("Token.sol", import.meta.url), "utf8");
    const output = JSON.parse(
      solc.compile(
        JSON.stringify({
          language: "Solidity",
          sources: { "Token.sol": { content: source } },
          settings: {
            evmVersion: "paris",
            outputSelection: { "*": { "*": ["evm.bytecode.object"] } },
          },
        }),
      ),
    );
    const { object } = output.contracts["Token.sol"].Token.evm.bytecode;
    const argument = ethers.AbiCoder.defaultAbiCoder().encode(["uint256"], [supply]);
    return { code: Buffer.from(object + argument.slice(2), "hex").toString("base64") };
  },
};

// Many questions, in one process.
answers.all = ({ questions }) =>
  Promise.all(questions.map(({ ask, ...question }) => answers[ask](question)));

const { ask, ...question } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await answers[ask](question)));
