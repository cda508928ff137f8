//! What Covault needs of a network: addresses, the queries to its nodes, transactions, the bytes to sign and
//! the signed form.
//!
//! Pure: what the chain says arrives as chain data, and the same payload with the same chain data
//! always gives the same bytes. Signer nodes rebuild them from a signing order that way.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use super::{network::Network, payload::NetworkPayload};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    signature::{Curve, Signature},
};

/// One thing to be signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningInput {
    /// The key it needs.
    pub curve: Curve,
    /// What is handed to the signature algorithm: the 32-byte digest for ECDSA, the whole
    /// message for Ed25519.
    pub message: Vec<u8>,
}

/// A transaction or message before it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsigned {
    /// The network's encoding of the unsigned transaction; empty for messages.
    pub bytes: Vec<u8>,
    /// What to sign, in order; never empty.
    pub signing: Vec<SigningInput>,
}

/// A signed transaction, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// `signedTransaction` of the API: the text that the network's tools take
    /// (EVM: `0x` and hex; Solana: base64).
    pub transaction: String,
    /// The transaction id as explorers show it. Known before anything is sent.
    pub tx_hash: String,
}

/// Something of which two transactions must not use the same. Held by a request from the moment
/// that its transaction is built, in the commit that stores the transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// A nonce or sequence number of the sender's account.
    Nonce(u64),
    /// Something that is spent as a whole, by the name that the network gives it: an output
    /// (`txid:vout`), an object or coin.
    Object(String),
    /// The transaction itself (its signed message, hashed): where nothing else tells two equal
    /// payments apart, the network would take the second for the first.
    TxHash([u8; 32]),
}

/// The chains of a network whose signatures name their chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainIds {
    /// Whether a chain id is one of them.
    pub contains: fn(u64) -> bool,
    /// The message for a text that is not one of them.
    pub problem: &'static str,
    /// How one is written, e.g. `evm:1`.
    pub example: &'static str,
}

/// A moment of a chain: a state of it whose clock shows this time or a later one, and whose newest block has this
/// number or a higher one. 0: any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainMoment {
    /// By the chain's own clock, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The number of a block, or of a ledger.
    pub height: u64,
}

impl ChainMoment {
    /// Any.
    pub const ANY: Self = Self {
        time_ms: 0,
        height: 0,
    };

    /// This time.
    pub const fn at_ms(time_ms: u64) -> Self {
        Self {
            time_ms,
            ..Self::ANY
        }
    }

    /// This block.
    pub const fn at_height(height: u64) -> Self {
        Self {
            height,
            ..Self::ANY
        }
    }

    /// The first moment that is both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            time_ms: self.time_ms.max(other.time_ms),
            height: self.height.max(other.height),
        }
    }
}

/// As people read it after "from".
impl fmt::Display for ChainMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { time_ms, height: 0 } => {
                write!(f, "{time_ms} (milliseconds since the Unix epoch)")
            }
            Self { time_ms: 0, height } => write!(f, "block {height}"),
            Self { time_ms, height } => {
                write!(
                    f,
                    "block {height} and {time_ms} (milliseconds since the Unix epoch)"
                )
            }
        }
    }
}

/// How a transaction is replaced by another one that takes its place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replacement {
    /// The same again, at a higher price.
    SpeedUp,
    /// One that moves nothing to anyone else, at a higher price.
    Cancel,
}

/// What [`NetworkRules::allocate`] made of the chain data, which is of type `D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation<D> {
    /// Chain data that no other request builds on.
    ChainData(D),
    /// Nothing is free now that the chain has; other requests hold it. Ask again later: why, in
    /// words that a person can act on.
    Wait(String),
}

/// The rules of one network.
pub trait NetworkRules: Sync {
    /// Its checked payload kinds.
    type Payload: NetworkPayload;
    /// What its nodes are asked.
    type Queries;
    /// What they answer.
    type ChainData: Clone;

