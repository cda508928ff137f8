//! Makes wallets: derives their keys and stores them with their indexes.

use std::sync::Arc;

use covault_core::{
    attest::AddressProof,
    audit::AuditChain,
    deposit::{
        self, Deposit, DepositNetwork,
        transfer::{Account, AddressOwner},
    },
    derive::KeyPath,
    fault::{Class, Fault},
    ids::{TokenId, VaultId},
    networks::Network,
    schema::wire,
    wallet::{Wallet, WalletStatus},
};
use prost::Message as _;

use crate::{
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    deposits::addresses,
    services::Services,
    store::{Batch, CommitError, Key, KeySpace, Precondition, Scan, rows},
    vaults::address_proofs::{self, ProofQueues, ShareHolders},
};

/// The deposit that a wallet is made for.
pub struct DepositPlan {
    /// Its row.
    pub row: Key,
    /// The network of the deposits.
    pub network: DepositNetwork,
    /// The API token whose webhook is told.
    pub token: TokenId,
    /// The client's reference.
    pub reference: String,
}

/// A wallet as the client wants it.
pub struct WalletPlan {
    /// Its network, which is built.
    pub network: Network,
    /// Its name, checked.
    pub name: String,
    /// Its reference, checked.
    pub reference: String,
    /// The deposit that it is made for.
    pub deposit: Option<DepositPlan>,
    /// The reference that its proof names: its own, or the deposit's.
    pub proven_reference: String,
    /// Without a proof of its address nothing is made.
    pub require_proof: bool,
    /// What is stored and demanded with it.
    pub command_commit: CommandCommit,
}

/// Makes the wallet at `m/<coin type of its network>/<index>` below the vault's root key on its
/// curve. One counter per vault numbers the wallets of all networks, so that no index is ever used
/// for two of them.
///
/// `None` when another process on the store has used the index.
///
/// # Errors
/// [`covault_core::fault::Class::Conflict`] when its reference or its deposit is taken, and
/// [`covault_core::fault::Class::Unavailable`] when the plan demands a proof that cannot be had; the
/// index stays unused then.
pub async fn make(
    services: &Arc<Services>,
    queues: &Arc<ProofQueues>,
    holders: &ShareHolders,
    index: u32,
    plan: &WalletPlan,
) -> Result<Option<wire::Wallet>, Fault> {
    let path = KeyPath::of_wallet(plan.network, index)?;
    let public_key = holders.root.child(&path)?.public_key;
    let wallet = Wallet {
        id: services.new_wallet_id(),
        vault: holders.vault,
        network: plan.network,
        address: plan.network.rules().address(&public_key)?,
        path,
        public_key,
        reference: plan.reference.clone(),
        name: plan.name.clone(),
        status: WalletStatus::Active,
        created_at_ms: services.now_ms(),
    };
    let stated = address_proofs::attested(&wallet, &plan.proven_reference);
    let proof = address_proofs::prove(services, queues, holders, stated)
        .await
        .ok();
    if proof.is_none() && plan.require_proof {
        return Err(address_proofs::missing());
    }
    store(services, &wallet, index, plan, proof.as_ref()).await
}

/// The index behind those of the vault's wallets that are stored.
///
/// # Errors
/// When the store cannot be read.
pub async fn next_index(services: &Services, vault: VaultId) -> Result<u32, Fault> {
    let last = Scan {
        reverse: true,
        ..Scan::prefix(KeySpace::WalletIndex, vault.as_bytes(), 1)
    };
    let last = services.store.scan(&last).await?;
    let last = last
        .first()
        .and_then(|(key, _)| key.bytes.split_last_chunk::<4>());
    Ok(last.map_or(0, |(_, index)| u32::from_be_bytes(*index).saturating_add(1)))
}

async fn store(
    services: &Services,
    wallet: &Wallet,
    index: u32,
    plan: &WalletPlan,
    proof: Option<&AddressProof>,
) -> Result<Option<wire::Wallet>, Fault> {
    let shown = address_proofs::with(wallet, proof);
    let id = rows::encode(&wallet.id)?;
    let mut batch = Batch::new();
    batch.put(
        rows::wallet(wallet.id),
        Precondition::Absent,
        rows::encode(wallet)?,
    );
    batch.put(
        rows::wallet_index(wallet.vault, index),
        Precondition::Absent,
        id.clone(),
    );
    batch.put(
        rows::wallet_address(&wallet.address),
        Precondition::Absent,
        id.clone(),
    );
    if !wallet.reference.is_empty() {
        batch.put(
            rows::wallet_ref(&wallet.reference),
            Precondition::Absent,
            id,
        );
    }
    if let Some(plan) = &plan.deposit {
        let deposit = Deposit {
            wallet: wallet.id,
            created_at_ms: wallet.created_at_ms,
        };
        let row = rows::encode(&deposit)?;
        batch.put(plan.row.clone(), Precondition::Absent, row);
        // In the same commit: whatever is sent to the address once it was told is seen.
        let account = Account::parse(plan.network, &wallet.address)
            .ok_or_else(|| Fault::bug("the address of a deposit wallet cannot be read"))?;
        let owner = AddressOwner {
            token: plan.token,
            reference: plan.reference.clone(),
            wallet: Some((wallet.id, wallet.vault)),
            since_ms: 0,
        };
        addresses::add(services, &mut batch, plan.network, account, owner).await?;
    }
    address_proofs::add_to(&mut batch, wallet, &plan.proven_reference, proof)?;
    let for_deposit = plan.deposit.is_some();
    AuditNote::new(
        plan.command_commit.by(),
        format_args!("wallet:{}", wallet.id),
        "WalletMade",
    )
    .fact("network", wallet.network.name())
    .fact("address", &wallet.address)
    .fact("keyPath", &wallet.path)
    .fact("ref", &wallet.reference)
    .fact("name", &wallet.name)
    .fact("for", if for_deposit { "deposits" } else { "" })
    .add_to(
        &mut batch,
        AuditChain::Vault(wallet.vault),
        wallet.created_at_ms,
    )?;
    let response = || created(shown.clone()).encode_to_vec();
    plan.command_commit
        .add_to(&mut batch, response, wallet.created_at_ms)?;
    match services.store.commit(batch).await {
        Ok(()) => Ok(Some(shown)),
        Err(CommitError::Conflict(key)) if key.space == KeySpace::WalletIndex => Ok(None),
        // Another call made it.
        Err(CommitError::Conflict(key))
            if plan.deposit.is_some() && key.space != KeySpace::Token =>
        {
            Err(deposit::conflict())
        }
        Err(CommitError::Conflict(key)) if key.space == KeySpace::WalletRef => Err(duplicate_ref()),
        Err(CommitError::Conflict(key)) if key.space == KeySpace::Idempotency => Err(
            Fault::unavailable("another call with this idempotency key is in progress; try again"),
        ),
        Err(error) => Err(error.into()),
    }
}

/// Why a wallet signs nothing and pays nothing; `field` names it.
pub fn archived(field: impl std::fmt::Display) -> Fault {
    Fault::new(
        Class::WrongState,
        format!("{field}: the wallet is archived; make it active again with updateWallet first"),
    )
}

/// `duplicate wallet ref`.
pub fn duplicate_ref() -> Fault {
    Fault::new(Class::Conflict, "duplicate wallet ref")
}

/// What createWallet answers.
pub fn created(wallet: wire::Wallet) -> wire::CreateWalletResponse {
    wire::CreateWalletResponse {
        details: Some(wallet),
        error: None,
    }
}
