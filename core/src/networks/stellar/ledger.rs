//! What nodes say about the ledger, in XDR and base64: the entries of accounts and trust lines, and the result of a
//! transaction.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use stellar_xdr::{
    AccountEntry, AccountEntryExt, AccountEntryExtensionV1Ext, AccountId, AlphaNum4, AlphaNum12,
    AssetCode, ChangeTrustResult, CreateAccountResult, FeeBumpTransactionInnerTx,
    InnerTransactionResultResult, LedgerBounds, LedgerEntryData, LedgerKey, LedgerKeyAccount,
    LedgerKeyTrustLine, Limits, OperationResult, OperationResultTr, PaymentResult, Preconditions,
    PublicKey, ReadXdr, TimeBounds, TransactionEnvelope, TransactionResult, TransactionResultCode,
    TransactionResultResult, TrustLineAsset, TrustLineEntryExt, Uint256, WriteXdr,
};

use super::{
    address::IssuedAsset,
    envelope::{self, ACCOUNT_ENTRIES, BASE_RESERVE, MAX_BYTES, MAX_DEPTH},
};
use crate::fault::{ExecuteCode, Fault};

/// More than any entry, result or signed transaction has.
const LIMITS: Limits = Limits {
    depth: MAX_DEPTH,
    len: 2 * MAX_BYTES,
};
/// The flag of a trust line that its issuer lets be used.
const AUTHORIZED: u32 = 1;
/// Characters of the name of a failure.
const MAX_NAME: usize = 80;

/// The key of the entry of an account.
///
/// # Errors
/// [`crate::fault::Class::Bug`].
pub fn account_key(account: &AccountId) -> Result<String, Fault> {
    write(&LedgerKey::Account(LedgerKeyAccount {
        account_id: account.clone(),
    }))
}

/// The key of the entry of an account's trust line.
///
/// # Errors
/// [`crate::fault::Class::Bug`].
pub fn trust_line_key(account: &AccountId, asset: &IssuedAsset) -> Result<String, Fault> {
    let issuer = asset.issuer.clone();
    let asset = match asset.code.clone() {
        AssetCode::CreditAlphanum4(asset_code) => {
            TrustLineAsset::CreditAlphanum4(AlphaNum4 { asset_code, issuer })
        }
        AssetCode::CreditAlphanum12(asset_code) => {
            TrustLineAsset::CreditAlphanum12(AlphaNum12 { asset_code, issuer })
        }
    };
    write(&LedgerKey::Trustline(LedgerKeyTrustLine {
        account_id: account.clone(),
        asset,
    }))
}

/// An account in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerAccount {
    /// The last sequence number that it used.
    pub sequence: u64,
    /// Stroops; those that it has to keep are in it.
    pub balance: u64,
    /// Those that it can send, and pay fees with: without its reserve, and without what its offers hold.
    pub spendable: u64,
}

/// A trust line in a ledger, in units of 10^-7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerTrustLine {
    /// What is on it.
    pub balance: u64,
    /// Of that, what its account can send: the rest is held by offers.
    pub spendable: u64,
    /// How much more it takes.
    pub room: u64,
    /// Whether the issuer lets it be used.
    pub is_authorized: bool,
}

/// Reads the entry of an account; `None` when it is not the one of this key.
pub fn read_account(key: &str, entry: &str) -> Option<LedgerAccount> {
    match read_entry(key, entry)? {
        LedgerEntryData::Account(entry) => Some(LedgerAccount {
            sequence: u64::try_from(entry.seq_num.0).ok()?,
            balance: u64::try_from(entry.balance).ok()?,
            spendable: not_negative(entry.balance.saturating_sub(kept(&entry))),
        }),
        _ => None,
    }
}

