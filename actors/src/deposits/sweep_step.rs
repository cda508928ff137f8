//! The next step of the sweep of one deposit wallet.

mod fees;
mod gas_wallets;
mod outcome;
mod shared;
mod tron_fees;

pub use self::{gas_wallets::GasWallets, shared::LookAnswers};

use std::sync::Arc;

use covault_core::{
    amount::{U256, parse_u256},
    deposit::{
        SweepRoute, SweepRules,
        sweep::{PauseReason, SweepEvent, SweepJob, SweepState},
        transfer::{Account, AddressOwner, FollowedChain},
    },
    fault::{Class, Fault},
    ids::{RequestId, TokenId, VaultId, WalletId},
    networks::Payload,
    wallet::{Wallet, WalletStatus},
};

use self::fees::{MovePlan, SweepSpending};
use super::books;
use crate::{
    audit::AuditActor,
    chain_rpc::ChainError,
    commands::command_commit::CommandCommit,
    requests::sweep_claim::SweepClaim,
    services::Services,
    store::{
        Batch, CommitError, Key, Precondition,
        deposit_rows::{self, BalanceRow, CursorRow},
        rows, sweep_rows,
    },
    vaults::{
        admission::{ProposalContent, SigningProposal, admit},
        vault_actors::VaultActors,
    },
};

/// Steps of one wallet in one look: a sweep has no more.
const STEPS: usize = 6;

/// A coin or token of a wallet that was paid.
pub struct DueAsset {
    /// The token; `None`: the coin.
    pub asset: Option<Account>,
    /// The version of its row.
    pub version: u64,
    /// Whose wallet it is.
    pub owner: AddressOwner,
}

/// A deposit wallet of which something may be swept.
pub struct SweptWallet {
    pub vaults: VaultActors,
    /// Under the lease of the wallet's vault.
    pub services: Services,
    pub chain: FollowedChain,
    pub account: Account,
    pub wallet: WalletId,
    pub vault: VaultId,
    /// The sweep token.
    pub token: TokenId,
    pub route: SweepRoute,
    pub rules: SweepRules,
    /// Tokens first.
    pub due: Vec<DueAsset>,
    /// What sweeps have asked the gas wallets for: that of all wallets of a look.
    pub gas_wallets: Arc<GasWallets>,
    /// What nodes have said in this look.
    pub said: Arc<LookAnswers>,
}

/// A sweep as the store has it.
pub(super) struct StoredJob {
    pub(super) job: SweepJob,
    pub(super) version: u64,
}

