//! Proofs of addresses: statements of signer nodes, asked for in batches and stored beside wallets.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use covault_core::{
    attest::{AddressProof, AttestOrder, AttestedAddress, MAX_ADDRESSES},
    derive::RootKey,
    fault::{Class, Fault},
    ids::{VaultId, WalletId},
    order::Generation,
    schema::wire,
    signature::Curve,
    wallet::{Wallet, vault::Vault},
};
use futures::{FutureExt as _, future::join_all};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    services::{Services, skip_unreadable},
    store::{Batch, CommitError, Key, KeySpace, Precondition, Scan, rows},
};

/// How long a new wallet waits for its proof.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Whose statements are asked for.
#[derive(Clone, Debug)]
pub struct ShareHolders {
    /// The vault.
    pub vault: VaultId,
    /// Its root key on one curve.
    pub root: RootKey,
    /// What shows that all had a share of it from the beginning.
    pub confirmed: Vec<Vec<u8>>,
    /// The shares of it that sign.
    pub generation: Generation,
}

impl ShareHolders {
    /// Of the vault's key on a curve, once it is there.
    pub fn of(vault: &Vault, curve: Curve) -> Option<Self> {
        vault.live(curve).map(|live| Self {
            vault: vault.id,
            root: live.root.clone(),
            confirmed: live.confirmed.clone(),
            generation: live.generation.clone(),
        })
    }
}

/// Addresses of a vault that wait for the next batch, by root key. While there is an entry, a task
/// works on it.
#[derive(Default)]
pub struct ProofQueues(Mutex<ByKey>);

/// By root public key.
type ByKey = HashMap<Vec<u8>, Vec<WaitingProofs>>;

struct WaitingProofs {
    address: AttestedAddress,
    reply: oneshot::Sender<Result<AddressProof, Fault>>,
}

impl ProofQueues {
    fn lock(&self) -> MutexGuard<'_, ByKey> {
        self.0.lock()
    }

    /// Whether nobody works on the queue yet.
    fn join(&self, of: Vec<u8>, waiting: WaitingProofs) -> bool {
        let mut queues = self.lock();
        let first = !queues.contains_key(&of);
        queues.entry(of).or_default().push(waiting);
        first
    }

    /// The next batch; `None` when nobody waits, and the queue is gone.
    fn next(&self, of: &[u8]) -> Option<Vec<WaitingProofs>> {
        let mut queues = self.lock();
        let queue = queues.get_mut(of)?;
        queue.retain(|waiting| !waiting.reply.is_closed());
        let rest = queue.split_off(queue.len().min(MAX_ADDRESSES));
        let batch = std::mem::replace(queue, rest);
        if batch.is_empty() {
            queues.remove(of);
            return None;
        }
        Some(batch)
    }
}

/// The proof of an address. Those that are asked for at the same time share a batch.
///
/// # Errors
/// [`Class::Unavailable`] when too few nodes have stated it within [`PATIENCE`].
pub async fn prove(
    services: &Arc<Services>,
    queues: &Arc<ProofQueues>,
    holders: &ShareHolders,
    address: AttestedAddress,
) -> Result<AddressProof, Fault> {
    let of = holders.root.public_key.clone();
    let (reply, answer) = oneshot::channel();
    if queues.join(of.clone(), WaitingProofs { address, reply }) {
        let (services, queues) = (Arc::clone(services), Arc::clone(queues));
        let holders = holders.clone();
        tokio::spawn(async move {
            while let Some(batch) = queues.next(&of) {
                ask_cluster(&services, &holders, batch).await;
            }
        });
    }
    match timeout(PATIENCE, answer).await {
        Ok(Ok(proof)) => proof,
        Ok(Err(_)) | Err(_) => Err(Fault::unavailable(
            "the signers did not attest the address in time",
        )),
    }
}

async fn ask_cluster(services: &Services, holders: &ShareHolders, batch: Vec<WaitingProofs>) {
    let ShareHolders {
        vault,
        root,
        confirmed,
        generation,
    } = holders;
    let (addresses, replies): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|WaitingProofs { address, reply }| (address, reply))
        .unzip();
    let order = AttestOrder {
        session: services.new_session_id(),
        vault: *vault,
        epoch: generation.epoch,
        root_public_key: root.public_key.clone(),
        threshold: generation.threshold,
        holders: generation.holders.clone(),
        confirmed: confirmed.clone(),
        addresses,
    };
    let stated = services.signers.attest(&order, generation, PATIENCE);
    // Nobody else would continue with the queue.
    let stated = AssertUnwindSafe(stated).catch_unwind().await;
    let stated = stated.unwrap_or_else(|_| Err(Fault::bug("the call to the signers panicked")));
    if let Err(fault) = &stated {
        tracing::warn!(%vault, addresses = replies.len(), ?fault, "failed to get address proofs; retrying");
    }
    for (admission, (statement, reply)) in order.statements().zip(replies).enumerate() {
        let proof = stated.as_ref().map_err(Fault::clone).map(|nodes| {
            let signature = |(node, signatures): &(_, Vec<[u8; 64]>)| {
                Some((*node, signatures.get(admission)?.to_vec()))
            };
            AddressProof {
                statement,
                epoch: generation.epoch,
                statements: nodes.iter().filter_map(signature).collect(),
            }
        });
        // It may have stopped waiting.
        let _ = reply.send(proof);
    }
}

