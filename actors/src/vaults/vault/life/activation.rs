//! Telling nodes that a new generation of shares is there: those that hold it, those that have left,
//! and those that a run without success may have left shares with. It continues until all have
//! confirmed, in the background; who is away is told when it is seen again.

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault},
    order::{NodeId, ReshareOrder},
    scheme::Scheme,
    wallet::generation::{Activation, LiveKey, ReshareState},
};

use super::{Msg, VaultMsg, VaultState, ask_cluster, live_key, reshare_of};
use crate::{
    audit,
    port::NodeConfirmations,
    process::{mailbox::ActorMailbox, tasks::AbortOnDrop},
};

/// How long the cluster is waited for when it tells the nodes to use new shares. It ends sooner
/// itself, and says who has not confirmed; they are told again.
const ACTIVATION_TIMEOUT: Duration = Duration::from_secs(20);
impl VaultState {
    /// Tells the nodes that are there and have not confirmed; at first, all that have not.
    pub(super) fn start_activation(&mut self, myself: &ActorMailbox<VaultMsg>, scheme: Scheme) {
        let Some(LiveKey {
            activation: Some(activation),
            ..
        }) = live_key(&self.vault, scheme).cloned()
        else {
            return;
        };
        let Activation {
            order,
            proof,
            before,
            untold,
            asked,
        } = activation;
        let work = self.works.entry(scheme).or_default();
        if work.activation.is_some() {
            return;
        }
        work.next_activation = None;
        let nodes = self.services.signers.nodes();
        let here = |node: &NodeId| nodes.iter().any(|view| view.id == *node && view.live);
        let untold: Vec<NodeId> = untold
            .into_iter()
            .filter(|node| !asked || here(node))
            .collect();
        if untold.is_empty() {
            self.retry_activation_later(myself, scheme);
            return;
        }
        let signers = Arc::clone(&self.services.signers);
        let activated = order.clone();
        work.activation = Some(ask_cluster(
            myself,
            ACTIVATION_TIMEOUT,
            "not every node has confirmed the activation of the new shares",
            async move { signers.activate(&activated, &proof, &before, &untold).await },
            move |result| VaultMsg::Reshare(Msg::ActivationEnded(Box::new(order), result)),
        ));
    }

    pub(super) async fn activation_ended(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        order: &ReshareOrder,
        result: Result<NodeConfirmations, Fault>,
    ) -> Result<(), Fault> {
        let scheme = order.scheme;
        let now = live_key(&self.vault, scheme).and_then(|live| live.activation.as_ref());
        if now.is_none_or(|activation| activation.order != *order) {
            return Ok(());
        }
        let work = self.works.entry(scheme).or_default();
        work.activation = None;
        work.activated = true;
        let (mut confirmed, mut problem) = (Vec::new(), None);
        match result {
            Ok(answers) => {
                for (node, answer) in answers {
                    match answer {
                        Ok(()) => confirmed.push(node),
                        // What a node refuses says more than that another one is away.
                        Err(fault) if *fault.class() == Class::Unavailable => {
                            problem = problem.or(Some(fault));
                        }
                        Err(fault) => problem = Some(fault),
                    }
                }
                if !confirmed.is_empty() {
                    work.failed_activations = 0;
                }
                let note = (!confirmed.is_empty()).then(|| {
                    self.note("SharesConfirmed")
                        .fact("scheme", scheme.name())
                        .fact("epoch", order.new.epoch)
                        .fact("nodes", audit::nodes(&confirmed))
                });
                self.update(note, |vault| vault.confirmed(order, &confirmed))
                    .await?;
            }
            Err(fault) => {
                problem = Some(fault);
                self.publish_shares();
            }
        }
        if let Some(fault) = &problem {
            tracing::warn!(vault = %self.vault.id, scheme = scheme.name(), ?fault, "not every node has activated the new shares");
        }
        // Of two problems, that of the run in progress is the one to see.
        let reshare = reshare_of(&self.vault, scheme);
        if matches!(
            reshare,
            Some(ReshareState::Idle | ReshareState::Halted { .. })
        ) {
            let problem = problem.map(|fault| fault.message().to_owned());
            self.note_problem(scheme, problem).await;
        }
        let done = |live: &LiveKey| live.activation.is_none();
        if !live_key(&self.vault, scheme).is_some_and(done) {
            self.retry_activation_later(myself, scheme);
        }
        Ok(())
    }

    fn retry_activation_later(&mut self, myself: &ActorMailbox<VaultMsg>, scheme: Scheme) {
        let work = self.works.entry(scheme).or_default();
        work.failed_activations = work.failed_activations.saturating_add(1);
        let pause = self.services.backoff(work.failed_activations);
        let due = move || VaultMsg::Reshare(Msg::ActivationDue(scheme));
        let timer = myself.send_after(pause, due);
        work.next_activation = Some(AbortOnDrop(timer.abort_handle()));
    }
}
