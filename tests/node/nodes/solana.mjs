// The JSON-RPC of a Solana node over LiteSVM: the real virtual machine with the real system and
// token programs. `test_*` methods give coins and tokens.
import { LiteSVM, FailedTransactionMetadata } from "litesvm";
import { address, getBase58Decoder, getTransactionDecoder, getBase64Encoder } from "@solana/kit";
import { Keypair, PublicKey, SystemProgram, Transaction } from "@solana/web3.js";
import * as token from "@solana/spl-token";
import { rpc, serve } from "./serve.mjs";

const svm = new LiteSVM();
const accepted = new Map();
const context = () => ({ slot: 1 });
const value = (value) => ({ context: context(), value });
const base58 = getBase58Decoder();
// What the last blocks took for a unit of computation, in micro-lamports.
let priorityFees = [];

const parse = (text) => getTransactionDecoder().decode(getBase64Encoder().encode(text));
const firstSignature = (transaction) => {
  const [signature] = Object.values(transaction.signatures);
  return signature && base58.decode(signature);
};

const shown = (name, encoding) => {
  const account = svm.getAccount(address(name));
  if (!account.exists || (account.lamports === 0n && account.data.length === 0)) return null;
  const data = Buffer.from(account.data);
  return {
    lamports: Number(account.lamports),
    owner: account.programAddress,
    executable: account.executable,
    rentEpoch: 0,
    space: data.length,
    data: encoding === "jsonParsed" ? parsed(account, data) : [data.toString("base64"), "base64"],
  };
};

const programs = [token.TOKEN_PROGRAM_ID, token.TOKEN_2022_PROGRAM_ID];
const isTokenProgram = (owner) => programs.some((program) => program.toBase58() === owner);

const parsed = (account, data) => {
  if (!isTokenProgram(account.programAddress)) return [data.toString("base64"), "base64"];
  const program = account.programAddress === programs[0].toBase58() ? "spl-token" : "spl-token-2022";
  if (data.length >= token.ACCOUNT_SIZE) {
    const raw = token.AccountLayout.decode(data);
    const mint = token.MintLayout.decode(Buffer.from(svm.getAccount(address(raw.mint.toBase58())).data));
    return {
      program,
      space: data.length,
      parsed: {
        type: "account",
        info: {
          mint: raw.mint.toBase58(),
          owner: raw.owner.toBase58(),
          tokenAmount: { amount: raw.amount.toString(), decimals: mint.decimals },
        },
      },
    };
  }
  const mint = token.MintLayout.decode(data);
  return {
    program,
    space: data.length,
    parsed: { type: "mint", info: { decimals: mint.decimals, supply: mint.supply.toString() } },
  };
};

const sentences = {
  BlockhashNotFound: "Blockhash not found",
  AlreadyProcessed: "This transaction has already been processed",
  AccountNotFound: "Attempt to debit an account but found no record of a prior credit.",
  InsufficientFundsForFee: "Insufficient funds for fee",
};

// LiteSVM has the error as it stands in Rust; nodes send it as JSON, and in words.
const described = (failed) => {
  const [, text] = /err: (.+?), meta: /s.exec(failed.toString());
  const [, index, custom] = /^InstructionError\((\d+), Custom\((\d+)\)\)$/.exec(text) ?? [];
  if (custom !== undefined)
    return [{ InstructionError: [Number(index), { Custom: Number(custom) }] }, `Error processing Instruction ${index}: custom program error: 0x${Number(custom).toString(16)}`];
  const [, place, name] = /^InstructionError\((\d+), (\w+)\)$/.exec(text) ?? [];
  if (name !== undefined) return [{ InstructionError: [Number(place), name] }, `Error processing Instruction ${place}: ${name}`];
  const [, account] = /^InsufficientFundsForRent { account_index: (\d+) }$/.exec(text) ?? [];
  if (account !== undefined)
    return [{ InsufficientFundsForRent: { account_index: Number(account) } }, `Transaction results in an account (${account}) with insufficient funds for rent`];
  return [text, sentences[text] ?? text];
};

