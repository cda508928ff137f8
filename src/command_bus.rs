//! The command bus between processes over a message bus, which may be Redis and is not trusted: anyone who can write
//! there can neither read a command, nor forge one, nor have one run twice.
//!
//! Every process has an inbox on a bus of its own namespace. A message is sealed with
//! XChaCha20-Poly1305 under a key that is derived, for commands and for answers apart, from a secret
//! that all processes share, and is bound to its sender and its recipient. A process that starts again
//! is another recipient. A forwarded command carries the version of the recipient's row: the recipient
//! opens none that is older than commands may take, and none whose id it has seen since.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Payload},
};
use covault_actors::gateway::command_bus::{
    CommandBus, CommandHandler, ForwardOutcome, ForwardedCommand, form,
};
use covault_core::{
    fault::Fault,
    ids::OrchestratorId,
    order::NodeId,
    port::{Entropy, random_16},
};
use covault_mpc::bus::{Bus, BusAddress};
use hkdf::Hkdf;
use parking_lot::{Mutex, MutexGuard};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::{sync::oneshot, task::AbortHandle};
use zeroize::Zeroizing;

/// The form of a message.
const VERSION: u8 = 1;
/// Separates these keys and addresses from all others.
const CONTEXT: &[u8] = b"covault post v1";
/// Ids that are remembered: more than arrive while a command can be opened.
const MAX_SEEN_IDS: usize = 1 << 17;
const NONCE_LEN: usize = 24;
const ID_LEN: usize = 16;