    /// Which network this is.
    const NETWORK: Network;
    /// What its nodes name prices in, for people: `wei per unit of gas`.
    const PRICE_UNIT: &'static str = "";
    /// Whether the hash of a transaction is the same whatever its signatures are.
    const HASH_BEFORE_SIGNING: bool = false;
    /// Whether the transactions of an account have numbers that follow each other: of two with one number the chain
    /// takes one.
    const IS_NUMBERED: bool = false;
    /// How long a transaction may wait for a block before it is listed as stuck, in milliseconds.
    const PATIENCE_MS: u64 = 600_000;
    /// How long a transaction may be in a block before it is final, before it is listed as stuck, in milliseconds: far
    /// more than the network takes.
    const FINALITY_MS: u64 = 3_600_000;
    /// The most that one transaction may cost where a signer node's own rules name no fee, in the smallest unit of the
    /// coin: far above what [`NetworkRules::build`] and the network ask for.
    const DEFAULT_MOST_FEE: u64;
    /// When a transaction ends by itself that cannot be replaced, for people.
    const ENDS_BY_ITSELF: &'static str = "it expires by itself";

    /// The address of a public key (secp256k1: 33 bytes compressed, SEC 1; Ed25519: 32 bytes).
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the key is not on the curve.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault>;

    /// Whether an address in canonical form is one of a public key's: the one of
    /// [`NetworkRules::address`], or another that the network has for the same key.
    /// The one address of the key, unless the network says otherwise.
    ///
    /// # Errors
    /// As [`NetworkRules::address`].
    fn owns(&self, public_key: &[u8], address: &str) -> Result<bool, Fault> {
        Ok(self.address(public_key)? == address)
    }

    /// The canonical form of an address, checksum verified.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with a sentence that says what is wrong; the caller
    /// adds the field with [`Fault::with_prefix`] or [`Fault::field`].
    fn parse_address(&self, text: &str) -> Result<String, Fault>;

