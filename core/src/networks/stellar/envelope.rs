//! Transaction envelopes in XDR: read within limits, built, hashed, signed.

use stellar_xdr::{
    DecoratedSignature, FeeBumpTransactionInnerTx, Limits, Memo, Operation, OperationBody,
    Preconditions, ReadXdr as _, Signature, SignatureHint, TransactionEnvelope, TransactionExt,
    TransactionV1Envelope, WriteXdr as _,
};

use super::address::address_key;
use crate::fault::Fault;

/// SHA-256 of the passphrase `Public Global Stellar Network ; September 2015`.
///
/// What is signed begins with it, and an envelope does not hold it: one that was made for another
/// network cannot be told from others, and what is signed here is good on the public network only.
pub const NETWORK_ID: [u8; 32] = [
    0x7a, 0xc3, 0x39, 0x97, 0x54, 0x4e, 0x31, 0x75, 0xd2, 0x66, 0xbd, 0x02, 0x24, 0x39, 0xb2, 0x2c,
    0xdb, 0x16, 0x50, 0x8c, 0x01, 0x16, 0x3f, 0x26, 0xe5, 0xcb, 0x2a, 0x3e, 0x10, 0x45, 0xa9, 0x79,
];

/// Bytes of an envelope: about twice what the network takes (100 KiB; 129 KiB where contracts are
/// called).
pub const MAX_BYTES: usize = 256 * 1024;
/// Levels of values within values. The network's own contract host goes to 500, which takes more
/// than half a megabyte of stack; what contracts are called with has some 30.
pub(super) const MAX_DEPTH: u32 = 200;
/// Signatures of an envelope.
pub(crate) const MAX_SIGNATURES: usize = 20;

/// What an account has to keep for each of its entries in the ledger, in stroops: 0.5 XLM.
pub(super) const BASE_RESERVE: i64 = 5_000_000;
/// The entries that the account itself counts as.
pub(super) const ACCOUNT_ENTRIES: i64 = 2;
/// The least that a new account must get, in stroops.
pub(super) const NEW_ACCOUNT: i64 = ACCOUNT_ENTRIES * BASE_RESERVE;
/// The highest price of nodes that is believed where nobody has configured another one, in stroops: 0.1 XLM.
pub(super) const MOST_PRICE: u32 = 1_000_000;
/// The highest base fee that is built with, in stroops: 10 XLM, a million times the network's lowest.
pub(super) const MAX_BASE_FEE: u32 = 100_000_000;

/// Why bytes are not a transaction envelope that can be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Longer than [`MAX_BYTES`].
    #[error("exceeds the network's transaction size limit")]
    TooLarge,
    /// Not an envelope, or nested too deep.
    #[error("must be a TransactionEnvelope (v0, v1 or fee bump) in XDR, with nothing after it")]
    Malformed,
    /// It can be read, and would be written in another way: it is not what others read in it.
    #[error("is not canonical XDR")]
    NotCanonical,
}

/// Reads an envelope.
///
/// # Errors
/// See [`EnvelopeError`].
pub fn decode(bytes: &[u8]) -> Result<TransactionEnvelope, EnvelopeError> {
    if bytes.len() > MAX_BYTES {
        return Err(EnvelopeError::TooLarge);
    }
    let limits = Limits {
        depth: MAX_DEPTH,
        len: MAX_BYTES,
    };
    let envelope =
        TransactionEnvelope::from_xdr(bytes, limits).map_err(|_| EnvelopeError::Malformed)?;
    // The library reads some values leniently (booleans), and hashes what it would write.
    match envelope.to_xdr(Limits::none()) {
        Ok(written) if written == bytes => Ok(envelope),
        Ok(_) | Err(_) => Err(EnvelopeError::NotCanonical),
    }
}

/// Reads what was written here.
pub(super) fn decode_own(bytes: &[u8]) -> Result<TransactionEnvelope, Fault> {
    decode(bytes).map_err(|error| Fault::bug(format_args!("the unsigned transaction {error}")))
}

/// What was built, or read within limits, needs none.
pub(super) fn encode(envelope: &TransactionEnvelope) -> Result<Vec<u8>, Fault> {
    envelope.to_xdr(Limits::none()).map_err(Fault::bug)
}

