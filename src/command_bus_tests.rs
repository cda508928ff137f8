#![allow(non_snake_case)]

use std::sync::atomic::{AtomicUsize, Ordering};

use covault_actors::gateway::{Caller, OperationResponse, VaultScope};
use covault_core::{ids::TokenId, token::TokenAccess, trace::TraceParent};
use covault_mpc::bus::memory::MemoryBus;

use super::*;
use crate::adapters::OsEntropy;

fn secret(digit: &str) -> SecretString {
    SecretString::from(digit.repeat(64))
}

fn id(number: u8) -> OrchestratorId {
    OrchestratorId::from_bytes([number; 16])
}

fn message() -> BusMessage {
    BusMessage {
        kind: MessageKind::Command,
        from: id(1),
        id: [7; ID_LEN],
        body: b"body".to_vec(),
    }
}

fn forwarded() -> ForwardedCommand {
    ForwardedCommand {
        recipient_version: 1,
        caller: Caller {
            token: TokenId::from_bytes([1; 16]),
            vaults: VaultScope::All,
            access: TokenAccess::Full,
            admin: None,
            request_id: "r".into(),
            person: None,
            trace: TraceParent::Unknown,
        },
        method: "a.B.C".into(),
        request: b"request".to_vec(),
        key: None,
    }
}

struct RejectingHandler(AtomicUsize);

#[async_trait]
impl CommandHandler for RejectingHandler {
    async fn handle(&self, forwarded: ForwardedCommand) -> ForwardOutcome {
        assert_eq!(
            (forwarded.method, forwarded.request),
            ("a.B.C".into(), b"request".to_vec())
        );
        self.0.fetch_add(1, Ordering::SeqCst);
        ForwardOutcome::Done(Box::new(Ok(OperationResponse {
            response: b"response".to_vec(),
            replayed: false,
            body_mismatch: false,
        })))
    }
}

fn command_bus(bus: &Arc<MemoryBus>, secret: &SecretString) -> RedisCommandBus {
    let bus = Arc::clone(bus) as Arc<dyn Bus>;
    RedisCommandBus::new(bus, Arc::new(OsEntropy), secret).unwrap()
}

#[test]
fn sealed__should_open_for_its_recipient_alone_and_unchanged() {
    let keys = BusKeys::of(&secret("a")).unwrap();
    let sealed = keys.seal(&message(), id(2), [3; NONCE_LEN]).unwrap();
    assert_eq!(keys.open(&sealed, id(2)), Some(message()));
    assert_eq!(keys.open(&sealed, id(3)), None);
    let others = BusKeys::of(&secret("b")).unwrap();
    assert_eq!(others.open(&sealed, id(2)), None);
    // Not a bit, and not a byte less.
    for place in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[place] ^= 1;
        assert_eq!(keys.open(&changed, id(2)), None, "{place}");
        assert_eq!(keys.open(&sealed[..place], id(2)), None, "{place}");
    }
    let hidden = |part: &[u8]| !sealed.windows(part.len()).any(|window| window == part);
    assert!(hidden(b"body") && hidden(&[7; ID_LEN]));
}

#[test]
fn secret__should_be_32_bytes_in_hexadecimal_digits() {
    for wrong in ["", "ab", &"a".repeat(63), &"g".repeat(64), &"a".repeat(66)] {
        let refusal = BusKeys::of(&SecretString::from(wrong)).err().unwrap();
        assert!(refusal.to_string().contains("64 hexadecimal digits"));
    }
}

#[tokio::test]
async fn command__should_be_done_once_and_answered() {
    let bus = MemoryBus::new();
    let (one, two) = (
        command_bus(&bus, &secret("a")),
        command_bus(&bus, &secret("a")),
    );
    let done = Arc::new(RejectingHandler(AtomicUsize::new(0)));
    let nobody = Arc::new(RejectingHandler(AtomicUsize::new(0)));
    one.open(id(1), nobody.clone()).await.unwrap();
    two.open(id(2), done.clone()).await.unwrap();
    // An attacker on the bus copies what is sent.
    let BusAddress::Inbox(address) = inbox(id(2)) else {
        panic!("no inbox")
    };
    let mut copied = bus.subscribe(address, false).await.unwrap();
    let patience = Duration::from_secs(60);
    for times in 1..=2 {
        let ForwardOutcome::Done(answer) = one.send(id(2), forwarded(), patience).await else {
            panic!("no answer")
        };
        assert_eq!(answer.unwrap().response, b"response");
        assert_eq!(done.0.load(Ordering::SeqCst), times);
    }
    let copy = copied.next().await.unwrap();
    bus.publish(inbox(id(2)), copy).unwrap();
    bus.publish(inbox(id(2)), b"nonsense".to_vec()).unwrap();
    // What comes after it is done after it was dropped.
    one.send(id(2), forwarded(), patience).await;
    assert_eq!(done.0.load(Ordering::SeqCst), 3);
    assert_eq!(nobody.0.load(Ordering::SeqCst), 0);
    assert!(one.state.pending().is_empty());
}

#[tokio::test]
async fn command__should_be_of_unknown_outcome_when_nobody_answers() {
    let bus = MemoryBus::new();
    let (one, stranger) = (
        command_bus(&bus, &secret("a")),
        command_bus(&bus, &secret("b")),
    );
    let done = Arc::new(RejectingHandler(AtomicUsize::new(0)));
    one.open(id(1), done.clone()).await.unwrap();
    stranger.open(id(2), done.clone()).await.unwrap();
    let patience = Duration::from_millis(50);
    for to in [id(2), id(3)] {
        let outcome = one.send(to, forwarded(), patience).await;
        assert!(matches!(outcome, ForwardOutcome::NotKnown), "{outcome:?}");
    }
    assert_eq!(done.0.load(Ordering::SeqCst), 0);
    assert!(one.state.pending().is_empty());
    // Nobody's answer to nobody's question.
    one.close(id(1)).await;
    let outcome = one.send(id(2), forwarded(), patience).await;
    assert!(matches!(outcome, ForwardOutcome::NotDone), "{outcome:?}");
}
