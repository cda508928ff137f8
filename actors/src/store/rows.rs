//! How things lie in the store: keys, and values with a version.
//!
//! Values are BCS with the version first. A type that changes gets a new variant of [`VersionedValue`];
//! the old ones stay readable for ever (`tests/wire/` has a sample of each).

use covault_core::{
    audit::AuditChain,
    deposit::DepositNetwork,
    fault::Fault,
    ids::{BatchId, RequestId, TokenId, UserId, VaultId, WalletId},
    networks::{Resource, Signed},
    order::NodeId,
    request::{Inclusion, NonceReservation, RequestEffect, TransactionState},
    scheme::Scheme,
    user::SecretHash,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    requests::account::ChainAccount,
    store::key::{Key, KeySpace},
};

/// A value with its version.
#[derive(Serialize, Deserialize)]
enum VersionedValue<T> {
    /// The first form.
    V1(T),
}

/// The bytes of a value.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Fault> {
    bcs::to_bytes(&VersionedValue::V1(value)).map_err(Fault::bug)
}

/// The value of bytes.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when they are not those of a `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let VersionedValue::V1(value) =
        bcs::from_bytes::<VersionedValue<T>>(bytes).map_err(Fault::bug)?;
    Ok(value)
}

/// An effect that is to be run, as the outbox keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxRow {
    /// How often the request's actor has failed.
    pub failures: u32,
    /// What.
    pub effect: RequestEffect,
}

/// Where a request's transaction is on the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionRow {
    /// Where.
    pub state: TransactionState,
    /// Since when, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Why it is tracked.
    pub problem: Option<String>,
    /// The newest block of its chain when it was first seen to wait, where that is counted.
    pub waits_since_block: Option<u64>,
}

impl TransactionRow {
    /// Of a transaction that a node has taken, and that nothing is known of yet.
    pub fn new(at_ms: u64) -> Self {
        Self {
            state: TransactionState::Pending,
            at_ms,
            problem: None,
            waits_since_block: None,
        }
    }

    /// Of a transaction that a block has for good.
    pub fn settled(inclusion: Inclusion, at_ms: u64) -> Self {
        Self {
            state: TransactionState::Final(inclusion),
            ..Self::new(at_ms)
        }
    }
}

/// A transaction that nodes refused after they had got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// The transaction.
    pub signed: Signed,
    /// When it was built, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
    /// So many older ones of the same payment, of which the chain takes one at most together with it, were refused too and
    /// are not kept.
    pub unkept: u64,
    /// That it is on the chain after all; `None` while nobody knows that.
    pub late: Option<LateRow>,
}

/// A refused transaction that is on the chain after all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateRow {
    /// Since when that is known, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The request that failed for it, so that its client hears of it; `None` where none was to be built then.
    pub told: Option<RequestId>,
    /// Of several transactions in one request only some are.
    pub is_partial: bool,
}

/// The requests that are to replace the transaction of another one, or of each other: of all these transactions the
/// chain takes one. The row is in the name of the first of them, which replaces nothing itself, and changes in the
/// first commit of each replacement: so they are made one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementRow {
    /// In the order in which they were made.
    pub replacements: Vec<ReplacementEntry>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacementEntry {
    /// Which.
    pub request: RequestId,
    /// The newest block of the chain when the policy of the chain asked for it; `None` when a client did.
    pub at_block: Option<u64>,
}

/// Claims that a request which is over lets go of later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationExpiry {
    /// The keys of their rows in [`KeySpace::Claim`].
    pub claims: Vec<Vec<u8>>,
}

/// What a node said when it tried a request's transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulationRow {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The bytes of `simulation`.
    pub json: Vec<u8>,
}

/// What the first call with an idempotency key got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRow {
    /// SHA-256 that tells its request from another.
    pub body_hash: [u8; 32],
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The response message, in protobuf.
    pub response: Vec<u8>,
}

/// [`KeySpace::Vault`].
pub fn vault(id: VaultId) -> Key {
    Key::new(KeySpace::Vault, &[id.as_bytes()])
}

/// [`KeySpace::VaultName`].
pub fn vault_name(name: &str) -> Key {
    Key::new(KeySpace::VaultName, &[name.as_bytes()])
}