    /// The canonical form of a token of this network: a contract, mint, coin type or asset.
    /// An address, unless the network says otherwise.
    ///
    /// # Errors
    /// As [`NetworkRules::parse_address`].
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        self.parse_address(text)
    }

    /// Whether a token in its canonical form is the network's coin by another name
    /// (`0x2::sui::SUI`).
    /// Never, unless the network says otherwise.
    fn is_coin(&self, _token: &str) -> bool {
        false
    }

    /// Whether what nodes say of a transaction in several calls fits together by itself: by blocks that were put on another
    /// one, by the slot or ledger of each answer, or as one answer. Else several nodes behind one address may say what none
    /// of them would: it counts only when they have said so for some time.
    /// They do not, unless the network says otherwise.
    fn answers_fit_together(&self) -> bool {
        false
    }

    /// The name under which amounts of a token are counted, which is given in its canonical form;
    /// `None` when it is the coin of its chain. One token may have several names.
    fn counted_token(&self, _chain_id: Option<u64>, token: String) -> Option<String> {
        (!self.is_coin(&token)).then_some(token)
    }

    /// The chains that signatures name. `None`, unless the network says otherwise: a signature is
    /// good on every chain of the network.
    fn chain_ids(&self) -> Option<ChainIds> {
        None
    }

    /// What must be known before the payload can be built; `None` for messages and for
    /// transactions that bring everything.
    fn queries(&self, payload: &Self::Payload) -> Option<Self::Queries>;

    /// Whether [`NetworkRules::build`] can use facts that [`NetworkRules::queries`] did not ask for.
    fn accepts_unqueried_chain_data(&self, _payload: &Self::Payload) -> bool {
        false
    }

    /// Whether what the node answers depends on the sender's other transactions (a nonce, unspent
    /// outputs): such requests of one account are built one after the other, by
    /// [`NetworkRules::allocate`].
    fn is_sequenced(&self, _queries: &Self::Queries) -> bool {
        false
    }

    /// The facts that this request may build on, out of what the node answered and what other
    /// requests of the same account hold: the next free nonce, the outputs that are left.
    /// The chain data as it is, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when it can never be built with these facts, and
    /// [`crate::fault::Class::Bug`] when the chain data does not match the queries.
    fn allocate(
        &self,
        _payload: &Self::Payload,
        chain_data: Self::ChainData,
        _taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<Self::ChainData>, Fault> {
        Ok(Allocation::ChainData(chain_data))
    }

    /// The same chain data where the account's next number is another one than nodes said.
    /// As it is, unless the network says otherwise: it has no numbers that follow each other.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the account cannot have such a number.
    fn with_next_number(
        &self,
        chain_data: Self::ChainData,
        _number: u64,
    ) -> Result<Self::ChainData, Fault> {
        Ok(chain_data)
    }

    /// The same chain data where the transaction spends these of the outputs or objects that nodes offered, whatever
    /// else it spends.
    /// As it is, unless the network says otherwise: its transactions spend none.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when they are not named as the network names them.
    fn with_inputs(
        &self,
        chain_data: Self::ChainData,
        _inputs: &BTreeSet<Resource>,
    ) -> Result<Self::ChainData, Fault> {
        Ok(chain_data)
    }

    /// The outputs or objects that the node offered: what others hold of them can be looked up at
    /// once. Empty when it offered none.
    /// None, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when they cannot be read.
    fn candidate_inputs(&self, _chain_data: &Self::ChainData) -> Result<Vec<Resource>, Fault> {
        Ok(Vec::new())
    }

    /// The outputs or objects that the payload itself names, whatever else its transaction takes: as with a number
    /// that it names, a transaction that was sent and uses one of them is replaced.
    /// None, unless the network says otherwise.
    fn named_inputs(&self, _payload: &Self::Payload) -> Vec<Resource> {
        Vec::new()
    }

    /// What the built transaction uses up; nothing else may use it. Empty for messages.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`NetworkRules::build`] made.
    fn reservations(
        &self,
        payload: &Self::Payload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault>;

    /// The name of a transaction whose inputs are signed one by one, each signature over a part of what
    /// the bytes show: those of two orders can make one transaction, although no order has shown it.
    /// `None` where one signature covers all.
    /// `None`, unless the network says otherwise. The bytes are not empty.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`NetworkRules::build`] made.
    fn signed_in_parts(&self, _unsigned: &[u8]) -> Result<Option<[u8; 32]>, Fault> {
        Ok(None)
    }

    /// Checks that the built bytes will do what [`NetworkPayload::outflow`] says of the
    /// payload, where that hangs on facts: on what type a coin object has, which the bytes only
    /// name. Signers ask it, as facts come from others; facts of another network are for
    /// [`NetworkRules::build`] to refuse.
    /// Nothing to check, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path `chain_data`, and [`crate::fault::Class::Bug`]
    /// where the facts cannot be read.
    fn check_chain_data(
        &self,
        _payload: &Self::Payload,
        _chain_data: &Self::ChainData,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// The number of the account `address` that a transaction of this module uses; `None` on networks without
    /// numbers, and where it uses none of that account's.
    /// None, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be read.
    fn sent_number(&self, _signed: &Signed, _address: &str) -> Result<Option<u64>, Fault> {
        Ok(None)
    }

    /// The outputs or objects that a transaction of this module spends, where another one that spends one of them
    /// may have taken its place: of several only the newest is sent again.
    /// None, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be read.
    fn sent_inputs(&self, _signed: &Signed) -> Result<Vec<Resource>, Fault> {
        Ok(Vec::new())
    }

    /// The outputs or objects that a transaction of this module uses up for certain: of two that use up one of them the
    /// chain takes one.
    /// Those of [`NetworkRules::sent_inputs`], unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be read.
    fn exclusive_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        self.sent_inputs(signed)
    }

    /// The outputs that a transaction of this module makes and others of the same wallet can spend before a block has
    /// it: they are gone when another one takes its place.
    /// None, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it cannot be read.
    fn sent_outputs(&self, _signed: &Signed) -> Result<Vec<Resource>, Fault> {
        Ok(Vec::new())
    }

    /// What nodes said, with prices at which they take the transaction in the place of `replaced`, which has the
    /// number or one of the outputs that the payload names.
    /// As it is, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when `replaced` cannot be read.
    fn outbid(
        &self,
        _payload: &Self::Payload,
        chain_data: Self::ChainData,
        _replaced: &Signed,
    ) -> Result<Self::ChainData, Fault> {
        Ok(chain_data)
    }

    /// The payload of an ordinary request whose transaction can only be in the chain instead of `replaced`, never
    /// beside it. `payload` is that of the request which made `replaced`. The result brings no price of its own: nodes
    /// name it, and [`NetworkRules::outbid`] lifts it above that of `replaced`.
    /// Refused, unless the network says otherwise: nothing ties two of its transactions together.
    ///
    /// # Errors
    /// [`Class::Invalid`] with a sentence that says why this one cannot be replaced and what to do; the caller adds
    /// the field. [`Class::Bug`] when `replaced` cannot be read.
    fn replacement(
        &self,
        _payload: &Self::Payload,
        replaced: &Signed,
        _how: Replacement,
    ) -> Result<Self::Payload, Fault> {
        let ends = match self.valid_until(replaced)? {
            Some(end) => format!("it cannot be mined from {end} on"),
            None => Self::ENDS_BY_ITSELF.to_owned(),
        };
        Err(Fault::new(
            Class::Invalid,
            format!(
                "transactions of {} cannot be replaced; {ends}: wait until its transactionState is settled",
                Self::NETWORK.name()
            ),
        ))
    }

    /// The payload of a transaction that pays nobody else and uses the lowest free number of the account that sends
    /// `payload`: what waits behind that number continues, where it would be lost with its time.
    /// None, unless the network says otherwise: it has no numbers.
    fn gap_filler(&self, _payload: &Self::Payload) -> Option<Self::Payload> {
        None
    }

    /// The price per unit that nodes named and the transaction would pay, in [`NetworkRules::PRICE_UNIT`];
    /// `None` where the request brings its own, and for messages.
    /// None, unless the network says otherwise: its nodes name no prices.
    fn quoted_price(
        &self,
        _payload: &Self::Payload,
        _chain_data: &Self::ChainData,
    ) -> Option<u128> {
        None
    }

    /// The highest price per unit that a transaction can pay, whoever named it, in [`NetworkRules::PRICE_UNIT`]; out of
    /// any bytes that `build` can make.
    /// None, unless the network says otherwise: only its fee as a whole is known ([`NetworkRules::most_fee`]).
    ///
    /// # Errors
    /// [`Class::Bug`] when the bytes cannot be read.
    fn paid_price(&self, _unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        Ok(None)
    }

    /// The highest price of nodes that is believed where nobody has configured another one: far above what the
    /// chain has ever asked for long. Orchestrators build nothing with a higher one, and signer nodes sign
    /// nothing.
    /// Any, unless the network says otherwise.
    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        u128::MAX
    }

    /// Builds the transaction or message of the sender, whose key `public_key` is. `chain_data` is
    /// `None` when nothing was asked. Field names in faults are relative to the payload.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] where payload and chain data contradict each other, and
    /// [`crate::fault::Class::Bug`] where the facts are not those that [`NetworkRules::queries`] named.
    fn build(
        &self,
        payload: &Self::Payload,
        chain_data: Option<&Self::ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault>;

    /// The most that the network can take as fee for an unsigned transaction, in the smallest unit
    /// of its coin; 0 for messages, whose bytes are empty. What a chain charges beyond what the
    /// transaction agrees to (the data fee of an EVM rollup) is not in it.
    /// The bytes are not empty.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`NetworkRules::build`] made.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault>;

    /// In what `shown` differs from the transaction `built`, where that has a name: `recipient`,
    /// `amount`, `chainId` and the like.
    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str>;

    /// Puts the signatures into a transaction. There is one per [`Unsigned::signing`], in order, of
    /// the input's curve, and each was verified with `public_key`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the bytes are not what [`NetworkRules::build`] made.
    fn assemble(
        &self,
        payload: &Self::Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault>;

    /// From when on no block can have a signed transaction. `None`: nothing ends it but what else uses up the same. A
    /// number comes free by it ([`Resource::Nonce`]).
    /// For ever, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not what [`NetworkRules::assemble`] made.
    fn valid_until(&self, _signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        Ok(None)
    }

    /// For how long after it was built a block can have a signed transaction at most, in milliseconds, however slow the
    /// chain is. `None`: until what it uses is used otherwise.
    /// For ever, unless the network says otherwise.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not what [`NetworkRules::assemble`] made.
    fn longest_life_ms(&self, _signed: &Signed) -> Result<Option<u64>, Fault> {
        Ok(None)
    }
}

/// The fault of a network's `build` whose facts are missing or of another network.
pub(crate) fn unexpected_chain_data() -> Fault {
    Fault::bug("the chain data does not match the queries")
}

/// The names of outputs or objects among what is used up.
pub(super) fn objects(resources: &BTreeSet<Resource>) -> Vec<String> {
    let name = |resource: &Resource| match resource {
        Resource::Object(name) => Some(name.clone()),
        Resource::Nonce(_) | Resource::TxHash(_) => None,
    };
    resources.iter().filter_map(name).collect()
}

/// The lowest nonce or sequence number from `floor` up that is not taken.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the numbers are used up.
pub(super) fn lowest_free(floor: u64, taken: &BTreeSet<Resource>) -> Result<u64, Fault> {
    let mut nonce = floor;
    while taken.contains(&Resource::Nonce(nonce)) {
        nonce = nonce
            .checked_add(1)
            .ok_or_else(|| Fault::bug("nonces are used up"))?;
    }
    Ok(nonce)
}
