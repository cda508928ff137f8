//! Worlds in which people have to approve: some do, some reject, some vanish, and one of them works for the
//! orchestrator, which is hostile. It changes what was approved, uses approvals again, and asks whichever nodes it
//! likes. Judged is every use of a share of every honest node: by the node's own rule, and by what people have really
//! approved.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock},
    thread,
};

use covault_core::{
    approval::{
        ApprovalProof, GivenApproval, OrderApprovals, list_challenge, rejection_challenge,
        testing::TestPasskey,
    },
    attest::MadeKey,
    derive::{KeyPath, RootKey},
    ids::{RequestId, SessionId, TokenId},
    networks::{ChainData, Network, Payload, WireKind, solana},
    order::{NodeId, SigningOrder},
    port::{Clock as _, random_16},
    schema::wire,
    turns::RequestTurn,
};
use covault_mpc::{cluster::SigningTask, node::PolicyCheck, policy::Policy};
use tokio::time::{sleep, timeout};

use crate::{
    machines::SimWorld,
    orchestrator::{Orchestrator, SLACK_MS},
    story::{SimConfig, SimReport, until_live},
    support::verify,
    world::{SeededRng, ms},
};

/// What is wrong with the rules of nodes, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PlantedRule {
    Nothing,
    /// One person fewer is enough.
    OneLess,
    /// The sums of a day are not looked at.
    NoDay,
}

const PEOPLE: usize = 4;
/// Works for the orchestrator.
const ACCOMPLICE: usize = 3;
/// Of every transfer.
const FEE: u64 = 5_000;
/// More than two clocks of a world differ by, and what an attempt takes.
const SKEW_MS: u64 = 45_000;
const DAY_MS: u64 = 24 * 3_600_000;
const TO: [&str; 2] = [
    "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS",
    "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T",
];
const BLOCKHASH: &str = "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR";

/// Two passkeys of each person.
fn passkeys() -> &'static Vec<[TestPasskey; 2]> {
    static KEYS: OnceLock<Vec<[TestPasskey; 2]>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let of =
            |person| [1, 2].map(|number| TestPasskey::new(&format!("person-{person}"), number));
        (0..PEOPLE).map(of).collect()
    })
}

/// The people of a policy file.
fn people() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let table = |(person, keys): (usize, &[TestPasskey; 2])| {
            let [one, other] = keys.each_ref().map(|key| key.line().line().unwrap());
            format!("[[approver]]\nname = \"{person}\"\nkeys = [\"{one}\", \"{other}\"]\n")
        };
        passkeys().iter().enumerate().map(table).collect()
    })
}

/// What one node wants.
struct NodeRule {
    needs: usize,
    of: BTreeSet<usize>,
    per_request: Option<u64>,
    per_day: Option<u64>,
}

impl NodeRule {
    /// Of the node at a place: the seed's.
    fn new(seed: u64, place: usize) -> Self {
        let rng = SeededRng::new(seed, 7_000 + place as u64);
        let mut of: BTreeSet<usize> = (0..PEOPLE).collect();
        if rng.chance(500) {
            of.remove(&rng.below(PEOPLE));
        }
        let per_request = rng.chance(700).then(|| rng.between(1, 5) * 100_000);
        let per_day = rng.chance(500).then(|| rng.between(3, 12) * 100_000);
        Self {
            needs: 1 + rng.below(of.len()),
            of,
            per_request,
            per_day,
        }
    }

    /// Whatever was signed before.
    fn always(&self, amount: u64) -> bool {
        let above = |most: Option<u64>| most.is_some_and(|most| amount > most);
        let limits = (self.per_request, self.per_day);
        limits == (None, None) || above(limits.0) || above(limits.1)
    }
}

/// The check of the node at a place.
pub fn check(seed: u64, place: usize, planted: PlantedRule) -> PolicyCheck {
    let NodeRule {
        needs,
        of,
        per_request,
        per_day,
    } = NodeRule::new(seed, place);
    let day = per_day.filter(|_| planted != PlantedRule::NoDay);
    let parts = [("per_request", per_request), ("per_day", day)];
    let parts: String = parts
        .iter()
        .filter_map(|(key, most)| most.map(|most| format!(", {key} = \"{most}\"")))
        .collect();
    let needs = needs - usize::from(planted == PlantedRule::OneLess);
    let limited = (per_request, per_day) != (None, None);
    let rule = if needs == 0 || (limited && parts.is_empty()) {
        String::new()
    } else {
        let of: Vec<String> = of.iter().map(|person| format!("\"{person}\"")).collect();
        let above = match limited {
            true => format!("above = {{ asset = \"solana\"{parts} }}\n"),
            false => String::new(),
        };
        let of = of.join(", ");
        format!("[[approval]]\nneeds = {needs}\nof = [{of}]\n{above}")
    };
    let text = format!("version = 2\n{}{rule}", people());
    PolicyCheck(Policy::parse(&text).unwrap())
}

