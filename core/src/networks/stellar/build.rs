//! Transactions of one operation that are built here.

use stellar_xdr::{
    CreateAccountOp, Memo, MuxedAccount, Operation, OperationBody, PaymentOp, Preconditions,
    SequenceNumber, StringM, TimeBounds, TimePoint, Transaction, TransactionEnvelope,
    TransactionExt, Uint256,
};

use super::{
    chain_data::ChainData,
    envelope::{MAX_BASE_FEE, NEW_ACCOUNT, following},
    payload::{StellarAction, StellarTransaction},
};

use crate::{fault::Fault, networks::rules::unexpected_chain_data};

/// Builds a transaction of one operation.
pub(super) fn build(
    transaction: &StellarTransaction,
    chain_data: &ChainData,
    source: [u8; 32],
) -> Result<TransactionEnvelope, Fault> {
    let body = match (&transaction.action, chain_data.destination_exists) {
        (StellarAction::SendNative { to, amount }, Some(true)) => {
            payment(to.clone(), stellar_xdr::Asset::Native, *amount)
        }
        (StellarAction::SendNative { to, amount }, Some(false)) => create_account(to, *amount)?,
        (StellarAction::SendAsset { to, asset, amount }, None) => {
            payment(to.clone(), asset.to_asset(), *amount)
        }
        (StellarAction::ChangeTrust { asset }, None) => {
            OperationBody::ChangeTrust(stellar_xdr::ChangeTrustOp {
                line: asset.to_line(),
                limit: i64::MAX,
            })
        }
        _ => return Err(unexpected_chain_data()),
    };
    // 0 would mean that it is good for ever.
    if chain_data.max_time == 0 {
        return Err(unexpected_chain_data());
    }
    if !(1..=MAX_BASE_FEE).contains(&chain_data.base_fee) {
        return Err(Fault::field(
            "fee",
            "the chain node's base fee is out of range",
        ));
    }
    let memo = match transaction.memo.as_str() {
        "" => Memo::None,
        text => Memo::Text(StringM::try_from(text).map_err(Fault::bug)?),
    };
    let operation = Operation {
        source_account: None,
        body,
    };
    Ok(TransactionEnvelope::from(Transaction {
        source_account: MuxedAccount::Ed25519(Uint256(source)),
        fee: chain_data.base_fee,
        seq_num: SequenceNumber(following(chain_data.sequence)?),
        cond: Preconditions::Time(TimeBounds {
            min_time: TimePoint(0),
            max_time: TimePoint(chain_data.max_time),
        }),
        memo,
        operations: [operation].try_into().map_err(Fault::bug)?,
        ext: TransactionExt::V0,
    }))
}

fn payment(destination: MuxedAccount, asset: stellar_xdr::Asset, amount: i64) -> OperationBody {
    OperationBody::Payment(PaymentOp {
        destination,
        asset,
        amount,
    })
}

fn create_account(to: &MuxedAccount, amount: i64) -> Result<OperationBody, Fault> {
    if matches!(to, MuxedAccount::MuxedEd25519(_)) {
        return Err(Fault::field(
            "to",
            "is a muxed address (M...) of an account that does not exist: it must be created first, by its own address (G...)",
        ));
    }
    if amount < NEW_ACCOUNT {
        return Err(Fault::field(
            "value",
            "must be at least 1: the recipient does not exist, and a new account needs 1 XLM",
        ));
    }
    Ok(OperationBody::CreateAccount(CreateAccountOp {
        destination: to.clone().account_id(),
        starting_balance: amount,
    }))
}
