//! Requests that wait for people, or because signers hold them. They have rows and nothing else: no actor, no timer, no place among the live ones.

use std::{sync::Arc, time::Duration};

use covault_core::{
    approval::ApprovalProof,
    fault::{Class, ExecuteCode, Fault, FaultCode},
    ids::{RequestId, VaultId},
    networks::Payload,
    request::{
        ApprovalRule, PersonApproval, RequestEffect, RequestEvent, RequestState, RuleChange,
        SigningRequest,
    },
    wallet::{
        WalletStatus,
        management::{ManagementKind, ManagementOutcome},
        vault::Vault,
    },
};
use ractor::RpcReplyPort;

use super::{AdmissionPermit, Msg, VaultState};
use crate::{
    audit::AuditNote,
    commands::command_commit::CommandCommit,
    process::{
        mailbox::ActorMailbox,
        tasks::{AbortOnDrop, contained},
    },
    requests::{
        awaiting,
        request_store::{self, AdvanceError, CommitExtras},
        signing::ARCHIVED,
        tx_builder,
    },
    services::{Services, skip_unreadable},
    store::{Batch, KeySpace, Precondition, Scan, rows},
    vaults::{capacity::CapacityDemand, management},
};

/// How often an approval is stored again while others change the request.
const MAX_CONTENDED_TRIES: u32 = 20;
/// Rows that are read at once.
const PAGE: usize = 64;
/// The longest that the vault waits before it looks again, in milliseconds: the clock may be set.
const MAX_PAUSE_MS: u64 = 60_000;
/// When it looks again after the store could not be read or written, in milliseconds.
const RETRY_MS: u64 = 5_000;
/// So often a request is looked for of which nobody knows whether its approval is stored.
const LOOKS: u32 = 8;

/// An approval to be stored. Who makes one has checked its proof.
pub struct NewApproval {
    /// Of which request.
    pub request: RequestId,
    /// It.
    pub approval: PersonApproval,
    /// What is demanded with it.
    pub command_commit: CommandCommit,
    /// Where the request goes as it is then.
    pub reply: RpcReplyPort<Result<SigningRequest, Fault>>,
}

/// Another rule for the vault.
pub struct NewRule {
    /// It.
    pub rule: ApprovalRule,
    /// Until when the agreement of people may be used, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
    /// Their agreement.
    pub proofs: Vec<ApprovalProof>,
    /// Who asks, and what is demanded with it.
    pub command_commit: CommandCommit,
}

/// When requests of the vault expire that wait for people.
#[derive(Default)]
pub(super) struct ApprovalExpiry {
    /// The first one, in milliseconds since the Unix epoch.
    due_ms: Option<u64>,
    timer: Option<AbortOnDrop>,
    /// Those that are due are being ended.
    work: Option<AbortOnDrop>,
}

impl VaultState {
    /// Changes who decides about requests that come from now on, when enough of those agree who decide now.
    ///
    /// # Errors
    /// When what is stored is not known.
    pub(super) async fn change_approvals(
        &mut self,
        new: NewRule,
        reply: RpcReplyPort<Result<Vault, Fault>>,
    ) -> Result<(), Fault> {
        let changed = self.changed_approvals(new).await;
        let failed = changed.as_ref().err().cloned();
        let _ = reply.send(changed);
        match failed {
            None => Ok(()),
            // Nothing was written.
            Some(fault) if matches!(fault.class(), Class::Invalid | Class::Unauthenticated) => {
                Ok(())
            }
            Some(fault) => Err(fault),
        }
    }