/// What is asked of nodes.
struct AskedSession {
    order: SigningOrder,
    amount: u64,
    at_ms: u64,
}

/// What the attacker has, and what people have really done.
struct Attack {
    world: Arc<SimWorld>,
    orchestrator: Arc<Orchestrator>,
    root: RootKey,
    /// Who has approved, by the id of what was approved.
    approved: Mutex<BTreeMap<[u8; 32], BTreeSet<usize>>>,
    sessions: Mutex<BTreeMap<SessionId, AskedSession>>,
    /// Whatever people have signed so far.
    collected: Mutex<Vec<OrderApprovals>>,
}

impl Attack {
    /// A transfer that nobody has approved.
    fn order(&self, amount: u64) -> SigningOrder {
        let world = &self.world;
        let path = KeyPath::of_wallet(Network::Solana, world.rng.below(2) as u32).unwrap();
        let chain = Network::Solana.rules();
        let public_key = self.root.child(&path).unwrap().public_key;
        let address = chain.address(&public_key).unwrap();
        let payload = Payload::parse(&WireKind::SolanaSendNative(wire::SolanaSendNative {
            from: address.clone(),
            to: TO[world.rng.below(2)].to_owned(),
            value: (amount - FEE).to_string(),
            chain_id: 0,
            ..Default::default()
        }))
        .unwrap();
        let chain_data = ChainData::Solana(solana::ChainData {
            recent_blockhash: BLOCKHASH.to_owned(),
            token: None,
            compute: None,
        });
        let unsigned = chain.build(&payload, &chain_data, &public_key).unwrap();
        let now_ms = world.clock.now_ms();
        SigningOrder {
            request: RequestId::from_random(random_16(&*world.rng)),
            vault: world.vault,
            epoch: 0,
            network: Network::Solana,
            root_public_key: self.root.public_key.clone(),
            path,
            public_key,
            address,
            payload: payload.encode(),
            chain_data,
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals {
                most_fee: u128::from(FEE),
                valid_until_ms: now_ms + 600_000,
                given: Vec::new(),
            },
            issued_at_ms: now_ms,
            expires_at_ms: now_ms + 240_000,
        }
    }

    /// A person approves what the order has for now, alone or with others of the list.
    fn approves(&self, person: usize, order: &SigningOrder, others: &[[u8; 32]]) -> GivenApproval {
        let id = order.approval().id().unwrap();
        let mut list = [others, &[id]].concat();
        list.sort_unstable();
        let mut approved = self.approved.lock().unwrap();
        for id in &list {
            approved.entry(*id).or_default().insert(person);
        }
        let key = &passkeys()[person][self.world.rng.below(2)];
        if others.is_empty() {
            return key.given(key.assert(&id));
        }
        let assertion = key.assert(&list_challenge(&list).unwrap());
        GivenApproval {
            list,
            ..key.given(assertion)
        }
    }

    /// Asks people: some approve, some reject, some vanish. The accomplice does what the attacker says.
    fn ask_people(&self, order: &mut SigningOrder, others: &[[u8; 32]]) {
        let rng = &self.world.rng;
        let willing = [300, 600, 900][rng.below(3)];
        for person in 0..PEOPLE {
            if person == ACCOMPLICE || rng.chance(willing) {
                let given = self.approves(person, order, others);
                order.approvals.given.push(given);
            } else if rng.chance(400) {
                // A rejection, which the orchestrator passes off as an approval.
                let challenge = rejection_challenge(order.vault, order.request).unwrap();
                let key = &passkeys()[person][0];
                if rng.chance(200) {
                    let given = key.given(key.assert(&challenge));
                    order.approvals.given.push(given);
                }
            }
        }
        let mut collected = self.collected.lock().unwrap();
        collected.push(order.approvals.clone());
    }

