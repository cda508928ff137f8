//! How sessions end: what is stored, who is banned, and what the orchestrator hears.

use std::{fs, io, sync::Arc};

use covault_core::{fault::Fault, order::NodeId};
use tokio::time::sleep;

use super::{AttemptId, RunningSession, SessionCell, SessionJob, SessionState};
use crate::{
    envelope::{EnvelopeHeader, EnvelopeKind},
    evidence::Equivocation,
    message::OrderReply,
    meter,
    node::{EXPIRE_INTERVAL, Node},
    runner::{Finished, ProtocolMessage, ProtocolRun, RunFailure, RunProgress},
    secrets::wipe,
    shares::ShareRecord,
};

/// Files of evidence that a node keeps.
const MAX_EVIDENCE: usize = 1_000;

impl Node {
    /// Sends what a run says, and its reply once it has ended.
    pub(super) fn apply_outcome(
        self: &Arc<Self>,
        cell: &SessionCell,
        work: &mut SessionState,
        outcome: Result<RunProgress, RunFailure>,
    ) {
        let (session, attempt) = cell.key;
        match outcome {
            Ok(RunProgress { send, finished }) => {
                let SessionState::Running(running) = &mut *work else {
                    return;
                };
                let epoch = running.epoch;
                let round = send.iter().map(|message| message.round).max();
                for message in send {
                    self.send(epoch, cell.key, &running.run, &message);
                    wipe(message.body);
                }
                running.job.enter_round(round.unwrap_or_default());
                self.tell_round(cell.key, running, round.unwrap_or_default());
                let Some(finished) = finished else { return };
                let SessionState::Running(running) = cell.end(work) else {
                    return;
                };
                meter::session_ended(&self.name, running.job.kind(), "done");
                match (finished, running.job) {
                    (Finished::Contributed, _) => {}
                    (Finished::Signed(signatures), _) => {
                        let reply = OrderReply::Signed(signatures);
                        self.reply(running.orchestrator, epoch, session, attempt, &reply);
                    }
                    (Finished::KeyMade(share), SessionJob::Keygen(record)) => {
                        self.keep_and_reply(record(share), running.orchestrator, epoch, cell.key);
                    }
                    (Finished::Reshared(share), SessionJob::Reshare(order)) => {
                        let reply = self.prepared(*order, share).unwrap_or_else(|fault| {
                            tracing::error!(node = %self.name, ?fault, "failed to store a new share");
                            OrderReply::Refused(fault)
                        });
                        self.reply(running.orchestrator, epoch, session, attempt, &reply);
                    }
                    // A run ends as what it was begun as.
                    (Finished::KeyMade(_) | Finished::Reshared(_), _) => {}
                }
            }
            Err(RunFailure {
                reason,
                culprits,
                ban,
                evidence,
            }) => {
                let SessionState::Running(mut running) = cell.end(work) else {
                    return;
                };
                running.job.failed("aborted");
                tracing::warn!(node = %self.name, %session, attempt, %reason, ?culprits, "session aborted");
                meter::session_ended(&self.name, running.job.kind(), "failed");
                let reply = OrderReply::Failed {
                    culprits,
                    missing: Vec::new(),
                    reason,
                    evidence: evidence
                        .map_or_else(String::new, |it| self.keep_evidence(cell.key, &it)),
                };
                self.ban_then_reply(cell.key, &running, ban, reply);
            }
        }
    }

    /// People wait for keys and new shares: their orchestrator hears how far a run is.
    fn tell_round(&self, (session, attempt): AttemptId, running: &mut RunningSession, round: u16) {
        if matches!(running.job, SessionJob::Sign { .. }) || round <= running.told_round {
            return;
        }
        running.told_round = round;
        let of = running.run.last_round();
        let reply = OrderReply::Round { round, of };
        self.answer(running, (session, attempt), &reply);
    }

