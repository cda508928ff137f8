//! What call data visibly moves, or allows others to move: transfers, allowances, permits, and the calls that
//! batches and wallet contracts forward.
//!
//! Contracts read their arguments leniently: bytes after the end, offsets that no compiler writes,
//! missing bytes that count as zero. So does this, in order to see what they see.

use std::{collections::HashMap, sync::LazyLock};

use alloy_primitives::{Address, U256, address, keccak256};
use alloy_sol_types::abi::{
    self,
    token::{DynSeqToken, PackedSeqToken, TokenSeq, WordToken},
};

use super::coins::is_coin;

/// Longest call data that is read, in bytes: what the pools of nodes take of a transaction.
const MAX_INPUT: usize = 128 << 10;
/// Calls within calls.
const MAX_DEPTH: usize = 8;
/// Bytes of calls that are read in all, however often the same bytes are named; each call counts
/// [`CALL_COST`] more.
const BUDGET: usize = 1 << 20;
const CALL_COST: usize = 256;
/// Zeros behind the arguments, as contracts find them there.
const ZEROS: usize = 1024;

/// In the place of a token that cannot be told. Nobody can have a contract there.
pub(crate) const SOME_TOKEN: Address = Address::repeat_byte(0xff);

/// Something that a call moves, or lets another account move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallEffect {
    /// The contract of the token, or [`SOME_TOKEN`]; `None` for the coin.
    pub token: Option<Address>,
    /// In the smallest unit; [`U256::MAX`] without a limit.
    pub amount: U256,
    /// Who gets it, may take it, or is called; `None` where that cannot be read.
    pub to: Option<Address>,
}

/// What a call does, as far as its data says it. Each contract that is called is among the
/// recipients; a call that cannot be read moves all of the contract's tokens to nobody knows whom.
pub(crate) fn effects(chain_id: u64, to: Address, value: U256, input: &[u8]) -> Vec<CallEffect> {
    EffectWalk::new(chain_id, to, value, input).effects
}

/// Whether a call lets, or may let, another account act for the caller from then on.
pub(crate) fn adds_proxy(chain_id: u64, to: Address, input: &[u8]) -> bool {
    EffectWalk::new(chain_id, to, U256::ZERO, input).adds_proxy
}

/// How a call is read.
#[derive(Clone, Copy)]
enum CallForm {
    /// An amount of a token to one recipient, all in the words of the arguments.
    Pays(TokenSource, usize, AmountSource),
    /// Anything else: `None` when it cannot be read.
    Reads(fn(&mut EffectWalk, Address, &[u8], usize) -> Option<()>),
}

#[derive(Clone, Copy)]
enum TokenSource {
    /// The contract that is called.
    Called,
    /// The address in this word.
    At(usize),
    /// One that another chain knows.
    Some,
}

#[derive(Clone, Copy)]
enum AmountSource {
    /// The number in this word. 0 counts as 1: for some contracts it is the number of a thing.
    At(usize),
    /// One thing.
    One,
    /// Without a limit.
    All,
    /// Without a limit where this word says so; else nothing.
    AllIf(usize),
}

use AmountSource::{All, AllIf, At, One};
use CallForm::{Pays, Reads};
use TokenSource::Called;

/// The calls that are read, by their signatures.
type CallForms = &'static [(&'static str, CallForm)];

