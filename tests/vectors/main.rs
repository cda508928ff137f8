//! The golden vectors of the networks, byte for byte.
//!
//! Reads every file of the folder that COVAULT_VECTORS names, or of tests/vectors, and runs every
//! case. Kinds that Covault does not have are counted and listed. An unknown format or a field that
//! this file does not know of fails: a case must never pass because a part of it was not looked at.

#![allow(non_snake_case)]
// All of this is a test; clippy takes only functions with #[test] for one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod aptos;
mod bitcoin;
mod evm;
mod solana;
mod stellar;
mod sui;
mod ton;
mod tron;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
};

use covault_core::{
    fault::Fault,
    networks::{
        ChainData, DynNetworkRules, KnownChains, Network, Payload, PayloadKind, Queries, Signed,
        Unsigned,
    },
    schema::{json, wire},
    signature::{Curve, Signature},
};
use serde_json::{Map, Value, json};

const FORMAT: &str = "chain-golden-vectors/1";
const ADDRESS: &str = "addressDerivation";

/// Kinds of the vectors that are another kind of the API, with content made by the client.
const ALIASES: [(&str, &str); 2] = [
    ("solanaMessage(offchain)", "solanaMessage"),
    (tron::TIP_191, "rawMessage"),
];

/// Fields that say something about a case and have no bearing on its bytes, or repeat in
/// another form what is compared.
const TOP_NOTES: [&str; 1] = ["generatedBy"];
const CONTEXT_NOTES: [&str; 9] = [
    "decimals",        // of the ERC-20 token; amounts are whole
    "convention",      // compared with the form of the message below
    "contentUtf8",     // of the typed data
    "domainSeparator", // part of the preimage, which is compared
    "structHash",      // likewise
    "version",         // of an off-chain message envelope
    "walletKey",
    "walletNetworkType",
    "customChain",
];
const EXPECTED_NOTES: [&str; 7] = [
    "result",
    "address",
    "encoding",
    "alternatives", // equally valid orders of accounts
    "signatures",
    "signing",
    "callData",
];

type Outcome = Result<(), String>;

#[derive(Default)]
struct Tally {
    valid: usize,
    invalid: usize,
}

/// A vector's own words for where it must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Validate,
    Build,
}

struct Case<'a> {
    /// The kind as the API names it.
    kind: &'a str,
    body: &'a Map<String, Value>,
    /// The network that the file is of.
    network: &'a str,
    /// The public keys of the senders of the valid cases of the file.
    keys: &'a BTreeMap<String, Vec<u8>>,
}

#[test]
fn every_case__should_pass() {
    let mut failures = Vec::new();
    let mut report = String::new();
    let files = files();
    assert!(!files.is_empty(), "there are no vectors");
    let mut ran = 0;
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let file: Value = serde_json::from_slice(&fs::read(&path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        match run_file(&file, &mut report, &mut failures) {
            Ok(count) => ran += count,
            Err(problem) => failures.push(format!("{name}: {problem}")),
        }
    }
    println!("{report}\n{ran} cases ran, {} failed", failures.len());
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(ran > 0, "not one case could be run");
}

fn files() -> Vec<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one setting of this test; there is no configuration to read it from"
    )]
    let folder = std::env::var("COVAULT_VECTORS").map_or_else(
        |_| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors"),
        PathBuf::from,
    );
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    files
}

