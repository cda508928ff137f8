//! The actor of one vault: makes its keys, numbers its wallets, hands out nonces, and keeps
//! the actors of its live requests.

mod keys;
mod life;
pub mod view;

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    order::KeygenOrder,
    payload::Payload,
    request::{Effect, NonceClaim, Request, State},
    schema::wire,
    scheme::Scheme,
    wallet::vault::{KeyState, Vault},
};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::{OwnedSemaphorePermit, watch};

pub use keys::KeyPlan;
pub use life::{InUse, Msg as LifeMsg, Wish};

use crate::{
    building,
    context::Context,
    idempotency::Pledge,
    lanes::{Account, Ask, Lanes},
    ledger, rows,
    signing::{self, Signing, Start},
    store::{Scan, Space},
    wallets::{self, Plan},
};

/// Rows that one scan reads at most.
const PAGE: usize = 512;

/// A request that made its actor fail so often is given up, unless it is signed.
const MAX_FAILURES: u32 = 5;

/// Messages.
pub enum Msg {
    /// Loads live requests and missing keys, and goes on with them.
    Resume,
    /// Makes a wallet.
    CreateWallet(Box<NewWallet>),
    /// Takes a request in.
    Admit(Box<NewRequest>),
    /// Asks for the nonce of a request that queued up when it was admitted.
    AssignNonce {
        /// Who.
        request: RequestId,
        /// The nonce that the chain expects next.
        floor: u64,
        /// Where the nonce goes.
        reply: RpcReplyPort<u64>,
    },
    /// The request's nonce is on disk.
    NonceSettled(RequestId),
    /// The chain's nodes do not answer the request; others need not wait for it.
    StepBack(RequestId),
    /// Keys that failed for good are wanted again.
    MakeKeysAgain(RpcReplyPort<Result<Vault, Fault>>),
    /// Keys that are not there are wanted of other nodes.
    MakeKeysWith(Box<KeyPlan>),
    /// A key is to be made (again).
    KeygenDue(Scheme),
    /// The cluster answered.
    KeygenEnded(Box<KeygenOrder>, Result<RootKey, Fault>),
    /// About the shares of keys that are there.
    Life(LifeMsg),
    /// A request's actor is to be started again, unless it lives.
    RestartDue(RequestId),
}

/// A wallet to be made.
pub struct NewWallet {
    /// What the client wants.
    pub plan: Plan,
    /// Where the receipt goes.
    pub reply: RpcReplyPort<Result<wire::Wallet, Fault>>,
}

/// A request to be taken in.
pub struct NewRequest {
    /// In state `Received`, checked.
    pub request: Request,
    /// The account whose next nonce it wants.
    pub account: Option<Account>,
    /// Whether it is to be sent once signed.
    pub broadcast: bool,
    /// The idempotency record to store with it.
    pub pledge: Option<Pledge>,
    /// Counts it as live.
    pub place: Place,
    /// Where the receipt goes.
    pub reply: RpcReplyPort<Result<wire::SigningRequest, Fault>>,
}

/// What a live request takes up.
pub struct Place {
    /// One of the live requests. Given back once it is signed: a chain node that is down must
    /// not keep others from signing.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Its bytes in memory.
    pub _bytes: OwnedSemaphorePermit,
}

/// The actor.
pub struct VaultActor;

/// Its state.
pub struct Live {
    context: Arc<Context>,
    vault: Vault,
    version: u64,
    next_index: u32,
    lanes: Lanes<RpcReplyPort<u64>>,
    requests: HashMap<ActorId, RequestId>,
    /// How often the actor of a live request has failed.
    failures: HashMap<RequestId, u32>,
    keygens: keys::Keygens,
    works: life::Works,
    in_use: watch::Sender<InUse>,
}

