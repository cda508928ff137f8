//! How long the network can take a transaction.

use solana_message::VersionedMessage;
use solana_pubkey::Pubkey;
use solana_system_interface::program::ID as SYSTEM;

use super::{
    effect::{COMPUTE_BUDGET, account},
    token::AccountInfo,
    wire::WireTransaction,
};

/// How long the network can take a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionLifetime {
    /// As long as the blockhash, base58, is one of the latest 150.
    Blockhash(String),
    /// As long as an account on the chain holds the nonce.
    Nonce(DurableNonce),
}

/// A nonce that an account on the chain holds until a transaction uses it up. It replaces the blockhash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableNonce {
    account: Pubkey,
    nonce: [u8; 32],
    /// Who signs the instruction that uses it up.
    signers: Vec<Pubkey>,
}

/// AdvanceNonceAccount of the system program: the number of the variant.
const ADVANCE_NONCE_ACCOUNT: [u8; 4] = 4u32.to_le_bytes();
/// In front of an account that holds a nonce (bincode): `Versions::Current`, then
/// `State::Initialized`. Nonces of the version before are void.
const CURRENT_INITIALIZED: [u8; 8] = [1, 0, 0, 0, 1, 0, 0, 0];

impl TransactionLifetime {
    /// That of a transaction. As the network reads it: there is a nonce when the first instruction
    /// advances that of an account which it may write to.
    pub fn of(transaction: &WireTransaction) -> Self {
        let message = transaction.message();
        durable_nonce(message).map_or_else(
            || TransactionLifetime::Blockhash(message.recent_blockhash().to_string()),
            TransactionLifetime::Nonce,
        )
    }
}

impl DurableNonce {
    /// The account, base58.
    pub fn account(&self) -> String {
        self.account.to_string()
    }

    /// Whether the account contains this, under an authority that has signed.
    pub fn is_held(&self, account: &AccountInfo) -> bool {
        let authority = self.authority(account);
        authority.is_some_and(|authority| self.signers.contains(&authority))
    }

    /// Whether this is what stands in the account, under whatever authority: it may be changed back to one that has
    /// signed. What is no longer there never returns.
    pub fn stands_in(&self, account: &AccountInfo) -> bool {
        self.authority(account).is_some()
    }

    /// Who may use it up; `None` where it does not stand in the account.
    fn authority(&self, account: &AccountInfo) -> Option<Pubkey> {
        let held = account.data.strip_prefix(&CURRENT_INITIALIZED)?;
        let (authority, rest) = held.split_first_chunk::<32>()?;
        let stands = account.owner == SYSTEM.to_string() && rest.starts_with(&self.nonce);
        stands.then(|| Pubkey::new_from_array(*authority))
    }
}

impl WireTransaction {
    /// What its instructions do, apart from those that name a fee: not until when, and not with which blockhash or durable
    /// nonce.
    pub(crate) fn purpose(&self) -> Vec<u8> {
        let keys = self.message().static_account_keys();
        // Those after these are in address lookup tables.
        let key = |index: u8| match keys.get(usize::from(index)) {
            Some(key) => Ok(key),
            None => Err(usize::from(index).saturating_sub(keys.len())),
        };
        // The first one uses a durable nonce up, where there is one.
        let of_nonce = usize::from(durable_nonce(self.message()).is_some());
        let instructions = self.message().instructions().iter().skip(of_nonce);
        let instructions = instructions.map(|one| {
            let accounts: Vec<_> = one.accounts.iter().map(|index| key(*index)).collect();
            (key(one.program_id_index), accounts, &one.data)
        });
        let instructions: Vec<_> = instructions
            .filter(|(program, ..)| *program != Ok(&COMPUTE_BUDGET))
            .collect();
        let tables = self.message().address_table_lookups();
        format!("{instructions:?} {tables:?}").into_bytes()
    }
}

pub(super) fn durable_nonce(message: &VersionedMessage) -> Option<DurableNonce> {
    let first = message.instructions().first()?;
    let program = account(message, first.program_id_index)?.named()?;
    if program != SYSTEM || !first.data.starts_with(&ADVANCE_NONCE_ACCOUNT) {
        return None;
    }
    let index = *first.accounts.first()?;
    let keys = message.static_account_keys();
    let signers = usize::from(message.header().num_required_signatures);
    let signing = |index: &&u8| usize::from(**index) < signers;
    is_writable(message, index.into()).then_some(DurableNonce {
        account: *keys.get(usize::from(index))?,
        nonce: message.recent_blockhash().to_bytes(),
        signers: first
            .accounts
            .iter()
            .filter(signing)
            .filter_map(|index| keys.get(usize::from(*index)).copied())
            .collect(),
    })
}

/// Of the accounts that the message names: signers stand first, and of either kind the writable
/// ones before the others.
fn is_writable(message: &VersionedMessage, index: usize) -> bool {
    let header = message.header();
    let signers = usize::from(header.num_required_signatures);
    let (end, readonly) = if index < signers {
        (signers, header.num_readonly_signed_accounts)
    } else {
        (
            message.static_account_keys().len(),
            header.num_readonly_unsigned_accounts,
        )
    };
    index < end.saturating_sub(readonly.into())
}