fn run_file(
    file: &Value,
    report: &mut String,
    failures: &mut Vec<String>,
) -> Result<usize, String> {
    let file = file.as_object().ok_or("is not an object")?;
    let known = [
        "format",
        "network",
        "set",
        "conventions",
        "fieldNotes",
        "counts",
        "invalidCounts",
        "vectors",
        "invalid",
    ];
    only_known(file, &[&known, &TOP_NOTES])?;
    if file.get("format") != Some(&json!(FORMAT)) {
        return Err(format!("its format is not {FORMAT}"));
    }
    let network = text(file, "network")?;
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut unknown: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut cases = 0;
    let keys = keys(file);
    for (list, is_valid) in [("vectors", true), ("invalid", false)] {
        for case in file.get(list).and_then(Value::as_array).ok_or(list)? {
            cases += 1;
            let body = case.as_object().ok_or("a case is not an object")?;
            let (id, named) = (text(body, "id")?, text(body, "kind")?);
            if !seen.insert(id) {
                return Err(format!("{id} is there twice"));
            }
            let kind = ALIASES
                .iter()
                .find(|(alias, _)| *alias == named)
                .map_or(named, |(_, kind)| *kind);
            let is_known = if kind == ADDRESS {
                network_of(network).is_some()
            } else {
                kind_of(kind).is_some() || is_batch(network, kind)
            };
            let tally = if is_known { &mut tallies } else { &mut unknown };
            let tally = tally.entry(named).or_default();
            if is_valid {
                tally.valid += 1;
            } else {
                tally.invalid += 1;
            }
            if !is_known {
                continue;
            }
            let case = Case {
                kind,
                body,
                network,
                keys: &keys,
            };
            let outcome = if is_valid {
                valid(&case)
            } else {
                invalid(&case)
            };
            if let Err(problem) = outcome {
                failures.push(format!("{id}: {problem}"));
            }
        }
    }
    if cases == 0 {
        return Err("has no cases".into());
    }
    if network != "raw" && network_of(network).is_none() {
        return Err(format!("{network} is not a network"));
    }
    if tallies.is_empty() {
        return Err("not one case could be run".into());
    }
    let set = text(file, "set")?;
    for (what, tallies) in [("ran", &tallies), ("NOT A KIND", &unknown)] {
        for (kind, Tally { valid, invalid }) in tallies {
            writeln!(
                report,
                "{network:8} {set:8} {kind:26} {valid:3} valid {invalid:3} invalid  {what}"
            )
            .unwrap();
        }
    }
    for (list, tallied) in [
        ("counts", count(&tallies, &unknown, |tally| tally.valid)),
        (
            "invalidCounts",
            count(&tallies, &unknown, |tally| tally.invalid),
        ),
    ] {
        let stated = file.get(list).and_then(Value::as_object).ok_or(list)?;
        for (kind, stated) in stated {
            let there = tallied.get(kind.as_str()).copied().unwrap_or(0);
            if stated.as_u64() != Some(there as u64) {
                writeln!(
                    report,
                    "         note: {list} says {stated} of {kind}, there are {there}"
                )
                .unwrap();
            }
        }
    }
    Ok(tallies
        .values()
        .map(|tally| tally.valid + tally.invalid)
        .sum())
}

fn count<'a>(
    known: &BTreeMap<&'a str, Tally>,
    unknown: &BTreeMap<&'a str, Tally>,
    part: impl Fn(&Tally) -> usize,
) -> BTreeMap<&'a str, usize> {
    let both = known.iter().chain(unknown);
    both.map(|(kind, tally)| (*kind, part(tally))).collect()
}

fn kind_of(name: &str) -> Option<PayloadKind> {
    PayloadKind::ALL
        .iter()
        .copied()
        .find(|kind| kind.name() == name)
}

/// Whether the kind is a batch payment of the network.
fn is_batch(network: &str, kind: &str) -> bool {
    network_of(network).is_some_and(|network| dialect(network).batch(kind, &Value::Null).is_some())
}

/// Addresses and public keys of the senders of the valid cases.
fn keys(file: &Map<String, Value>) -> BTreeMap<String, Vec<u8>> {
    let cases = file.get("vectors").and_then(Value::as_array);
    let key = |case: &Value| {
        let address = case.pointer("/expected/address")?.as_str()?;
        let key = case.pointer("/key/publicKey")?.as_str()?;
        Some((address.to_owned(), hex(key).ok()?))
    };
    cases.into_iter().flatten().filter_map(key).collect()
}

fn network_of(name: &str) -> Option<Network> {
    Some(match name {
        "evm" => Network::Evm,
        "bitcoin" => Network::Bitcoin,
        "tron" => Network::Tron,
        "aptos" => Network::Aptos,
        "sui" => Network::Sui,
        "solana" | "sonic" => Network::Solana,
        "ton" => Network::Ton,
        "stellar" => Network::Stellar,
        _ => return None,
    })
}

// ---- a valid case -----------------------------------------------------------------------