/// Whether a cluster can have this secret.
///
/// # Errors
/// When it has another form.
pub fn check_secret(secret: &SecretString) -> anyhow::Result<()> {
    BusKeys::of(secret).map(|_| ())
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum MessageKind {
    Command = 1,
    Answer = 2,
}

/// The keys of the shared secret.
struct BusKeys {
    commands: XChaCha20Poly1305,
    answers: XChaCha20Poly1305,
}

/// A message that was opened.
#[derive(Debug, PartialEq, Eq)]
struct BusMessage {
    kind: MessageKind,
    from: OrchestratorId,
    id: [u8; ID_LEN],
    body: Vec<u8>,
}

impl BusKeys {
    fn of(secret: &SecretString) -> anyhow::Result<Self> {
        let bytes = Zeroizing::new(hex::decode(secret.expose_secret()).unwrap_or_default());
        anyhow::ensure!(
            bytes.len() == 32,
            "the cluster secret must be 64 hexadecimal digits: make one with  openssl rand -hex 32"
        );
        let derived = Hkdf::<Sha256>::new(Some(CONTEXT), &bytes);
        let key = |name: &[u8]| {
            let mut key = Zeroizing::new([0; 32]);
            derived
                .expand(name, &mut *key)
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            anyhow::Ok(XChaCha20Poly1305::new((&*key).into()))
        };
        Ok(Self {
            commands: key(b"commands")?,
            answers: key(b"answers")?,
        })
    }

    fn key_for(&self, kind: MessageKind) -> &XChaCha20Poly1305 {
        match kind {
            MessageKind::Command => &self.commands,
            MessageKind::Answer => &self.answers,
        }
    }

    fn seal(
        &self,
        message: &BusMessage,
        to: OrchestratorId,
        nonce: [u8; NONCE_LEN],
    ) -> Result<Vec<u8>, Fault> {
        let BusMessage {
            kind,
            from,
            id,
            body,
        } = message;
        let header = header(*kind, *from);
        let plain = Zeroizing::new([id.as_slice(), body].concat());
        let payload = Payload {
            msg: &plain,
            aad: &[header.as_slice(), to.as_bytes()].concat(),
        };
        let sealed = self.key_for(*kind);
        let sealed = sealed.encrypt(XNonce::from_slice(&nonce), payload);
        let sealed = sealed.map_err(|_| Fault::bug("failed to seal a forwarded command"))?;
        Ok([header.as_slice(), &nonce, &sealed].concat())
    }

    /// `None` for what is not from one of us, or not for `me`.
    fn open(&self, bytes: &[u8], me: OrchestratorId) -> Option<BusMessage> {
        let (version, rest) = bytes.split_first()?;
        let (kind, rest) = rest.split_first()?;
        let (from, rest) = rest.split_first_chunk::<ID_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let kind = match (*version, *kind) {
            (VERSION, 1) => MessageKind::Command,
            (VERSION, 2) => MessageKind::Answer,
            _ => return None,
        };
        let from = OrchestratorId::from_bytes(*from);
        let payload = Payload {
            msg: sealed,
            aad: &[header(kind, from).as_slice(), me.as_bytes()].concat(),
        };
        let plain = self
            .key_for(kind)
            .decrypt(XNonce::from_slice(nonce), payload)
            .ok()?;
        let plain = Zeroizing::new(plain);
        let (id, body) = plain.split_first_chunk::<ID_LEN>()?;
        Some(BusMessage {
            kind,
            from,
            id: *id,
            body: body.to_vec(),
        })
    }
}

fn header(kind: MessageKind, from: OrchestratorId) -> Vec<u8> {
    [&[VERSION, kind as u8], from.as_bytes().as_slice()].concat()
}

/// Where a process listens.
fn inbox(id: OrchestratorId) -> BusAddress {
    let mut hash = Sha256::new_with_prefix(CONTEXT);
    hash.update(id.as_bytes());
    BusAddress::Inbox(NodeId(hash.finalize().into()))
}

/// Ids of commands that were opened.
#[derive(Default)]
struct SeenIds {
    ids: HashSet<[u8; ID_LEN]>,
    order: VecDeque<[u8; ID_LEN]>,
}

impl SeenIds {
    /// False when it was there already.
    fn add(&mut self, id: [u8; ID_LEN]) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_SEEN_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// Who waits for which answer, and from whom.
type PendingAnswers = HashMap<[u8; ID_LEN], (OrchestratorId, oneshot::Sender<ForwardOutcome>)>;

struct BusState {
    bus: Arc<dyn Bus>,
    entropy: Arc<dyn Entropy>,
    keys: BusKeys,
    pending: Mutex<PendingAnswers>,
}

/// See the module.
pub struct RedisCommandBus {
    state: Arc<BusState>,
    me: Mutex<Option<(OrchestratorId, AbortHandle)>>,
}

impl RedisCommandBus {
    /// A post over a bus that nothing else uses.
    ///
    /// # Errors
    /// When the secret is not 32 bytes in hexadecimal digits.
    pub fn new(
        bus: Arc<dyn Bus>,
        entropy: Arc<dyn Entropy>,
        secret: &SecretString,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            state: Arc::new(BusState {
                bus,
                entropy,
                keys: BusKeys::of(secret)?,
                pending: Mutex::default(),
            }),
            me: Mutex::default(),
        })
    }

    fn me(&self) -> MutexGuard<'_, Option<(OrchestratorId, AbortHandle)>> {
        self.me.lock()
    }
}