#[rustfmt::skip]
const TOKENS: CallForms = &[
    // EIP-20 and what most tokens add
    ("transfer(address,uint256)", Pays(Called, 0, At(1))),
    ("transferFrom(address,address,uint256)", Pays(Called, 1, At(2))),
    ("approve(address,uint256)", Pays(Called, 0, At(1))),
    ("increaseAllowance(address,uint256)", Pays(Called, 0, At(1))),
    ("increaseApproval(address,uint256)", Pays(Called, 0, At(1))),
    // DAI, DSToken, AMPL, wrapped coins; stETH counts in shares, which are worth more than one
    ("push(address,uint256)", Pays(Called, 0, At(1))),
    ("pull(address,uint256)", Pays(Called, 0, At(1))),
    ("move(address,address,uint256)", Pays(Called, 1, At(2))),
    ("approve(address)", Pays(Called, 0, All)),
    ("transferAll(address)", Pays(Called, 0, All)),
    ("transferAllFrom(address,address)", Pays(Called, 1, All)),
    ("withdrawTo(address,uint256)", Pays(Called, 0, At(1))),
    ("transferShares(address,uint256)", Pays(Called, 0, All)),
    ("transferSharesFrom(address,address,uint256)", Pays(Called, 1, All)),
    ("transferWithComment(address,uint256,string)", Pays(Called, 0, At(1))),
    // EIP-1363, ERC-677
    ("transferAndCall(address,uint256)", Pays(Called, 0, At(1))),
    ("transferAndCall(address,uint256,bytes)", Pays(Called, 0, At(1))),
    ("transferFromAndCall(address,address,uint256)", Pays(Called, 1, At(2))),
    ("transferFromAndCall(address,address,uint256,bytes)", Pays(Called, 1, At(2))),
    ("approveAndCall(address,uint256)", Pays(Called, 0, At(1))),
    ("approveAndCall(address,uint256,bytes)", Pays(Called, 0, At(1))),
    // EIP-777
    ("send(address,uint256,bytes)", Pays(Called, 0, At(1))),
    ("operatorSend(address,address,uint256,bytes,bytes)", Pays(Called, 1, At(2))),
    ("authorizeOperator(address)", Pays(Called, 0, All)),
    // EIP-2612, EIP-7597, DAI, EIP-4494 and the positions of Uniswap
    ("permit(address,address,uint256,uint256,uint8,bytes32,bytes32)", Pays(Called, 1, At(2))),
    ("permit(address,address,uint256,uint256,bytes)", Pays(Called, 1, At(2))),
    ("permit(address,address,uint256,uint256,bool,uint8,bytes32,bytes32)", Pays(Called, 1, AllIf(4))),
    ("permit(address,uint256,uint256,bytes)", Pays(Called, 0, One)),
    ("permit(address,uint256,uint256,uint8,bytes32,bytes32)", Pays(Called, 0, One)),
    // EIP-3009
    ("transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)", Pays(Called, 1, At(2))),
    ("transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)", Pays(Called, 1, At(2))),
    ("receiveWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)", Pays(Called, 1, At(2))),
    ("receiveWithAuthorization(address,address,uint256,uint256,uint256,bytes32,bytes)", Pays(Called, 1, At(2))),
    // EIP-721, EIP-1155, EIP-6909
    ("setApprovalForAll(address,bool)", Pays(Called, 0, AllIf(1))),
    ("safeTransferFrom(address,address,uint256)", Pays(Called, 1, One)),
    ("safeTransferFrom(address,address,uint256,bytes)", Pays(Called, 1, One)),
    ("safeTransferFrom(address,address,uint256,uint256,bytes)", Pays(Called, 1, At(3))),
    ("setOperator(address,bool)", Pays(Called, 0, AllIf(1))),
    ("approve(address,uint256,uint256)", Pays(Called, 0, At(2))),
    ("transfer(address,uint256,uint256)", Pays(Called, 0, At(2))),
    ("transferFrom(address,address,uint256,uint256)", Pays(Called, 1, At(3))),
    // Deposits and what is taken out of them, for whom (EIP-4626, Aave, Compound)
    ("deposit(uint256,address)", Pays(Called, 1, At(0))),
    ("mint(uint256,address)", Pays(Called, 1, At(0))),
    ("withdraw(uint256,address,address)", Pays(Called, 1, At(0))),
    ("redeem(uint256,address,address)", Pays(Called, 1, At(0))),
    ("withdraw(address,uint256,address)", Pays(TokenSource::At(0), 2, At(1))),
    ("supply(address,uint256,address,uint16)", Pays(TokenSource::At(0), 2, At(1))),
    ("supplyWithPermit(address,uint256,address,uint16,uint256,uint8,bytes32,bytes32)", Pays(TokenSource::At(0), 2, At(1))),
    ("deposit(address,uint256,address,uint16)", Pays(TokenSource::At(0), 2, At(1))),
    ("repay(address,uint256,uint256,address)", Pays(TokenSource::At(0), 3, At(1))),
    ("supplyTo(address,address,uint256)", Pays(TokenSource::At(1), 0, At(2))),
    ("withdrawTo(address,address,uint256)", Pays(TokenSource::At(1), 0, At(2))),
    ("supplyFrom(address,address,address,uint256)", Pays(TokenSource::At(2), 1, At(3))),
    ("withdrawFrom(address,address,address,uint256)", Pays(TokenSource::At(2), 1, At(3))),
    ("transferAsset(address,address,uint256)", Pays(TokenSource::At(1), 0, At(2))),
    ("transferAssetFrom(address,address,address,uint256)", Pays(TokenSource::At(2), 1, At(3))),
    ("approveDelegation(address,uint256)", Pays(Called, 0, At(1))),
    ("allow(address,bool)", Pays(Called, 0, AllIf(1))),
    ("safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)", Reads(safe_batch)),
    // Bridges that take their own tokens without an allowance (OP stack, Arbitrum), LayerZero's OFT
    ("withdrawTo(address,address,uint256,uint32,bytes)", Pays(TokenSource::At(0), 1, At(2))),
    ("bridgeERC20To(address,address,address,uint256,uint32,bytes)", Pays(TokenSource::At(0), 2, At(3))),
    ("outboundTransfer(address,address,uint256,bytes)", Pays(TokenSource::Some, 1, At(2))),
    ("send((uint32,bytes32,uint256,uint256,bytes,bytes,bytes),(uint256,uint256),address)", Reads(oft_send)),
];

