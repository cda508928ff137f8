//! What nodes say.

use stellar_xdr::{
    AccountEntry, AccountEntryExt, ChangeTrustResult, CreateAccountResult, InnerTransactionResult,
    InnerTransactionResultPair, InnerTransactionResultResult, LedgerBounds, LedgerEntryData,
    OperationResult, OperationResultTr, PathPaymentStrictSendResult, PaymentResult,
    PreconditionsV2, String32, Thresholds, TransactionResult, TransactionResultExt,
    TransactionResultResult as Outcome, TrustLineAsset, TrustLineEntry, TrustLineEntryExt,
};

use super::{
    ledger::{
        FailureCause, account_key, read_account, read_result, read_sent, read_trust_line,
        trust_line_key,
    },
    *,
};
use crate::fault::ExecuteCode;

fn base64(value: &impl stellar_xdr::WriteXdr) -> String {
    STANDARD.encode(value.to_xdr(Limits::none()).unwrap())
}

fn account_entry(account: &str, balance: i64) -> LedgerEntryData {
    LedgerEntryData::Account(AccountEntry {
        account_id: parse_account(account).unwrap(),
        balance,
        seq_num: SequenceNumber(9_007_199_254_740_993),
        num_sub_entries: 1,
        inflation_dest: None,
        flags: 0,
        home_domain: String32::default(),
        thresholds: Thresholds([1, 0, 0, 0]),
        signers: Default::default(),
        ext: AccountEntryExt::V0,
    })
}

#[test]
fn entries__should_be_those_that_were_asked_for() {
    let key = account_key(&parse_account(TO).unwrap()).unwrap();
    let entry = base64(&account_entry(TO, 25_000_000));
    let account = read_account(&key, &entry).unwrap();
    assert_eq!(account.sequence, 9_007_199_254_740_993);
    // It has a trust line, and keeps three times half a lumen.
    assert_eq!(
        (account.balance, account.spendable),
        (25_000_000, 10_000_000)
    );
    let other = account_key(&parse_account(ISSUER).unwrap()).unwrap();
    let negative = base64(&account_entry(TO, -1));
    for (key, entry) in [
        (&other, &entry),
        (&key, &negative),
        (&key, &String::new()),
        (&key, &entry[..entry.len() - 4].to_owned()),
        (&key, &format!("{entry}AAAA")),
    ] {
        assert_eq!(read_account(key, entry), None, "{entry}");
    }
    assert_eq!(read_trust_line(&key, &entry), None);
}

#[test]
fn trust_lines__should_be_told_apart_by_code_and_issuer() {
    let owner = parse_account(TO).unwrap();
    for code in ["X", "USDC", "LONGASSET123"] {
        let asset = IssuedAsset::new(code, ISSUER).unwrap();
        let key = trust_line_key(&owner, &asset).unwrap();
        let entry = LedgerEntryData::Trustline(TrustLineEntry {
            account_id: owner.clone(),
            asset: match asset.to_asset() {
                XdrAsset::Native => TrustLineAsset::Native,
                XdrAsset::CreditAlphanum4(asset) => TrustLineAsset::CreditAlphanum4(asset),
                XdrAsset::CreditAlphanum12(asset) => TrustLineAsset::CreditAlphanum12(asset),
            },
            balance: 77,
            limit: i64::MAX,
            flags: 1,
            ext: TrustLineEntryExt::V0,
        });
        let line = read_trust_line(&key, &base64(&entry)).unwrap();
        assert_eq!((line.balance, line.spendable), (77, 77));
        assert_eq!(
            (line.room, line.is_authorized),
            (i64::MAX as u64 - 77, true)
        );
        assert_eq!(read_account(&key, &base64(&entry)), None);
        let other = IssuedAsset::new(code, TO).unwrap();
        let other = trust_line_key(&owner, &other).unwrap();
        assert_eq!(read_trust_line(&other, &base64(&entry)), None);
    }
}

#[test]
fn sent__should_be_read_of_every_form() {
    let read = |envelope: &TransactionEnvelope| {
        let sent = read_sent(&base64(envelope)).unwrap();
        (sent.source.to_string(), sent.sequence, sent.max_time)
    };
    let bounds = |max_time| TimeBounds {
        min_time: TimePoint(0),
        max_time: TimePoint(max_time),
    };
    let with = |cond| Transaction {
        cond,
        ..tx(&from(), vec![])
    };
    assert_eq!(read(&v0(vec![])), (from(), 9, Some(2)));
    for (conditions, max_time) in [
        (Preconditions::None, None),
        (Preconditions::Time(bounds(0)), None),
        (Preconditions::Time(bounds(7)), Some(7)),
        (
            Preconditions::V2(PreconditionsV2 {
                time_bounds: Some(bounds(8)),
                ..Default::default()
            }),
            Some(8),
        ),
    ] {
        let transaction = with(conditions);
        let envelope = transaction.clone().into();
        assert_eq!(read(&envelope), (from(), 9, max_time));
        assert_eq!(read(&bump(TO, 900, transaction)), (from(), 9, max_time));
    }
    let conditions = PreconditionsV2 {
        ledger_bounds: Some(LedgerBounds {
            min_ledger: 0,
            max_ledger: 70,
        }),
        ..Default::default()
    };
    let envelope = TransactionEnvelope::from(with(Preconditions::V2(conditions)));
    let sent = read_sent(&base64(&envelope)).unwrap();
    assert_eq!((sent.max_time, sent.max_ledger), (None, Some(70)));
    let signed = Signed {
        transaction: base64(&envelope),
        tx_hash: String::new(),
    };
    let end = STELLAR.valid_until(&signed);
    assert_eq!(end, Ok(Some(ChainMoment::at_height(70))));
    for nonsense in ["", "AAAA", "!"] {
        assert!(read_sent(nonsense).is_err());
    }
}