    async fn changed_approvals(&mut self, new: NewRule) -> Result<Vault, Fault> {
        let NewRule {
            rule,
            valid_until_ms,
            proofs,
            command_commit,
        } = new;
        let changes = self.services.rule_changes(self.vault.id).await?;
        let change = RuleChange {
            vault: self.vault.id,
            changes,
            present: self.vault.approval.clone(),
            next: rule,
            valid_until_ms,
        };
        // Repeated, it is done.
        if change.present == change.next {
            return Ok(self.vault.clone());
        }
        let people = change.check(&proofs, self.services.now_ms())?;
        self.check_wallets(&change).await?;
        let people: Vec<_> = people.into_iter().collect();
        let note = AuditNote::for_vault(command_commit.by(), self.vault.id, "ApprovalRuleChanged")
            .fact("from", change.present.describe_people())
            .fact("to", change.next.describe_people())
            // By themselves: of many people, or wallets, the other facts are cut.
            .fact("people", change.present.people_changed(&change.next))
            .fact(
                "clientSignersBefore",
                change.present.describe_client_signers(),
            )
            .fact("clientSigners", change.next.describe_client_signers())
            .fact("walletsBefore", change.present.describe_wallets())
            .fact("wallets", change.next.describe_wallets())
            .fact(
                "walletsChanged",
                change.present.wallets_changed(&change.next),
            )
            .fact("agreed", people.join(", "));
        let mut batch = Batch::new();
        // The vault's own row, which every change of its rule writes, is demanded in the version that is known here.
        batch.put(
            rows::rule_changes(self.vault.id),
            Precondition::Any,
            rows::encode(&changes.saturating_add(1))?,
        );
        let (kind, done) = (
            ManagementKind::VaultSettingUpdate,
            ManagementOutcome::Succeeded,
        );
        management::add_over(&self.services, &mut batch, self.vault.id, kind, done)?;
        command_commit.demand(&mut batch);
        self.update_with(batch, Some(note), |vault| {
            vault.approval = change.next;
            Ok(())
        })
        .await?;
        Ok(self.vault.clone())
    }

    /// Refuses a rule for what is no wallet of the vault: a misspelt address would protect nothing.
    async fn check_wallets(&self, change: &RuleChange) -> Result<(), Fault> {
        for (place, wallet) in change.next.wallets.iter().enumerate() {
            let index = rows::wallet_address(&wallet.address);
            let found = self.services.wallet_by(&index).await?;
            if found.is_none_or(|(found, _)| found.vault != self.vault.id) {
                let at = format_args!("approvals.wallets[{place}].address");
                let problem = format_args!("{} is no wallet of the vault", wallet.address);
                return Err(Fault::field(at, problem));
            }
        }
        Ok(())
    }

    /// Stores an approval, in a task beside the actor. With enough of them the request goes on.
    pub(super) fn approve(&self, myself: &ActorMailbox<Msg>, new: NewApproval) {
        let services = Arc::clone(&self.services);
        let actor = myself.clone();
        tokio::spawn(async move {
            let NewApproval {
                request,
                approval,
                command_commit,
                reply,
            } = new;
            let event = |deadline_ms| RequestEvent::ApprovalGiven {
                approval: Box::new(approval.clone()),
                deadline_ms,
            };
            let moved = move_on(&services, request, event, Some(&command_commit));
            let stored = contained(moved).await;
            if stored.as_ref().is_err_and(is_unknown) {
                look_again(&services, &actor, request);
            }
            let stored = stored.map(|(approved, room)| {
                if let Some(room) = room {
                    // Where the vault has ended, the next one finds the request among the live ones.
                    let _ = actor.cast(Msg::Agreed(request, Box::new(room)));
                }
                approved
            });
            let _ = reply.send(stored);
        });
    }

    /// A request continues that has waited for people.
    pub(super) async fn agreed(
        &mut self,
        myself: &ActorMailbox<Msg>,
        request: RequestId,
        room: AdmissionPermit,
    ) -> Result<(), Fault> {
        self.agreed.insert(request, room);
        if self.requests.contains_key(&request) {
            // The actor that it had before is just ending.
            return Ok(());
        }
        self.load_request(myself, request).await
    }

    /// A request waits for people, until then at most.
    pub(super) fn awaits(&mut self, myself: &ActorMailbox<Msg>, until_ms: u64) {
        if self.expiry.due_ms.is_some_and(|due_ms| due_ms <= until_ms) {
            return;
        }
        self.expiry.due_ms = Some(until_ms);
        if self.expiry.work.is_none() {
            let pause = until_ms.saturating_sub(self.services.now_ms());
            let pause = Duration::from_millis(pause.min(MAX_PAUSE_MS));
            let timer = myself.send_after(pause, || Msg::ExpiryDue);
            self.expiry.timer = Some(AbortOnDrop(timer.abort_handle()));
        }
    }

    /// Ends the requests that nobody approved in time, in a task beside the actor.
    pub(super) fn expire(&mut self, myself: &ActorMailbox<Msg>) {
        let (services, vault) = (Arc::clone(&self.services), self.vault.id);
        let actor = myself.clone();
        let task = tokio::spawn(async move {
            let go_on = |request, room| match room {
                Some(room) => {
                    let _ = actor.cast(Msg::Agreed(request, Box::new(room)));
                }
                None => look_again(&services, &actor, request),
            };
            let ended = contained(expire(&services, vault, go_on)).await;
            let next = ended.unwrap_or_else(|fault| {
                tracing::warn!(%vault, ?fault, "failed to end requests that were not approved in time");
                Some(services.now_ms().saturating_add(RETRY_MS))
            });
            let _ = actor.cast(Msg::Expired(next));
        });
        self.expiry = ApprovalExpiry {
            work: Some(AbortOnDrop(task.abort_handle())),
            ..ApprovalExpiry::default()
        };
    }

