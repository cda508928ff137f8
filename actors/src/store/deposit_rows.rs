//! The rows of deposits, and their keys: how far chains were followed, what became of transfers, and what webhooks are
//! to be told.

use std::collections::BTreeMap;

use covault_core::{
    deposit::{
        DepositNetwork,
        event::{EventId, TransferNotice},
        lifecycle::TransferState,
        transfer::{Account, BlockRef, FollowedChain, OwnedTransfer},
    },
    ids::TokenId,
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::{Key, KeySpace};

/// How far the blocks of a chain were followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorRow {
    /// The newest block that was followed.
    pub head: BlockRef,
    /// The newest block that cannot be replaced. Headers are kept from this one on.
    pub finalized: BlockRef,
}

/// Since when payments on a chain are to be told: the first block that is followed is not newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainStartRow {
    /// In milliseconds since the Unix epoch, by the clock of a process that had the chain in its configuration and
    /// someone who takes deposits there.
    pub since_ms: u64,
}

/// Which blocks of a chain are to be looked through again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RescanRow {
    /// The number of the next one.
    pub next: u64,
    /// The number of the last one.
    pub last: u64,
}

/// From which block a chain is to be followed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRow {
    /// Its number.
    pub from: u64,
}

/// How far the balances of a chain's deposit wallets were compared with what is known of their transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconciliationRow {
    /// An operator wants another round.
    pub is_wanted: bool,
    /// The key of the address from which a round continues; `None` between two rounds.
    pub next: Option<Vec<u8>>,
    /// What the round has come to yet.
    pub round: ReconciliationCounts,
    /// What the last whole round has come to, and when that was, in milliseconds since the Unix epoch.
    pub done: Option<(u64, ReconciliationCounts)>,
    /// How often the chain was followed again: balances that were compared before count no more.
    pub restarts: u32,
    /// The comparison with what accounts have now, of chains whose nodes say nothing of earlier blocks.
    pub of_now: RoundOfNow,
}

/// A round over the balances of now, and what it leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundOfNow {
    /// An operator wants another round.
    pub is_wanted: bool,
    /// The key of the address from which it continues; `None` between two rounds.
    pub next: Option<Vec<u8>>,
    /// Accounts with a balance in doubt, and the final block from which on each is looked at again. Of many, some: the others
    /// are looked at with all.
    pub doubts: BTreeMap<Account, u64>,
}

/// What a round over the balances of a chain has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconciliationCounts {
    /// Balances with more than the transfers make them, which was told.
    pub found: u64,
    /// Balances with less, or with more by no more than fees that were paid.
    pub missing: u64,
}

/// What a deposit wallet has of a coin or token, beside what is known of its transfers. Nothing is to be swept from it
/// while less is there than they explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceRow {
    /// The newest block after which its transfers have explained the balance; 0 when they never did.
    pub block: u64,
    /// The balance after that block, in the smallest unit, big-endian.
    pub balance: [u8; 32],
    /// As [`ReconciliationRow::restarts`] was then.
    pub restarts: u32,
    /// How much is for people to look at, big-endian; 0: nothing. It is missing, or it is more, and no more than fees that
    /// were paid.
    pub missing: [u8; 32],
    /// Whether it is more.
    pub is_more: bool,
    /// A balance of now that the transfers did not explain, until a second look.
    pub doubt: Option<DoubtfulBalance>,
}

/// What nodes have said of a balance of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtfulBalance {
    /// The newest block of the node, as it has named it with the balance.
    pub block: u64,
    /// What they said, in the smallest unit, big-endian.
    pub balance: [u8; 32],
}

/// Where a transfer stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferRow {
    /// Which, and who is told.
    pub transfer: OwnedTransfer,
    /// Where it stands.
    pub state: TransferState,
    /// When the last block that had it was made, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
}

/// What is told of a transfer, and whether it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRow {
    /// What.
    pub notice: TransferNotice,
    /// When it was written, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was first tried, in milliseconds since the Unix epoch.
    pub first_tried_at_ms: Option<u64>,
    /// Its outcome.
    pub delivery: NoticeDelivery,
}

/// The outcome of a notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeDelivery {
    /// It is to be sent, or sent again.
    Waiting {
        /// Why the last try has failed; empty before the first.
        problem: String,
    },
    /// The receiver has it.
    Delivered {
        /// Since when, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// It was tried for so long that it is no longer tried.
    Dead {
        /// Since when, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// Why the last try has failed.
        problem: String,
    },
}