/// What an account has to keep, in stroops: its reserve, and what its offers hold.
fn kept(account: &AccountEntry) -> i64 {
    let more = match &account.ext {
        AccountEntryExt::V0 => None,
        AccountEntryExt::V1(more) => Some(more),
    };
    let (for_others, by_others) = match more.map(|more| &more.ext) {
        Some(AccountEntryExtensionV1Ext::V2(counts)) => {
            (counts.num_sponsoring, counts.num_sponsored)
        }
        Some(AccountEntryExtensionV1Ext::V0) | None => (0, 0),
    };
    ACCOUNT_ENTRIES
        .saturating_add(account.num_sub_entries.into())
        .saturating_add(for_others.into())
        .saturating_sub(by_others.into())
        .saturating_mul(BASE_RESERVE)
        .saturating_add(more.map_or(0, |more| more.liabilities.selling))
}

fn not_negative(amount: i64) -> u64 {
    amount.max(0).unsigned_abs()
}

/// Reads a trust line; `None` when it is not the one of this key.
pub fn read_trust_line(key: &str, entry: &str) -> Option<LedgerTrustLine> {
    let LedgerEntryData::Trustline(entry) = read_entry(key, entry)? else {
        return None;
    };
    let (buying, selling) = match &entry.ext {
        TrustLineEntryExt::V0 => (0, 0),
        TrustLineEntryExt::V1(more) => (more.liabilities.buying, more.liabilities.selling),
    };
    let room = entry.limit.saturating_sub(entry.balance);
    Some(LedgerTrustLine {
        balance: u64::try_from(entry.balance).ok()?,
        spendable: not_negative(entry.balance.saturating_sub(selling)),
        room: not_negative(room.saturating_sub(buying)),
        is_authorized: entry.flags & AUTHORIZED != 0,
    })
}

fn read_entry(key: &str, entry: &str) -> Option<LedgerEntryData> {
    let entry: LedgerEntryData = read(entry)?;
    (write(&entry.to_key()).ok()? == key).then_some(entry)
}

/// What has to be known of a signed transaction to judge what nodes say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentEnvelope {
    /// The account whose sequence number it uses.
    pub source: AccountId,
    /// That number.
    pub sequence: u64,
    /// Seconds since the Unix epoch: no ledger takes it that closes later.
    pub max_time: Option<u64>,
    /// The number of a ledger: neither it nor a later one takes it.
    pub max_ledger: Option<u32>,
}

/// Reads a signed transaction.
///
/// # Errors
/// [`crate::fault::Class::Bug`]: it was signed here.
pub fn read_sent(transaction: &str) -> Result<SentEnvelope, Fault> {
    let envelope: TransactionEnvelope =
        read(transaction).ok_or_else(|| Fault::bug("not a signed transaction"))?;
    let parts = envelope::parts(&envelope);
    let (times, ledgers) = match &envelope {
        TransactionEnvelope::TxV0(envelope) => (envelope.tx.time_bounds.as_ref(), None),
        TransactionEnvelope::Tx(envelope) => bounds(&envelope.tx.cond),
        TransactionEnvelope::TxFeeBump(envelope) => {
            let FeeBumpTransactionInnerTx::Tx(inner) = &envelope.tx.inner_tx;
            bounds(&inner.tx.cond)
        }
    };
    Ok(SentEnvelope {
        source: AccountId(PublicKey::PublicKeyTypeEd25519(Uint256(*parts.source))),
        sequence: u64::try_from(parts.sequence).map_err(Fault::bug)?,
        // 0 is no bound.
        max_time: times
            .map(|times| times.max_time.0)
            .filter(|time| *time != 0),
        max_ledger: ledgers
            .map(|ledgers| ledgers.max_ledger)
            .filter(|ledger| *ledger != 0),
    })
}

fn bounds(conditions: &Preconditions) -> (Option<&TimeBounds>, Option<&LedgerBounds>) {
    match conditions {
        Preconditions::None => (None, None),
        Preconditions::Time(times) => (Some(times), None),
        Preconditions::V2(conditions) => (
            conditions.time_bounds.as_ref(),
            conditions.ledger_bounds.as_ref(),
        ),
    }
}