fn result_of(result: Outcome) -> String {
    base64(&TransactionResult {
        fee_charged: 100,
        result,
        ext: TransactionResultExt::V0,
    })
}

fn failed(operations: Vec<OperationResultTr>) -> Outcome {
    let operations = operations.into_iter().map(OperationResult::OpInner);
    Outcome::TxFailed(operations.collect::<Vec<_>>().try_into().unwrap())
}

#[test]
fn results__should_have_the_names_of_the_protocol() {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    let paid = |result| failed(vec![OperationResultTr::Payment(result)]);
    for (result, cause, code, name) in [
        (
            Outcome::TxBadSeq,
            FailureCause::Sequence,
            Unspecified,
            "txBAD_SEQ",
        ),
        (
            Outcome::TxTooLate,
            FailureCause::TooLate,
            Unspecified,
            "txTOO_LATE",
        ),
        (
            Outcome::TxInternalError,
            FailureCause::Later,
            Unspecified,
            "txINTERNAL_ERROR",
        ),
        (
            Outcome::TxNoAccount,
            FailureCause::Passing,
            InsufficientFunds,
            "txNO_ACCOUNT",
        ),
        (
            Outcome::TxInsufficientBalance,
            FailureCause::Passing,
            InsufficientFunds,
            "txINSUFFICIENT_BALANCE",
        ),
        (
            Outcome::TxInsufficientFee,
            FailureCause::Passing,
            InsufficientGasFee,
            "txINSUFFICIENT_FEE",
        ),
        (
            Outcome::TxBadAuthExtra,
            FailureCause::Final,
            Unspecified,
            "txBAD_AUTH_EXTRA",
        ),
        (
            paid(PaymentResult::Underfunded),
            FailureCause::Final,
            InsufficientFunds,
            "PAYMENT_UNDERFUNDED",
        ),
        (
            paid(PaymentResult::NoTrust),
            FailureCause::Final,
            Unspecified,
            "PAYMENT_NO_TRUST",
        ),
        (
            failed(vec![
                OperationResultTr::Payment(PaymentResult::Success),
                OperationResultTr::PathPaymentStrictSend(PathPaymentStrictSendResult::Success(
                    Default::default(),
                )),
                OperationResultTr::CreateAccount(CreateAccountResult::AlreadyExist),
            ]),
            FailureCause::Final,
            Unspecified,
            "CREATE_ACCOUNT_ALREADY_EXIST",
        ),
        (
            failed(vec![OperationResultTr::ChangeTrust(
                ChangeTrustResult::LowReserve,
            )]),
            FailureCause::Final,
            InsufficientFunds,
            "CHANGE_TRUST_LOW_RESERVE",
        ),
        (
            failed(vec![OperationResultTr::PathPaymentStrictSend(
                PathPaymentStrictSendResult::TooFewOffers,
            )]),
            FailureCause::Final,
            Unspecified,
            "PathPaymentStrictSend(TooFewOffers)",
        ),
        (
            Outcome::TxFailed([OperationResult::OpNoAccount].try_into().unwrap()),
            FailureCause::Final,
            Unspecified,
            "opNO_ACCOUNT",
        ),
        (failed(vec![]), FailureCause::Final, Unspecified, "txFAILED"),
        (
            Outcome::TxFeeBumpInnerFailed(InnerTransactionResultPair {
                transaction_hash: Default::default(),
                result: InnerTransactionResult {
                    result: InnerTransactionResultResult::TxBadSeq,
                    ..Default::default()
                },
            }),
            FailureCause::Sequence,
            Unspecified,
            "txBAD_SEQ",
        ),
    ] {
        let failure = read_result(&result_of(result)).unwrap().unwrap();
        assert_eq!(
            (failure.cause, failure.code, failure.name.as_str()),
            (cause, code, name)
        );
        assert_eq!(failure.fee, 100);
    }
}

#[test]
fn results__should_be_of_success_or_nonsense_otherwise() {
    let success = Outcome::TxSuccess(Default::default());
    assert_eq!(read_result(&result_of(success)), Some(None));
    for nonsense in ["", "AAAA", "!", "AAAAAAAAAGT////7"] {
        assert_eq!(read_result(nonsense), None);
    }
    // As stellar-core writes it (stellar/stellar-core#2871).
    let known = read_result("AAAAAAAAAGT////7AAAAAA==").unwrap().unwrap();
    assert_eq!(known.name, "txBAD_SEQ");
}

proptest! {
    #[test]
    fn nodes__should_not_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = STANDARD.encode(bytes);
        let _ = (read_result(&text), read_account("", &text), read_sent(&text));
    }
}