#[rustfmt::skip]
const PERMIT2: CallForms = &[
    ("approve(address,address,uint160,uint48)", Pays(TokenSource::At(0), 1, At(2))),
    ("transferFrom(address,address,uint160,address)", Pays(TokenSource::At(3), 1, At(2))),
    ("transferFrom((address,address,uint160,address)[])", Reads(permit2_transfers)),
    ("permit(address,((address,uint160,uint48,uint48),address,uint256),bytes)", Pays(TokenSource::At(1), 5, At(2))),
    ("permit(address,((address,uint160,uint48,uint48)[],address,uint256),bytes)", Reads(permit2_batch)),
    ("permitTransferFrom(((address,uint256),uint256,uint256),(address,uint256),address,bytes)", Pays(TokenSource::At(0), 4, At(5))),
    ("permitWitnessTransferFrom(((address,uint256),uint256,uint256),(address,uint256),address,bytes32,string,bytes)", Pays(TokenSource::At(0), 4, At(5))),
    ("permitTransferFrom(((address,uint256)[],uint256,uint256),(address,uint256)[],address,bytes)", Reads(permit2_paid)),
    ("permitWitnessTransferFrom(((address,uint256)[],uint256,uint256),(address,uint256)[],address,bytes32,string,bytes)", Reads(permit2_paid)),
];