/// [`KeySpace::Node`].
pub fn node(id: NodeId) -> Key {
    Key::new(KeySpace::Node, &[&id.0])
}

/// [`KeySpace::NodeStatus`].
pub fn node_status(id: NodeId) -> Key {
    Key::new(KeySpace::NodeStatus, &[&[1], &id.0])
}

/// The node of a [`KeySpace::NodeStatus`] key.
pub fn node_of_status(key: &Key) -> Option<NodeId> {
    let (1, id) = key.bytes.split_first()? else {
        return None;
    };
    Some(NodeId(id.try_into().ok()?))
}

/// [`KeySpace::NodeStatus`].
pub fn unadmitted_nodes() -> Key {
    Key::new(KeySpace::NodeStatus, &[&[2]])
}

/// [`KeySpace::Wallet`].
pub fn wallet(id: WalletId) -> Key {
    Key::new(KeySpace::Wallet, &[id.as_bytes()])
}

/// [`KeySpace::WalletAddress`]. No two networks give one text to two keys of ours, so that the
/// address alone is enough.
pub fn wallet_address(address: &str) -> Key {
    Key::new(KeySpace::WalletAddress, &[address.as_bytes()])
}

/// [`KeySpace::WalletRef`].
pub fn wallet_ref(reference: &str) -> Key {
    Key::new(KeySpace::WalletRef, &[reference.as_bytes()])
}

/// [`KeySpace::WalletIndex`].
pub fn wallet_index(vault: VaultId, index: u32) -> Key {
    Key::new(
        KeySpace::WalletIndex,
        &[vault.as_bytes(), &index.to_be_bytes()],
    )
}

/// [`KeySpace::Request`].
pub fn request(id: RequestId) -> Key {
    Key::new(KeySpace::Request, &[id.as_bytes()])
}

/// The part of [`KeySpace::RequestIndex`] in which the requests of a vault follow in order.
pub fn requests_of(vault: VaultId) -> Key {
    Key::new(KeySpace::RequestIndex, &[vault.as_bytes()])
}

/// [`KeySpace::RequestIndex`].
pub fn request_index(vault: VaultId, created_at_ms: u64, request: RequestId) -> Key {
    let all = requests_of(vault);
    Key::new(
        all.space,
        &[&all.bytes, &created_at_ms.to_be_bytes(), request.as_bytes()],
    )
}

/// The request of a key of the index.
pub fn indexed_request(key: &Key) -> Option<RequestId> {
    let (_, id) = key.bytes.split_last_chunk::<16>()?;
    Some(RequestId::from_bytes(*id))
}

/// The part of [`KeySpace::Awaiting`] in which the requests of a vault follow in order.
pub fn awaiting_of(vault: VaultId) -> Key {
    Key::new(KeySpace::Awaiting, &[vault.as_bytes()])
}

/// [`KeySpace::Awaiting`].
pub fn awaiting(vault: VaultId, due_ms: u64, request: RequestId) -> Key {
    let all = awaiting_of(vault);
    Key::new(
        all.space,
        &[&all.bytes, &due_ms.to_be_bytes(), request.as_bytes()],
    )
}

/// When something is due for the request of such a row (it expires, or signers hold it no longer), in milliseconds since the Unix epoch, and which it is.
pub fn awaited(key: &Key) -> Option<(u64, RequestId)> {
    let (rest, id) = key.bytes.split_last_chunk::<16>()?;
    let (_, due_ms) = rest.split_last_chunk::<8>()?;
    Some((u64::from_be_bytes(*due_ms), RequestId::from_bytes(*id)))
}

/// [`KeySpace::Batch`].
pub fn batch(id: BatchId) -> Key {
    Key::new(KeySpace::Batch, &[id.as_bytes()])
}

/// [`KeySpace::Outbox`].
pub fn outbox(vault: VaultId, request: RequestId) -> Key {
    Key::new(KeySpace::Outbox, &[vault.as_bytes(), request.as_bytes()])
}

/// The request of an outbox key.
pub fn outbox_request(key: &Key) -> Option<RequestId> {
    let id = key.bytes.get(16..)?.try_into().ok()?;
    Some(RequestId::from_bytes(id))
}