impl BusState {
    fn pending(&self) -> MutexGuard<'_, PendingAnswers> {
        self.pending.lock()
    }

    fn publish(&self, message: &BusMessage, to: OrchestratorId) -> Result<(), Fault> {
        let mut nonce = [0; NONCE_LEN];
        self.entropy.fill(&mut nonce);
        let sealed = self.keys.seal(message, to, nonce)?;
        let published = self.bus.publish(inbox(to), sealed);
        published.map_err(|error| {
            Fault::unavailable("the message bus cannot take the command").caused_by(error)
        })
    }

    fn handle_answer(&self, message: BusMessage) {
        let sender = {
            let mut pending = self.pending();
            match pending.get(&message.id) {
                Some((of, _)) if *of == message.from => pending.remove(&message.id),
                // The waiting caller has gone.
                _ => None,
            }
        };
        let Some((_, sender)) = sender else {
            return;
        };
        let outcome = form::decode_outcome(&message.body).unwrap_or_else(|fault| {
            tracing::error!(?fault, "failed to decode an answer of another process");
            ForwardOutcome::NotKnown
        });
        let _ = sender.send(outcome);
    }

    /// Has a command done, in a task of its own.
    fn run_command(
        self: &Arc<Self>,
        me: OrchestratorId,
        handler: &Arc<dyn CommandHandler>,
        message: BusMessage,
    ) {
        let (state, handler) = (Arc::clone(self), Arc::clone(handler));
        tokio::spawn(async move {
            let outcome = match form::decode_command(&message.body) {
                Ok(forwarded) => handler.handle(forwarded).await,
                Err(fault) => {
                    // A newer version sends what this one does not know.
                    tracing::error!(?fault, "failed to decode a command of another process");
                    ForwardOutcome::NotDone
                }
            };
            let answer = form::encode_outcome(outcome).map(|body| BusMessage {
                kind: MessageKind::Answer,
                from: me,
                id: message.id,
                body,
            });
            let sent = answer.and_then(|answer| state.publish(&answer, message.from));
            if let Err(fault) = sent {
                tracing::warn!(
                    ?fault,
                    "failed to send the outcome of a command to another process"
                );
            }
        });
    }
}

#[async_trait]
impl CommandBus for RedisCommandBus {
    async fn open(
        &self,
        me: OrchestratorId,
        handler: Arc<dyn CommandHandler>,
    ) -> Result<(), Fault> {
        let BusAddress::Inbox(address) = inbox(me) else {
            return Err(Fault::bug("not an inbox address"));
        };
        let mut messages = self
            .state
            .bus
            .subscribe(address, false)
            .await
            .map_err(|error| {
                Fault::unavailable("the message bus is not available").caused_by(error)
            })?;
        let state = Arc::clone(&self.state);
        let task = tokio::spawn(async move {
            let mut seen = SeenIds::default();
            while let Some(bytes) = messages.next().await {
                let Some(message) = state.keys.open(&bytes, me) else {
                    tracing::warn!("dropped a message from outside the cluster");
                    continue;
                };
                match message.kind {
                    MessageKind::Answer => state.handle_answer(message),
                    MessageKind::Command if seen.add(message.id) => {
                        state.run_command(me, &handler, message)
                    }
                    // A bus may repeat messages, and so may an attacker on it.
                    MessageKind::Command => {}
                }
            }
        });
        *self.me() = Some((me, task.abort_handle()));
        Ok(())
    }

    async fn close(&self, me: OrchestratorId) {
        let mut open = self.me();
        if open.as_ref().is_some_and(|(open, _)| *open == me)
            && let Some((_, task)) = open.take()
        {
            task.abort();
        }
    }

    async fn send(
        &self,
        to: OrchestratorId,
        forwarded: ForwardedCommand,
        patience: Duration,
    ) -> ForwardOutcome {
        let refused = |fault| ForwardOutcome::Done(Box::new(Err(fault)));
        let me = self.me().as_ref().map(|(me, _)| *me);
        let Some(me) = me else {
            return ForwardOutcome::NotDone;
        };
        let body = match form::encode_command(&forwarded) {
            Ok(body) => body,
            Err(fault) => return refused(fault),
        };
        let id = random_16(&*self.state.entropy);
        let (sender, answer) = oneshot::channel();
        self.state.pending().insert(id, (to, sender));
        let _pending = PendingGuard(&self.state, id);
        let message = BusMessage {
            kind: MessageKind::Command,
            from: me,
            id,
            body,
        };
        if let Err(fault) = self.state.publish(&message, to) {
            return refused(fault);
        }
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => ForwardOutcome::NotKnown,
        }
    }
}

/// An answer that is waited for.
struct PendingGuard<'a>(&'a BusState, [u8; ID_LEN]);

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        self.0.pending().remove(&self.1);
    }
}

impl Drop for RedisCommandBus {
    fn drop(&mut self) {
        if let Some((_, task)) = self.me().take() {
            task.abort();
        }
    }
}

#[cfg(test)]
#[path = "command_bus_tests.rs"]
mod tests;
