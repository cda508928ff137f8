//! Makes wallets: derives their keys and stores them with their indexes.

use covault_core::{
    audit::Chain,
    deposit::{self, Deposit},
    derive::{KeyPath, RootKey},
    fault::{Class, Fault},
    ids::VaultId,
    network::Network,
    schema::wire,
    wallet::{Status, Wallet},
};
use prost::Message as _;

use crate::{
    audit::{By, Note},
    context::Context,
    idempotency::Pledge,
    rows,
    store::{Batch, CommitError, Expect, Key, Space},
};

/// A wallet as the client wants it.
pub struct Plan {
    /// Its network, which is built.
    pub network: Network,
    /// Its name, checked.
    pub name: String,
    /// Its reference, checked.
    pub reference: String,
    /// The row of the deposit that it is made for.
    pub deposit: Option<Key>,
    /// The idempotency record to store with it.
    pub pledge: Option<Pledge>,
    /// Who wants it.
    pub by: By,
}

/// Makes the wallet at `m/<index>` below the vault's root key on its curve. One counter per
/// vault numbers the wallets of all networks, so that no index is ever used for two of them.
///
/// # Errors
/// [`covault_core::fault::Class::Conflict`] when its reference or its deposit is taken; the index
/// stays unused then.
pub async fn make(
    context: &Context,
    vault: VaultId,
    root: &RootKey,
    index: u32,
    plan: Plan,
) -> Result<wire::Wallet, Fault> {
    let path = KeyPath::new(vec![index])?;
    let public_key = root.child(&path)?.public_key;
    let wallet = Wallet {
        id: context.new_wallet_id(),
        vault,
        network: plan.network,
        address: plan.network.chain().address(&public_key)?,
        path,
        public_key,
        reference: plan.reference,
        name: plan.name,
        status: Status::Active,
        created_at_ms: context.now_ms(),
    };
    let Plan {
        deposit,
        pledge,
        by,
        ..
    } = plan;
    store(context, &wallet, index, deposit, pledge.as_ref(), &by).await
}

async fn store(
    context: &Context,
    wallet: &Wallet,
    index: u32,
    deposit: Option<Key>,
    pledge: Option<&Pledge>,
    by: &By,
) -> Result<wire::Wallet, Fault> {
    let shown = wallet.to_wire();
    let id = rows::encode(&wallet.id)?;
    let mut batch = Batch::new();
    batch.put(
        rows::wallet(wallet.id),
        Expect::Absent,
        rows::encode(wallet)?,
    );
    batch.put(
        rows::wallet_index(wallet.vault, index),
        Expect::Absent,
        id.clone(),
    );
    batch.put(
        rows::wallet_address(&wallet.address),
        Expect::Absent,
        id.clone(),
    );
    if !wallet.reference.is_empty() {
        batch.put(rows::wallet_ref(&wallet.reference), Expect::Absent, id);
    }
    let for_deposit = deposit.is_some();
    Note::new(by, format_args!("wallet:{}", wallet.id), "WalletMade")
        .fact("network", wallet.network.name())
        .fact("address", &wallet.address)
        .fact("keyPath", format_args!("m/{index}"))
        .fact("ref", &wallet.reference)
        .fact("name", &wallet.name)
        .fact("for", if for_deposit { "deposits" } else { "" })
        .add_to(&mut batch, Chain::Vault(wallet.vault), wallet.created_at_ms)?;
    if let Some(key) = deposit {
        let deposit = Deposit {
            wallet: wallet.id,
            created_at_ms: wallet.created_at_ms,
        };
        batch.put(key, Expect::Absent, rows::encode(&deposit)?);
    }
    if let Some(pledge) = pledge {
        pledge.add_to(&mut batch, &shown.encode_to_vec(), wallet.created_at_ms)?;
    }
    match context.store.commit(batch).await {
        Ok(()) => Ok(shown),
        // Another call made it, or the index went to another orchestrator on the same store.
        Err(CommitError::Conflict(_)) if for_deposit => Err(deposit::conflict()),
        Err(CommitError::Conflict(key)) if key.space == Space::WalletRef => Err(duplicate_ref()),
        Err(CommitError::Conflict(key)) if key.space == Space::Idempotency => Err(
            Fault::unavailable("another call with this idempotency key is in work; try again"),
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