/// [`KeySpace::Idempotency`].
pub fn idempotency(token: TokenId, method: &str, key: &str) -> Key {
    Key::new(
        KeySpace::Idempotency,
        &[token.as_bytes(), method.as_bytes(), &[0], key.as_bytes()],
    )
}

/// [`KeySpace::RecordAge`]: the oldest records come first.
pub fn record_age(at_ms: u64, record: &Key) -> Key {
    Key::new(KeySpace::RecordAge, &[&at_ms.to_be_bytes(), &record.bytes])
}

/// When a record was made, and its key, as a row of [`KeySpace::RecordAge`] says.
pub fn record_of_age(key: &Key) -> Option<(u64, Key)> {
    let (at_ms, record) = key.bytes.split_first_chunk::<8>()?;
    let record = Key::new(KeySpace::Idempotency, &[record]);
    Some((u64::from_be_bytes(*at_ms), record))
}

/// The account part of [`KeySpace::NonceReservation`], in which its nonces follow in order, and of
/// [`KeySpace::Claim`].
pub fn account(account: &ChainAccount) -> Vec<u8> {
    let mut prefix = vec![account.network as u8];
    prefix.extend_from_slice(&account.chain_id.unwrap_or_default().to_be_bytes());
    prefix.extend_from_slice(account.address.as_bytes());
    prefix.push(0);
    prefix
}

/// [`KeySpace::NonceReservation`] or [`KeySpace::Claim`], whose value is the id of the request that holds it.
pub fn claim(of: &ChainAccount, resource: &Resource) -> Key {
    let account = account(of);
    match resource {
        Resource::Nonce(nonce) => Key::new(
            KeySpace::NonceReservation,
            &[&account, &nonce.to_be_bytes()],
        ),
        Resource::Object(name) => Key::new(KeySpace::Claim, &[&account, &[1], name.as_bytes()]),
        Resource::TxHash(hash) => Key::new(KeySpace::Claim, &[&account, &[2], hash]),
    }
}

/// [`KeySpace::Claim`]: the requests that were to replace the transaction that uses a number, an output or an
/// object of the account, each with its own id as the value. They do not hold it.
pub fn replacements(of: &ChainAccount, resource: &Resource) -> Key {
    let account = account(of);
    match resource {
        Resource::Nonce(nonce) => {
            Key::new(KeySpace::Claim, &[&account, &[3], &nonce.to_be_bytes()])
        }
        // The 0 tells names apart of which one begins another.
        Resource::Object(name) => {
            Key::new(KeySpace::Claim, &[&account, &[4], name.as_bytes(), &[0]])
        }
        Resource::TxHash(hash) => Key::new(KeySpace::Claim, &[&account, &[5], hash]),
    }
}

/// One of [`replacements`].
pub fn replacement(of: &ChainAccount, resource: &Resource, request: RequestId) -> Key {
    let all = replacements(of, resource);
    Key::new(all.space, &[&all.bytes, request.as_bytes()])
}

/// The [`replacements`] of all outputs and objects of an account.
pub fn replaced_objects(of: &ChainAccount) -> Key {
    Key::new(KeySpace::Claim, &[&account(of), &[4]])
}

/// The output or object of one of [`replaced_objects`].
pub fn replaced_object(of: &ChainAccount, key: &Key) -> Option<Resource> {
    let rest = key
        .bytes
        .strip_prefix(replaced_objects(of).bytes.as_slice())?;
    let (name, _) = rest.split_last_chunk::<16>()?;
    let name = str::from_utf8(name.strip_suffix(&[0])?).ok()?;
    Some(Resource::Object(name.to_owned()))
}

/// The nonce of a claim's key.
pub fn claimed_nonce(key: &Key) -> Option<u64> {
    split_nonce_claim(key).map(|(_, nonce)| nonce)
}

/// The account of a row of a number ([`account`]), and the number.
pub fn split_nonce_claim(key: &Key) -> Option<(&[u8], u64)> {
    let (account, nonce) = key.bytes.split_last_chunk::<8>()?;
    Some((account, u64::from_be_bytes(*nonce)))
}

