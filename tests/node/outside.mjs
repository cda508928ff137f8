// Asks libraries that Covault does not use whether its answers are right.
// Reads one JSON object from standard input, {"ask": name, ...}, and prints one.
import { readFileSync } from "node:fs";
import { ethers } from "ethers";
import * as bitcoin from "bitcoinjs-lib";
import nacl from "tweetnacl";
import {
  Keypair,
  PublicKey,
  SystemProgram,
  Transaction,
  TransactionMessage,
  VersionedTransaction,
} from "@solana/web3.js";
import { ed25519 } from "@noble/curves/ed25519";

const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));
const ethersSignature = ({ R, S, V }) =>
  ethers.Signature.from({ r: R, s: S, yParity: Number(V) });

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
  // Who signed this eth_signTypedData_v4 payload?
  typedData: ({ payload, signature }) => {
    const { EIP712Domain: _, ...types } = payload.types;
    return {
      address: ethers.verifyTypedData(
        payload.domain,
        types,
        payload.message,
        ethersSignature(signature),
      ),
    };
  },
  // Is this Ed25519 signature (base64) of the content by the Solana address good?
  ed25519: ({ content, signature, address }) => ({
    valid: nacl.sign.detached.verify(
      bytes(content),
      bytes(signature),
      new PublicKey(address).toBytes(),
    ),
  }),
  // The same script as a regtest address.
  bitcoinRegtest: ({ address }) => ({
    address: bitcoin.address.fromOutputScript(
      bitcoin.address.toOutputScript(address),
      bitcoin.networks.regtest,
    ),
  }),
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
  // What does this signed Solana transaction say, and are its signatures good?
  solanaTransaction: ({ transaction }) => {
    const parsed = Transaction.from(bytes(transaction));
    const [transfer] = parsed.instructions;
    return {
      valid: parsed.verifySignatures(),
      feePayer: parsed.feePayer.toBase58(),
      blockhash: parsed.recentBlockhash,
      program: transfer.programId.toBase58(),
      to: transfer.keys[1].pubkey.toBase58(),
      lamports: Buffer.from(transfer.data).readBigUInt64LE(4).toString(),
    };
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

const { ask, ...question } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await answers[ask](question)));
