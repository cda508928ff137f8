//! Making the keys of a vault: a run is claimed on disk, asked of the cluster in a task beside
//! the actor, and repeated until it succeeds or the nodes refuse for good.

use std::{collections::HashMap, sync::Arc, time::Duration};

use covault_core::{
    attest::MadeKey,
    audit::AuditChain,
    fault::{Class, Fault},
    ids::SessionId,
    order::{KeygenOrder, NodeId},
    scheme::Scheme,
    wallet::vault::{KeyState, Vault, VaultKey},
};
use ractor::RpcReplyPort;

use super::{Msg, VaultState, asking::ask_cluster, progress::with_rounds};
use crate::{
    audit::{self, AuditActor, AuditNote},
    nodes,
    process::{mailbox::ActorMailbox, tasks::AbortOnDrop},
    services::DEADLINE_GRACE_MS,
    store::{Batch, CommitError, KeySpace, Precondition, rows},
    vaults::management,
};

/// What this process does for a key that is not there yet.
#[derive(Default)]
pub(super) struct KeygenWork {
    /// The run that the cluster is asked for. It ends with the actor: the next one asks again.
    run: Option<(SessionId, AbortOnDrop)>,
    tries: u32,
    /// The key was asked for again while the run was in progress: what refuses that is older than the call.
    again: bool,
}

impl KeygenWork {
    /// Whether this is the run that the cluster is asked for.
    pub(super) fn runs(&self, session: &SessionId) -> bool {
        self.run.as_ref().is_some_and(|(run, _)| run == session)
    }
}

pub(super) type KeygenWorks = HashMap<Scheme, KeygenWork>;

/// How keys that are not there yet are to be made from now on.
pub struct KeyPlan {
    /// Signers needed.
    pub threshold: u16,
    /// The nodes that get a share.
    pub signers: Vec<NodeId>,
    /// The scheme of the ECDSA key.
    pub ecdsa: Scheme,
    /// Who asked for it.
    pub by: AuditActor,
    /// Where the vault goes.
    pub reply: RpcReplyPort<Result<Vault, Fault>>,
}

impl VaultState {
    pub(super) async fn start_keygen(
        &mut self,
        myself: &ActorMailbox<Msg>,
        scheme: Scheme,
    ) -> Result<(), Fault> {
        let wanted = self.vault.keys.iter().any(|key| {
            key.scheme == scheme && matches!(key.state, KeyState::Wanted | KeyState::Generating(_))
        });
        let keygen = self.keygens.entry(scheme).or_default();
        // It may have been given up, or be at work already.
        if !wanted || keygen.run.is_some() {
            return Ok(());
        }
        let tries = keygen.tries;
        let now = self.services.now_ms();
        let usual = self.services.settings.keygen_deadline_ms;
        let deadline = usual.saturating_mul(scheme.patience());
        // Less than this is not enough to ask anyone anything.
        let least = now.saturating_add(deadline / 4);
        let claimed = self.vault.keys.iter().find_map(|key| match &key.state {
            // The run before a restart may have succeeded: repeating it gives its key.
            KeyState::Generating(order) if key.scheme == scheme && order.expires_at_ms > least => {
                Some(order.clone())
            }
            _ => None,
        });
        let order = match claimed {
            Some(order) if tries == 0 => order,
            _ => {
                let order = KeygenOrder {
                    vault: self.vault.id,
                    session: self.services.new_session_id(),
                    scheme,
                    threshold: self.vault.threshold,
                    signers: self.vault.signers.clone(),
                    issued_at_ms: now,
                    expires_at_ms: now.saturating_add(deadline),
                };
                let claimed = order.clone();
                let note = self
                    .note("KeygenClaimed")
                    .fact("scheme", scheme.name())
                    .fact("session", claimed.session)
                    .fact("signers", audit::nodes(&claimed.signers));
                self.update(Some(note), move |vault| vault.claim(claimed))
                    .await?;
                order
            }
        };
        let signers = Arc::clone(&self.services.signers);
        let left = order.expires_at_ms.saturating_sub(now);
        let patience = Duration::from_millis(left.saturating_add(DEADLINE_GRACE_MS));
        let session = order.session;
        let (asked, watcher) = (order.clone(), myself.clone());
        let task = ask_cluster(
            myself,
            patience,
            "key generation timed out",
            async move {
                let run = signers.keygen(&asked);
                with_rounds(watcher, Arc::clone(&signers), (scheme, session), run).await
            },
            move |result| Msg::KeygenEnded(Box::new(order), result),
        );
        self.keygens.entry(scheme).or_default().run = Some((session, task));
        Ok(())
    }

