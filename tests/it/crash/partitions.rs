//! Network partitions: the orchestrator and each signer live in network namespaces of their own, and what
//! goes over their cables is dropped, in one direction or both, without anybody being told.

use std::{
    fs,
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    load::{self, LoadGenerator},
    world::{StoreSetup, TcpRelay, TestRng, World, long, seed},
};
use crate::support::postgres::Postgres;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_on_redb__should_lose_nothing_and_do_nothing_twice() {
    survive(StoreSetup::Redb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_on_postgres__should_lose_nothing_and_do_nothing_twice() {
    survive(StoreSetup::Postgres).await;
}

/// Which way nothing comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketLoss {
    Outgoing,
    Incoming,
    Both,
}

/// A network namespace with one cable to this machine. It ends with this value.
struct NetNamespace {
    name: String,
    cable: String,
    /// This machine, as seen from the island.
    host: Ipv4Addr,
    /// The island, as seen from this machine.
    inside: Ipv4Addr,
}

impl NetNamespace {
    fn new(index: u8) -> Self {
        clear();
        let pid = std::process::id();
        let taken = said("ip", &["-4", "-o", "address"]);
        let subnet = (0..128)
            .map(|more| 64 + u8::try_from((pid + more) % 128).unwrap())
            .find(|subnet| !taken.contains(&format!(" 10.{subnet}.{index}.")))
            .unwrap();
        let namespace = Self {
            name: format!("cv{pid}-{index}"),
            cable: format!("cv{pid}-{index}"),
            host: Ipv4Addr::new(10, subnet, index, 1),
            inside: Ipv4Addr::new(10, subnet, index, 2),
        };
        let (name, cable) = (&*namespace.name, &*namespace.cable);
        let ip = |arguments: &str| {
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            said("ip", &arguments);
        };
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add {cable} type veth peer name eth0 netns {name}"
        ));
        ip(&format!("address add {}/30 dev {cable}", namespace.host));
        ip(&format!("link set {cable} up"));
        ip(&format!(
            "-n {name} address add {}/30 dev eth0",
            namespace.inside
        ));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        namespace.filter("add table inet cut");
        for (chain, hook) in [("outgoing", "output"), ("incoming", "input")] {
            namespace.filter(&format!(
                "add chain inet cut {chain} {{ type filter hook {hook} priority 0; }}"
            ));
        }
        namespace
    }

    fn filter(&self, rule: &str) {
        said("ip", &["netns", "exec", &self.name, "nft", rule]);
    }

    /// From now on, what goes to this port of this machine, or comes from it, is lost.
    fn cut(&self, port: u16, lost: PacketLoss) {
        if lost != PacketLoss::Incoming {
            self.filter(&format!(
                "add rule inet cut outgoing tcp dport {port} counter drop"
            ));
        }
        if lost != PacketLoss::Outgoing {
            self.filter(&format!(
                "add rule inet cut incoming tcp sport {port} counter drop"
            ));
        }
    }

    /// Everything comes through again; how many packets were lost.
    fn heal(&self) -> u64 {
        let rules = said(
            "ip",
            &["netns", "exec", &self.name, "nft", "list", "ruleset"],
        );
        self.filter("flush chain inet cut outgoing");
        self.filter("flush chain inet cut incoming");
        let counts = rules.split("packets ").skip(1);
        counts
            .map(|rest| rest.split_whitespace().next().unwrap())
            .map(|count| count.parse::<u64>().unwrap())
            .sum()
    }

    /// Has the process of this name run here.
    fn settle(&self, folder: &Path, process: &str) {
        let by = format!("ip netns exec {}", self.name);
        fs::write(folder.join(format!("{process}.by")), by).unwrap();
    }
}

