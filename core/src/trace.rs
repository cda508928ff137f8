//! Traces: where a request spends its time, across processes. A span can say nothing but a [`SpanFact`], so no amount,
//! address, token or payload gets into one. What takes spans that have ended is a port; without it nothing is recorded.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{RequestId, VaultId},
    networks::Network,
};

/// A span that others continue, by its ids of W3C Trace Context. Only spans that are recorded are handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// The trace.
    pub trace: [u8; 16],
    /// The span in it.
    pub span: [u8; 8],
}

impl TraceContext {
    /// Ids of zeros name nothing.
    fn is_valid(&self) -> bool {
        self.trace != [0; 16] && self.span != [0; 8]
    }
}

/// What those who ask say of the trace that a span is to belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceParent {
    /// Nothing: it is drawn whether there is a trace.
    #[default]
    Unknown,
    /// Theirs is not recorded, and so nothing here is.
    Unsampled,
    /// The span that it is part of.
    Sampled(TraceContext),
}

impl TraceParent {
    /// That of a `traceparent` header. One that is malformed is as none.
    pub fn of_header(header: &str) -> Self {
        match parse(header) {
            Some((context, flags)) if flags & 1 == 1 => Self::Sampled(context),
            Some(_) => Self::Unsampled,
            None => Self::Unknown,
        }
    }

    /// What signers are told.
    pub fn context(self) -> Option<TraceContext> {
        match self {
            Self::Sampled(context) => Some(context),
            Self::Unknown | Self::Unsampled => None,
        }
    }
}

/// Version, trace, span and flags: `00-<32 hex>-<16 hex>-<2 hex>`. Later versions may say more after these.
fn parse(header: &str) -> Option<(TraceContext, u8)> {
    let mut parts = header.splitn(5, '-');
    let [version] = lower_hex(parts.next()?)?;
    let (trace, span) = (lower_hex(parts.next()?)?, lower_hex(parts.next()?)?);
    let [flags] = lower_hex(parts.next()?)?;
    let context = TraceContext { trace, span };
    let is_known = version != 0xff && (version != 0 || parts.next().is_none());
    (is_known && context.is_valid()).then_some((context, flags))
}

fn lower_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let read = hex::decode_to_slice(text, &mut bytes);
    (is_lower && read.is_ok()).then_some(bytes)
}

/// What a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanName {
    /// A call of the API, once its token is known.
    Call,
    /// A signing request, as long as it is worked on.
    Request,
    /// Its transaction or message is built.
    Build,
    /// A state of it is written to the store.
    Commit,
    /// Signers are asked for its signatures.
    Session,
    /// It is sent to a chain node.
    Broadcast,
    /// A signer's part of a session.
    Sign,
    /// What a signer promises is written to its disk.
    Claim,
    /// A round of the signers' protocol.
    Round,
}

impl SpanName {
    /// As it is sent.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Request => "request",
            Self::Build => "build",
            Self::Commit => "commit",
            Self::Session => "session",
            Self::Broadcast => "broadcast",
            Self::Sign => "sign",
            Self::Claim => "claim",
            Self::Round => "round",
        }
    }
}

