//! What surrounds the service breaks under load: disks, clocks, the database, the bus. There is a
//! clear error or a pause, then recovery; nothing is lost.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::task::block_in_place;

use super::{
    load::{self, LoadGenerator},
    world::{StoreSetup, TcpRelay, TestRng, World, long, seed},
};
use crate::support::{postgres::Postgres, *};

/// A file system of its own for a folder. It ends with this value.
struct MountedDisk {
    at: PathBuf,
    /// The file that its bytes are in; `None`: memory.
    image: Option<PathBuf>,
}

impl MountedDisk {
    /// In memory, of so many MiB.
    fn small(at: &Path, mebibytes: u32) -> Self {
        fs::create_dir_all(at).unwrap();
        let disk = Self {
            at: at.to_owned(),
            image: None,
        };
        let size = format!("size={mebibytes}m,mode=0700");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "covault-test"])
            .arg(at));
        disk
    }

    /// An ext4 in a file.
    fn in_file(at: &Path, image: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(image));
        let disk = Self {
            at: at.to_owned(),
            image: Some(image.to_owned()),
        };
        disk.mount();
        disk
    }

    fn mount(&self) {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(self.image.as_ref().unwrap())
            .arg(&self.at));
    }

    /// What a kernel does that has found the disk broken: from now on nothing can be written.
    fn abort(&self) {
        run(Command::new("mount")
            .args(["-o", "remount,abort"])
            .arg(&self.at));
    }

    /// What an operator does then, once nobody uses it. The disk is another one afterwards: a process of another test that
    /// has a mount namespace of its own (`ip netns exec`) may have the broken one mounted for as long as it lives.
    fn repair(&mut self) {
        run(Command::new("umount").arg(&self.at));
        let broken = self.image.take().unwrap();
        let image = broken.with_extension("repaired");
        fs::copy(broken, &image).unwrap();
        // 1: there was something to repair.
        let checked = Command::new("e2fsck").arg("-fy").arg(&image).output();
        let checked = checked.unwrap();
        let code = checked.status.code().unwrap();
        assert!(code <= 1, "{}", String::from_utf8_lossy(&checked.stdout));
        self.image = Some(image);
        self.mount();
    }

    /// Leaves no byte free; how many it took.
    fn fill(&self) -> u64 {
        use std::io::Write as _;
        let mut ballast = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.ballast())
            .unwrap();
        let mut written = 0;
        for size in [65_536, 4_096, 512] {
            while ballast.write(&vec![7; size]).is_ok() {
                written += size as u64;
            }
        }
        written
    }

    fn make_room(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        // A process that has files open on it keeps it a little longer.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {err}\nTests of faults mount file systems: run them as root, in a container with \
         CAP_SYS_ADMIN and loop devices"
    );
}