    /// What is approved is not what is asked.
    fn tamper(&self, order: &mut SigningOrder, amount: &mut u64) {
        let rng = &self.world.rng;
        let collected = self.collected.lock().unwrap().clone();
        let id = order.approval().id().unwrap();
        let given = &mut order.approvals.given;
        match rng.below(10) {
            0 => given.clear(),
            1 => {
                // The same request and approvals, another payment.
                *amount *= 3;
                let other = self.order(*amount);
                *order = SigningOrder {
                    request: order.request,
                    approvals: order.approvals.clone(),
                    ..other
                };
            }
            2 => order.request = RequestId::from_random(random_16(&*rng.clone())),
            3 => order.approvals.valid_until_ms += 60_000,
            4 => order.approvals.most_fee += 1,
            5 => {
                // One person as often as there is room.
                self.approved
                    .lock()
                    .unwrap()
                    .entry(id)
                    .or_default()
                    .insert(ACCOMPLICE);
                let keys = passkeys()[ACCOMPLICE].iter();
                let own: Vec<_> = keys.map(|key| key.given(key.assert(&id))).collect();
                given.extend(own.iter().cycle().take(8).cloned());
            }
            6 => {
                // The accomplice signs in the others' names.
                let key = &passkeys()[ACCOMPLICE][0];
                let assertion = key.assert(&id);
                let others = passkeys()[..ACCOMPLICE].iter().map(|[other, _]| {
                    let credential_id = other.passkey.credential_id.clone();
                    GivenApproval {
                        list: Vec::new(),
                        proof: ApprovalProof::WebAuthn {
                            credential_id,
                            assertion: assertion.clone(),
                        },
                    }
                });
                given.extend(others);
            }
            7 => {
                // What was collected for something else.
                let old = &collected[rng.below(collected.len())];
                order.approvals = old.clone();
            }
            8 => {
                // In a list in which it was not.
                for one in given.iter_mut() {
                    one.list = vec![[7; 32], id];
                    one.list.sort_unstable();
                }
            }
            _ => {
                let place = rng.below(given.len().max(1));
                if let Some(GivenApproval {
                    proof: ApprovalProof::WebAuthn { assertion, .. },
                    ..
                }) = given.get_mut(place)
                {
                    let bytes = match rng.below(3) {
                        0 => &mut assertion.authenticator_data,
                        1 => &mut assertion.client_data_json,
                        _ => &mut assertion.signature,
                    };
                    let place = rng.below(bytes.len());
                    bytes[place] ^= 1 << rng.below(8);
                }
            }
        }
    }

    /// A payment, or several in one gesture; how many of what was asked were signed, and how many not.
    async fn step(&self) -> (u64, u64) {
        let rng = Arc::clone(&self.world.rng);
        let mut amount = FEE + 1 + rng.between(0, 8) * 100_000;
        if rng.chance(300) {
            // So little that no rule of one request wants anything, again and again.
            amount = FEE + rng.between(1, 95_000);
            let mut counts = (0, 0);
            for _ in 0..rng.between(2, 6) {
                let order = self.order(amount);
                counts = add(counts, self.ask_nodes(&order, amount).await);
            }
            return counts;
        }
        let mut order = self.order(amount);
        match rng.below(8) {
            0 => order.approvals.valid_until_ms = self.world.clock.now_ms() + DAY_MS + 3_600_000,
            1 => order.approvals.valid_until_ms = self.world.clock.now_ms() + 1_000,
            2 => order.approvals.most_fee = u128::from(FEE) - 1,
            _ => {}
        }
        let (other, amount_of_other) = (self.order(amount), amount);
        let others = [other.approval().id().unwrap()];
        let listed = rng.chance(300);
        self.ask_people(&mut order, if listed { &others } else { &[] });
        if rng.chance(150) {
            // Until most of what was approved is over.
            sleep(ms(rng.between(1_000, 120_000))).await;
            let now_ms = self.world.clock.now_ms();
            (order.issued_at_ms, order.expires_at_ms) = (now_ms, now_ms + 240_000);
        }
        if rng.chance(600) {
            self.tamper(&mut order, &mut amount);
        }
        let mut counts = self.ask_nodes(&order, amount).await;
        if listed && rng.chance(500) {
            let other = SigningOrder {
                approvals: order.approvals.clone(),
                ..other
            };
            counts = add(counts, self.ask_nodes(&other, amount_of_other).await);
        }
        if rng.chance(300) {
            // Again, and with fewer approvals.
            order.approvals.given.pop();
            counts = add(counts, self.ask_nodes(&order, amount).await);
        }
        counts
    }

    /// Asks all holders, or two sets of them at once.
    async fn ask_nodes(&self, order: &SigningOrder, amount: u64) -> (u64, u64) {
        let all = self.world.first.holders.clone();
        let threshold = usize::from(self.world.first.threshold);
        let set = || {
            let mut of = all.clone();
            while of.len() > threshold {
                of.swap_remove(self.world.rng.below(of.len()));
            }
            of
        };
        let (one, other) = if self.world.rng.chance(500) {
            (set(), set())
        } else {
            (all.clone(), Vec::new())
        };
        let (one, other) = tokio::join!(
            biased;
            self.sign(order, amount, &one, 6_000),
            self.sign(order, amount, &other, 6_000)
        );
        add(one, other)
    }