/// [`KeySpace::RefusedTransaction`]. Its rows begin with the [`account`], and follow in the order of the
/// numbers; 0 where the network has none.
pub fn refused(of: &ChainAccount, number: u64, request: RequestId) -> Key {
    let name = account(of);
    Key::new(
        KeySpace::RefusedTransaction,
        &[&name, &number.to_be_bytes(), request.as_bytes()],
    )
}

/// The account of a row of [`KeySpace::RefusedTransaction`], its number and its request.
pub fn split_refused(key: &Key) -> Option<(&[u8], u64, RequestId)> {
    let (rest, request) = key.bytes.split_last_chunk::<16>()?;
    let (account, number) = rest.split_last_chunk::<8>()?;
    let request = RequestId::from_bytes(*request);
    Some((account, u64::from_be_bytes(*number), request))
}

/// What the refused transactions of an account are known by, apart from those that requests hold: an [`account`] ends
/// with a 0.
pub fn refused_name(account: &[u8]) -> Vec<u8> {
    [account, &[1]].concat()
}

/// The row of a number that a draft names.
pub fn nonce_claim(claim: &NonceReservation) -> Key {
    let account = ChainAccount {
        network: claim.network,
        chain_id: Some(claim.chain_id),
        address: claim.address.clone(),
    };
    self::claim(&account, &Resource::Nonce(claim.nonce))
}

/// [`KeySpace::ReservationExpiry`]: those that are due first come first.
pub fn reservation_expiry(due_ms: u64, request: RequestId) -> Key {
    Key::new(
        KeySpace::ReservationExpiry,
        &[&due_ms.to_be_bytes(), request.as_bytes()],
    )
}

/// When the row of a release is due, and for which request.
pub fn reservation_expiry_due(key: &Key) -> Option<(u64, RequestId)> {
    let (due_ms, request) = key.bytes.split_first_chunk::<8>()?;
    let request = RequestId::from_bytes(request.try_into().ok()?);
    Some((u64::from_be_bytes(*due_ms), request))
}

/// [`KeySpace::Simulation`].
pub fn simulation(request: RequestId) -> Key {
    Key::new(KeySpace::Simulation, &[request.as_bytes()])
}

/// [`KeySpace::Delay`].
pub fn delay(request: RequestId) -> Key {
    Key::new(KeySpace::Delay, &[request.as_bytes()])
}

/// [`KeySpace::Transaction`].
pub fn transaction(request: RequestId) -> Key {
    Key::new(KeySpace::Transaction, &[request.as_bytes()])
}

/// [`KeySpace::Replacement`].
pub fn replacement_row(first: RequestId) -> Key {
    Key::new(KeySpace::Replacement, &[first.as_bytes()])
}

/// [`KeySpace::KeyProgress`].
pub fn key_progress(vault: VaultId, scheme: Scheme) -> Key {
    let scheme = [scheme.number()];
    Key::new(KeySpace::KeyProgress, &[vault.as_bytes(), &scheme])
}

/// The scheme of a row of [`KeySpace::KeyProgress`].
pub fn key_progress_scheme(key: &Key) -> Option<Scheme> {
    let (number, _) = key.bytes.split_last()?;
    Scheme::of(*number)
}

/// [`KeySpace::Token`].
pub fn token(id: TokenId) -> Key {
    Key::new(KeySpace::Token, &[id.as_bytes()])
}

/// [`KeySpace::TokenName`].
pub fn token_name(name: &str) -> Key {
    Key::new(KeySpace::TokenName, &[name.as_bytes()])
}

/// [`KeySpace::User`].
pub fn user(id: UserId) -> Key {
    Key::new(KeySpace::User, &[id.as_bytes()])
}

/// [`KeySpace::UserName`].
pub fn user_name(name: &str) -> Key {
    Key::new(KeySpace::UserName, &[name.as_bytes()])
}

/// [`KeySpace::UserLink`].
pub fn user_link(hash: &SecretHash) -> Key {
    Key::new(KeySpace::UserLink, &[hash.as_bytes()])
}

/// [`KeySpace::UserPasskey`].
pub fn user_passkey(credential_id: &[u8]) -> Key {
    Key::new(KeySpace::UserPasskey, &[credential_id])
}

/// The part of [`KeySpace::UserSession`] with the sessions of a person.
pub fn user_sessions(user: UserId) -> Key {
    Key::new(KeySpace::UserSession, &[user.as_bytes()])
}