/// The end of every story here.
async fn all_is_well(
    what: &str,
    store: StoreSetup,
    load: LoadGenerator,
    world: &mut World,
    may_fail: bool,
) {
    assert_eq!(world.supervise(), 0, "a process ended by itself");
    world.cluster.ready().await;
    let ledger = load.finish().await;
    eprintln!("{store:?}: {what}; {}", ledger.figures());
    ledger.check(world).await;
    let failures = ledger.failures();
    assert!(may_fail || failures.is_empty(), "{failures:?}");
    world.cluster.kill_and_restart_serve().await;
    load::repeat_all(world, &ledger).await;
    world.assert_sound();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_redb__should_be_told_and_got_over() {
    full_disk(StoreSetup::Redb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_postgres__should_be_told_and_got_over() {
    full_disk(StoreSetup::Postgres).await;
}

async fn full_disk(store: StoreSetup) {
    let seed = seed();
    let mut disk = None;
    let server = (store == StoreSetup::Postgres)
        .then(|| Postgres::start_in(|folder| disk = Some(MountedDisk::small(folder, 160))));
    let small = |folder: &Path| {
        if store == StoreSetup::Redb {
            disk = Some(MountedDisk::small(&folder.join("orchestrator"), 24));
        }
    };
    let mut world = World::start_on(server, |url| url, small).await;
    let disk = disk.unwrap();
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    for round in 1..=2 {
        let (refused, (accepted, _)) = {
            let ledger = load.ledger();
            (ledger.refusals(), ledger.counts())
        };
        let full = Instant::now();
        load.until("a full disk is told", |ledger| {
            disk.fill();
            ledger.refusals() >= refused + 8
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (now, lasted) = (load.ledger().counts().0, full.elapsed());
        disk.make_room();
        if let Some(server) = world.server.as_mut()
            && !server.answers()
        {
            // What an operator does.
            block_in_place(|| server.restart());
        }
        let freed = Instant::now();
        load.goes_on("there is room again").await;
        eprintln!(
            "{store:?}: disk full for {} ms ({round}), {} accepted meanwhile; works {} ms after",
            lasted.as_millis(),
            now - accepted,
            freed.elapsed().as_millis()
        );
    }
    all_is_well("full disk", store, load, &mut world, false).await;
    drop(world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_disk__should_be_told_and_got_over() {
    let (seed, images) = (seed(), tempfile::tempdir().unwrap());
    let mut disk = None;
    let mut world = World::start_prepared(StoreSetup::Redb, |folder| {
        let image = images.path().join("disk");
        disk = Some(MountedDisk::in_file(&folder.join("orchestrator"), &image));
    })
    .await;
    let mut disk = disk.unwrap();
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    let refused = load.ledger().refusals();
    let known = load.ledger().jobs.values().find_map(|job| {
        let uuid = job.uuid.clone();
        uuid.filter(|_| job.outcome.is_some())
    });
    disk.abort();
    load.until("a disk that cannot be written is told", |ledger| {
        ledger.refusals() >= refused + 8
    })
    .await;
    eventually("the service is not ready", async || {
        (world.cluster.api.get("/readyz").await == 503).then_some(())
    })
    .await;
    assert_eq!(world.reads(&known.unwrap()).await, 200);
    assert_eq!(world.cluster.api.get("/livez").await, 200);

    // It does not start there, and says why.
    world.cluster.serve.kill();
    let before = world.cluster.serve.log().len();
    world.cluster.start_serve();
    eventually("it does not start", async || {
        world.cluster.serve.has_ended().then_some(())
    })
    .await;
    let log = world.cluster.serve.log().split_off(before);
    assert!(log.contains("Read-only file system"), "{log}");
    assert!(log.contains("/orchestrator/"), "{log}");

    disk.repair();
    world.cluster.start_serve();
    load.goes_on("the disk is repaired").await;
    all_is_well("read-only disk", StoreSetup::Redb, load, &mut world, false).await;
    drop(world);
}

/// The clocks of a cluster's processes, which libfaketime moves by whole seconds.
struct FakeClocks {
    folder: PathBuf,
}

impl FakeClocks {
    const NAMES: [&str; 4] = ["serve", "signer-1", "signer-2", "signer-3"];

    fn wind(folder: &Path) -> Self {
        let library = fs::read_dir("/usr/lib")
            .unwrap()
            .map(|folder| {
                let folder = folder.unwrap().path();
                folder.join("faketime/libfaketimeMT.so.1")
            })
            .find(|library| library.exists());
        let Some(library) = library else {
            panic!("libfaketime is missing: `bash tests/run` installs it")
        };
        let clocks = Self {
            folder: folder.to_owned(),
        };
        for name in Self::NAMES {
            clocks.set(&[name], 0);
            let by = format!(
                "env LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_CACHE_DURATION=1 \
                 FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_RESET=1",
                library.display(),
                clocks.file(name).display()
            );
            fs::write(folder.join(format!("{name}.by")), by).unwrap();
            if name != "serve" {
                // Where the clock is would be out of its reach.
                let config = folder.join(format!("{name}.toml"));
                configure(&config, "signer", "sandbox = false", "");
            }
        }
        clocks
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.clock"))
    }

    /// So many seconds ahead of this machine's; they look once per second.
    fn set(&self, names: &[&str], seconds: i64) {
        for name in names {
            let new = self.folder.join(format!("{name}.clock.new"));
            fs::write(&new, format!("{seconds:+}\n")).unwrap();
            fs::rename(new, self.file(name)).unwrap();
        }
    }
}

const HOUR: i64 = 3_600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jumps_on_redb__should_lose_nothing() {
    clock_jumps(StoreSetup::Redb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jumps_on_postgres__should_lose_nothing() {
    clock_jumps(StoreSetup::Postgres).await;
}

async fn clock_jumps(store: StoreSetup) {
    let seed = seed();
    let mut clocks = None;
    let prepare = |folder: &Path| clocks = Some(FakeClocks::wind(folder));
    let mut world = World::start_prepared(store, prepare).await;
    let clocks = clocks.unwrap();
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    let all = &FakeClocks::NAMES[..];
    // Whose clocks, and whether enough of all have one time then. A store has no clock.
    let jumps = [(&all[..1], false), (&all[1..2], true), (all, true)];
    let most = if store == StoreSetup::Redb || long() {
        3
    } else {
        1
    };
    for (who, together) in jumps.into_iter().take(most) {
        for seconds in [HOUR, -HOUR] {
            clocks.set(who, seconds);
            tokio::time::sleep(Duration::from_secs(4)).await;
            // Enough of them agree on the time.
            if together {
                load.goes_on("the clocks have jumped").await;
            }
            // The same jump the other way.
            clocks.set(who, 0);
            let back = Instant::now();
            load.goes_on("the clocks are right again").await;
            eprintln!(
                "{store:?}: clocks of {who:?} {seconds:+} s for some seconds: works {} ms after; \
                 failed by now {:?}",
                back.elapsed().as_millis(),
                load.ledger().failures()
            );
        }
    }
    // A process that starts after its clock was set back is still heard.
    clocks.set(all, HOUR);
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.goes_on("an hour ahead").await;
    world.cluster.serve.kill();
    world.cluster.signers.iter_mut().for_each(Process::kill);
    clocks.set(all, 0);
    world.cluster.start_serve();
    (0..3).for_each(|index| world.cluster.restart_signer(index));
    load.goes_on("started an hour earlier").await;
    all_is_well("clock jumps", store, load, &mut world, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_postgres__should_be_waited_for() {
    let mut rng = TestRng::new(seed());
    let mut world = World::start(StoreSetup::Postgres).await;
    let load = LoadGenerator::start(&world, rng.roll());
    load.goes_on("the load has begun").await;
    let times = if long() { 20 } else { 3 };
    for _ in 0..times {
        let server = world.server.as_mut().unwrap();
        let away = Duration::from_millis(rng.within(0, 3_000));
        // `pg_ctl stop -m fast`, as package managers do.
        block_in_place(|| server.stop());
        tokio::time::sleep(away).await;
        let server = world.server.as_mut().unwrap();
        block_in_place(|| server.restart());
        load.goes_on("PostgreSQL is back").await;
        // Alive, and answers nothing.
        let server = world.server.as_ref().unwrap();
        server.freeze();
        tokio::time::sleep(away).await;
        server.thaw();
        load.goes_on("PostgreSQL answers again").await;
    }
    let what = format!("PostgreSQL restarted and halted {times} times");
    all_is_well(&what, StoreSetup::Postgres, load, &mut world, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_postgres__should_lose_nothing() {
    let seed = seed();
    let primary = Postgres::start();
    let relay = TcpRelay::from(Ipv4Addr::LOCALHOST, primary.port()).await;
    let (near, far) = (primary.port(), relay.address.port());
    let route = |url: String| url.replace(&format!(":{near}/"), &format!(":{far}/"));
    let mut world = World::start_on(Some(primary), route, |_| ()).await;
    let load = LoadGenerator::start(&world, seed);
    load.goes_on("the load has begun").await;
    for round in 1..=if long() { 2 } else { 1 } {
        // Made while the primary works.
        let standby = block_in_place(|| world.server.as_ref().unwrap().standby());
        load.goes_on("commits wait for two").await;
        let killed = Instant::now();
        world.server.as_mut().unwrap().kill();
        block_in_place(|| standby.promote());
        relay.lead_to(standby.port());
        let promoted = Instant::now();
        load.goes_on("the standby has taken over").await;
        eprintln!(
            "failover {round}: promoted {} ms after the kill, works {} ms later",
            (promoted - killed).as_millis(),
            promoted.elapsed().as_millis()
        );
        // The old primary is gone for good.
        world.server = Some(standby);
    }
    all_is_well("failover", StoreSetup::Postgres, load, &mut world, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_redis__should_lose_nothing() {
    let mut rng = TestRng::new(seed());
    let mut world = World::start(StoreSetup::Redb).await;
    let load = LoadGenerator::start(&world, rng.roll());
    load.goes_on("the load has begun").await;
    for _ in 0..12 {
        let pause = Duration::from_millis(rng.within(50, 1_500));
        tokio::time::sleep(pause).await;
        let url = world.cluster.redis.url();
        run(Command::new("redis-cli").args(["-u", &url, "FLUSHALL"]));
    }
    load.goes_on("Redis is emptied no more").await;
    // Nothing of it needs what Redis had.
    let before = load.ledger().counts().0;
    assert!(before > 8);
    all_is_well(
        "12 times FLUSHALL",
        StoreSetup::Redb,
        load,
        &mut world,
        false,
    )
    .await;
    let api = &world.cluster.api;
    let body = json!({"vaultUuid": world.vaults[0], "limit": 100});
    let wallets = api.ok("getWalletList", body).await;
    assert_eq!(wallets["detailsList"].as_array().unwrap().len(), 3);
}