/// Removes what tests have left that were killed.
fn clear() {
    for line in said("ip", &["netns", "list"]).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let pid = name
            .strip_prefix("cv")
            .and_then(|rest| rest.split('-').next());
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Its cable goes with it. Another test may be quicker.
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

impl Drop for NetNamespace {
    fn drop(&mut self) {
        for arguments in [
            ["link", "delete", &*self.cable],
            ["netns", "delete", &*self.name],
        ] {
            let _ = Command::new("ip")
                .args(arguments)
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Runs a command that must succeed: what it prints.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{program} is missing ({error}): `bash tests/run` installs iproute2 and nftables")
    });
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {}: {err}\nTests of partitions make network namespaces: run them as root, in a \
         container with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        arguments.join(" ")
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The port behind a text.
fn port_after(text: &str, before: &str) -> u16 {
    let (_, rest) = text.split_once(before).unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// The cables of a cluster.
struct TestNetwork {
    serve: NetNamespace,
    signers: Vec<NetNamespace>,
    /// From the orchestrator and from each signer to Redis, and from the orchestrator elsewhere.
    redis: TcpRelay,
    signers_redis: Vec<TcpRelay>,
    postgres: TcpRelay,
    chain: TcpRelay,
}

impl TestNetwork {
    async fn new() -> Self {
        let serve = NetNamespace::new(0);
        let signers: Vec<_> = (1..=3).map(NetNamespace::new).collect();
        let mut signers_redis = Vec::new();
        for signer in &signers {
            signers_redis.push(TcpRelay::from(signer.host, 0).await);
        }
        Self {
            redis: TcpRelay::from(serve.host, 0).await,
            postgres: TcpRelay::from(serve.host, 0).await,
            chain: TcpRelay::from(serve.host, 0).await,
            signers_redis,
            signers,
            serve,
        }
    }

    /// The database, as seen from the orchestrator.
    fn route(&self, url: &str) -> String {
        let port = port_after(url, "@127.0.0.1:");
        self.postgres.lead_to(port);
        let address = self.postgres.address.to_string();
        let url = url.replace(&format!("127.0.0.1:{port}"), &address);
        // There is no certificate between two namespaces of one machine.
        format!("{url}?sslmode=disable")
    }

    /// Sends everything of these configuration files over the cables.
    fn lay(&self, folder: &Path) {
        let change = |name: &str, change: &dyn Fn(String) -> String| {
            let path = folder.join(format!("{name}.toml"));
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, change(text)).unwrap();
        };
        let lead = |text: String, before: &str, relay: &TcpRelay| {
            let port = port_after(&text, before);
            relay.lead_to(port);
            text.replace(&format!("127.0.0.1:{port}"), &relay.address.to_string())
        };
        change("serve", &|text| {
            let text = lead(text, "redis://127.0.0.1:", &self.redis);
            let text = lead(text, "rpc = [\"http://127.0.0.1:", &self.chain);
            let own = format!("\nlisten = \"{}:", self.serve.inside);
            text.replace("\nlisten = \"127.0.0.1:", &own)
        });
        self.serve.settle(folder, "serve");
        for (index, (namespace, relay)) in (1..).zip(self.signers.iter().zip(&self.signers_redis)) {
            let name = format!("signer-{index}");
            change(&name, &|text| lead(text, "redis://127.0.0.1:", relay));
            namespace.settle(folder, &name);
        }
    }

    /// Who is cut off from what: the cable, and the port at its other end.
    fn cuts(&self, store: StoreSetup) -> Vec<(&'static str, Vec<(&NetNamespace, u16)>)> {
        let redis = (&self.serve, self.redis.address.port());
        let postgres = (&self.serve, self.postgres.address.port());
        let signers: Vec<_> = self
            .signers
            .iter()
            .zip(&self.signers_redis)
            .map(|(namespace, relay)| (namespace, relay.address.port()))
            .collect();
        let mut cuts = vec![
            ("orchestrator from Redis", vec![redis]),
            ("one signer from Redis", vec![signers[0]]),
            // They meet at Redis and nowhere else.
            ("orchestrator from all signers", signers),
        ];
        if store == StoreSetup::Postgres {
            cuts.push(("orchestrator from PostgreSQL", vec![postgres]));
            cuts.push(("orchestrator from both", vec![redis, postgres]));
        }
        cuts
    }
}

async fn survive(store: StoreSetup) {
    let (seed, began) = (seed(), Instant::now());
    let mut rng = TestRng::new(seed);
    let net = TestNetwork::new().await;
    let server = (store == StoreSetup::Postgres).then(Postgres::start);
    let mut world = World::start_on(server, |url| net.route(&url), |folder| net.lay(folder)).await;
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    // Shorter ones find the same, and these tests are run often.
    let longest = if long() { 8_000 } else { 4_000 };
    // The cables are the same ones on both stores.
    let losses: &[PacketLoss] = match store {
        StoreSetup::Redb if !long() => &[PacketLoss::Both],
        _ => &[PacketLoss::Outgoing, PacketLoss::Incoming, PacketLoss::Both],
    };
    for (relay, lost) in losses.iter().copied().enumerate() {
        for (number, (what, cables)) in net.cuts(store).into_iter().enumerate() {
            // In short every cable one way, and every way some cable.
            if !long() && number % losses.len() != relay {
                continue;
            }
            let lasts = Duration::from_millis(rng.within(3_000, longest + 1));
            cables
                .iter()
                .for_each(|(namespace, port)| namespace.cut(*port, lost));
            tokio::time::sleep(lasts).await;
            let packets: u64 = cables.iter().map(|(namespace, _)| namespace.heal()).sum();
            assert!(packets > 0, "nothing went over the cable that was cut");
            let healed = Instant::now();
            load.goes_on("what was cut works again").await;
            eprintln!(
                "{store:?}: {what}, {lost:?} lost for {} ms, {packets} packets: works {} ms after",
                lasts.as_millis(),
                healed.elapsed().as_millis()
            );
        }
    }
    assert_eq!(world.supervise(), 0, "a process ended by itself");
    world.cluster.ready().await;
    let ledger = load.finish().await;
    eprintln!(
        "{store:?}: partitions; {}; {} s with start and end",
        ledger.figures(),
        began.elapsed().as_secs()
    );
    ledger.check(&world).await;
    assert!(ledger.failures().is_empty(), "{:?}", ledger.failures());
    load::repeat_all(&world, &ledger).await;
    world.assert_sound();
}