/// All that a span can say. Words come from fixed lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanFact {
    /// The operation that is called.
    Operation(&'static str),
    /// How it is called.
    Transport(&'static str),
    /// The request's id.
    Request(RequestId),
    /// The vault's id.
    Vault(VaultId),
    /// The kind of its payload.
    Kind(&'static str),
    /// The network.
    Network(Network),
    /// The number of an attempt to sign.
    Attempt(u32),
    /// The number of a round.
    Round(u16),
    /// How it ended: a class of errors, or a state.
    Outcome(&'static str),
}

/// What a fact says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactValue {
    /// A word or an id.
    Text(String),
    /// A number.
    Number(u32),
}

impl SpanFact {
    /// Its name and what it says.
    pub fn shown(self) -> (&'static str, FactValue) {
        let text = |text: &str| FactValue::Text(text.to_owned());
        match self {
            Self::Operation(name) => ("covault.operation", text(name)),
            Self::Transport(name) => ("covault.transport", text(name)),
            Self::Request(id) => ("covault.request", FactValue::Text(id.to_string())),
            Self::Vault(id) => ("covault.vault", FactValue::Text(id.to_string())),
            Self::Kind(kind) => ("covault.kind", text(kind)),
            Self::Network(network) => ("covault.network", text(network.name())),
            Self::Attempt(number) => ("covault.attempt", FactValue::Number(number)),
            Self::Round(number) => ("covault.round", FactValue::Number(number.into())),
            Self::Outcome(word) => ("covault.outcome", text(word)),
        }
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSpan {
    /// What it is about.
    pub name: SpanName,
    /// Its ids.
    pub context: TraceContext,
    /// The span that it is part of.
    pub parent: Option<[u8; 8]>,
    /// When it began, in nanoseconds since the Unix epoch.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// What it says.
    pub facts: Vec<SpanFact>,
    /// Whether what it is about failed.
    pub failed: bool,
}

/// Takes spans that have ended, and gives them their time and ids.
pub trait SpanSink: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn now_ns(&self) -> u64;

    /// Fills `id` with randomness.
    fn fill_id(&self, id: &mut [u8]);

    /// Takes a span. Never waits: where there is no room it is dropped.
    fn take(&self, span: EndedSpan);
}

/// Begins spans. Without a sink none is recorded, and what callers say is handed on.
#[derive(Clone, Default)]
pub struct Tracer(Option<SampledSink>);

#[derive(Clone)]
struct SampledSink {
    sink: Arc<dyn SpanSink>,
    /// The part of the traces that begin here which is recorded, of 1.
    share: f64,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.0.as_ref().map(|sampled| sampled.share);
        f.debug_tuple("Tracer").field(&share).finish()
    }
}

impl Tracer {
    /// Records `share` of the traces that begin here: 0 none, 1 all. Of what is part of a caller's trace, what that says.
    pub fn new(sink: Arc<dyn SpanSink>, share: f64) -> Self {
        Self(Some(SampledSink { sink, share }))
    }

    /// Begins a span.
    pub fn begin(&self, name: SpanName, parent: TraceParent) -> TraceSpan {
        let Some(SampledSink { sink, share }) = &self.0 else {
            return TraceSpan(SpanState::Off(parent));
        };
        match parent {
            TraceParent::Sampled(context) if context.is_valid() => {
                open(sink, name, context.trace, Some(context.span))
            }
            TraceParent::Sampled(_) | TraceParent::Unsampled => TraceSpan::off(),
            TraceParent::Unknown => {
                let mut trace = [0; 16];
                sink.fill_id(&mut trace);
                let [a, b, c, d, ..] = trace;
                let drawn = f64::from(u32::from_be_bytes([a, b, c, d])) / 4_294_967_296.0;
                match drawn < *share {
                    true => open(sink, name, trace, None),
                    false => TraceSpan::off(),
                }
            }
        }
    }
}

fn open(
    sink: &Arc<dyn SpanSink>,
    name: SpanName,
    trace: [u8; 16],
    parent: Option<[u8; 8]>,
) -> TraceSpan {
    let mut span = [0; 8];
    sink.fill_id(&mut span);
    let began_ns = sink.now_ns();
    TraceSpan(SpanState::On(Box::new(OpenSpan {
        sink: Arc::clone(sink),
        context: TraceContext { trace, span },
        record: Some(EndedSpan {
            name,
            context: TraceContext { trace, span },
            parent,
            began_ns,
            ended_ns: began_ns,
            facts: Vec::new(),
            failed: false,
        }),
    })))
}

/// A span that runs; it ends when it is dropped. Of what is not recorded it says only what callers said.
pub struct TraceSpan(SpanState);

enum SpanState {
    Off(TraceParent),
    On(Box<OpenSpan>),
}

struct OpenSpan {
    sink: Arc<dyn SpanSink>,
    context: TraceContext,
    /// Taken when it ends.
    record: Option<EndedSpan>,
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.ended_ns = self.sink.now_ns().max(record.began_ns);
            self.sink.take(record);
        }
    }
}

impl Default for TraceSpan {
    fn default() -> Self {
        Self::off()
    }
}

impl fmt::Debug for TraceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TraceSpan").field(&self.parent()).finish()
    }
}

impl TraceSpan {
    /// One that is not recorded, nor anything below it.
    pub fn off() -> Self {
        Self(SpanState::Off(TraceParent::Unsampled))
    }

    /// Begins a part of it.
    pub fn child(&self, name: SpanName) -> Self {
        match &self.0 {
            SpanState::Off(parent) => Self(SpanState::Off(*parent)),
            SpanState::On(span) => {
                let TraceContext { trace, span: id } = span.context;
                open(&span.sink, name, trace, Some(id))
            }
        }
    }

    /// What others are told, whose spans are to be parts of it.
    pub fn parent(&self) -> TraceParent {
        match &self.0 {
            SpanState::Off(parent) => *parent,
            SpanState::On(span) => TraceParent::Sampled(span.context),
        }
    }

    /// The same with a fact.
    #[must_use]
    pub fn with(mut self, fact: SpanFact) -> Self {
        self.note(fact);
        self
    }

    /// Adds a fact.
    pub fn note(&mut self, fact: SpanFact) {
        if let Some(record) = self.record() {
            record.facts.push(fact);
        }
    }

    /// Says that it failed, and how.
    pub fn fail(&mut self, outcome: &'static str) {
        if let Some(record) = self.record() {
            record.failed = true;
            record.facts.push(SpanFact::Outcome(outcome));
        }
    }