/// Why the network does not do, or did not do, what a transaction says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StellarFailure {
    /// What is to be made of it.
    pub cause: FailureCause,
    /// The code that executeSigningRequests reports.
    pub code: ExecuteCode,
    /// As the protocol names it, e.g. `txBAD_AUTH`, `PAYMENT_UNDERFUNDED`.
    pub name: String,
    /// What that means, where people can do something about it.
    pub meaning: Option<&'static str>,
    /// The fee that was taken, in stroops; of a fee that is too low, the one that is wanted.
    pub fee: i64,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// Its sequence number is not the one after the account's.
    Sequence,
    /// Its time is over.
    TooLate,
    /// Not now: its time has not come, or it is the node's own trouble, or nothing that is known of.
    Later,
    /// The fee, as things stand: a node that it was sent to before may have found it good.
    Passing,
    /// The transaction itself.
    Final,
}

/// Reads the result of a transaction: `Some(None)` means success, `None` that it cannot be read.
pub fn read_result(result: &str) -> Option<Option<StellarFailure>> {
    let TransactionResult {
        fee_charged,
        result,
        ..
    } = read(result)?;
    let failure = match &result {
        TransactionResultResult::TxSuccess(_)
        | TransactionResultResult::TxFeeBumpInnerSuccess(_) => return Some(None),
        TransactionResultResult::TxFailed(operations) => {
            failure(result.discriminant(), operations, fee_charged)
        }
        TransactionResultResult::TxFeeBumpInnerFailed(inner) => {
            let operations = match &inner.result.result {
                InnerTransactionResultResult::TxFailed(operations) => operations.as_slice(),
                _ => &[],
            };
            failure(inner.result.result.discriminant(), operations, fee_charged)
        }
        _ => failure(result.discriminant(), &[], fee_charged),
    };
    Some(Some(failure))
}

fn failure(
    code: TransactionResultCode,
    operations: &[OperationResult],
    fee: i64,
) -> StellarFailure {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    let cause = match code {
        TransactionResultCode::TxBadSeq => FailureCause::Sequence,
        TransactionResultCode::TxTooLate => FailureCause::TooLate,
        TransactionResultCode::TxInsufficientBalance
        | TransactionResultCode::TxInsufficientFee
        | TransactionResultCode::TxNoAccount => FailureCause::Passing,
        TransactionResultCode::TxFailed
        | TransactionResultCode::TxFeeBumpInnerFailed
        | TransactionResultCode::TxMissingOperation
        | TransactionResultCode::TxBadAuth
        | TransactionResultCode::TxBadAuthExtra
        | TransactionResultCode::TxNotSupported
        | TransactionResultCode::TxBadSponsorship
        | TransactionResultCode::TxMalformed
        | TransactionResultCode::TxSorobanInvalid => FailureCause::Final,
        _ => FailureCause::Later,
    };
    let (code, name, meaning) = match (code, operations.iter().find_map(operation)) {
        (TransactionResultCode::TxFailed, Some(operation)) => operation,
        (code, _) => {
            let (execute, meaning) = match code {
                TransactionResultCode::TxInsufficientBalance => (
                    InsufficientFunds,
                    Some("the fee account's balance above its reserve does not cover the fee"),
                ),
                TransactionResultCode::TxNoAccount => {
                    (InsufficientFunds, Some("the account does not exist"))
                }
                TransactionResultCode::TxInsufficientFee => (
                    InsufficientGasFee,
                    Some("the fee is below the network's current minimum"),
                ),
                TransactionResultCode::TxBadAuth => (
                    Unspecified,
                    Some("required signatures are missing, or are for another network"),
                ),
                TransactionResultCode::TxBadAuthExtra => {
                    (Unspecified, Some("it has unneeded signatures"))
                }
                _ => (Unspecified, None),
            };
            (execute, protocol_name("tx", code.name(), "Tx"), meaning)
        }
    };
    StellarFailure {
        cause,
        code,
        name,
        meaning,
        fee,
    }
}