fn valid(case: &Case<'_>) -> Outcome {
    let body = case.body;
    only_known(
        body,
        &[&[
            "id",
            "kind",
            "description",
            "key",
            "input",
            "context",
            "expected",
        ]],
    )?;
    let context = member(body, "context")?;
    let expected = member(body, "expected")?;
    let key = member(body, "key")?;
    only_known(
        key,
        &[&[
            "algorithm",
            "derivation",
            "privateKey",
            "publicKey",
            "publicKeyUncompressed",
        ]],
    )?;
    if text(expected, "result")? != "ok" {
        return Err("a valid case expects another result than ok".into());
    }
    let wallet = wallet_network(case.network, context)?;
    let chain = wallet.rules();
    if curve(text(key, "algorithm")?)? != wallet.curve() {
        return Err("the key is of another curve than the network".into());
    }
    let public_key = hex(text(key, "publicKey")?)?;
    let address = dialect(wallet).sender(chain, &public_key, context)?;
    same("address", address.as_str(), text(expected, "address")?)?;
    let owns = chain.owns(&public_key, &address).map_err(public)?;
    same("whether the address is the key's", &owns, &true)?;
    same(
        "parsed address",
        &chain.parse_address(&address).map_err(public)?,
        &address,
    )?;
    if case.kind == ADDRESS {
        only_known(context, &[dialect(wallet).context_notes()])?;
        return dialect(wallet).address(&address, expected);
    }

    let (payload, _) = validate(case, wallet, context).map_err(public)?;
    same("from", payload.from(), &address)?;
    // Batch payments have no wire form of their own yet.
    if !is_batch(case.network, case.kind) {
        same("kind", payload.kind(), case.kind)?;
        let back = Payload::decode(&payload.encode()).map_err(public)?;
        if back != payload {
            return Err("differs after encode and decode".into());
        }
    }
    check_convention(wallet, &payload, context)?;
    let chain_data = chain_data(wallet, &payload, context)?;
    let unsigned = chain
        .build(&payload, &chain_data, &public_key)
        .map_err(public)?;
    check_unsigned(wallet, &unsigned, expected)?;
    dialect(wallet).rest(&payload, expected)?;
    check_signed(wallet, &payload, &unsigned, expected, &public_key)
}

fn wallet_network(network: &str, context: &Map<String, Value>) -> Result<Network, String> {
    if let Some(name) = context.get("walletNetworkType") {
        let name = name.as_str().ok_or("walletNetworkType is not a string")?;
        let wire = wire::NetworkType::from_str_name(name).ok_or("unknown walletNetworkType")?;
        return Network::from_wire(wire).ok_or_else(|| "unknown walletNetworkType".into());
    }
    network_of(network).ok_or_else(|| format!("nothing says which network {network} is"))
}

/// Everything that happens before a request is accepted.
fn validate(
    case: &Case<'_>,
    wallet: Network,
    context: &Map<String, Value>,
) -> Result<(Payload, KnownChains), Fault> {
    let input = dialect(wallet).input(case.body).map_err(Fault::bug)?;
    if let Some(batch) = dialect(wallet).batch(case.kind, &input) {
        return batch.map(|payload| (payload, KnownChains::default()));
    }
    let request = json!({ case.kind: input }).to_string();
    let request: wire::CreateSigningRequestRequest = json::decode(request.as_bytes())?;
    let kind = request.r#type.ok_or_else(|| Fault::bug("no kind"))?;
    let payload = Payload::parse(&kind)?;
    payload.check_wallet(wallet)?;
    let mut known = KnownChains::default();
    let custom = context.get("customChain") == Some(&Value::Bool(true));
    if let (false, Some(chain_id)) = (custom, payload.chain_id()) {
        known.configured.insert(chain_id);
    }
    payload.screen(&known)?;
    Ok((payload, known))
}