    pub(super) async fn keygen_ended(
        &mut self,
        myself: &ActorMailbox<Msg>,
        order: &KeygenOrder,
        result: Result<MadeKey, Fault>,
    ) -> Result<(), Fault> {
        let keygen = self.keygens.entry(order.scheme).or_default();
        match &keygen.run {
            Some((session, _)) if *session == order.session => keygen.run = None,
            // Others are to make the key by now.
            _ => return Ok(()),
        }
        let again = std::mem::take(&mut keygen.again);
        match result {
            Ok(key) => {
                let note = self
                    .note("KeyMade")
                    .fact("scheme", order.scheme.name())
                    .fact("publicKey", hex::encode(&key.root.public_key))
                    .fact("threshold", order.threshold)
                    .fact("holders", audit::nodes(&order.signers));
                self.update(Some(note), |vault| vault.take(order, key))
                    .await?;
                self.note_problem(order.scheme, None).await;
                Ok(())
            }
            Err(fault) => {
                let problem = fault.message().to_owned();
                self.note_problem(order.scheme, Some(problem)).await;
                tracing::warn!(vault = %self.vault.id, scheme = order.scheme.name(), ?fault, "key generation failed");
                // What was refused because it came too late may be asked again.
                let in_time = self.services.now_ms() < order.expires_at_ms;
                let refused = matches!(fault.class(), Class::Invalid | Class::Forbidden);
                if in_time && refused && !again {
                    let note = self
                        .note("KeygenGivenUp")
                        .fact("scheme", order.scheme.name())
                        .fact("reason", fault.message());
                    return self
                        .update(Some(note), |vault| vault.give_up(order, fault.message()))
                        .await;
                }
                let scheme = order.scheme;
                let keygen = self.keygens.entry(scheme).or_default();
                keygen.tries = keygen.tries.saturating_add(1);
                let pause = self.services.backoff(keygen.tries);
                myself.send_after(pause, move || Msg::KeygenDue(scheme));
                Ok(())
            }
        }
    }

    pub(super) async fn retry_keygen(
        &mut self,
        myself: &ActorMailbox<Msg>,
        by: &AuditActor,
    ) -> Result<Vault, Fault> {
        let failed = |key: &VaultKey| matches!(key.state, KeyState::Failed(_));
        let schemes = self.vault.keys.iter().filter(|key| failed(key));
        let schemes = schemes.map(|key| key.scheme).collect::<Vec<_>>();
        for keygen in self.keygens.values_mut() {
            keygen.again = keygen.run.is_some();
        }
        if !schemes.is_empty() {
            let wanted = |vault: &mut Vault| {
                vault.retry_failed_keys();
                Ok(())
            };
            let note = AuditNote::for_vault(by, self.vault.id, "KeysWantedAgain");
            self.update(Some(note), wanted).await?;
        }
        for scheme in schemes {
            self.note_problem(scheme, None).await;
            let _ = myself.cast(Msg::KeygenDue(scheme));
        }
        Ok(self.vault.clone())
    }