/// What is signed: SHA-256 of network id, type and transaction. A v0 transaction is hashed as the
/// v1 transaction that it means (CAP-15).
pub(super) fn digest(envelope: &TransactionEnvelope) -> Result<[u8; 32], Fault> {
    envelope.hash(NETWORK_ID).map_err(Fault::bug)
}

/// What all forms of an envelope have.
pub(crate) struct EnvelopeParts<'a> {
    /// Key of the account that runs the transaction and whose sequence number it uses.
    pub source: &'a [u8; 32],
    /// Key of the account that pays the fee: the source, unless the envelope is a fee bump.
    pub payer: &'a [u8; 32],
    /// The most that the network takes, in stroops. Of a fee bump, its own: that of the inner
    /// transaction is not taken.
    pub fee: i64,
    /// The sequence number.
    pub sequence: i64,
    /// Whether it may leave numbers out (CAP-21): the account then has the transaction's.
    pub skips: bool,
    /// The memo.
    pub memo: &'a Memo,
    /// What the transaction does.
    pub operations: &'a [Operation],
    /// Signatures that are there; of a fee bump, those of the fee bump itself.
    pub signatures: usize,
    /// Whether it is a fee bump.
    pub is_bump: bool,
}

pub(crate) fn parts(envelope: &TransactionEnvelope) -> EnvelopeParts<'_> {
    match envelope {
        TransactionEnvelope::TxV0(envelope) => EnvelopeParts {
            source: &envelope.tx.source_account_ed25519.0,
            payer: &envelope.tx.source_account_ed25519.0,
            fee: envelope.tx.fee.into(),
            sequence: envelope.tx.seq_num.0,
            skips: false,
            memo: &envelope.tx.memo,
            operations: &envelope.tx.operations,
            signatures: envelope.signatures.len(),
            is_bump: false,
        },
        TransactionEnvelope::Tx(envelope) => parts_v1(envelope),
        TransactionEnvelope::TxFeeBump(envelope) => {
            let FeeBumpTransactionInnerTx::Tx(inner) = &envelope.tx.inner_tx;
            EnvelopeParts {
                payer: address_key(&envelope.tx.fee_source),
                fee: envelope.tx.fee,
                signatures: envelope.signatures.len(),
                is_bump: true,
                ..parts_v1(inner)
            }
        }
    }
}

/// What an envelope offers for a place in a ledger, in stroops per operation, rounded up; a fee bump counts as one
/// operation more. What contracts use is paid beside it, at the network's own prices.
pub(super) fn price(envelope: &TransactionEnvelope) -> u128 {
    let parts = parts(envelope);
    let resources = match envelope {
        TransactionEnvelope::TxV0(_) => 0,
        TransactionEnvelope::Tx(envelope) => resource_fee(envelope),
        TransactionEnvelope::TxFeeBump(envelope) => {
            let FeeBumpTransactionInnerTx::Tx(inner) = &envelope.tx.inner_tx;
            resource_fee(inner)
        }
    };
    let operations = parts
        .operations
        .len()
        .saturating_add(usize::from(parts.is_bump));
    let offered = parts.fee.saturating_sub(resources).max(0);
    u128::from(offered.unsigned_abs()).div_ceil(operations.max(1) as u128)
}

/// What contracts use; nothing else has a fee beside that of its operations.
fn resource_fee(envelope: &TransactionV1Envelope) -> i64 {
    match &envelope.tx.ext {
        TransactionExt::V1(contracts) if is_contract_call(&envelope.tx.operations) => {
            contracts.resource_fee.max(0)
        }
        TransactionExt::V0 | TransactionExt::V1(_) => 0,
    }
}

fn parts_v1(envelope: &TransactionV1Envelope) -> EnvelopeParts<'_> {
    let source = address_key(&envelope.tx.source_account);
    EnvelopeParts {
        source,
        payer: source,
        fee: envelope.tx.fee.into(),
        sequence: envelope.tx.seq_num.0,
        skips: matches!(
            &envelope.tx.cond,
            Preconditions::V2(conditions) if conditions.min_seq_num.is_some()
        ),
        memo: &envelope.tx.memo,
        operations: &envelope.tx.operations,
        signatures: envelope.signatures.len(),
        is_bump: false,
    }
}

