use solana_message::{
    AccountMeta, Instruction, MessageHeader, compiled_instruction::CompiledInstruction,
};
use solana_system_interface::{instruction as system, program::ID as SYSTEM};

use super::{
    super::super::{
        lifetime::{DurableNonce, TransactionLifetime},
        token::AccountInfo,
    },
    custom::{at, call, legacy, simple, wallet, with_tables},
    *,
};

fn durable() -> WireTransaction {
    let advance = system::advance_nonce_account(&at(8), &wallet());
    legacy(
        &wallet(),
        &[advance, system::transfer(&wallet(), &at(1), 5)],
    )
}

fn nonce_of(transaction: &WireTransaction) -> Option<DurableNonce> {
    match TransactionLifetime::of(transaction) {
        TransactionLifetime::Nonce(nonce) => Some(nonce),
        TransactionLifetime::Blockhash(_) => None,
    }
}

/// A transaction whose nonce's account is named by a table. (The SDK makes none.)
fn listed(recent_blockhash: Hash) -> WireTransaction {
    let message = v0::Message {
        header: MessageHeader {
            num_required_signatures: 1,
            num_readonly_signed_accounts: 0,
            num_readonly_unsigned_accounts: 1,
        },
        account_keys: vec![wallet(), SYSTEM],
        recent_blockhash,
        instructions: vec![CompiledInstruction {
            program_id_index: 1,
            accounts: vec![2, 0],
            data: vec![4, 0, 0, 0],
        }],
        address_table_lookups: vec![v0::MessageAddressTableLookup {
            account_key: at(30),
            writable_indexes: vec![0],
            readonly_indexes: vec![],
        }],
    };
    WireTransaction::unsigned(VersionedMessage::V0(message)).unwrap()
}

/// The account of a nonce.
fn account(versions: [u8; 8], authority: &Pubkey, nonce: &[u8; 32]) -> AccountInfo {
    let mut data = versions.to_vec();
    data.extend_from_slice(authority.as_ref());
    data.extend_from_slice(nonce);
    data.extend_from_slice(&5000u64.to_le_bytes());
    AccountInfo {
        owner: SYSTEM.to_string(),
        data,
    }
}

#[test]
fn lifetime__should_be_that_of_the_blockhash() {
    let transaction = simple(5);
    let hash = transaction.message().recent_blockhash().to_string();
    assert_eq!(
        TransactionLifetime::of(&transaction),
        TransactionLifetime::Blockhash(hash)
    );
}

#[test]
fn lifetime__should_be_that_of_a_nonce_that_the_first_instruction_uses_up() {
    assert_eq!(nonce_of(&durable()).unwrap().account(), at(8).to_string());
    let transfer = || system::transfer(&wallet(), &at(1), 5);
    let advance = || system::advance_nonce_account(&at(8), &wallet());
    let versioned = with_tables(&[advance(), transfer()], &[]);
    assert!(nonce_of(&versioned).is_some());
    // Later in the transaction it is nothing special.
    assert_eq!(nonce_of(&legacy(&wallet(), &[transfer(), advance()])), None);
    // Neither where the account is not there to be written to, or in a table.
    let mut readonly = advance();
    readonly.accounts[0] = AccountMeta::new_readonly(at(8), false);
    assert_eq!(nonce_of(&legacy(&wallet(), &[readonly])), None);
    assert_eq!(
        nonce_of(&listed(versioned.message().recent_blockhash().clone())),
        None
    );
    // Nor are the same bytes to another program.
    let other = Instruction {
        program_id: at(9),
        ..advance()
    };
    assert_eq!(nonce_of(&legacy(&wallet(), &[other])), None);
    assert_eq!(nonce_of(&legacy(&wallet(), &[call(SYSTEM, &[4, 0])])), None);
}

#[test]
fn nonce__should_be_held_by_its_account_until_it_is_another() {
    let transaction = durable();
    let hash = transaction.message().recent_blockhash().to_bytes();
    let nonce = nonce_of(&transaction).unwrap();
    let current = [1, 0, 0, 0, 1, 0, 0, 0];
    assert!(nonce.is_held(&account(current, &wallet(), &hash)));
    assert!(!nonce.is_held(&account(current, &wallet(), &[4; 32])));
    assert!(!nonce.is_held(&account(current, &at(2), &hash)));
    // Its authority may come back.
    assert!(nonce.stands_in(&account(current, &at(2), &hash)));
    assert!(nonce.stands_in(&account(current, &wallet(), &hash)));
    assert!(!nonce.stands_in(&account(current, &wallet(), &[4; 32])));
    assert!(!nonce.is_held(&account([0, 0, 0, 0, 1, 0, 0, 0], &wallet(), &hash)));
    assert!(!nonce.is_held(&account([1, 0, 0, 0, 0, 0, 0, 0], &wallet(), &hash)));
    let mut foreign = account(current, &wallet(), &hash);
    foreign.owner = at(9).to_string();
    assert!(!nonce.is_held(&foreign));
    let mut short = account(current, &wallet(), &hash);
    for length in (0..72).rev() {
        short.data.truncate(length);
        assert!(!nonce.is_held(&short), "{length}");
    }
}

#[test]
fn each__should_be_a_transaction_with_its_hash() {
    let signed = |transaction: &str, tx_hash: &str| Signed {
        transaction: transaction.into(),
        tx_hash: tx_hash.into(),
    };
    assert_eq!(each(&signed("a", "b")), Some(vec![("a", "b")]));
    assert_eq!(
        each(&signed("a,c", "b,")),
        Some(vec![("a", "b"), ("c", "")])
    );
    assert_eq!(each(&signed("a,c", "b")), None);
}