impl NoticeRow {
    /// When it was over, in milliseconds since the Unix epoch; `None` while it waits.
    pub fn over_at_ms(&self) -> Option<u64> {
        match self.delivery {
            NoticeDelivery::Waiting { .. } => None,
            NoticeDelivery::Delivered { at_ms } | NoticeDelivery::Dead { at_ms, .. } => Some(at_ms),
        }
    }

    /// Whether what comes after it may be sent.
    pub fn is_over(&self) -> bool {
        !matches!(self.delivery, NoticeDelivery::Waiting { .. })
    }
}

/// What comes after a notice. There is no row while the notice is to be sent and nothing comes after it, so that who
/// writes what comes after it, and who ends it, hear of each other, and of nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoticeAfterRow {
    /// This event, once the notice is over.
    Next(EventId),
    /// The notice is over, and nothing came after it yet.
    Over,
}

/// A key that webhooks are signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookKeyRow {
    /// When the process that sends webhooks last had it, in milliseconds since the Unix epoch.
    pub used_at_ms: u64,
}

/// What a token's webhooks are signed with (HMAC-SHA256).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSecretRow {
    /// The secret.
    pub secret: [u8; 32],
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

impl std::fmt::Debug for WebhookSecretRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookSecretRow({}, ..)", self.created_at_ms)
    }
}

impl Drop for WebhookSecretRow {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

/// [`KeySpace::ChainCursor`].
pub fn cursor(chain: FollowedChain) -> Key {
    Key::new(KeySpace::ChainCursor, &[&chain.key()])
}

/// [`KeySpace::ChainStart`].
pub fn chain_start(chain: FollowedChain) -> Key {
    Key::new(KeySpace::ChainStart, &[&chain.key()])
}

/// [`KeySpace::ChainRestart`].
pub fn chain_restart(chain: FollowedChain) -> Key {
    Key::new(KeySpace::ChainRestart, &[&chain.key()])
}

/// The part of [`KeySpace::BalanceCheck`] that says how far a chain is.
pub fn reconciliation(chain: FollowedChain) -> Key {
    Key::new(KeySpace::BalanceCheck, &[&chain.key()])
}

/// [`KeySpace::BalanceCheck`] of what an account has of a token, or of the coin.
pub fn balance(chain: FollowedChain, account: Account, asset: Option<Account>) -> Key {
    let asset = asset.map(|asset| asset.0);
    let asset = asset.as_ref().map_or(&[] as &[u8], |asset| asset);
    Key::new(KeySpace::BalanceCheck, &[&chain.key(), &account.0, asset])
}

/// The part of [`KeySpace::DepositAddress`] that a network has.
pub fn deposit_addresses(network: DepositNetwork) -> Key {
    Key::new(KeySpace::DepositAddress, &[&[network.number()]])
}

/// The account of a row of [`KeySpace::DepositAddress`].
pub fn account_of_address(key: &Key) -> Option<Account> {
    let (_, account) = key.bytes.split_first()?;
    Some(Account(account.try_into().ok()?))
}

/// The part of [`KeySpace::TransferIndex`] in which the transfers of an account on a chain follow in the order of their
/// blocks, and where those from a block on begin.
pub fn transfers_from(chain: FollowedChain, account: Account, number: u64) -> (Key, Vec<u8>) {
    let network = chain.network().number();
    let parts: &[&[u8]] = &[&[network], &account.0, &chain.key()];
    let all = Key::new(KeySpace::TransferIndex, parts);
    let from = [all.bytes.as_slice(), &number.to_be_bytes()].concat();
    (all, from)
}

/// The row of the transfer of a row of [`KeySpace::TransferIndex`].
pub fn transfer_of_index(key: &Key) -> Option<Key> {
    let transfer = key.bytes.get(1 + 20 + 9 + 8..)?;
    Some(Key::new(KeySpace::Transfer, &[transfer]))
}

/// [`KeySpace::NoticeAge`].
pub fn notice_age(at_ms: u64, id: EventId) -> Key {
    Key::new(KeySpace::NoticeAge, &[&at_ms.to_be_bytes(), &id.0])
}

/// When the event of a row of [`KeySpace::NoticeAge`] was over, in milliseconds since the Unix epoch, and which it is.
pub fn event_of_age(key: &Key) -> Option<(u64, EventId)> {
    let (at_ms, id) = key.bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at_ms), EventId(id.try_into().ok()?)))
}

/// [`KeySpace::Rescan`].
pub fn rescan(chain: FollowedChain) -> Key {
    Key::new(KeySpace::Rescan, &[&chain.key()])
}

/// The part of [`KeySpace::BlockHeader`] in which the blocks of a chain follow in order.
pub fn headers(chain: FollowedChain) -> Key {
    Key::new(KeySpace::BlockHeader, &[&chain.key()])
}