    /// Those that were due have ended; the next one is due then.
    pub(super) fn expired(&mut self, myself: &ActorMailbox<Msg>, next_ms: Option<u64>) {
        // What came in between has no timer yet.
        let ApprovalExpiry { due_ms, .. } = std::mem::take(&mut self.expiry);
        if let Some(due_ms) = next_ms.into_iter().chain(due_ms).min() {
            self.awaits(myself, due_ms);
        }
    }
}

/// Whether what was to be stored may be stored.
fn is_unknown(fault: &Fault) -> bool {
    *fault.class() == Class::Unavailable && !matches!(fault.code(), FaultCode::Busy { .. })
}

/// Has a request looked for that may continue: it would have no actor until the vault starts again.
fn look_again(services: &Arc<Services>, actor: &ActorMailbox<Msg>, request: RequestId) {
    let (services, actor) = (Arc::clone(services), actor.clone());
    tokio::spawn(async move {
        for tries in 0..LOOKS {
            tokio::time::sleep(services.backoff(tries)).await;
            let _ = actor.cast(Msg::RestartDue(request));
        }
    });
}

/// Commits an event of a request that waits for people, made of the time that it has for signing from then on. With enough
/// approvals it continues, and takes up what is given then.
async fn move_on(
    services: &Services,
    id: RequestId,
    event: impl Fn(u64) -> RequestEvent,
    command_commit: Option<&CommandCommit>,
) -> Result<(SigningRequest, Option<AdmissionPermit>), Fault> {
    for _ in 0..MAX_CONTENDED_TRIES {
        let found = services.request(id).await?;
        let (request, version) = found.ok_or_else(Fault::invalid_uuid)?;
        if let Some(problem) = not_waiting(&request.state) {
            return Err(Fault::new(Class::WrongState, problem));
        }
        let extras = CommitExtras {
            command_commit,
            ..CommitExtras::default()
        };
        let (wallet, wallet_version) = services.hot_wallet(request.wallet).await?;
        if wallet.status == WalletStatus::Archived {
            let event = RequestEvent::Rejected {
                reason: ARCHIVED.to_owned(),
            };
            match request_store::end(services, request, version, event, extras).await {
                Err(AdvanceError::Conflict(key)) if key.space == KeySpace::Request => continue,
                ended => ended?,
            }
            return Err(Fault::new(Class::WrongState, ARCHIVED));
        }
        let now_ms = services.now_ms();
        let deadline_ms = now_ms.saturating_add(services.settings.signing_deadline_ms);
        let event = event(deadline_ms);
        let step = request.state.clone();
        let step = step.step(&request.consent, event.clone(), now_ms);
        let step = step.map_err(|_| {
            Fault::new(Class::WrongState, "the approval or the request has expired")
        })?;
        // What continues is one of the live ones: where there is no room, or signers or nodes would come to it too late,
        // the approval is refused, and can be repeated.
        let room = match step.effect {
            Some(_) => Some(room(services, &request, &step.next).await?),
            None => None,
        };
        let extras = CommitExtras {
            wallet: Some(wallet_version),
            ..extras
        };
        let approved = SigningRequest {
            state: step.next,
            consent: step.consent.unwrap_or_else(|| request.consent.clone()),
            ..request.clone()
        };
        match request_store::end(services, request.clone(), version, event, extras).await {
            Ok(()) => return Ok((approved, room)),
            // Another approval, or a rejection, was faster; or the wallet was changed.
            Err(AdvanceError::Conflict(key))
                if matches!(key.space, KeySpace::Request | KeySpace::Wallet) => {}
            // It was built before a signer wanted more, and never signs anything else.
            Err(AdvanceError::Conflict(key))
                if matches!(key.space, KeySpace::NonceReservation | KeySpace::Claim) =>
            {
                let reason = "another request has used its nonce, outputs or objects while it waited for approvals";
                let event = RequestEvent::GaveUp {
                    reason: reason.to_owned(),
                    code: ExecuteCode::Unspecified,
                };
                match request_store::end(services, request, version, event, extras).await {
                    Err(AdvanceError::Conflict(key))
                        if matches!(key.space, KeySpace::Request | KeySpace::Wallet) => {}
                    ended => {
                        ended?;
                        let problem = format!("{reason}; create it again once it has failed");
                        return Err(Fault::new(Class::WrongState, problem));
                    }
                }
            }
            Err(problem) => return Err(problem.into()),
        }
    }
    Err(Fault::unavailable(
        "others are approving or rejecting the request; try again",
    ))
}