    /// Writes evidence of an equivocation into the node's folder, as text.
    fn keep_evidence(&self, (session, attempt): AttemptId, found: &Equivocation) -> String {
        let text = found.write();
        let path = self.evidence.join(format!("{session}-{attempt}.json"));
        let written = fs::create_dir_all(&self.evidence).and_then(|()| {
            if fs::read_dir(&self.evidence)?.count() >= MAX_EVIDENCE {
                return Err(io::Error::other("too many evidence files"));
            }
            fs::write(&path, &text)
        });
        match written {
            Ok(()) => {
                tracing::error!(
                    node = %self.name,
                    path = %path.display(),
                    "a node signed two conflicting messages: check with covault node evidence"
                );
            }
            Err(error) => tracing::warn!(node = %self.name, %error, "failed to store evidence"),
        }
        text
    }

    /// Stores a new share, and confirms it once the note about its vault is on disk.
    fn keep_and_reply(
        self: &Arc<Self>,
        record: ShareRecord,
        orchestrator: NodeId,
        epoch: u32,
        (session, attempt): AttemptId,
    ) {
        let vault = record.vault;
        let root = match self.keep(record) {
            Ok(root) => root,
            Err(fault) => {
                tracing::error!(node = %self.name, ?fault, "failed to store a share");
                let reply = OrderReply::Refused(fault);
                return self.reply(orchestrator, epoch, session, attempt, &reply);
            }
        };
        self.preprocessor.replenish(true);
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let noted = node.note_made(&root.public_key, orchestrator, vault).await;
            let reply = match noted {
                Ok(()) => match node.keys.get(&root.public_key) {
                    Some(key) => node.key_made(&key),
                    None => return,
                },
                // The node ends; the share is there, and counts from the next start on.
                Err(error) => OrderReply::Refused(
                    Fault::unavailable("a signer's disk failed").caused_by(error),
                ),
            };
            node.reply(orchestrator, epoch, session, attempt, &reply);
        });
    }

    /// A ban is on disk before anyone hears of the failure: the next attempt may come at once.
    fn ban_then_reply(
        self: &Arc<Self>,
        (session, attempt): AttemptId,
        running: &RunningSession,
        ban: Vec<NodeId>,
        reply: OrderReply,
    ) {
        let (orchestrator, epoch) = (running.orchestrator, running.epoch);
        let root = match running.run.root() {
            Some(root) if !ban.is_empty() => root.to_vec(),
            _ => return self.reply(orchestrator, epoch, session, attempt, &reply),
        };
        // In force before this run lets go of its cell, for all that run and all that come.
        for peer in &ban {
            self.claims.ban_now(&root, *peer);
            tracing::error!(node = %self.name, ?peer, "peer banned from this key: it cheated in signing");
        }
        let (node, now_ms) = (Arc::clone(self), self.clock.now_ms());
        self.runtime.spawn(async move {
            for peer in ban {
                while let Err(error) = node.claims.ban(&root, peer, now_ms).await {
                    tracing::error!(node = %node.name, %error, "failed to store the ban");
                    if node.claims.is_broken() {
                        // The node ends. Nobody hears of the failure from it.
                        return;
                    }
                    sleep(EXPIRE_INTERVAL).await;
                }
            }
            node.reply(orchestrator, epoch, session, attempt, &reply);
        });
    }

    fn send(
        &self,
        epoch: u32,
        (session, attempt): AttemptId,
        run: &ProtocolRun,
        message: &ProtocolMessage,
    ) {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Protocol,
            sealed: message.private,
            epoch,
            session,
            attempt,
            round: message.round,
            sequence: message.sequence,
            from: self.codec.id(),
            to: message.to,
        };
        let parts = [run.view(), &message.body];
        let sent = match run.must_be_signed() {
            true => self.codec.send_signed(header, &parts),
            false => self.codec.send_parts(header, &parts),
        };
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "cannot send");
        }
    }
}
