//! A client signer: a node that takes part in no signature before a program of its operator has said yes.
//!
//! An order without the node's own approval is a question. The node checks it like any other, asks the program, notes
//! the answer on disk, and signs an approval. Only an order that carries that approval begins a session. So a request is
//! asked about once, whichever process dies, and other nodes can demand the same approval in their policies.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{
    approval::{
        Approval, ApprovalProof, ApprovalWay, ApproverKey, Approvers, GivenApproval,
        MAX_VALIDITY_MS,
    },
    fault::{Class, ExecuteCode, Fault, FaultCode},
    ids::{RequestId, SessionId, VaultId},
    order::{NodeId, SigningOrder},
    schema::wire,
};
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase as _, TableDefinition};
use tokio::sync::Semaphore;

use super::{
    Node,
    refusals::{refused, wrong_epoch},
};
use crate::{envelope::EnvelopeHeader, message::OrderReply};

/// Questions that are put to the program at one time; others wait.
const AT_ONCE: usize = 64;
/// Requests that are asked about or wait for it.
const MAX_ASKED: usize = 4096;
/// Bytes of their payloads.
const MAX_ASKED_BYTES: usize = 64 << 20;
/// Orders that wait for the answer about one request.
const MAX_ASKERS: usize = 16;
/// Request -> what it was asked about ([`CallbackQuestion::intent`]), when it was answered, in milliseconds since the Unix epoch,
/// and why not; empty: yes.
const ANSWERS: TableDefinition<'_, &[u8; 16], (&[u8; 32], u64, &str)> =
    TableDefinition::new("answers.1");

/// What decides for a client signer.
#[async_trait]
pub trait SigningCallback: Send + Sync {
    /// Asks whether a request may be signed. Anything but a yes is a no, with the reason as people are told it.
    async fn ask(&self, request: &wire::SigningRequest) -> Result<(), String>;
}

/// What makes a node a client signer.
pub struct ClientSignerConfig {
    /// The only vault that it has to do with.
    pub vault: VaultId,
    /// What decides for it.
    pub callback: Arc<dyn SigningCallback>,
}

pub(super) struct ClientSigner {
    vault: VaultId,
    callback: Arc<dyn SigningCallback>,
    /// Itself alone.
    own: Approvers,
    places: Semaphore,
    answers: Arc<Database>,
    /// The requests that are being asked about.
    asking: Mutex<HashMap<RequestId, CallbackQuestion>>,
}

/// What is asked about a request, and who waits for the answer.
struct CallbackQuestion {
    /// The [`Approval::id`] without the terms, which are no part of what the program is shown.
    intent: [u8; 32],
    /// Of its payload.
    bytes: usize,
    askers: Vec<WaitingOrder>,
}

/// An order that waits for the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WaitingOrder {
    orchestrator: NodeId,
    /// Epoch, session, attempt.
    place: (u32, SessionId, u32),
    /// Over what the answer is about; a yes hands it out.
    signature: [u8; 64],
}

/// An answer that was noted, or is to be.
type CallbackAnswer = Result<(), String>;

fn disk_failed(cause: impl std::fmt::Display) -> Fault {
    Fault::unavailable("a signer's disk failed").caused_by(cause)
}

impl ClientSigner {
    pub(super) fn open(config: ClientSignerConfig, id: NodeId, path: &Path) -> Result<Self, Fault> {
        let ClientSignerConfig { vault, callback } = config;
        let mut own = Approvers::default();
        own.add("self", ApproverKey::parse(&id.openssh_line(""))?)?;
        let open = || -> Result<Database, redb::Error> {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            let database = Database::builder().create_file(file)?;
            let transaction = database.begin_write()?;
            transaction.open_table(ANSWERS)?;
            transaction.commit()?;
            Ok(database)
        };
        let answers = open().map_err(|cause| {
            let sentence = format!("{} cannot be opened", path.display());
            Fault::new(Class::Invalid, sentence).caused_by(cause)
        })?;
        Ok(Self {
            vault,
            callback,
            own,
            places: Semaphore::new(AT_ONCE),
            answers: Arc::new(answers),
            asking: Mutex::default(),
        })
    }