/// How the vectors of one network say things: one file each.
trait NetworkVectors {
    /// Fields of a context that have no bearing on the bytes, or repeat what is compared.
    fn context_notes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Fields of what is expected that repeat, in another form, what is compared.
    fn expected_notes(&self) -> &'static [&'static str] {
        &[]
    }

    /// The payload of a case, by its field names in JSON.
    fn input(&self, body: &Map<String, Value>) -> Result<Value, String> {
        Ok(body.get("input").cloned().unwrap_or_default())
    }

    /// Compares what else is expected of an address.
    fn address(&self, address: &str, expected: &Map<String, Value>) -> Outcome {
        let _ = address;
        only_known(expected, &[&["result", "address"]])
    }

    /// The address of a key: the one that the context names, where there are more.
    fn sender(
        &self,
        chain: &dyn DynNetworkRules,
        public_key: &[u8],
        context: &Map<String, Value>,
    ) -> Result<String, String> {
        let _ = context;
        chain.address(public_key).map_err(public)
    }

    /// The payload of a batch payment, where `kind` is one; the input may be nothing.
    fn batch(&self, kind: &str, input: &Value) -> Option<Result<Payload, Fault>> {
        let _ = (kind, input);
        None
    }

    /// What the chain would have answered: from the fields of the context that are named too.
    /// Those may be there; other fields fail the case.
    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String>;

    /// The bytes of `expected.unsignedTx`.
    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String>;

    /// `expected.signatures`.
    fn signatures(
        &self,
        expected: &Map<String, Value>,
        unsigned: &Unsigned,
        public_key: &[u8],
    ) -> Result<Vec<Signature>, String> {
        let _ = (unsigned, public_key);
        list(expected, "signatures")?
            .iter()
            .map(signature)
            .collect()
    }

    /// Compares unsigned bytes that have no `expected.unsignedTx` with what else is expected.
    fn unnamed(&self, unsigned: &Unsigned, expected: &Map<String, Value>) -> Outcome {
        let _ = (unsigned, expected);
        Err("a message has unsigned bytes".into())
    }

    /// Compares the signed transaction with `expected.signedTx` and `expected.txHash`.
    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome;

    /// Compares whatever else is expected of a transaction or message.
    fn rest(&self, payload: &Payload, expected: &Map<String, Value>) -> Outcome {
        let _ = (payload, expected);
        Ok(())
    }

    /// The form of a message, where the context names it in `convention`.
    fn convention(&self, payload: &Payload, convention: &Value) -> bool {
        let _ = (payload, convention);
        false
    }

    /// The text of a message's `expected.signature`.
    fn plain_signature(&self, signature: &Signature, public_key: &[u8]) -> String;

    /// The key of an invalid case of the build layer: most name none.
    fn invalid_key(
        &self,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<Vec<u8>, String> {
        let _ = payload;
        hex(text(context, "publicKey")?)
    }
}

fn dialect(network: Network) -> &'static dyn NetworkVectors {
    match network {
        Network::Evm => &evm::NetworkVectors,
        Network::Bitcoin => &bitcoin::NetworkVectors,
        Network::Tron => &tron::NetworkVectors,
        Network::Aptos => &aptos::NetworkVectors,
        Network::Sui => &sui::NetworkVectors,
        Network::Solana => &solana::NetworkVectors,
        Network::Ton => &ton::NetworkVectors,
        Network::Stellar => &stellar::NetworkVectors,
    }
}

/// What the chain would have answered, from the context; only what `queries` asks for.
fn chain_data(
    network: Network,
    payload: &Payload,
    context: &Map<String, Value>,
) -> Result<ChainData, String> {
    let dialect = dialect(network);
    let queries = network.rules().queries(payload);
    let (chain_data, known) = dialect.chain_data(&queries, payload, context)?;
    only_known(context, &[&known, &CONTEXT_NOTES, dialect.context_notes()])?;
    Ok(chain_data)
}

/// The form of a message, where the context names it.
fn check_convention(network: Network, payload: &Payload, context: &Map<String, Value>) -> Outcome {
    match context.get("convention") {
        Some(convention) if !dialect(network).convention(payload, convention) => {
            Err(format!("convention {convention}"))
        }
        _ => Ok(()),
    }
}

fn check_unsigned(network: Network, unsigned: &Unsigned, expected: &Map<String, Value>) -> Outcome {
    only_known(
        expected,
        &[
            &EXPECTED_NOTES,
            dialect(network).expected_notes(),
            &["unsignedTx", "signedTx", "txHash", "signature"],
        ],
    )?;
    match expected.get("unsignedTx") {
        Some(_) => {
            let bytes = dialect(network).unsigned(expected)?;
            same("unsigned bytes", &unsigned.bytes, &bytes)?;
        }
        None if unsigned.bytes.is_empty() => {}
        None => dialect(network).unnamed(unsigned, expected)?,
    }
    let signing = list(expected, "signing")?;
    if signing.is_empty() || signing.len() != unsigned.signing.len() {
        return Err(format!("{} things to sign", unsigned.signing.len()));
    }
    for (place, (input, expected)) in unsigned.signing.iter().zip(signing).enumerate() {
        let expected = expected.as_object().ok_or("signing holds no object")?;
        let known = ["algorithm", "message", "hash", "preimage", "input"];
        only_known(expected, &[&known])?;
        if let Some(stated) = expected.get("input") {
            same("input", stated, &json!(place))?;
        }
        same("curve", &input.curve, &curve(text(expected, "algorithm")?)?)?;
        same("message", &input.message, &hex(text(expected, "message")?)?)?;
    }
    if let Some(data) = expected.get("callData") {
        let data = hex(data.as_str().ok_or("callData is not a string")?)?;
        let at = unsigned
            .bytes
            .windows(data.len().max(1))
            .position(|part| part == data);
        if !data.is_empty() && at.is_none() {
            return Err("the call data is not in the transaction".into());
        }
    }
    Ok(())
}