impl SweptWallet {
    /// Goes on as far as it can now. `seen` becomes the sweep that is not over then, whatever else happens.
    ///
    /// # Errors
    /// When the store or a node does not answer; nothing was sent then that the store does not know of.
    pub async fn advance(&self, seen: &mut Option<SweepJob>) -> Result<(), Fault> {
        for _ in 0..STEPS {
            let stored = self.services.load::<SweepJob>(&self.key()).await?;
            let stored = stored.map(|(job, version)| StoredJob { job, version });
            let open = stored.as_ref().filter(|stored| !stored.job.is_over());
            *seen = open.map(|stored| stored.job.clone());
            let retried = stored.as_ref().and_then(|stored| self.retried(&stored.job));
            let goes_on = match (&stored, retried) {
                (Some(stored), Some(next)) => self.write(stored, next).await,
                (Some(stored), None) if !stored.job.is_over() => self.go_on(stored).await,
                (over, _) => self.begin(over.as_ref(), None).await,
            };
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The owner of the vault, or the follower, has written at the same time.
                Err(fault) if *fault.class() == Class::Conflict => return Ok(()),
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// The key of its sweep.
    pub fn key(&self) -> Key {
        sweep_rows::sweep(self.chain, self.account)
    }

    /// As its network writes it.
    pub fn address(&self) -> String {
        self.account.text(self.chain.network())
    }

    /// What it may have to sweep, and what the nodes are asked about.
    pub fn assets(&self) -> impl Iterator<Item = Option<Account>> {
        let of_rules = self.due.iter().filter(|_| self.rules.enabled);
        let assets = of_rules.map(|due| due.asset);
        assets.filter(|asset| self.minimum(*asset).is_some())
    }

    /// Whether all that may be swept of it is held until a person says so, which nobody has.
    pub fn is_held(&self, job: &SweepJob) -> bool {
        job.is_at_rest()
            && self.retried(job).is_none()
            && self.due.iter().all(|due| job.is_held(due.asset))
    }

    /// Its sweep once people have had what is held tried again; `None`: they have not.
    pub fn retried(&self, job: &SweepJob) -> Option<SweepJob> {
        let now_ms = self.services.now_ms();
        job.retried(self.account, &self.rules.retries, now_ms)
    }

    /// What of it is held until a person says so.
    pub fn held(&self, job: &SweepJob) -> usize {
        let held = self.due.iter().filter(|due| job.is_held(due.asset));
        held.count()
    }

    /// Whether there is more to do now.
    async fn go_on(&self, stored: &StoredJob) -> Result<bool, Fault> {
        let job = &stored.job;
        match &job.state {
            SweepState::Swept { .. } | SweepState::Gone => Ok(false),
            SweepState::Funding { request } | SweepState::Moving { request, .. } => {
                self.look_at_request(stored, *request).await
            }
            // What was sent is followed; nothing else is done where it is switched off.
            _ if !self.rules.enabled => Ok(false),
            SweepState::Paused {
                retry_at_ms,
                reason,
            } => {
                if self.services.now_ms() < *retry_at_ms {
                    return Ok(false);
                }
                // Another coin or token of the wallet may go first. Gas is as dear for that, and once it is not, the coin
                // of a top-up is to be there for the token.
                if !matches!(reason, PauseReason::GasPrice { .. })
                    && job.may_be_replaced()
                    && self.due.len() > 1
                    && self.begin(Some(stored), Some(job.asset)).await?
                {
                    return Ok(true);
                }
                let now_ms = self.services.now_ms();
                let next = job.step(SweepEvent::RetryDue, now_ms)?;
                self.write(stored, next).await
            }
            SweepState::Due | SweepState::Funded => {
                let goes_on = match job.top_up {
                    _ if job.is_held(job.asset) => false,
                    None => self.is_worth(job.asset).await?,
                    // The gas wallet has paid for it, whatever the minimum is by now.
                    Some(_) => self.minimum(job.asset).is_some(),
                };
                match goes_on {
                    true => self.send(stored).await,
                    false => self.begin(Some(stored), None).await,
                }
            }
        }
    }

    /// Whether there is still enough of a coin or token; where that is not known, it is looked at again.
    async fn is_worth(&self, asset: Option<Account>) -> Result<bool, Fault> {
        let Some(due) = self.due.iter().find(|due| due.asset == asset) else {
            return Ok(false);
        };
        let Some(minimum) = self.minimum(due.asset) else {
            return Ok(false);
        };
        let balance = self.final_balance(due.asset).await?;
        Ok(balance.is_none_or(|balance| !balance.is_zero() && balance >= minimum))
    }

    /// The least amount that is swept; `None`: it is not swept.
    fn minimum(&self, asset: Option<Account>) -> Option<U256> {
        parse_u256(self.route.minimum(self.chain, asset)?).ok()
    }

    /// Begins a sweep of the first coin or token after this one that is worth it, and forgets those that are not.
    async fn begin(
        &self,
        last: Option<&StoredJob>,
        after: Option<Option<Account>>,
    ) -> Result<bool, Fault> {
        if !self.rules.enabled {
            return Ok(false);
        }
        let place = after.and_then(|asset| self.due.iter().position(|due| due.asset == asset));
        let (before, rest) = self
            .due
            .split_at(place.map_or(0, |place| place.saturating_add(1)));
        let (now_ms, every_ms) = (
            self.services.now_ms(),
            self.rules.every_s.saturating_mul(1_000),
        );
        for due in rest.iter().chain(before) {
            let is_its_turn = |last: &StoredJob| last.job.may_follow(due.asset, every_ms, now_ms);
            let is_held = |last: &StoredJob| last.job.is_held(due.asset);
            if !last.is_none_or(is_its_turn) || last.is_some_and(is_held) {
                continue;
            }
            // A token that waits for a moment is to find what it was topped up with.
            let waits_for = |last: &StoredJob| !last.job.lets_coin_go();
            if after.is_some() && due.asset.is_none() && last.is_some_and(waits_for) {
                continue;
            }
            // The nodes are not asked of what is never swept: anyone can pay a little coin to each wallet.
            let Some(minimum) = self.minimum(due.asset) else {
                self.forget(due).await?;
                continue;
            };
            match self.final_balance(due.asset).await? {
                // Its books are wrong: it begins, and says that it waits for people.
                None if self.chain == FollowedChain::Tron => {}
                // A token that does not say what there is of it does not hold up the others.
                None => continue,
                Some(balance) if balance.is_zero() || balance < minimum => {
                    self.forget(due).await?;
                    continue;
                }
                Some(_) => {}
            }
            if after == Some(due.asset) {
                return Ok(false);
            }
            let next = match last {
                // Its top-up is the wallet's until a token was swept: one node that names no balance ends a sweep, too. On
                // TRON no node is asked for that.
                Some(last) if !self.is_certain_end(&last.job) => {
                    last.job.instead(due.asset, now_ms)
                }
                last => {
                    let last = last.map(|last| &last.job);
                    SweepJob::following(last, due.asset, every_ms, now_ms)
                }
            };
            let version = last.map_or(0, |last| last.version);
            return self.write_at(version, next).await;
        }
        Ok(false)
    }

    /// Whether it is over in a way that no node alone can pretend.
    fn is_certain_end(&self, job: &SweepJob) -> bool {
        match job.state {
            SweepState::Swept { .. } => true,
            SweepState::Gone => self.chain == FollowedChain::Tron,
            _ => false,
        }
    }

    /// What the wallet has after the newest final block that was followed; `None` while that is not known.
    pub(super) async fn final_balance(
        &self,
        asset: Option<Account>,
    ) -> Result<Option<U256>, Fault> {
        let cursor = deposit_rows::cursor(self.chain);
        let Some((cursor, _)) = self.services.load::<CursorRow>(&cursor).await? else {
            return Ok(None);
        };
        // Its nodes say nothing of earlier blocks; whatever a wallet can do there is a transfer that is followed.
        if self.chain == FollowedChain::Tron {
            let (of, block) = ((self.account, asset, self.token), cursor.finalized.number);
            let balance = books::balance_after(&self.services, self.chain, of, block).await?;
            return Ok(balance);
        }
        let Some((_, client)) = self.services.chains.follow(self.chain) else {
            return Ok(None);
        };
        let Some(source) = client.blocks() else {
            return Ok(None);
        };
        let block = cursor.finalized.number;
        let held = (self.account, asset);
        if let Some(known) = self.said.after(block, held) {
            return Ok(Some(known));
        }
        let answer = source.balances(block, &[held]).await;
        let answer = answer.map_err(unavailable)?;
        let balance = answer.balances.first().copied().flatten();
        if let Some(balance) = balance {
            self.said.learn_after(block, held, balance);
        }
        Ok(balance.map(U256::from_be_bytes))
    }

    /// Nothing is to be swept of it until something is paid again.
    async fn forget(&self, due: &DueAsset) -> Result<(), Fault> {
        let mut batch = Batch::new();
        let key = sweep_rows::due(self.chain, self.account, due.asset);
        batch.delete(key, Precondition::Version(due.version));
        self.commit(batch).await
    }

    /// Makes the request of the next step, or says why there is none now.
    async fn send(&self, stored: &StoredJob) -> Result<bool, Fault> {
        if !self.rules.enabled {
            return Ok(false);
        }
        let asset = stored.job.asset;
        if self.is_unexplained(asset).await? {
            return self.pause(stored, PauseReason::Unexplained).await;
        }
        let Some(target) = self.route.target.as_deref() else {
            return Ok(false);
        };
        let spending = SweepSpending {
            swept: self,
            target,
            job: &stored.job,
        };
        let plan = match spending.plan().await {
            Ok(plan) => plan,
            Err(ChainError::Unknown(reason)) => return Err(Fault::unavailable(reason)),
            Err(ChainError::Refused(refusal) | ChainError::Lacks(refusal)) => {
                let reason = PauseReason::Unavailable(refusal.reason);
                return self.pause(stored, reason).await;
            }
        };
        let id = stored.job.next_request(self.chain, self.account);
        let (wallet, payload, event, what) = match plan {
            MovePlan::Nothing => return Ok(false),
            MovePlan::Pause(reason) => return self.pause(stored, reason).await,
            MovePlan::Change(event) => {
                let next = stored.job.step(event, self.services.now_ms())?;
                self.tell(&next);
                return self.write(stored, next).await;
            }
            MovePlan::TopUpLost(why) => return outcome::top_up_lost(self, stored, why).await,
            MovePlan::TopUp { payload, amount } => {
                let gas_wallet = self.rules.gas_wallet.unwrap_or(self.wallet);
                let event = SweepEvent::TopUpRequested {
                    request: id,
                    amount,
                };
                (gas_wallet, payload, event, "coin for the fee of")
            }
            MovePlan::Move { payload, amount } => {
                let event = SweepEvent::MoveRequested {
                    request: id,
                    amount,
                };
                (self.wallet, payload, event, "transfer to the target of")
            }
        };
        let job = stored.job.step(event, self.services.now_ms())?;
        let asks = job.top_up.filter(|top_up| top_up.request == id);
        let claim = SweepClaim {
            request: id,
            key: self.key(),
            version: stored.version,
            job,
            top_up: asks.map(|asks| sweep_rows::top_up(self.chain, self.account, &asks.amount)),
        };
        let notes = format!(
            "made by the service: {what} sweep {} of deposit wallet {}",
            stored.job.number,
            self.address(),
        );
        match self.admit(wallet, payload, claim, notes).await {
            Ok(()) => Ok(true),
            Err(fault) if matches!(fault.class(), Class::Unavailable | Class::Conflict) => {
                Err(fault)
            }
            // What was refused was not stored, and the sweep is as before.
            Err(fault) => {
                let reason = PauseReason::Unavailable(fault.message().to_owned());
                self.pause(stored, reason).await
            }
        }
    }

    async fn admit(
        &self,
        wallet: WalletId,
        payload: Payload,
        claim: SweepClaim,
        notes: String,
    ) -> Result<(), Fault> {
        let (wallet, wallet_version): (Wallet, u64) = self.services.wallet(wallet).await?;
        if wallet.status == WalletStatus::Archived {
            return Err(Fault::new(
                Class::WrongState,
                format!("wallet {} is archived", wallet.address),
            ));
        }
        let proposal = SigningProposal {
            content: ProposalContent::Sweep { payload, claim },
            wallet,
            wallet_version,
            notes: Some(notes),
            token: self.token,
            client_signer: None,
            command_commit: CommandCommit::new(AuditActor::service(), None, None),
        };
        admit(&self.vaults, proposal).await?;
        Ok(())
    }

    /// Whether reconciliation has found less than there must be, or the books more that went than came.
    async fn is_unexplained(&self, asset: Option<Account>) -> Result<bool, Fault> {
        if self.chain == FollowedChain::Tron && self.final_balance(asset).await?.is_none() {
            let (chain, address) = (self.chain, self.address());
            let token = asset.map(|asset| asset.text(chain.network()));
            tracing::error!(
                %chain, address, token = token.unwrap_or_default(),
                "a deposit wallet has sent more than is known to have come; look for what it was paid with covault deposits \
                 rescan"
            );
            return Ok(true);
        }
        for asset in [asset, None] {
            let key = deposit_rows::balance(self.chain, self.account, asset);
            let found = self.services.load::<BalanceRow>(&key).await?;
            if found.is_some_and(|(row, _)| row.missing != [0; 32] && !row.is_more) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Pauses the sweep.
    pub(super) async fn pause(
        &self,
        stored: &StoredJob,
        reason: PauseReason,
    ) -> Result<bool, Fault> {
        let now_ms = self.services.now_ms();
        let next = stored.job.step(SweepEvent::Blocked { reason }, now_ms)?;
        self.tell(&next);
        self.write(stored, next).await
    }

    /// Tells the first pause in the log, and that of what is held from now on.
    pub(super) fn tell(&self, job: &SweepJob) {
        if let SweepState::Paused { reason, .. } = &job.state
            && job.is_held(job.asset)
        {
            let (chain, address) = (self.chain, self.address());
            tracing::error!(
                %chain, address, %reason,
                "transactions of a sweep have failed too often and nothing more is sent; look why, then run covault sweep retry"
            );
            return;
        }
        if let SweepState::Paused { reason, .. } = &job.state
            && job.pauses == 1
        {
            let (chain, address) = (self.chain, self.address());
            tracing::info!(%chain, address, %reason, "a sweep is paused");
        }
    }

    pub(super) async fn write(&self, stored: &StoredJob, next: SweepJob) -> Result<bool, Fault> {
        self.write_at(stored.version, next).await
    }

    async fn write_at(&self, version: u64, next: SweepJob) -> Result<bool, Fault> {
        let mut batch = Batch::new();
        self.put(&mut batch, version, &next)?;
        self.commit(batch).await?;
        Ok(true)
    }

    pub(super) fn put(
        &self,
        batch: &mut Batch,
        version: u64,
        next: &SweepJob,
    ) -> Result<(), Fault> {
        let expect = match version {
            0 => Precondition::Absent,
            version => Precondition::Version(version),
        };
        batch.put(self.key(), expect, rows::encode(next)?);
        Ok(())
    }

    pub(super) async fn commit(&self, batch: Batch) -> Result<(), Fault> {
        self.services
            .store
            .commit(batch)
            .await
            .map_err(commit_fault)
    }

    async fn look_at_request(&self, stored: &StoredJob, id: RequestId) -> Result<bool, Fault> {
        outcome::look(self, stored, id).await
    }
}

fn commit_fault(error: CommitError) -> Fault {
    match error {
        CommitError::Conflict(_) => changed_at_the_same_time(),
        error => error.into(),
    }
}

fn changed_at_the_same_time() -> Fault {
    Fault::new(Class::Conflict, "the sweep was changed at the same time")
}

pub(super) fn unavailable(error: ChainError) -> Fault {
    Fault::unavailable(error.into_reason())
}