    /// Whether the order carries this node's approval.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it carries one that does not hold.
    pub(super) fn has_approved(
        &self,
        order: &SigningOrder,
        now_ms: u64,
        forgotten_ms: u64,
    ) -> Result<bool, Fault> {
        if order.approvals.given.is_empty() {
            return Ok(false);
        }
        let fee = order.most_fee()?;
        let verified = self
            .own
            .verify(&order.approval(), &order.approvals, fee, now_ms)?;
        // Its yes as a client signer, and not a person's signature with the same key.
        let mut ways = verified.approved.iter().map(|approved| approved.way);
        if !ways.any(|way| way == ApprovalWay::Client) {
            return Ok(false);
        }
        let known_ms = forgotten_ms.saturating_add(MAX_VALIDITY_MS);
        match forgotten_ms > 0 && order.approvals.valid_until_ms <= known_ms {
            true => Err(may_have_signed()),
            false => Ok(true),
        }
    }
}

fn stored(
    answers: &Database,
    request: RequestId,
) -> Result<Option<([u8; 32], u64, CallbackAnswer)>, redb::Error> {
    let table = answers.begin_read()?.open_table(ANSWERS)?;
    let row = table.get(request.as_bytes())?;
    Ok(row.map(|row| {
        let (intent, at_ms, no) = row.value();
        let answer = match no {
            "" => Ok(()),
            no => Err(no.to_owned()),
        };
        (*intent, at_ms, answer)
    }))
}

fn store(
    answers: &Database,
    request: RequestId,
    intent: &[u8; 32],
    at_ms: u64,
    answer: &CallbackAnswer,
) -> Result<(), redb::Error> {
    let no = match answer {
        Ok(()) => "",
        Err(no) => no.as_str(),
    };
    let transaction = answers.begin_write()?;
    transaction
        .open_table(ANSWERS)?
        .insert(request.as_bytes(), (intent, at_ms, no))?;
    transaction.commit()?;
    Ok(())
}

/// A yes is good for one signature, and whether it was used is in the claims alone.
fn may_have_signed() -> Fault {
    refused(
        "this client signer's callback has allowed it, but claims of the node went missing since: it may have signed it, so \
         make another request",
    )
}

fn other_content() -> Fault {
    Fault::field(
        "payload",
        "the callback was asked about another payload of this request",
    )
}

impl Node {
    /// A client signer has to do with its own vault alone.
    pub(super) fn check_own_vault(&self, vault: VaultId) -> Result<(), Fault> {
        match &self.client {
            Some(client) if client.vault != vault => Err(Fault::field(
                "vault",
                format_args!(
                    "is not {}, the only vault of this client signer",
                    client.vault
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Has the program asked about an order that does not carry this node's approval, and answers with one.
    pub(super) fn ask_callback(
        self: &Arc<Self>,
        client: &ClientSigner,
        header: &EnvelopeHeader,
        mut order: SigningOrder,
    ) -> Result<(), Fault> {
        if header.epoch != order.epoch {
            return Err(wrong_epoch());
        }
        let approval = order.approval();
        approval.check_terms(order.most_fee()?, self.clock.now_ms())?;
        let statement = ApprovalProof::node_statement(&approval.id()?);
        let signature = self.codec.identity().sign(&statement);
        order.approvals.given.push(GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::Node {
                node: self.codec.id(),
                signature: signature.to_vec(),
            },
        });
        // As if the answer were a yes: its own policy may want it, too.
        self.check_order(&order, None)?;
        let asker = WaitingOrder {
            orchestrator: header.from,
            place: (header.epoch, header.session, header.attempt),
            signature,
        };
        let without_terms = Approval {
            most_fee: 0,
            valid_until_ms: 0,
            ..approval
        };
        let intent = without_terms.id()?;
        let (request, expires_at_ms) = (order.request, order.expires_at_ms);
        let shown = order.signing_request(&self.codec.id())?;
        let bytes = order.payload.len();
        // Of up to 4 MiB: it does not wait.
        drop(order);
        let mut asking = client.asking.lock();
        let held: usize = asking.values().map(|question| question.bytes).sum();
        let room = asking.len() < MAX_ASKED && held.saturating_add(bytes) <= MAX_ASKED_BYTES;
        match asking.entry(request) {
            Entry::Occupied(question) if question.get().intent != intent => {
                return Err(other_content());
            }
            Entry::Occupied(mut question) => {
                let askers = &mut question.get_mut().askers;
                if !askers.contains(&asker) && askers.len() < MAX_ASKERS {
                    askers.push(asker);
                }
                return Ok(());
            }
            Entry::Vacant(_) if !room => {
                let sentence = "too many requests wait for the callback of this client signer";
                return Err(Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds: 5 }));
            }
            Entry::Vacant(place) => {
                let askers = vec![asker];
                place.insert(CallbackQuestion {
                    intent,
                    bytes,
                    askers,
                });
            }
        }
        drop(asking);
        let asked = {
            let node = Arc::clone(self);
            self.runtime
                .spawn(async move { node.decide(request, expires_at_ms, intent, &shown).await })
        };
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let answer = asked.await.unwrap_or_else(|panic| Err(Fault::bug(panic)));
            node.tell(request, &answer);
        });
        Ok(())
    }

