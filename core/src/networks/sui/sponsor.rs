//! Transactions whose gas another one pays: both sign the same bytes.

use ed25519_dalek::VerifyingKey;
use k256::ecdsa::signature::Verifier as _;
use sui_sdk_types::{
    Address, Argument, Command, Input, SimpleSignature, Transaction, UserSignature, WithdrawFrom,
};

use super::tx::program_of;
use crate::fault::Fault;

/// Checks what the others' signatures are: at most one, of the one who signs beside `from`, over this very
/// transaction.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming `otherSignatures`.
pub(super) fn check_signatures(
    transaction: &Transaction,
    from: Address,
    signatures: &[Vec<u8>],
) -> Result<(), Fault> {
    let wrong = |problem: &str| Err(Fault::field("otherSignatures", problem));
    let [signature] = signatures else {
        return match signatures {
            [] => Ok(()),
            _ => wrong("must be at most one: only sender and gas owner sign"),
        };
    };
    let Some(other) = other(transaction, from) else {
        return wrong("must be empty: only `from` signs this transaction");
    };
    let Ok(UserSignature::Simple(signature)) = UserSignature::from_bytes(signature) else {
        return wrong(
            "must be a serialized signature of Ed25519 or secp256k1 (flag, signature, public key): with \
             another scheme, set broadcastTx to false and send the transaction yourself",
        );
    };
    let digest = transaction.signing_digest();
    let (signer, good) = match signature {
        SimpleSignature::Ed25519 {
            signature,
            public_key,
        } => {
            let signer = public_key.derive_address();
            let signature = ed25519_dalek::Signature::from_bytes(signature.inner());
            let key = VerifyingKey::from_bytes(public_key.inner());
            let good = key.is_ok_and(|key| key.verify_strict(&digest, &signature).is_ok());
            (signer, good)
        }
        SimpleSignature::Secp256k1 {
            signature,
            public_key,
        } => {
            let signer = public_key.derive_address();
            let signature = k256::ecdsa::Signature::from_slice(signature.inner());
            let key = k256::ecdsa::VerifyingKey::from_sec1_bytes(public_key.inner());
            // The network takes a low s only.
            let good = signature.is_ok_and(|signature| {
                signature.normalize_s() == signature
                    && key.is_ok_and(|key| key.verify(&digest, &signature).is_ok())
            });
            (signer, good)
        }
        _ => {
            return wrong(
                "is of secp256r1, which Covault does not verify: set broadcastTx to false and send the transaction \
                 yourself",
            );
        }
    };
    if signer != other {
        let problem = format_args!("is signed by {signer}; expected {other}");
        return Err(Fault::field("otherSignatures", problem));
    }
    match good {
        true => Ok(()),
        false => wrong("does not sign this transaction"),
    }
}

/// Who signs beside `from`; `None` when nobody does.
pub(super) fn other(transaction: &Transaction, from: Address) -> Option<Address> {
    let both = [transaction.sender, transaction.gas_payment.owner];
    both.into_iter().find(|one| *one != from)
}

/// Refuses a transaction of another sender that takes more of the gas owner's than its gas: commands can spend
/// the gas coin, and the sender writes them.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming `payload`.
pub(super) fn check_as_gas_owner(transaction: &Transaction) -> Result<(), Fault> {
    let Some(program) = program_of(transaction) else {
        return Ok(());
    };
    let takes_gas_coin = program.commands.iter().any(uses_gas_coin);
    let withdraws = program.inputs.iter().any(|input| match input {
        Input::FundsWithdrawal(withdrawal) => withdrawal.source() == WithdrawFrom::Sponsor,
        _ => false,
    });
    if takes_gas_coin || withdraws {
        return Err(Fault::field(
            "payload",
            "spends more of the gas owner's than gas (its commands use the gas coin, or withdraw from the \
             sponsor): `from` would pay for another sender",
        ));
    }
    Ok(())
}

/// Whether a command takes the gas coin. What it takes is not known of commands that are still to come.
fn uses_gas_coin(command: &Command) -> bool {
    let is_gas = |argument: &Argument| *argument == Argument::Gas;
    match command {
        Command::MoveCall(command) => command.arguments.iter().any(is_gas),
        Command::TransferObjects(command) => {
            command.objects.iter().any(is_gas) || is_gas(&command.address)
        }
        Command::SplitCoins(command) => is_gas(&command.coin) || command.amounts.iter().any(is_gas),
        // Also what is merged into it: who has put that there wants it back.
        Command::MergeCoins(command) => {
            is_gas(&command.coin) || command.coins_to_merge.iter().any(is_gas)
        }
        Command::MakeMoveVector(command) => command.elements.iter().any(is_gas),
        Command::Upgrade(command) => is_gas(&command.ticket),
        Command::Publish(_) => false,
        _ => true,
    }
}