    /// From now on other nodes, or another number of them, make the keys that are not there. What
    /// the old ones are at is dropped: a key that comes of it is nobody's.
    pub(super) async fn replace_signers(
        &mut self,
        myself: &ActorMailbox<Msg>,
        plan: KeyPlan,
    ) -> Result<(), Fault> {
        let KeyPlan {
            threshold,
            signers,
            ecdsa,
            by,
            reply,
        } = plan;
        let note = AuditNote::for_vault(&by, self.vault.id, "SignersReplaced")
            .fact("threshold", threshold)
            .fact("signers", audit::nodes(&signers))
            .fact("ecdsa", ecdsa.name());
        let mut vault = self.vault.clone();
        let named = nodes::check_admitted(&self.services, "signers", &signers).await;
        let planned = named.and_then(|()| vault.plan_again(threshold, signers.clone(), ecdsa));
        if let Err(refusal) = planned {
            let _ = reply.send(Err(refusal));
            return Ok(());
        }
        let old: Vec<Scheme> = self.vault.keys.iter().map(|key| key.scheme).collect();
        let stored = self.commit_with_signers(vault, &signers, note).await;
        if stored.is_ok() {
            for scheme in old {
                self.note_problem(scheme, None).await;
            }
            self.keygens.clear();
            for key in &self.vault.keys {
                if key.state == KeyState::Wanted {
                    let _ = myself.cast(Msg::KeygenDue(key.scheme));
                }
            }
        }
        let refused = matches!(&stored, Err(fault) if *fault.class() == Class::Invalid);
        let _ = reply.send(stored.clone().map(|()| self.vault.clone()));
        if refused { Ok(()) } else { stored }
    }

    /// Stores the vault as it names these nodes, unless one of them is removed first.
    ///
    /// # Errors
    /// [`Class::Invalid`] when one is not admitted; nothing was changed then.
    pub(super) async fn commit_with_signers(
        &mut self,
        vault: Vault,
        named: &[NodeId],
        note: AuditNote,
    ) -> Result<(), Fault> {
        loop {
            let mut batch = Batch::new();
            let expect = Precondition::Version(self.version);
            batch.put(rows::vault(vault.id), expect, rows::encode(&vault)?);
            nodes::pin_rows(&self.services, &mut batch, "signers", named).await?;
            management::add_changed(&self.services, &mut batch, &self.vault, &vault).await?;
            let chain = AuditChain::Vault(vault.id);
            note.clone()
                .add_to(&mut batch, chain, self.services.now_ms())?;
            match self.services.store.commit(batch).await {
                Ok(()) => break,
                // A node got another name, was named by another vault too, or was removed.
                Err(CommitError::Conflict(key)) if key.space == KeySpace::Node => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.vault = vault;
        self.version += 1;
        self.publish_shares();
        Ok(())
    }

    /// Something that the service does with the vault.
    pub(super) fn note(&self, event: &str) -> AuditNote {
        AuditNote::for_vault(&AuditActor::service(), self.vault.id, event)
    }

    /// Stores a change, with its entry in the audit log.
    pub(super) async fn update(
        &mut self,
        note: Option<AuditNote>,
        change: impl FnOnce(&mut Vault) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.update_with(Batch::new(), note, change).await
    }

    /// The same, in one commit with what is in the batch.
    pub(super) async fn update_with(
        &mut self,
        mut batch: Batch,
        note: Option<AuditNote>,
        change: impl FnOnce(&mut Vault) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut vault = self.vault.clone();
        change(&mut vault)?;
        batch.put(
            rows::vault(vault.id),
            Precondition::Version(self.version),
            rows::encode(&vault)?,
        );
        management::add_changed(&self.services, &mut batch, &self.vault, &vault).await?;
        if let Some(note) = note {
            note.add_to(
                &mut batch,
                AuditChain::Vault(vault.id),
                self.services.now_ms(),
            )?;
        }
        self.services.store.commit(batch).await?;
        self.vault = vault;
        self.version += 1;
        self.publish_shares();
        Ok(())
    }
}