fn check_signed(
    network: Network,
    payload: &Payload,
    unsigned: &Unsigned,
    expected: &Map<String, Value>,
    public_key: &[u8],
) -> Outcome {
    let dialect = dialect(network);
    let signatures = dialect.signatures(expected, unsigned, public_key)?;
    for (value, signature) in list(expected, "signatures")?.iter().zip(&signatures) {
        if let Some(serialized) = value.get("serialized") {
            let ours = json!(dialect.plain_signature(signature, public_key));
            same("serialized", &ours, serialized)?;
        }
    }
    let signed = network
        .rules()
        .assemble(payload, unsigned, &signatures, public_key)
        .map_err(public)?;
    if let Some(plain) = expected.get("signature") {
        let [signature] = signatures.as_slice() else {
            return Err("one signature is expected".into());
        };
        same(
            "signature",
            dialect.plain_signature(signature, public_key).as_str(),
            plain.as_str().unwrap_or_default(),
        )?;
    }
    let is_transaction = expected.contains_key("signedTx") || expected.contains_key("signedTxs");
    match (signed, is_transaction) {
        (None, false) => Ok(()),
        (Some(signed), true) => {
            check_stand_in(network, payload, unsigned, public_key, &signed)?;
            dialect.signed(&signed, expected)
        }
        (Some(_), false) => Err("a message became a transaction".into()),
        (None, true) => Err("no signed transaction".into()),
    }
}

/// With signatures that nobody has made it reads as the same, and has the same hash where that does not hang on signatures.
fn check_stand_in(
    network: Network,
    payload: &Payload,
    unsigned: &Unsigned,
    public_key: &[u8],
    signed: &Signed,
) -> Outcome {
    let rules = network.rules();
    let stand_in = rules.stand_in(payload, unsigned, public_key);
    let stand_in = stand_in.map_err(public)?.ok_or("no stand-in")?;
    if rules.hash_before_signing() && stand_in.tx_hash != signed.tx_hash {
        return Err(format!("the stand-in has the hash {}", stand_in.tx_hash));
    }
    let read = |signed: &Signed| {
        rules.sent_number(signed, payload.from()).map_err(public)?;
        Ok::<_, String>((
            rules.sent_inputs(signed).map_err(public)?,
            rules.valid_until(signed).map_err(public)?,
        ))
    };
    match read(&stand_in)? == read(signed)? {
        true => Ok(()),
        false => Err("the stand-in reads as another transaction".into()),
    }
}

// ---- an invalid case --------------------------------------------------------------------

fn invalid(case: &Case<'_>) -> Outcome {
    only_known(
        case.body,
        &[&["id", "kind", "description", "input", "context", "expected"]],
    )?;
    let expected = member(case.body, "expected")?;
    only_known(expected, &[&["result", "layer", "basis", "note"]])?;
    if text(expected, "result")? != "rejected" {
        return Err("an invalid case expects another result than rejected".into());
    }
    let layer = match text(expected, "layer")? {
        "validate" => Layer::Validate,
        "build" => Layer::Build,
        other => return Err(format!("unknown layer {other}")),
    };
    let empty = Map::new();
    let context = match case.body.get("context") {
        None | Some(Value::Null) => &empty,
        Some(context) => context.as_object().ok_or("context is not an object")?,
    };
    let wallet = match (context.get("walletKey").and_then(Value::as_str), case.kind) {
        (Some("ecdsa"), _) => Network::Evm,
        (Some("ed25519"), _) => Network::Solana,
        (Some(other), _) => return Err(format!("unknown walletKey {other}")),
        (None, kind) => kind_of(kind)
            .map_or_else(|| network_of(case.network), PayloadKind::network)
            .ok_or("nothing says which network the wallet is of")?,
    };
    match (validate(case, wallet, context), layer) {
        (Err(fault), Layer::Validate) => refused(&fault),
        (Err(fault), Layer::Build) => Err(format!("refused too early: {fault}")),
        (Ok(_), Layer::Validate) => Err("was accepted".into()),
        (Ok((payload, _)), Layer::Build) => {
            let chain = wallet.rules();
            let chain_data = chain_data(wallet, &payload, context)?;
            let key = match case.keys.get(payload.from()) {
                Some(key) => key.clone(),
                None => dialect(wallet).invalid_key(&payload, context)?,
            };
            match chain.build(&payload, &chain_data, &key) {
                Err(fault) => refused(&fault),
                Ok(_) => Err("was built".into()),
            }
        }
    }
}