    async fn sign(
        &self,
        order: &SigningOrder,
        amount: u64,
        holders: &[NodeId],
        patience_ms: u64,
    ) -> (u64, u64) {
        if holders.is_empty() {
            return (0, 0);
        }
        let world = &self.world;
        let session = SessionId::from_random(random_16(&*world.rng));
        let at_ms = world.clock.now_ms();
        let asked = AskedSession {
            order: order.clone(),
            amount,
            at_ms,
        };
        self.sessions.lock().unwrap().insert(session, asked);
        world.oracle.expect(session, order);
        let cluster = self.orchestrator.cluster().await;
        let task = SigningTask {
            client_signer: None,
            scheme: world.setting.scheme,
            session,
            holders,
            threshold: world.first.threshold,
            deadline_ms: at_ms + patience_ms,
            token: TokenId::from_bytes([1; 16]),
            turn: RequestTurn::new(order.request.time_ms(), at_ms + patience_ms),
            trace: None,
        };
        let outcome = timeout(ms(patience_ms + SLACK_MS), cluster.sign(order, task)).await;
        match outcome {
            Ok(Ok(signatures)) => {
                verify(order, &signatures);
                world.oracle.signed(order, &world.first, &signatures);
                world.trace.note(format_args!("signed {}", order.request));
                (1, 0)
            }
            Ok(Err(fault)) => {
                let why = fault.message();
                world
                    .trace
                    .note(format_args!("not signed {}: {why}", order.request));
                (0, 1)
            }
            Err(_) => {
                world.oracle.violation("a call did not end in time".into());
                (0, 1)
            }
        }
    }

    /// Whether so many of those whom the rule names have approved exactly this, and their approvals were there.
    fn has_quorum(&self, rule: &NodeRule, asked: &AskedSession) -> bool {
        let AskedSession { order, at_ms, .. } = asked;
        let OrderApprovals {
            most_fee,
            valid_until_ms,
            given,
        } = &order.approvals;
        let is_valid = *most_fee >= u128::from(FEE)
            && *at_ms <= valid_until_ms + SKEW_MS
            && *valid_until_ms <= at_ms + DAY_MS + SKEW_MS;
        let approved = self.approved.lock().unwrap();
        let id = order.approval().id().unwrap();
        let approved = approved.get(&id).cloned().unwrap_or_default();
        let there = |person: &&usize| {
            let mut keys = passkeys()[**person].iter();
            keys.any(|key| {
                let key = &key.passkey.credential_id;
                given.iter().any(|it| {
                    matches!(&it.proof, ApprovalProof::WebAuthn { credential_id, .. } if credential_id == key)
                })
            })
        };
        let people = approved.iter().filter(|person| rule.of.contains(person));
        is_valid && people.filter(there).count() >= rule.needs
    }

    fn judge(&self) {
        let world = &self.world;
        let sessions = self.sessions.lock().unwrap();
        // What each node has signed that nobody had to approve, by request.
        let mut free: BTreeMap<NodeId, BTreeMap<RequestId, u64>> = BTreeMap::new();
        let rule_of = |node: &NodeId| {
            let place = world.ids.iter().position(|id| id == node)?;
            Some(NodeRule::new(world.setting.seed, place))
        };
        for (node, session) in world.oracle.took_part() {
            let Some(asked) = sessions.get(&session) else {
                continue;
            };
            if Some(node) == world.byzantine() {
                continue;
            }
            let Some(rule) = rule_of(&node) else { continue };
            let AskedSession { order, amount, .. } = asked;
            if rule.always(*amount) {
                if !self.has_quorum(&rule, asked) {
                    let what = format!("{node:?} signs {amount} without its quorum");
                    world.oracle.violation(what);
                }
                continue;
            }
            // Its approvals may have come with an earlier session of the same request.
            let same = |other: &&AskedSession| other.order.request == order.request;
            let mut all = sessions.values().filter(same);
            if !all.any(|other| self.has_quorum(&rule, other)) {
                free.entry(node).or_default().insert(order.request, *amount);
            }
        }
        for (node, requests) in free {
            let sum: u64 = requests.values().sum();
            let most = rule_of(&node).and_then(|rule| rule.per_day);
            if most.is_some_and(|most| sum > most) {
                let what = format!("{node:?} signs {sum} in a day without its quorum");
                world.oracle.violation(what);
            }
        }
    }
}