    fn record(&mut self) -> Option<&mut EndedSpan> {
        match &mut self.0 {
            SpanState::Off(_) => None,
            SpanState::On(span) => span.record.as_mut(),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// Keeps what it takes; ids count up.
    #[derive(Default)]
    struct KeptSpans(Mutex<Vec<EndedSpan>>, AtomicU64);

    impl SpanSink for KeptSpans {
        fn now_ns(&self) -> u64 {
            self.1.fetch_add(1, Ordering::SeqCst)
        }

        fn fill_id(&self, id: &mut [u8]) {
            id.fill(u8::try_from(self.now_ns() + 1).expect("few ids"));
        }

        fn take(&self, span: EndedSpan) {
            self.0.lock().expect("kept").push(span);
        }
    }

    fn caller() -> TraceContext {
        TraceParent::of_header(HEADER).context().expect("a context")
    }

    #[test]
    fn traceparent__should_be_read_as_w3c_says() {
        assert_eq!(hex::encode(caller().trace), &HEADER[3..35]);
        assert_eq!(hex::encode(caller().span), &HEADER[36..52]);
        let unsampled = HEADER.replace("-01", "-00");
        assert_eq!(TraceParent::of_header(&unsampled), TraceParent::Unsampled);
        for sampled in [
            HEADER.replace("-01", "-ff"),
            // Of a version to come.
            HEADER.replacen("00-", "01-", 1),
            HEADER.replacen("00-", "cc-", 1) + "-what-the-future-will-be-like",
        ] {
            assert_eq!(
                TraceParent::of_header(&sampled),
                TraceParent::Sampled(caller())
            );
        }
    }

    #[test]
    fn malformed_traceparent__should_be_as_none() {
        for header in [
            String::new(),
            "00".to_owned(),
            HEADER.to_uppercase(),
            HEADER.replace("4bf9", "4bF9"),
            HEADER.replace("4bf9", "4bg9"),
            HEADER.replacen("00-", "ff-", 1),
            HEADER.replacen("00-", "0-", 1),
            format!("{HEADER}-01"),
            format!("{HEADER} "),
            format!(" {HEADER}"),
            HEADER[..HEADER.len() - 1].to_owned(),
            HEADER.replace("-01", ""),
            HEADER.replace("-01", "-001"),
            HEADER.replace("00f067aa0ba902b7", "0000000000000000"),
            HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            HEADER.replace("4bf92f3577b34da6a3ce929d0e0e4736", "4bf92f3577b34da6"),
            HEADER.replace('-', "_"),
        ] {
            assert_eq!(
                TraceParent::of_header(&header),
                TraceParent::Unknown,
                "{header:?}"
            );
        }
    }

    #[test]
    fn spans__should_be_parts_of_the_callers() {
        let sink = Arc::new(KeptSpans::default());
        let tracer = Tracer::new(Arc::clone(&sink) as _, 0.0);
        let request = tracer.begin(SpanName::Request, TraceParent::Sampled(caller()));
        let mut build = request.child(SpanName::Build).with(SpanFact::Attempt(3));
        build.fail("invalid");
        drop(build);
        let continued = request.parent();
        drop(request);
        let spans = sink.0.lock().expect("kept").clone();
        let [build, request] = spans.as_slice() else {
            panic!("{spans:?}");
        };
        assert_eq!(continued, TraceParent::Sampled(request.context));
        assert_eq!(request.parent, Some(caller().span));
        assert_eq!(build.parent, Some(request.context.span));
        assert!(
            spans
                .iter()
                .all(|span| span.context.trace == caller().trace)
        );
        assert!(spans.iter().all(|span| span.began_ns < span.ended_ns));
        assert_eq!((build.failed, request.failed), (true, false));
        let facts = [SpanFact::Attempt(3), SpanFact::Outcome("invalid")];
        assert_eq!(build.facts, facts);
    }

    #[test]
    fn sampling__should_follow_the_caller_before_the_share() {
        let recorded = |share, parent| {
            let sink = Arc::new(KeptSpans::default());
            drop(Tracer::new(Arc::clone(&sink) as _, share).begin(SpanName::Request, parent));
            !sink.0.lock().expect("kept").is_empty()
        };
        let zeros = TraceContext {
            trace: [0; 16],
            ..caller()
        };
        for (share, parent, wanted) in [
            (0.0, TraceParent::Unknown, false),
            (1.0, TraceParent::Unknown, true),
            (1.0, TraceParent::Unsampled, false),
            (0.0, TraceParent::Sampled(caller()), true),
            (1.0, TraceParent::Sampled(zeros), false),
        ] {
            assert_eq!(recorded(share, parent), wanted, "{share} {parent:?}");
        }
    }

    #[test]
    fn without_a_sink__should_hand_on_what_callers_say() {
        for parent in [TraceParent::Unknown, TraceParent::Sampled(caller())] {
            let span = Tracer::default().begin(SpanName::Request, parent);
            assert_eq!(span.child(SpanName::Session).parent(), parent);
        }
    }
}