/// Refused as the client's mistake, with a sentence, and not by an accident of ours.
fn refused(fault: &Fault) -> Outcome {
    use covault_core::fault::Class;
    match fault.class() {
        Class::Invalid if !fault.message().is_empty() => Ok(()),
        _ => Err(format!("refused, but as {fault:?}")),
    }
}

// ---- reading ----------------------------------------------------------------------------

fn public(fault: Fault) -> String {
    format!("{fault:?}")
}

fn same<T: PartialEq + std::fmt::Debug + ?Sized>(what: &str, ours: &T, theirs: &T) -> Outcome {
    if ours == theirs {
        return Ok(());
    }
    Err(format!(
        "{what} differs:\n  ours   {ours:?}\n  theirs {theirs:?}"
    ))
}

fn only_known(object: &Map<String, Value>, known: &[&[&str]]) -> Outcome {
    match object
        .keys()
        .find(|key| !known.iter().any(|known| known.contains(&key.as_str())))
    {
        Some(key) => Err(format!("has a field {key} that this test does not know")),
        None => Ok(()),
    }
}

fn member<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a Map<String, Value>, String> {
    object
        .get(key)
        .and_then(Value::as_object)
        .ok_or_else(|| format!("has no object {key}"))
}

fn list<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a Vec<Value>, String> {
    object
        .get(key)
        .and_then(Value::as_array)
        .ok_or_else(|| format!("has no list {key}"))
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    object
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("has no text {key}"))
}

fn number<T: std::str::FromStr>(object: &Map<String, Value>, key: &str) -> Result<T, String> {
    text(object, key)?
        .parse()
        .map_err(|_| format!("{key} is not a number"))
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    ::hex::decode(text).map_err(|error| format!("{text}: {error}"))
}

fn curve(algorithm: &str) -> Result<Curve, String> {
    match algorithm {
        "ecdsa-secp256k1" => Ok(Curve::Secp256k1),
        "ed25519" => Ok(Curve::Ed25519),
        other => Err(format!("unknown algorithm {other}")),
    }
}

fn signature(value: &Value) -> Result<Signature, String> {
    let object = value.as_object().ok_or("a signature is not an object")?;
    let half = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).map_err(|_| "not 32 bytes".to_owned());
    if let Some(bytes) = object.get("ed25519") {
        only_known(object, &[&["ed25519", "hint", "serialized"]])?;
        let bytes = hex(bytes.as_str().ok_or("ed25519 is not a string")?)?;
        let (r, s) = bytes
            .split_at_checked(32)
            .ok_or("an Ed25519 signature is short")?;
        return Ok(Signature::Ed25519 {
            r: half(r)?,
            s: half(s)?,
        });
    }
    only_known(object, &[&["r", "s", "v", "yParity", "recid"]])?;
    let v: u64 = number(object, "v")?;
    let y_parity = match object.get("yParity").or_else(|| object.get("recid")) {
        Some(stated) => stated.as_u64().ok_or("yParity is not a number")?,
        None => v.checked_sub(27).ok_or("no yParity")?,
    };
    // Plain, as Bitcoin and messages have it, or EIP-155.
    if ![Some(v), v.checked_sub(27), v.checked_sub(35).map(|v| v % 2)].contains(&Some(y_parity)) {
        return Err(format!("v is {v} and yParity {y_parity}"));
    }
    Ok(Signature::Ecdsa {
        r: half(&hex(text(object, "r")?)?)?,
        s: half(&hex(text(object, "s")?)?)?,
        y_parity: u8::try_from(y_parity).map_err(|error| error.to_string())?,
    })
}