/// [`KeySpace::BlockHeader`].
pub fn header(chain: FollowedChain, number: u64) -> Key {
    Key::new(
        KeySpace::BlockHeader,
        &[&chain.key(), &number.to_be_bytes()],
    )
}

/// [`KeySpace::DepositAddress`].
pub fn deposit_address(network: DepositNetwork, account: Account) -> Key {
    Key::new(KeySpace::DepositAddress, &[&[network.number()], &account.0])
}

/// [`KeySpace::Transfer`].
pub fn transfer(transfer: &OwnedTransfer) -> Key {
    Key::new(KeySpace::Transfer, &[&transfer.key()])
}

/// The part of [`KeySpace::OpenTransfer`] that a chain has.
pub fn open_transfers(chain: FollowedChain) -> Key {
    Key::new(KeySpace::OpenTransfer, &[&chain.key()])
}

/// [`KeySpace::OpenTransfer`].
pub fn open_transfer(transfer: &OwnedTransfer, number: u64) -> Key {
    Key::new(
        KeySpace::OpenTransfer,
        &[
            &transfer.chain.key(),
            &number.to_be_bytes(),
            &transfer.key(),
        ],
    )
}

/// The row of the transfer of a row of [`KeySpace::OpenTransfer`].
pub fn transfer_of_open(key: &Key) -> Option<Key> {
    let transfer = key.bytes.get(9 + 8..)?;
    Some(Key::new(KeySpace::Transfer, &[transfer]))
}

/// [`KeySpace::TransferIndex`].
pub fn transfer_index(transfer: &OwnedTransfer, number: u64) -> Key {
    let network = transfer.chain.network();
    Key::new(
        KeySpace::TransferIndex,
        &[
            &[network.number()],
            &transfer.account().0,
            &transfer.chain.key(),
            &number.to_be_bytes(),
            &transfer.key(),
        ],
    )
}

/// [`KeySpace::TransferNotice`].
pub fn notice(id: EventId) -> Key {
    Key::new(KeySpace::TransferNotice, &[&id.0])
}

/// The event of a row of [`KeySpace::TransferNotice`].
pub fn event_of_notice(key: &Key) -> Option<EventId> {
    Some(EventId(key.bytes.as_slice().try_into().ok()?))
}

/// The part of [`KeySpace::NoticeDue`] in which what one webhook is to be told follows in the order of time.
pub fn due_notices(token: TokenId, network: DepositNetwork) -> Key {
    Key::new(
        KeySpace::NoticeDue,
        &[token.as_bytes(), &[network.number()]],
    )
}

/// [`KeySpace::NoticeDue`].
pub fn notice_due(token: TokenId, network: DepositNetwork, at_ms: u64, id: EventId) -> Key {
    let all = due_notices(token, network);
    Key::new(all.space, &[&all.bytes, &at_ms.to_be_bytes(), &id.0])
}

/// When a row of [`KeySpace::NoticeDue`] is due, in milliseconds since the Unix epoch, and what is.
pub fn due_event(key: &Key) -> Option<(u64, EventId)> {
    let (rest, id) = key.bytes.split_last_chunk::<16>()?;
    let (_, at_ms) = rest.split_last_chunk::<8>()?;
    Some((u64::from_be_bytes(*at_ms), EventId(*id)))
}

/// Of which token and network a row of [`KeySpace::NoticeDue`] is.
pub fn destination_of_due(key: &Key) -> Option<(TokenId, DepositNetwork)> {
    let (token, rest) = key.bytes.split_first_chunk::<16>()?;
    let number = rest.first()?;
    let mut networks = DepositNetwork::ALL.into_iter();
    let network = networks.find(|network| network.number() == *number)?;
    Some((TokenId::from_bytes(*token), network))
}

/// [`KeySpace::NoticeAfter`].
pub fn notice_after(id: EventId) -> Key {
    Key::new(KeySpace::NoticeAfter, &[&id.0])
}

/// [`KeySpace::WebhookSecret`].
pub fn webhook_secret(token: TokenId) -> Key {
    Key::new(KeySpace::WebhookSecret, &[token.as_bytes()])
}

/// [`KeySpace::WebhookKey`].
pub fn webhook_key(public: &[u8; 32]) -> Key {
    Key::new(KeySpace::WebhookKey, &[public])
}

/// The public key of a row of [`KeySpace::WebhookKey`].
pub fn webhook_public_key(key: &Key) -> Option<[u8; 32]> {
    key.bytes.as_slice().try_into().ok()
}

#[cfg(test)]
#[path = "deposit_rows_tests.rs"]
mod tests;