#[rustfmt::skip]
const BATCHES: CallForms = &[
    // Calls of the contract itself
    ("multicall(bytes[])", Reads(|walk, to, args, depth| walk.own(to, &read::<(Seq<Bytes<'_>>,)>(args)?.0, depth))),
    ("multicall(uint256,bytes[])", Reads(|walk, to, args, depth| walk.own(to, &read::<(WordToken, Seq<Bytes<'_>>)>(args)?.1, depth))),
    ("multicall(bytes32,bytes[])", Reads(|walk, to, args, depth| walk.own(to, &read::<(WordToken, Seq<Bytes<'_>>)>(args)?.1, depth))),
    ("batch(bytes[],bool)", Reads(|walk, to, args, depth| walk.own(to, &read::<(Seq<Bytes<'_>>, WordToken)>(args)?.0, depth))),
    // Multicall2, Multicall3
    ("aggregate((address,bytes)[])", Reads(aggregate)),
    ("blockAndAggregate((address,bytes)[])", Reads(aggregate)),
    ("tryAggregate(bool,(address,bytes)[])", Reads(try_aggregate)),
    ("tryBlockAndAggregate(bool,(address,bytes)[])", Reads(try_aggregate)),
    ("aggregate3((address,bool,bytes)[])", Reads(aggregate3)),
    ("aggregate3Value((address,bool,uint256,bytes)[])", Reads(aggregate3_value)),
    // Safe
    ("multiSend(bytes)", Reads(multi_send)),
    ("execTransaction(address,uint256,bytes,uint8,uint256,uint256,uint256,address,address,bytes)", Reads(safe)),
    ("execTransactionFromModule(address,uint256,bytes,uint8)", Reads(execute)),
    // Other wallet contracts (ERC-4337 and older)
    ("execute(address,uint256,bytes)", Reads(execute)),
    ("executeBatch((address,uint256,bytes)[])", Reads(execute_batch)),
    ("executeBatch(address[],uint256[],bytes[])", Reads(execute_lists)),
    ("executeBatch(address[],bytes[])", Reads(execute_calls)),
    // Moonbeam
    ("batchAll(address[],uint256[],bytes[],uint64[])", Reads(precompile_batch)),
    ("batchSome(address[],uint256[],bytes[],uint64[])", Reads(precompile_batch)),
    ("batchSomeUntilFailure(address[],uint256[],bytes[],uint64[])", Reads(precompile_batch)),
    // Batch payments
    ("disperseEther(address[],uint256[])", Reads(disperse_coin)),
    ("disperseToken(address,address[],uint256[])", Reads(disperse_token)),
    ("disperseTokenSimple(address,address[],uint256[])", Reads(disperse_token)),
];

/// Moonbeam, Moonriver and their test network.
const MOONBEAMS: [u64; 3] = [1_284, 1_285, 1_287];
/// There: makes calls in the name of who calls it.
const BATCH: Address = address!("0x0000000000000000000000000000000000000808");
/// There: lets others act for who calls it.
const PROXY: Address = address!("0x000000000000000000000000000000000000080b");
/// There: does anything that the chain lets who calls it do.
const DISPATCH: Address = address!("0x0000000000000000000000000000000000000401");

/// HyperEVM and its test network.
const HYPERS: [u64; 2] = [999, 998];
/// There: sends, trades and stakes what its caller has on HyperCore, the chain beside it.
const CORE_WRITER: Address = address!("0x3333333333333333333333333333333333333333");

/// The precompiles that Ethereum has, which move nothing: up to this one, and that of RIP-7212.
const STANDARD: u64 = 0x11;
const P256: u64 = 0x100;

/// Contracts of chains at low numbers that take nothing but the value of the call.
const PLAIN: [(u64, u64, u64); 6] = [
    // BNB Smart Chain: staking, the bridge
    (56, 0x1000, 0x3000),
    (97, 0x1000, 0x3000),
    // Polygon: the coin
    (137, 0x1010, 0x1010),
    // zkSync Era: withdrawals of the coin
    (324, 0x800a, 0x800a),
    // Arbitrum One and Nova: withdrawals of the coin, messages
    (42_161, 0x64, 0x74),
    (42_170, 0x64, 0x74),
];

/// Whether it is a part of the chain itself that may move what the caller has without an allowance or
/// a value: those have low numbers, but one.
fn is_precompile(chain_id: u64, to: &Address) -> bool {
    let (high, low) = to.0.split_at(Address::len_bytes() - 2);
    let number = U256::from_be_slice(low).saturating_to::<u64>();
    let plain = |(chain, first, last): &(u64, u64, u64)| {
        *chain == chain_id && (*first..=*last).contains(&number)
    };
    let is_low = high.iter().all(|byte| *byte == 0)
        && number > STANDARD
        && number != P256
        && !is_coin(Some(chain_id), to)
        && !PLAIN.iter().any(plain);
    is_low || HYPERS.contains(&chain_id) && *to == CORE_WRITER
}

static FORMS: LazyLock<HashMap<[u8; 4], CallForm>> = LazyLock::new(|| {
    let all = TOKENS.iter().chain(PERMIT2).chain(BATCHES);
    all.filter_map(|(signature, form)| Some((selector(signature)?, *form)))
        .collect()
});

fn selector(signature: &str) -> Option<[u8; 4]> {
    keccak256(signature).first_chunk().copied()
}

type Bytes<'a> = PackedSeqToken<'a>;
type Seq<T> = DynSeqToken<T>;

/// The arguments. Bytes are not copied, so that the same bytes named many times take no room.
fn read<'a, T: TokenSeq<'a>>(args: &'a [u8]) -> Option<T> {
    abi::decode_sequence(args).ok()
}

fn address(word: &WordToken) -> Address {
    Address::from_word(word.0)
}

fn number(word: &WordToken) -> U256 {
    word.0.into()
}

/// A word of the arguments.
fn word(args: &[u8], place: usize) -> Option<WordToken> {
    let (words, _) = args.as_chunks::<32>();
    words.get(place).map(|word| WordToken::from(*word))
}

struct EffectWalk {
    chain_id: u64,
    effects: Vec<CallEffect>,
    adds_proxy: bool,
    budget: usize,
}

impl EffectWalk {
    fn new(chain_id: u64, to: Address, value: U256, input: &[u8]) -> Self {
        let mut walk = Self {
            chain_id,
            effects: Vec::new(),
            adds_proxy: false,
            budget: BUDGET,
        };
        walk.call(to, value, input, MAX_DEPTH);
        walk
    }

    /// A call with a value. What it passes on counts where it goes, the rest with the contract.
    fn call(&mut self, to: Address, value: U256, input: &[u8], depth: usize) {
        let place = self.effects.len();
        self.push(None, value, to);
        self.inner_call(to, input, depth);
        let inner = self.effects.iter().skip(place + 1);
        let passed_on = inner
            .filter(|effect| effect.token.is_none())
            .fold(U256::ZERO, |sum, effect| sum.saturating_add(effect.amount));
        if let Some(own) = self.effects.get_mut(place) {
            own.amount = value.saturating_sub(passed_on);
        }
    }

    /// What the data of a call says.
    fn inner_call(&mut self, to: Address, input: &[u8], depth: usize) {
        let is_batch = to == BATCH && MOONBEAMS.contains(&self.chain_id);
        if is_precompile(self.chain_id, &to) && !is_batch && !input.is_empty() {
            self.precompile(to, input);
            return;
        }
        let Some((selector, args)) = input.split_first_chunk::<4>() else {
            return;
        };
        let Some(form) = FORMS.get(selector) else {
            return;
        };
        let cost = input.len().saturating_add(CALL_COST);
        let left = self.budget.checked_sub(cost);
        self.budget = left.unwrap_or(0);
        let fits = left.is_some() && depth > 0 && input.len() <= MAX_INPUT;
        let done = fits.then(|| {
            let mut padded = args.to_vec();
            padded.resize(args.len() + ZEROS, 0);
            match *form {
                Pays(token, recipient, amount) => self.pay(to, &padded, token, recipient, amount),
                Reads(read) => read(self, to, &padded, depth - 1),
            }
        });
        if done.flatten().is_none() {
            if is_batch {
                self.adds_proxy = true;
                self.precompile(to, input);
                return;
            }
            self.effects.push(CallEffect {
                token: Some(to),
                amount: U256::MAX,
                to: None,
            });
        }
    }

    /// A part of the chain itself, which may do anything with what the caller has.
    fn precompile(&mut self, to: Address, input: &[u8]) {
        let takes_back = ["removeProxy(address,uint8,uint32)", "removeProxies()"];
        let harmless = |call: &&str| selector(call).is_some_and(|head| input.starts_with(&head));
        self.adds_proxy |= MOONBEAMS.contains(&self.chain_id)
            && (to == DISPATCH || to == PROXY && !takes_back.iter().any(harmless));
        let all = [None, Some(SOME_TOKEN)].map(|token| CallEffect {
            token,
            amount: U256::MAX,
            to: None,
        });
        self.effects.extend(all);
    }

    fn pay(
        &mut self,
        called: Address,
        args: &[u8],
        token: TokenSource,
        recipient: usize,
        amount: AmountSource,
    ) -> Option<()> {
        let token = match token {
            TokenSource::Called => called,
            TokenSource::At(place) => address(&word(args, place)?),
            TokenSource::Some => SOME_TOKEN,
        };
        let amount = match amount {
            At(place) => number(&word(args, place)?).max(U256::ONE),
            One => U256::ONE,
            AllIf(place) if number(&word(args, place)?).is_zero() => return Some(()),
            All | AllIf(_) => U256::MAX,
        };
        self.push(Some(token), amount, address(&word(args, recipient)?));
        Some(())
    }

    fn push(&mut self, token: Option<Address>, amount: U256, to: Address) {
        self.effects.push(CallEffect {
            token,
            amount,
            to: Some(to),
        });
    }

    /// Calls of the contract by itself, in the name of who calls it.
    fn own(&mut self, to: Address, calls: &Seq<Bytes<'_>>, depth: usize) -> Option<()> {
        for call in &calls.0 {
            self.inner_call(to, call.0, depth);
        }
        Some(())
    }

    /// Pairs of recipients and amounts.
    fn pairs(
        &mut self,
        token: Option<Address>,
        to: &Seq<WordToken>,
        amounts: &Seq<WordToken>,
    ) -> Option<()> {
        for (to, amount) in to.0.iter().zip(&amounts.0) {
            self.push(token, number(amount), address(to));
        }
        (to.0.len() == amounts.0.len()).then_some(())
    }
}

fn safe_batch(walk: &mut EffectWalk, to: Address, args: &[u8], _: usize) -> Option<()> {
    type Args<'a> = (
        WordToken,
        WordToken,
        Seq<WordToken>,
        Seq<WordToken>,
        Bytes<'a>,
    );
    let (_, recipient, _, amounts, _) = read::<Args<'_>>(args)?;
    let sum = amounts
        .0
        .iter()
        .fold(U256::ZERO, |sum, amount| sum.saturating_add(number(amount)));
    walk.push(Some(to), sum.max(U256::ONE), address(&recipient));
    Some(())
}

/// The recipient is on another chain, where addresses may be longer than here. Who is refunded gets
/// what was paid too much for the message.
fn oft_send(walk: &mut EffectWalk, to: Address, args: &[u8], _: usize) -> Option<()> {
    type Parameters<'a> = (
        WordToken,
        WordToken,
        WordToken,
        WordToken,
        Bytes<'a>,
        Bytes<'a>,
        Bytes<'a>,
    );
    type Fee = (WordToken, WordToken);
    let ((_, recipient, amount, ..), _, refunded) = read::<(Parameters<'_>, Fee, WordToken)>(args)?;
    let (high, _) = recipient.0.split_at(12);
    walk.effects.push(CallEffect {
        token: Some(to),
        amount: number(&amount),
        to: high
            .iter()
            .all(|byte| *byte == 0)
            .then(|| address(&recipient)),
    });
    walk.push(None, U256::ZERO, address(&refunded));
    Some(())
}

fn permit2_transfers(walk: &mut EffectWalk, _: Address, args: &[u8], _: usize) -> Option<()> {
    let (transfers,) = read::<(Seq<(WordToken, WordToken, WordToken, WordToken)>,)>(args)?;
    for (_, to, amount, token) in &transfers.0 {
        walk.push(Some(address(token)), number(amount), address(to));
    }
    Some(())
}

fn permit2_batch(walk: &mut EffectWalk, _: Address, args: &[u8], _: usize) -> Option<()> {
    type Details = Seq<(WordToken, WordToken, WordToken, WordToken)>;
    let (_, (details, spender, _), _) =
        read::<(WordToken, (Details, WordToken, WordToken), Bytes<'_>)>(args)?;
    for (token, amount, ..) in &details.0 {
        walk.push(Some(address(token)), number(amount), address(&spender));
    }
    Some(())
}

/// What is paid, and to whom, stands at the beginning of both forms.
fn permit2_paid(walk: &mut EffectWalk, _: Address, args: &[u8], _: usize) -> Option<()> {
    type Pairs = Seq<(WordToken, WordToken)>;
    let ((permitted, ..), paid) = read::<((Pairs, WordToken, WordToken), Pairs)>(args)?;
    for ((token, _), (to, amount)) in permitted.0.iter().zip(&paid.0) {
        walk.push(Some(address(token)), number(amount), address(to));
    }
    (permitted.0.len() == paid.0.len()).then_some(())
}

fn aggregate(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    for (to, input) in &read::<(Seq<(WordToken, Bytes<'_>)>,)>(args)?.0.0 {
        walk.call(address(to), U256::ZERO, input.0, depth);
    }
    Some(())
}

fn try_aggregate(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    for (to, input) in &read::<(WordToken, Seq<(WordToken, Bytes<'_>)>)>(args)?.1.0 {
        walk.call(address(to), U256::ZERO, input.0, depth);
    }
    Some(())
}

fn aggregate3(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    for (to, _, input) in &read::<(Seq<(WordToken, WordToken, Bytes<'_>)>,)>(args)?.0.0 {
        walk.call(address(to), U256::ZERO, input.0, depth);
    }
    Some(())
}

fn aggregate3_value(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    type Calls<'a> = Seq<(WordToken, WordToken, WordToken, Bytes<'a>)>;
    for (to, _, value, input) in &read::<(Calls<'_>,)>(args)?.0.0 {
        walk.call(address(to), number(value), input.0, depth);
    }
    Some(())
}

/// Calls one after the other, each packed: operation, recipient, value, length, data.
fn multi_send(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    let mut rest = read::<(Bytes<'_>,)>(args)?.0.0;
    while !rest.is_empty() {
        let (head, tail) = rest.split_at_checked(1 + 20 + 32 + 32)?;
        let (to, numbers) = head.get(1..)?.split_first_chunk::<20>()?;
        let (value, length) = numbers.split_first_chunk::<32>()?;
        let length = U256::from_be_slice(length);
        let (input, next) = tail.split_at_checked(usize::try_from(length).ok()?)?;
        let (to, value) = (Address::from(*to), U256::from_be_bytes(*value));
        walk.call(to, value, input, depth);
        rest = next;
    }
    Some(())
}

fn execute(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    let (to, value, input) = read::<(WordToken, WordToken, Bytes<'_>)>(args)?;
    walk.call(address(&to), number(&value), input.0, depth);
    Some(())
}

/// Who refunds the gas gets it from the wallet contract; nobody named is who sends it.
fn safe(walk: &mut EffectWalk, to: Address, args: &[u8], depth: usize) -> Option<()> {
    execute(walk, to, args, depth)?;
    let [price, token, receiver] = [word(args, 6)?, word(args, 7)?, word(args, 8)?];
    let receiver = address(&receiver);
    if !number(&price).is_zero() && !receiver.is_zero() {
        let token = Some(address(&token)).filter(|token| !token.is_zero());
        walk.push(token, U256::ZERO, receiver);
    }
    Some(())
}

fn execute_batch(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    for (to, value, input) in &read::<(Seq<(WordToken, WordToken, Bytes<'_>)>,)>(args)?.0.0 {
        walk.call(address(to), number(value), input.0, depth);
    }
    Some(())
}

fn execute_lists(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    let (to, values, inputs) = read::<(Seq<WordToken>, Seq<WordToken>, Seq<Bytes<'_>>)>(args)?;
    let all = to.0.len();
    // Some take no values for none.
    let values = values.0.into_iter().map(|value| number(&value));
    let values = values.chain(std::iter::repeat(U256::ZERO));
    for ((to, value), input) in to.0.iter().zip(values).zip(&inputs.0) {
        walk.call(address(to), value, input.0, depth);
    }
    (all == inputs.0.len()).then_some(())
}

/// Lists of values and data may be shorter than that of the recipients.
fn precompile_batch(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    type Args<'a> = (
        Seq<WordToken>,
        Seq<WordToken>,
        Seq<Bytes<'a>>,
        Seq<WordToken>,
    );
    let (to, values, inputs, _) = read::<Args<'_>>(args)?;
    for (place, to) in to.0.iter().enumerate() {
        let value = values.0.get(place).map(number).unwrap_or_default();
        let input = inputs.0.get(place).map_or(&[][..], |input| input.0);
        walk.call(address(to), value, input, depth);
    }
    Some(())
}

fn execute_calls(walk: &mut EffectWalk, _: Address, args: &[u8], depth: usize) -> Option<()> {
    let (to, inputs) = read::<(Seq<WordToken>, Seq<Bytes<'_>>)>(args)?;
    for (to, input) in to.0.iter().zip(&inputs.0) {
        walk.call(address(to), U256::ZERO, input.0, depth);
    }
    (to.0.len() == inputs.0.len()).then_some(())
}

fn disperse_coin(walk: &mut EffectWalk, _: Address, args: &[u8], _: usize) -> Option<()> {
    let (to, amounts) = read::<(Seq<WordToken>, Seq<WordToken>)>(args)?;
    walk.pairs(None, &to, &amounts)
}

fn disperse_token(walk: &mut EffectWalk, _: Address, args: &[u8], _: usize) -> Option<()> {
    let (token, to, amounts) = read::<(WordToken, Seq<WordToken>, Seq<WordToken>)>(args)?;
    walk.pairs(Some(address(&token)), &to, &amounts)
}

#[cfg(test)]
#[path = "effect_tests.rs"]
mod tests;