/// [`KeySpace::UserSession`].
pub fn user_session(user: UserId, hash: &SecretHash) -> Key {
    Key::new(KeySpace::UserSession, &[user.as_bytes(), hash.as_bytes()])
}

/// [`KeySpace::UsedChallenges`].
pub fn used_challenges(user: UserId) -> Key {
    Key::new(KeySpace::UsedChallenges, &[user.as_bytes()])
}

/// [`KeySpace::ConsoleKey`].
pub fn console_key() -> Key {
    Key::new(KeySpace::ConsoleKey, &[])
}

/// [`KeySpace::SweepRoute`].
pub fn sweep_route(token: TokenId, network: DepositNetwork) -> Key {
    Key::new(
        KeySpace::SweepRoute,
        &[token.as_bytes(), &[network.number()]],
    )
}

/// The token and the network of a row of [`KeySpace::SweepRoute`].
pub fn split_sweep_route(key: &Key) -> Option<(TokenId, DepositNetwork)> {
    let (number, token) = key.bytes.split_last()?;
    let mut networks = DepositNetwork::ALL.into_iter();
    let network = networks.find(|network| network.number() == *number)?;
    Some((TokenId::from_bytes(token.try_into().ok()?), network))
}

/// [`KeySpace::Deposit`].
pub fn deposit(token: TokenId, network: DepositNetwork, reference: &str) -> Key {
    Key::new(
        KeySpace::Deposit,
        &[token.as_bytes(), &[network.number()], reference.as_bytes()],
    )
}

/// [`KeySpace::AddressProof`].
pub fn address_proof(wallet: WalletId) -> Key {
    Key::new(KeySpace::AddressProof, &[wallet.as_bytes()])
}

/// [`KeySpace::ProofWanted`].
pub fn proof_wanted(vault: VaultId, wallet: WalletId) -> Key {
    Key::new(
        KeySpace::ProofWanted,
        &[vault.as_bytes(), wallet.as_bytes()],
    )
}

/// The wallet of a row of [`KeySpace::ProofWanted`].
pub fn proof_wanted_wallet(key: &Key) -> Option<WalletId> {
    let (_, id) = key.bytes.split_last_chunk::<16>()?;
    Some(WalletId::from_bytes(*id))
}

/// [`KeySpace::Watch`].
pub fn watch(token: TokenId, network: DepositNetwork, address: &str) -> Key {
    Key::new(
        KeySpace::Watch,
        &[token.as_bytes(), &[network.number()], address.as_bytes()],
    )
}

/// [`KeySpace::Restore`].
pub fn restore() -> Key {
    Key::new(KeySpace::Restore, &[])
}

/// [`KeySpace::FirstWallet`].
pub fn first_wallet(vault: VaultId) -> Key {
    Key::new(KeySpace::FirstWallet, &[vault.as_bytes()])
}

/// [`KeySpace::RuleChanges`].
pub fn rule_changes(vault: VaultId) -> Key {
    Key::new(KeySpace::RuleChanges, &[vault.as_bytes()])
}

/// [`KeySpace::Management`].
pub fn management(id: RequestId) -> Key {
    Key::new(KeySpace::Management, &[id.as_bytes()])
}

/// [`KeySpace::AuditEntry`].
pub fn audit_entry(chain: AuditChain, number: u64) -> Key {
    Key::new(KeySpace::AuditEntry, &[&chain.key(), &number.to_be_bytes()])
}

/// The chain and the number of a row of [`KeySpace::AuditEntry`].
pub fn audit_position(key: &Key) -> Option<(AuditChain, u64)> {
    let (chain, number) = AuditChain::split(&key.bytes)?;
    Some((chain, u64::from_be_bytes(number.try_into().ok()?)))
}

/// [`KeySpace::AuditHead`].
pub fn audit_head(chain: AuditChain) -> Key {
    Key::new(KeySpace::AuditHead, &[&chain.key()])
}

/// The chain of a row of [`KeySpace::AuditHead`].
pub fn audit_chain(key: &Key) -> Option<AuditChain> {
    let (chain, rest) = AuditChain::split(&key.bytes)?;
    rest.is_empty().then_some(chain)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
pub(in crate::store) mod tests;