fn add(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

fn run(setting: SimConfig) -> SimReport {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story(setting))
}

async fn story(setting: SimConfig) -> SimReport {
    let world = SimWorld::new(setting);
    let orchestrator = Orchestrator::new(&world);
    world.calm();
    let mut lives: Vec<_> = (1..=world.nodes.len())
        .map(|place| tokio::spawn(Arc::clone(&world).live(place)))
        .collect();
    lives.push(tokio::spawn(Arc::clone(&orchestrator).live()));
    until_live(&world, &orchestrator).await;
    let made = orchestrator.keygen(120_000).await;
    let Some(MadeKey { root, .. }) = made else {
        world
            .oracle
            .violation("no key is made in good weather".into());
        return report(&world, (0, 0));
    };
    let attack = Attack {
        world: Arc::clone(&world),
        orchestrator: Arc::clone(&orchestrator),
        root,
        approved: Mutex::default(),
        sessions: Mutex::default(),
        collected: Mutex::default(),
    };
    let rough = world.rng.chance(400);
    let chaos = rough.then(|| {
        if let Some((_, byzantine)) = &world.byzantine {
            byzantine.begin();
        }
        world.set_weather(world.storm());
        let until_ms = world.clock.age_ms() + 20_000;
        tokio::spawn(Arc::clone(&world).chaos(until_ms))
    });
    let mut counts = (0, 0);
    for _ in 0..world.rng.between(6, 12) {
        counts = add(counts, attack.step().await);
    }
    if let Some(chaos) = chaos {
        chaos.await.unwrap();
    }
    world.calm();
    until_live(&world, &orchestrator).await;
    // What all have approved is signed, whatever was tried before.
    let amount = 5_000_000;
    let mut order = attack.order(amount);
    for person in 0..PEOPLE {
        let given = attack.approves(person, &order, &[]);
        order.approvals.given.push(given);
    }
    let mut signed = (0, 0);
    for _ in 0..10 {
        signed = attack
            .sign(&order, amount, &world.first.holders, 20_000)
            .await;
        if signed.0 > 0 {
            break;
        }
    }
    if signed.0 == 0 {
        world
            .oracle
            .violation("what all have approved is not signed".into());
    }
    attack.judge();
    for life in &lives {
        life.abort();
    }
    report(&world, add(counts, signed))
}

fn report(world: &SimWorld, (signed, faults): (u64, u64)) -> SimReport {
    let (trace, events) = world.trace.finish();
    SimReport {
        trace,
        events,
        signed,
        faults,
        byzantine_nodes: u64::from(world.byzantine.is_some()),
        violations: world.oracle.violations(),
        ..SimReport::default()
    }
}

fn world_of(seed: u64, planted: PlantedRule) -> SimConfig {
    SimConfig {
        verbose: crate::number("COVAULT_SIM_SEED").is_some(),
        people: Some(planted),
        ..crate::setting(seed)
    }
}

/// How many worlds: `COVAULT_SIM_PEOPLE_RUNS`.
#[test]
fn simulation__should_sign_nothing_above_a_rule_without_its_people() {
    let runs = crate::number("COVAULT_SIM_PEOPLE_RUNS").unwrap_or(60);
    let first = crate::number("COVAULT_SIM_FIRST").unwrap_or(0);
    let seeds = Mutex::new(first..first + runs);
    let sum = Mutex::new(SimReport::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else {
                        return;
                    };
                    let report = run(world_of(seed, PlantedRule::Nothing));
                    let mut sum = sum.lock().unwrap();
                    sum.add(&report);
                    let said = report.violations.into_iter();
                    sum.violations
                        .extend(said.map(|what| format!("seed {seed}: {what}")));
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    eprintln!(
        "{runs} worlds, {} byzantine nodes, {} signed, {} refused",
        sum.byzantine_nodes, sum.signed, sum.faults
    );
    assert!(sum.violations.is_empty(), "{:#?}", sum.violations);
    assert!(runs < 50 || (sum.signed > 3 * runs && sum.faults > 3 * runs));
}

#[test]
fn simulation__should_notice_rules_that_ask_too_little() {
    for (planted, what) in [
        (PlantedRule::OneLess, "without its quorum"),
        (PlantedRule::NoDay, "in a day without its quorum"),
    ] {
        let seen = (0..60).any(|seed| {
            let report = run(world_of(seed, planted));
            report.violations.iter().any(|it| it.contains(what))
        });
        assert!(seen, "nobody noticed {planted:?}");
    }
}