#[async_trait]
impl Actor for VaultActor {
    type Msg = Msg;
    type State = Live;
    type Arguments = (Arc<Context>, VaultId);

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        (context, id): (Arc<Context>, VaultId),
    ) -> Result<Live, ActorProcessingErr> {
        let (vault, version) = context
            .vault(id)
            .await?
            .ok_or_else(|| Fault::bug("no such vault"))?;
        let last = Scan {
            reverse: true,
            ..Scan::prefix(Space::WalletIndex, id.as_bytes(), 1)
        };
        let last = context.store.scan(&last).await?;
        let next_index = match last
            .first()
            .and_then(|(key, _)| key.bytes.split_last_chunk::<4>())
        {
            Some((_, index)) => u32::from_be_bytes(*index).saturating_add(1),
            None => 0,
        };
        // First in the mailbox: nobody else has the address yet.
        myself.cast(Msg::Resume)?;
        let works = life::Works::new();
        Ok(Live {
            in_use: watch::channel(life::in_use(&vault, &works)).0,
            works,
            context,
            vault,
            version,
            next_index,
            lanes: Lanes::default(),
            requests: HashMap::new(),
            failures: HashMap::new(),
            keygens: keys::Keygens::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Resume => live.resume(&myself).await?,
            Msg::CreateWallet(wallet) => live.create_wallet(*wallet),
            Msg::Admit(request) => live.admit(&myself, *request).await?,
            Msg::AssignNonce {
                request,
                floor,
                reply,
            } => {
                let ask = Ask {
                    request,
                    floor,
                    port: reply,
                };
                if let Some(account) = live.lanes.ask(ask) {
                    live.serve(&account).await;
                }
            }
            Msg::NonceSettled(request) => live.leave_lane(request).await,
            Msg::StepBack(request) => {
                if let Some(account) = live.lanes.step_back(request) {
                    live.serve(&account).await;
                }
            }
            Msg::MakeKeysAgain(reply) => {
                let vault = live.make_keys_again(&myself).await;
                let failed = vault.as_ref().err().cloned();
                let _ = reply.send(vault);
                if let Some(fault) = failed {
                    return Err(fault.into());
                }
            }
            Msg::MakeKeysWith(plan) => live.make_keys_with(&myself, *plan).await?,
            Msg::KeygenDue(scheme) => live.start_keygen(&myself, scheme).await?,
            Msg::KeygenEnded(order, result) => live.keygen_ended(&myself, &order, result).await?,
            Msg::Life(message) => live.life(&myself, message).await?,
            Msg::RestartDue(request) => {
                if !live.requests.values().any(|other| *other == request) {
                    live.load_request(&myself, request).await?;
                }
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(actor, _, _) => {
                if let Some(request) = live.requests.remove(&actor.get_id()) {
                    live.failures.remove(&request);
                    live.leave_lane(request).await;
                }
            }
            SupervisionEvent::ActorFailed(actor, error) => {
                if let Some(request) = live.requests.remove(&actor.get_id()) {
                    tracing::error!(%request, %error, "the actor of a request failed; it starts again from the store");
                    live.leave_lane(request).await;
                    live.restart_later(&myself, request);
                }
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl Live {
    async fn resume(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        for key in &self.vault.keys {
            if matches!(key.state, KeyState::Wanted | KeyState::Generating(_)) {
                let _ = myself.cast(Msg::KeygenDue(key.scheme));
            }
        }
        self.resume_life(myself);
        let mut pending = Vec::new();
        let mut from = None;
        loop {
            let scan = Scan {
                from: from.take(),
                ..Scan::prefix(Space::Outbox, self.vault.id.as_bytes(), PAGE)
            };
            let page = self.context.store.scan(&scan).await?;
            for (key, _) in &page {
                let Some(id) = rows::outbox_request(key) else {
                    continue;
                };
                if let Some((request, version)) = self.readable(id).await? {
                    pending.push((request, version));
                }
            }
            match page.last() {
                Some((key, _)) if page.len() == PAGE => {
                    from = Some([key.bytes.as_slice(), &[0]].concat())
                }
                _ => break,
            }
        }
        // Nonces follow the order of creation.
        pending.sort_by_key(|(request, _)| (request.created_at_ms, request.id));
        for (request, version) in pending {
            self.start_loaded(myself, request, version).await?;
        }
        Ok(())
    }

    fn restart_later(&mut self, myself: &ActorRef<Msg>, request: RequestId) {
        let failures = self.failures.entry(request).or_default();
        *failures = failures.saturating_add(1);
        let pause = self.context.pause(*failures);
        myself.send_after(pause, move || Msg::RestartDue(request));
    }

    /// A request from the store. One that cannot be read must not stop the vault: nothing can
    /// be done for it, and it stays as it is.
    async fn readable(&self, id: RequestId) -> Result<Option<(Request, u64)>, Fault> {
        match self.context.request(id).await {
            Err(fault) if *fault.class() == Class::Bug => {
                tracing::error!(request = %id, ?fault, "a stored request cannot be read; it is left alone");
                Ok(None)
            }
            found => found,
        }
    }

    async fn load_request(&mut self, myself: &ActorRef<Msg>, id: RequestId) -> Result<(), Fault> {
        match self.readable(id).await? {
            Some((request, version)) if !request.state.is_final() => {
                self.start_loaded(myself, request, version).await
            }
            found => {
                self.failures.remove(&id);
                if found.is_some() {
                    // Its last commit was on disk although its actor was told otherwise.
                    self.context.waiters.ended(id);
                }
                Ok(())
            }
        }
    }

    async fn start_loaded(
        &mut self,
        myself: &ActorRef<Msg>,
        request: Request,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let signed = matches!(
            request.state,
            State::Signed { .. } | State::Broadcasting { .. }
        );
        let failures = self.failures.get(&id).copied().unwrap_or_default();
        match self.account_wanted(&request) {
            Ok(account) if failures < MAX_FAILURES || signed => {
                if let Some(account) = account {
                    self.lanes.join(account, id);
                }
            }
            Ok(_) => return self.give_up(myself, request, version).await,
            Err(fault) => {
                tracing::error!(request = %id, ?fault, "a stored request cannot be worked on");
                return if signed {
                    Ok(())
                } else {
                    self.give_up(myself, request, version).await
                };
            }
        }
        let start = Start::Load { request, version };
        self.start(myself, id, start, None).await
    }

    /// The account whose nonce a loaded request waits for, where it waits for one.
    fn account_wanted(&self, request: &Request) -> Result<Option<Account>, Fault> {
        let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
        let needs = building::needs(&self.context, request.network, &payload)?;
        let waits = request.state.effect() == Some(Effect::Prepare);
        Ok(building::account(request, &needs).filter(|_| waits))
    }

    async fn give_up(
        &mut self,
        myself: &ActorRef<Msg>,
        request: Request,
        version: u64,
    ) -> Result<(), Fault> {
        let id = request.id;
        let reason = "internal error; the log of the server says more".to_owned();
        match ledger::give_up(&self.context, request, version, reason).await {
            Ok(()) => {
                self.failures.remove(&id);
            }
            Err(problem) => {
                let fault = Fault::from(problem);
                tracing::error!(request = %id, ?fault, "a request could not be given up");
                self.restart_later(myself, id);
            }
        }
        Ok(())
    }

    async fn admit(&mut self, myself: &ActorRef<Msg>, new: NewRequest) -> Result<(), Fault> {
        let NewRequest {
            request,
            account,
            broadcast,
            pledge,
            place,
            reply,
        } = new;
        let id = request.id;
        if let Some(account) = account {
            self.lanes.join(account, id);
        }
        let start = Start::New {
            request,
            broadcast,
            pledge,
            reply,
        };
        self.start(myself, id, start, Some(place)).await
    }

    async fn start(
        &mut self,
        myself: &ActorRef<Msg>,
        id: RequestId,
        start: Start,
        place: Option<Place>,
    ) -> Result<(), Fault> {
        let args = signing::Args {
            context: Arc::clone(&self.context),
            vault: myself.clone(),
            in_use: self.in_use.subscribe(),
            start,
            place,
        };
        let (actor, _) = Actor::spawn_linked(None, Signing, args, myself.get_cell())
            .await
            .map_err(Fault::bug)?;
        self.requests.insert(actor.get_id(), id);
        Ok(())
    }

    async fn leave_lane(&mut self, request: RequestId) {
        if let Some(account) = self.lanes.leave(request) {
            self.serve(&account).await;
        }
    }

    /// Gives nonces to those who are first in the lane and have asked.
    async fn serve(&mut self, account: &Account) {
        while let Some(Ask {
            request,
            floor,
            port,
        }) = self.lanes.next(account)
        {
            let told = match self.lowest_free(account, floor).await {
                Ok(nonce) => {
                    self.lanes.reserve(account, nonce, request);
                    port.send(nonce).is_ok()
                }
                Err(fault) => {
                    tracing::warn!(%request, ?fault, "no nonce could be found");
                    false
                }
            };
            if !told {
                // It asks again or ends.
                self.lanes.leave(request);
                self.lanes.join(account.clone(), request);
            }
        }
    }

    /// The lowest nonce from `floor` up that no request holds.
    async fn lowest_free(&self, account: &Account, floor: u64) -> Result<u64, Fault> {
        let claim = |nonce| NonceClaim {
            network: account.network,
            chain_id: account.chain_id,
            address: account.address.clone(),
            nonce,
        };
        let mut nonce = floor;
        loop {
            let scan = Scan {
                from: Some(rows::nonce_claim(&claim(nonce)).bytes),
                ..Scan::prefix(Space::NonceClaim, &rows::account(&claim(0)), PAGE)
            };
            let page = self.context.store.scan(&scan).await?;
            let claimed = page
                .iter()
                .filter_map(|(key, _)| rows::claimed_nonce(key))
                .collect::<Vec<_>>();
            let mut taken = claimed.iter().copied().peekable();
            loop {
                if taken.peek() == Some(&nonce) {
                    taken.next();
                } else if !self.lanes.is_reserved(account, nonce) {
                    return Ok(nonce);
                }
                nonce = nonce
                    .checked_add(1)
                    .ok_or_else(|| Fault::bug("nonces are used up"))?;
                // The rows after this page are not known yet.
                if claimed.len() == PAGE && claimed.last() < Some(&nonce) {
                    break;
                }
            }
        }
    }

    /// Numbers the wallet and stores it in a task beside the actor: wallets share a commit.
    fn create_wallet(&mut self, new: NewWallet) {
        let NewWallet { plan, reply } = new;
        let curve = plan.network.curve();
        let Some(root) = self.vault.root(curve).cloned() else {
            let reason = match self.vault.failed_reason() {
                Some(reason) => {
                    format!("the vault has no {} key: {reason}", curve.name())
                }
                None => "the vault's keys are still being made; try again".into(),
            };
            let _ = reply.send(Err(Fault::unavailable(reason)));
            return;
        };
        let index = self.next_index;
        self.next_index = index.saturating_add(1);
        let context = Arc::clone(&self.context);
        let vault = self.vault.id;
        tokio::spawn(async move {
            let made = wallets::make(&context, vault, &root, index, plan).await;
            let _ = reply.send(made);
        });
    }
}