/// The failure of an operation; `None` of one that did not fail.
fn operation(result: &OperationResult) -> Option<(ExecuteCode, String, Option<&'static str>)> {
    use ExecuteCode::{InsufficientFunds, Unspecified};
    let name = |operation, name| protocol_name(operation, name, "");
    let result = match result {
        OperationResult::OpInner(result) => result,
        other => {
            let meaning = match other {
                OperationResult::OpNoAccount => {
                    Some("a source account of an operation does not exist")
                }
                OperationResult::OpBadAuth => {
                    Some("a signature of an operation's source account is missing")
                }
                _ => None,
            };
            return Some((
                Unspecified,
                protocol_name("op", other.name(), "Op"),
                meaning,
            ));
        }
    };
    Some(match result {
        OperationResultTr::Payment(PaymentResult::Success)
        | OperationResultTr::CreateAccount(CreateAccountResult::Success)
        | OperationResultTr::ChangeTrust(ChangeTrustResult::Success) => return None,
        OperationResultTr::Payment(payment) => {
            let (code, meaning) = match payment {
                PaymentResult::Underfunded => (
                    InsufficientFunds,
                    Some("the sender's balance above its reserve does not cover the amount"),
                ),
                PaymentResult::SrcNoTrust => (
                    InsufficientFunds,
                    Some("the sender has no trust line for the asset"),
                ),
                PaymentResult::SrcNotAuthorized => (
                    Unspecified,
                    Some("the issuer has not authorized the sender to send the asset"),
                ),
                PaymentResult::NoDestination => (Unspecified, Some("the recipient does not exist")),
                PaymentResult::NoTrust => (
                    Unspecified,
                    Some(
                        "the recipient has no trust line for the asset, and must create one first",
                    ),
                ),
                PaymentResult::NotAuthorized => (
                    Unspecified,
                    Some("the issuer has not authorized the recipient to hold the asset"),
                ),
                PaymentResult::LineFull => (
                    Unspecified,
                    Some("the recipient's trust line limit would be exceeded"),
                ),
                _ => (Unspecified, None),
            };
            (code, name("PAYMENT_", payment.name()), meaning)
        }
        OperationResultTr::CreateAccount(created) => {
            let (code, meaning) = match created {
                CreateAccountResult::Underfunded => (
                    InsufficientFunds,
                    Some("the sender's balance above its reserve does not cover the amount"),
                ),
                CreateAccountResult::LowReserve => (
                    Unspecified,
                    Some("the amount is less than the reserve of a new account"),
                ),
                CreateAccountResult::AlreadyExist => (
                    Unspecified,
                    Some("the recipient exists now; create a new request"),
                ),
                _ => (Unspecified, None),
            };
            (code, name("CREATE_ACCOUNT_", created.name()), meaning)
        }
        OperationResultTr::ChangeTrust(changed) => {
            let (code, meaning) = match changed {
                ChangeTrustResult::LowReserve => (
                    InsufficientFunds,
                    Some("the account's balance does not cover the reserve of a trust line"),
                ),
                ChangeTrustResult::NoIssuer => {
                    (Unspecified, Some("the issuer of the asset does not exist"))
                }
                _ => (Unspecified, None),
            };
            (code, name("CHANGE_TRUST_", changed.name()), meaning)
        }
        // Only in transactions that are made elsewhere.
        other => {
            let words = format!("{other:?}");
            let (_, outcome) = words.split_once('(')?;
            if outcome.starts_with("Success") {
                return None;
            }
            let name = words.chars().take(MAX_NAME).collect();
            (Unspecified, name, None)
        }
    })
}

/// `TxBadSeq` as the protocol writes it: `txBAD_SEQ`.
fn protocol_name(prefix: &str, camel: &str, cut: &str) -> String {
    let words = camel.strip_prefix(cut).unwrap_or(camel);
    let mut name = prefix.to_owned();
    for (place, letter) in words.char_indices() {
        if place > 0 && letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn write(value: &impl WriteXdr) -> Result<String, Fault> {
    let bytes = value.to_xdr(Limits::none()).map_err(Fault::bug)?;
    Ok(STANDARD.encode(bytes))
}

fn read<T: ReadXdr>(text: &str) -> Option<T> {
    let bytes = STANDARD.decode(text).ok()?;
    T::from_xdr(bytes, LIMITS).ok()
}