const words = (failed) => {
  const [err, said] = described(failed);
  return { code: -32002, message: `Transaction simulation failed: ${said}`, data: { err, logs: failed.meta().logs() } };
};

const payer = Keypair.generate();
svm.airdrop(address(payer.publicKey.toBase58()), 1_000_000_000_000n);

// Executes what the tests themselves sign.
const send = (instructions, signers) => {
  svm.expireBlockhash();
  const transaction = new Transaction({ feePayer: payer.publicKey, recentBlockhash: svm.latestBlockhash() });
  transaction.add(...instructions);
  transaction.sign(payer, ...signers);
  const result = svm.sendTransaction(parse(transaction.serialize().toString("base64")));
  if (result instanceof FailedTransactionMetadata) throw new Error(result.toString());
};

serve(
  rpc({
    getHealth: () => "ok",
    getGenesisHash: () => "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",
    getSlot: () => 1,
    getBlockHeight: () => 1,
    getLatestBlockhash: () => value({ blockhash: svm.latestBlockhash(), lastValidBlockHeight: 1000 }),
    isBlockhashValid: ([hash]) => value(hash === svm.latestBlockhash()),
    getBalance: ([name]) => value(Number(svm.getBalance(address(name)) ?? 0n)),
    getAccountInfo: ([name, options]) => value(shown(name, options?.encoding)),
    getMultipleAccounts: ([names, options]) => value(names.map((name) => shown(name, options?.encoding))),
    getEpochInfo: () => ({ epoch: Number(svm.getClock().epoch), slotIndex: 1, slotsInEpoch: 432000, absoluteSlot: 1 }),
    getRecentPrioritizationFees: ([accounts]) => {
      if (!Array.isArray(accounts) || accounts.length > 128) throw { code: -32602, message: "Invalid params" };
      return priorityFees.map((prioritizationFee, slot) => ({ slot, prioritizationFee }));
    },
    getTokenAccountsByOwner: ([owner, filter, options]) =>
      value(
        programs
          .flatMap((program) => svm.getProgramAccounts(address(program.toBase58())))
          .filter((account) => account.data.length >= token.ACCOUNT_SIZE)
          .filter((account) => {
            const raw = token.AccountLayout.decode(Buffer.from(account.data));
            return raw.owner.toBase58() === owner && (!filter.mint || raw.mint.toBase58() === filter.mint);
          })
          .map((account) => ({ pubkey: account.address, account: shown(account.address, options?.encoding) })),
      ),
    getTokenAccountBalance: ([name]) => {
      const account = svm.getAccount(address(name));
      if (!account.exists) throw { code: -32602, message: "Invalid param: could not find account" };
      const raw = token.AccountLayout.decode(Buffer.from(account.data));
      return value({ amount: raw.amount.toString() });
    },
    sendTransaction: ([text, options]) => {
      if (options?.encoding !== "base64") throw { code: -32602, message: "only base64 is taken here" };
      const transaction = parse(text);
      const result = svm.sendTransaction(transaction);
      if (result instanceof FailedTransactionMetadata) throw words(result);
      const signature = firstSignature(transaction);
      accepted.set(signature, text);
      return signature;
    },
    simulateTransaction: ([text, options]) => {
      // As asked with sigVerify false: there is no signature yet. A blockhash that is to be replaced is not looked at.
      const transaction = parse(text);
      const signatures = Object.entries(transaction.signatures).map(([of, one]) => [of, one ?? new Uint8Array(64)]);
      svm.withSigverify(false);
      svm.withBlockhashCheck(!options?.replaceRecentBlockhash);
      const result = svm.simulateTransaction({ ...transaction, signatures: Object.fromEntries(signatures) });
      svm.withSigverify(true);
      svm.withBlockhashCheck(true);
      if (result instanceof FailedTransactionMetadata)
        return value({ err: result.toString(), logs: result.meta().logs(), unitsConsumed: Number(result.meta().computeUnitsConsumed()) });
      return value({ err: null, logs: result.meta().logs(), unitsConsumed: Number(result.meta().computeUnitsConsumed()) });
    },
    getSignatureStatuses: ([signatures]) =>
      value(
        signatures.map((signature) =>
          accepted.has(signature) ? { slot: 1, confirmations: null, err: null, confirmationStatus: "finalized" } : null,
        ),
      ),
    test_airdrop: ([name, lamports]) => {
      const result = svm.airdrop(address(name), BigInt(lamports));
      if (result instanceof FailedTransactionMetadata) throw new Error(result.toString());
    },
    // A new blockhash, as after some time; earlier ones are no longer accepted.
    test_nextBlock: () => {
      svm.expireBlockhash();
      return svm.latestBlockhash();
    },
    test_priorityFees: ([fees]) => {
      priorityFees = fees;
    },
    // A mint of `program` ("token" or "token-2022") with `amount` of it for `owner`. With `basisPoints`, of Token-2022,
    // one that takes a transfer fee.
    test_mint: ([owner, decimals, amount, program, basisPoints]) => {
      const programId = program === "token-2022" ? token.TOKEN_2022_PROGRAM_ID : token.TOKEN_PROGRAM_ID;
      const mint = Keypair.generate();
      const holder = new PublicKey(owner);
      const account = token.getAssociatedTokenAddressSync(mint.publicKey, holder, true, programId);
      const space = basisPoints === undefined ? token.MINT_SIZE : token.getMintLen([token.ExtensionType.TransferFeeConfig]);
      const fee =
        basisPoints === undefined
          ? []
          : [token.createInitializeTransferFeeConfigInstruction(mint.publicKey, payer.publicKey, payer.publicKey, basisPoints, 2n ** 64n - 1n, programId)];
      send(
        [
          SystemProgram.createAccount({
            fromPubkey: payer.publicKey,
            newAccountPubkey: mint.publicKey,
            lamports: Number(svm.minimumBalanceForRentExemption(BigInt(space))),
            space,
            programId,
          }),
          ...fee,
          token.createInitializeMint2Instruction(mint.publicKey, decimals, payer.publicKey, null, programId),
          token.createAssociatedTokenAccountIdempotentInstruction(payer.publicKey, account, holder, mint.publicKey, programId),
          token.createMintToInstruction(mint.publicKey, account, payer.publicKey, BigInt(amount), [], programId),
        ],
        [mint],
      );
      return { mint: mint.publicKey.toBase58(), account: account.toBase58() };
    },
    // A recipient whose account for a mint of Token-2022 takes nothing without a memo.
    test_memoHolder: ([mint]) => {
      const programId = token.TOKEN_2022_PROGRAM_ID;
      const holder = Keypair.generate();
      const of = new PublicKey(mint);
      const account = token.getAssociatedTokenAddressSync(of, holder.publicKey, true, programId);
      send(
        [
          token.createAssociatedTokenAccountIdempotentInstruction(payer.publicKey, account, holder.publicKey, of, programId),
          token.createReallocateInstruction(account, payer.publicKey, [token.ExtensionType.MemoTransfer], holder.publicKey, [], programId),
          token.createEnableRequiredMemoTransfersInstruction(account, holder.publicKey, [], programId),
        ],
        [holder],
      );
      return holder.publicKey.toBase58();
    },
    test_tokenBalance: ([mint, owner, program]) => {
      const programId = program === "token-2022" ? token.TOKEN_2022_PROGRAM_ID : token.TOKEN_PROGRAM_ID;
      const name = token.getAssociatedTokenAddressSync(new PublicKey(mint), new PublicKey(owner), true, programId);
      const account = svm.getAccount(address(name.toBase58()));
      if (!account.exists) return "0";
      return token.AccountLayout.decode(Buffer.from(account.data)).amount.toString();
    },
  }),
);