impl<'a> EnvelopeParts<'a> {
    /// The operations that an account runs.
    pub fn operations_of<'k>(
        &self,
        key: &'k [u8; 32],
    ) -> impl Iterator<Item = &'a OperationBody> + use<'a, 'k> {
        let source = self.source;
        self.operations
            .iter()
            .filter(move |operation| {
                let account = operation.source_account.as_ref();
                account.map_or(source, address_key) == key
            })
            .map(|operation| &operation.body)
    }

    /// Whether the envelope needs a signature of the account. What the inner transaction of a fee
    /// bump needs stands in that transaction, and the network refuses signatures that are not
    /// needed.
    pub fn takes_signature_of(&self, key: &[u8; 32]) -> bool {
        if self.is_bump {
            return self.payer == key;
        }
        self.source == key || self.operations_of(key).next().is_some()
    }
}

/// Whether an envelope calls a contract, or keeps what contracts have stored: what nodes simulate. The
/// network takes such an operation only alone in its transaction.
pub fn calls_contract(bytes: &[u8]) -> bool {
    let Ok(TransactionEnvelope::Tx(envelope)) = decode(bytes) else {
        return false;
    };
    is_contract_call(&envelope.tx.operations)
}

fn is_contract_call(operations: &[Operation]) -> bool {
    matches!(
        operations,
        [Operation {
            body: OperationBody::InvokeHostFunction(_)
                | OperationBody::ExtendFootprintTtl(_)
                | OperationBody::RestoreFootprint(_),
            ..
        }]
    )
}

/// The number after `sequence`, when an account can have it.
pub(super) fn following(sequence: u64) -> Result<i64, Fault> {
    sequence
        .checked_add(1)
        .and_then(|next| i64::try_from(next).ok())
        .ok_or_else(|| {
            Fault::field(
                "sequence",
                "the chain node reports the highest possible sequence number",
            )
        })
}

/// Appends a signature.
pub(super) fn sign(
    envelope: &mut TransactionEnvelope,
    key: &[u8; 32],
    signature: [u8; 64],
) -> Result<(), Fault> {
    let list = match envelope {
        TransactionEnvelope::TxV0(envelope) => &mut envelope.signatures,
        TransactionEnvelope::Tx(envelope) => &mut envelope.signatures,
        TransactionEnvelope::TxFeeBump(envelope) => &mut envelope.signatures,
    };
    let [.., a, b, c, d] = *key;
    let mut all = list.to_vec();
    all.push(DecoratedSignature {
        hint: SignatureHint([a, b, c, d]),
        signature: Signature(signature.try_into().map_err(Fault::bug)?),
    });
    *list = all.try_into().map_err(Fault::bug)?;
    Ok(())
}

/// The name of the first thing in which an envelope differs from another.
pub(super) fn difference(built: &[u8], shown: &[u8]) -> Option<&'static str> {
    let (built, shown) = (decode(built).ok()?, decode(shown).ok()?);
    let (one, other) = (parts(&built), parts(&shown));
    if one.source != other.source {
        return Some("from");
    }
    if one.operations != other.operations {
        return Some(match (one.operations, other.operations) {
            ([one], [other]) if one.source_account == other.source_account => {
                operation_difference(&one.body, &other.body)
            }
            _ => "operations",
        });
    }
    if one.memo != other.memo {
        return Some("memo");
    }
    if one.sequence != other.sequence {
        return Some("sequence");
    }
    if (one.payer, one.fee) != (other.payer, other.fee) {
        return Some("fee");
    }
    (built != shown).then_some("conditions")
}

fn operation_difference(one: &OperationBody, other: &OperationBody) -> &'static str {
    let transfer = |body: &OperationBody| match body {
        OperationBody::Payment(op) => Some((op.destination.clone(), op.asset.clone(), op.amount)),
        OperationBody::CreateAccount(op) => Some((
            op.destination.clone().into(),
            stellar_xdr::Asset::Native,
            op.starting_balance,
        )),
        _ => None,
    };
    match (transfer(one), transfer(other)) {
        (Some((one, ..)), Some((other, ..))) if one != other => "recipient",
        (Some((_, one, _)), Some((_, other, _))) if one != other => "asset",
        (Some((.., one)), Some((.., other))) if one != other => "amount",
        _ => match (one, other) {
            (OperationBody::ChangeTrust(one), OperationBody::ChangeTrust(other))
                if one.line != other.line =>
            {
                "asset"
            }
            _ => "operations",
        },
    }
}