/// Adds a new wallet's proof to the commit that makes it; without one, that it is wanted.
///
/// # Errors
/// [`Class::Bug`] when it cannot be serialized.
pub fn add_to(
    batch: &mut Batch,
    wallet: &Wallet,
    reference: &str,
    proof: Option<&AddressProof>,
) -> Result<(), Fault> {
    let (key, value) = match proof {
        Some(proof) => (rows::address_proof(wallet.id), rows::encode(proof)?),
        None => (
            rows::proof_wanted(wallet.vault, wallet.id),
            rows::encode(&reference.to_owned())?,
        ),
    };
    batch.put(key, Precondition::Absent, value);
    Ok(())
}

/// What is to be stated about a wallet.
pub fn attested(wallet: &Wallet, reference: &str) -> AttestedAddress {
    AttestedAddress {
        path: wallet.path.clone(),
        network: wallet.network,
        address: wallet.address.clone(),
        reference: reference.to_owned(),
    }
}

/// Gets proofs for wallets of the vault that have none. Whether there may be more of them.
///
/// # Errors
/// [`Class::Unavailable`] when not all of them could be had now.
pub async fn complete(
    services: &Arc<Services>,
    queues: &Arc<ProofQueues>,
    holders: &[ShareHolders],
    vault: VaultId,
) -> Result<bool, Fault> {
    let wanted = Scan::prefix(KeySpace::ProofWanted, vault.as_bytes(), MAX_ADDRESSES);
    let wanted = services.store.scan(&wanted).await?;
    let more = wanted.len() >= MAX_ADDRESSES;
    let all = wanted.iter().map(|(key, row)| async move {
        let reference: String = rows::decode(&row.value)?;
        complete_one(services, queues, holders, key, &reference).await
    });
    for done in join_all(all).await {
        skip_unreadable(done, "a wallet that has no proof")?;
    }
    Ok(more)
}

async fn complete_one(
    services: &Arc<Services>,
    queues: &Arc<ProofQueues>,
    holders: &[ShareHolders],
    wanted: &Key,
    reference: &str,
) -> Result<(), Fault> {
    let id =
        rows::proof_wanted_wallet(wanted).ok_or_else(|| Fault::bug("a row without a wallet"))?;
    let (wallet, _) = services.wallet(id).await?;
    let holders = holders
        .iter()
        .find(|holders| holders.root.curve == wallet.network.curve())
        .ok_or_else(|| Fault::bug("a wallet without a root key"))?;
    let proof = prove(services, queues, holders, attested(&wallet, reference)).await?;
    let mut batch = Batch::new();
    batch.put(
        rows::address_proof(id),
        Precondition::Absent,
        rows::encode(&proof)?,
    );
    batch.delete(wanted.clone(), Precondition::Any);
    match services.store.commit(batch).await {
        // Another process was faster.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The wallet as responses show it.
///
/// # Errors
/// When the store cannot be read.
pub async fn shown(services: &Services, wallet: &Wallet) -> Result<wire::Wallet, Fault> {
    let mut all = shown_all(services, std::slice::from_ref(wallet)).await?;
    all.pop().ok_or_else(|| Fault::bug("a wallet that is gone"))
}

/// As [`shown`], for several.
///
/// # Errors
/// As [`shown`].
pub async fn shown_all(
    services: &Services,
    wallets: &[Wallet],
) -> Result<Vec<wire::Wallet>, Fault> {
    let keys: Vec<Key> = wallets
        .iter()
        .map(|wallet| rows::address_proof(wallet.id))
        .collect();
    let proofs = services.load_all::<AddressProof>(&keys).await?;
    let mut shown = Vec::with_capacity(wallets.len());
    for (wallet, proof) in wallets.iter().zip(proofs) {
        let proof = skip_unreadable(proof, format_args!("proof of wallet {}", wallet.id))?;
        shown.push(with(wallet, proof.flatten().as_ref()));
    }
    Ok(shown)
}

/// The wallet with this proof.
pub fn with(wallet: &Wallet, proof: Option<&AddressProof>) -> wire::Wallet {
    wire::Wallet {
        address_proof: proof.map(AddressProof::to_wire),
        ..wallet.to_wire()
    }
}

/// The proof of a wallet, if it is there.
///
/// # Errors
/// When the store cannot be read.
pub async fn of(
    services: &Services,
    wallet: WalletId,
) -> Result<Option<wire::AddressProof>, Fault> {
    let proof = services
        .load::<AddressProof>(&rows::address_proof(wallet))
        .await?;
    Ok(proof.map(|(proof, _)| proof.to_wire()))
}

/// Why nothing was made, or is shown, for a client that demands a proof.
pub fn missing() -> Fault {
    Fault::new(
        Class::Unavailable,
        "requireAddressProof: too few signers attested the address within 2 s; try again",
    )
}