/// What a request takes up that continues in this state.
///
/// # Errors
/// [`Class::Unavailable`] when there is no place for it, or it would have to wait too long for signers or nodes.
async fn room(
    services: &Services,
    request: &SigningRequest,
    next: &RequestState,
) -> Result<AdmissionPermit, Fault> {
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let queries = tx_builder::queries(services, request.network, &payload);
    let asks = next.effect() == Some(RequestEffect::Prepare)
        && tx_builder::local_chain_data(services, &payload, &queries).is_none();
    let (vault, _) = services
        .hot_vault(request.vault)
        .await?
        .ok_or_else(|| Fault::bug("a request without a vault"))?;
    let demand = CapacityDemand {
        vault: &vault,
        token: request.token,
        client_signer: request.consent.rule.client_signer(),
        network: request.network,
        payload: &payload,
        asks,
    };
    // As when it was made: it frees what waits behind the transaction that it replaces.
    if request.replaces.is_none() {
        demand.check_agreed(services)?;
    }
    AdmissionPermit::new(services, request, demand.enter(services))
}

/// Why a request in this state takes no approval; `None` while it does.
pub fn not_waiting(state: &RequestState) -> Option<&'static str> {
    match state {
        RequestState::AwaitingApproval { .. } => None,
        RequestState::InDoubt { .. }
        | RequestState::Succeeded { .. }
        | RequestState::Failed { .. } => Some("the request has ended and cannot be approved"),
        _ => Some(
            "the request is not waiting for approval; executeSigningRequests waits for its outcome",
        ),
    }
}

/// Ends the requests of a vault for which too few have agreed in time, and has those `go_on` that signers hold no longer:
/// with what they take up, or without it where nobody knows whether that was stored. When the next one is due.
async fn expire(
    services: &Services,
    vault: VaultId,
    go_on: impl Fn(RequestId, Option<AdmissionPermit>),
) -> Result<Option<u64>, Fault> {
    let all = rows::awaiting_of(vault);
    let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    let mut again_ms = None;
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, _) in &page {
            let (due_ms, id) =
                rows::awaited(key).ok_or_else(|| Fault::bug("a waiting request without a time"))?;
            if due_ms > services.now_ms() {
                return Ok(Some(again_ms.map_or(due_ms, |ms: u64| ms.min(due_ms))));
            }
            let found = skip_unreadable(services.request(id).await, format_args!("request {id}"))?;
            let Some((request, version)) = found.flatten() else {
                continue;
            };
            if awaiting::row(&request).as_ref() != Some(key) {
                continue;
            }
            if request.consent.is_hold_over(services.now_ms()) {
                let event = |deadline_ms| RequestEvent::HoldEnded { deadline_ms };
                match move_on(services, id, event, None).await {
                    Ok((_, Some(room))) => go_on(id, Some(room)),
                    // People are asked again: it has another row, behind those that are looked at here.
                    Ok((request, None)) => {
                        let due_ms = request.consent.due_ms();
                        again_ms = Some(again_ms.map_or(due_ms, |ms: u64| ms.min(due_ms)));
                    }
                    // Another call has just rejected it, or approved it once more.
                    Err(fault) if *fault.class() == Class::WrongState => {}
                    Err(fault) => {
                        // There is no room for it now, or the store cannot be reached.
                        tracing::info!(request = %id, ?fault, "a request that is no longer held waits");
                        if is_unknown(&fault) {
                            go_on(id, None);
                        }
                        again_ms = Some(services.now_ms().saturating_add(RETRY_MS));
                    }
                }
                continue;
            }
            let event = RequestEvent::ApprovalExpired;
            let extras = CommitExtras::default();
            match request_store::end(services, request, version, event, extras).await {
                Ok(()) => {}
                // Another call has just approved or rejected it.
                Err(AdvanceError::Conflict(_)) => {
                    again_ms = Some(services.now_ms().saturating_add(RETRY_MS));
                }
                Err(problem) => return Err(problem.into()),
            }
        }
        next = scan.rest(&page);
    }
    Ok(again_ms)
}