    /// The answer about a request: the one that is noted, or a new one, which is noted before anyone hears of it.
    async fn decide(
        &self,
        request: RequestId,
        expires_at_ms: u64,
        intent: [u8; 32],
        shown: &wire::SigningRequest,
    ) -> Result<(), Fault> {
        let Some(client) = &self.client else {
            return Err(Fault::bug("no client signer"));
        };
        let answers = Arc::clone(&client.answers);
        let known = self
            .pool
            .block_on(move || stored(&answers, request))
            .await?;
        let answer = match known.map_err(disk_failed)? {
            Some((known, ..)) if known != intent => return Err(other_content()),
            Some((_, at_ms, Ok(()))) if at_ms <= self.claims.age().forgotten_ms => {
                return Err(may_have_signed());
            }
            Some((.., answer)) => answer,
            None => {
                let _place = client.places.acquire().await.map_err(Fault::bug)?;
                if self.clock.now_ms() >= expires_at_ms {
                    return Err(Fault::unavailable("the callback was overloaded"));
                }
                // What cannot be noted is not asked: a disk that has failed takes nothing until the next start.
                let answers = Arc::clone(&client.answers);
                let writable = move || answers.begin_write().map(drop);
                let writable = self.pool.block_on(writable).await?;
                writable.map_err(disk_failed)?;
                tracing::info!(node = %self.name, %request, "asking the callback");
                let answer = client.callback.ask(shown).await;
                tracing::info!(node = %self.name, %request, ?answer, "the callback has answered");
                let answers = Arc::clone(&client.answers);
                let noted = answer.clone();
                let at_ms = self.clock.now_ms();
                let stored = move || store(&answers, request, &intent, at_ms, &noted);
                self.pool.block_on(stored).await?.map_err(disk_failed)?;
                answer
            }
        };
        answer.map_err(|no| {
            let sentence = format!("the callback denied it: {no}");
            Fault::new(Class::Invalid, sentence).with_execute_code(ExecuteCode::AlreadyDenied)
        })
    }

    /// Answers those that wait.
    fn tell(&self, request: RequestId, answer: &Result<(), Fault>) {
        let Some(client) = &self.client else { return };
        let question = client.asking.lock().remove(&request);
        for asker in question.map(|question| question.askers).unwrap_or_default() {
            let WaitingOrder {
                orchestrator,
                place: (epoch, session, attempt),
                signature,
            } = asker;
            match answer {
                Ok(()) => {
                    let reply = OrderReply::Approved(signature.to_vec());
                    self.reply(orchestrator, epoch, session, attempt, &reply);
                }
                Err(fault) => self.refuse(orchestrator, epoch, session, attempt, fault.clone()),
            }
        }
    }
}
