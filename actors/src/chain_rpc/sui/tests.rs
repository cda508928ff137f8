use super::{
    proto::{ExecutedTransaction, ExecutionStatus, GasCostSummary, Owner, TransactionEffects},
    *,
};
use crate::chain_rpc::grpc::GrpcCode;

const HASH: &str = "8sYNnZ2iq8xZNKXPj1cc4sZUvXUVxxzHnD5QiBqDQjwF";

fn status(code: GrpcCode, message: &str) -> GrpcStatus {
    let message = message.into();
    GrpcStatus { code, message }
}

fn executed(digest: Option<&str>, success: bool) -> TransactionResponse {
    let error = (!success).then(|| ExecutionError {
        description: Some("Insufficient coin balance for operation.".into()),
        kind: Some(ExecutionErrorKind::InsufficientCoinBalance.into()),
    });
    TransactionResponse {
        transaction: Some(ExecutedTransaction {
            digest: digest.map(Into::into),
            checkpoint: None,
            effects: Some(TransactionEffects {
                status: Some(ExecutionStatus {
                    success: Some(success),
                    error,
                }),
                gas_used: Some(GasCostSummary {
                    computation_cost: Some(1),
                    storage_cost: Some(2),
                    storage_rebate: Some(3),
                }),
            }),
        }),
    }
}

#[test]
fn judge__should_take_what_was_executed_however_it_ended() {
    for answer in [
        executed(Some(HASH), true),
        executed(Some(HASH), false),
        executed(None, true),
        TransactionResponse::default(),
    ] {
        assert_eq!(judge(Ok(&answer), HASH), SuiVerdict::Accepted);
    }
    let other = judge(Ok(&executed(Some("another"), true)), HASH);
    assert!(
        matches!(other, SuiVerdict::Later { missing: false, .. }),
        "{other:?}"
    );
}

#[test]
fn judge__should_tell_what_may_be_taken_later() {
    let missing = "Transaction execution failed due to issues with transaction inputs: Could not \
                   find the referenced object 0x6 at version Some(SequenceNumber(3)).";
    let locked = "Failed to sign transaction by a quorum of validators because of locked objects.";
    let other = "The transaction is already finalized but with different user signatures";
    for (code, message, expected) in [
        (GrpcCode::InvalidArgument, missing, true),
        (GrpcCode::Aborted, missing, true),
        (GrpcCode::Aborted, other, false),
        (GrpcCode::FailedPrecondition, locked, false),
        (GrpcCode::Other, "", false),
        (GrpcCode::Internal, "", false),
    ] {
        match judge(Err(&status(code, message)), HASH) {
            SuiVerdict::Later { missing, .. } => assert_eq!(missing, expected, "{message}"),
            verdict => panic!("{message}: {verdict:?}"),
        }
    }
}

#[test]
fn judge__should_name_the_code_of_a_refusal_and_whether_it_may_be_the_transaction_itself() {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    for (message, expected, alone) in [
        (
            "Object ID 0x6 Version 0x3 Digest 1 is not available for consumption, current version: 0x4",
            Unspecified,
            true,
        ),
        ("Transaction Expired", Unspecified, true),
        (
            "Invalid withdraw reservation: 5 of 4",
            InsufficientFunds,
            true,
        ),
        (
            "Balance of gas object 5 is lower than the needed amount: 6",
            InsufficientGasFee,
            false,
        ),
        (
            "Gas price 1 under reference gas price (RGP) 1000",
            InsufficientGasFee,
            false,
        ),
        (
            "Gas budget: 1 is lower than min: 1000000",
            InsufficientGasFee,
            false,
        ),
        (
            "Invalid user signature: Signature is not valid",
            Unspecified,
            false,
        ),
    ] {
        match judge(Err(&status(GrpcCode::InvalidArgument, message)), HASH) {
            SuiVerdict::Refused { refusal, itself } => {
                assert_eq!((refusal.code, itself), (expected, alone), "{message}");
            }
            verdict => panic!("{message}: {verdict:?}"),
        }
    }
}

#[test]
fn outcome__should_want_all_that_counts() {
    let used = GasUsed {
        computation_cost: 1,
        storage_cost: 2,
        storage_rebate: 3,
    };
    assert_eq!(outcome(&executed(None, true)), Some(Ok(used)));
    let error = outcome(&executed(None, false)).unwrap().unwrap_err();
    let refusal = match failed(&error) {
        ChainError::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal.code, ExecuteCode::InsufficientFunds);
    assert!(refusal.reason.contains("Insufficient coin balance"));
    let spent = ExecutionError {
        kind: Some(ExecutionErrorKind::InsufficientFundsForWithdraw.into()),
        ..error
    };
    assert!(matches!(failed(&spent), ChainError::Unknown(_)));

    assert_eq!(outcome(&TransactionResponse::default()), None);
    let mut no_gas = executed(None, true);
    let effects = no_gas.transaction.as_mut().unwrap().effects.as_mut();
    effects.unwrap().gas_used.as_mut().unwrap().storage_rebate = None;
    assert_eq!(outcome(&no_gas), None);
}

#[test]
fn near__should_be_the_gas_of_one_moment() {
    let used = |computation_cost, storage_cost| GasUsed {
        computation_cost,
        storage_cost,
        storage_rebate: 0,
    };
    for (one, other, expected) in [
        ((100, 0), (100, 300), true),
        ((0, 100), (404, 0), false),
        ((0, 0), (0, 0), true),
        ((1, u64::MAX), (1, 1), false),
    ] {
        let (one, other) = (used(one.0, one.1), used(other.0, other.1));
        assert_eq!(near(&one, &other), expected);
        assert_eq!(near(&other, &one), expected);
    }
}

#[test]
fn off_mainnet__should_know_the_chain_by_its_genesis() {
    let info = |chain_id: Option<&str>, chain: Option<&str>| GetServiceInfoResponse {
        chain_id: chain_id.map(Into::into),
        chain: chain.map(Into::into),
        ..Default::default()
    };
    assert_eq!(off_mainnet(&info(Some(MAINNET), Some("testnet"))), Ok(None));
    let testnet = info(
        Some("69WiPg3DAQiwdxfncX6wYQ2siKwAe6L9BZthQea3JNMD"),
        Some("testnet"),
    );
    let reason = off_mainnet(&testnet).unwrap().unwrap();
    assert!(reason.contains("\"testnet\""), "{reason}");
    assert!(off_mainnet(&info(None, Some("mainnet"))).is_err());
}

#[test]
fn is_owned_by__should_leave_out_what_cannot_be_spent_as_it_is() {
    let owned = |kind: OwnerKind, address: &str| {
        let owner = Owner {
            kind: Some(kind.into()),
            address: Some(address.into()),
        };
        let object = Object {
            owner: Some(owner),
            ..Object::default()
        };
        is_owned_by(&object, "0xa")
    };
    assert!(owned(OwnerKind::Address, "0xa"));
    assert!(!owned(OwnerKind::Address, "0xb"));
    assert!(!owned(OwnerKind::ConsensusAddress, "0xa"));
    assert!(!owned(OwnerKind::Object, "0xa"));
    assert!(!is_owned_by(&Object::default(), "0xa"));
}
