//! Batch payments of which a client signer's callback decides.

use serde_json::json;

use super::{super::deposits::operator, *};

/// In wei.
const ETHER: u64 = 1_000_000_000_000_000_000;

impl World {
    /// `covault batch`, which must succeed; what it prints.
    fn batch(&self, words: &[&str]) -> String {
        operator(&self.cluster, &[&["batch"], words].concat())
    }

    /// A batch that pays this to each of two recipients: its uuid, and they.
    async fn make_batch(&self, amount: u64) -> (String, [String; 2]) {
        let to = [1, 2]
            .map(|number| format!("0x{:040x}", 0xa0_0000 + 0x100 * u128::from(amount) + number));
        let row = |to: &String| json!({"address": to, "amount": amount.to_string()});
        let body = json!({"name": "salaries", "evmBatchSendNative": {"chainId": "31337", "from": self.evm,
            "recipients": to.iter().map(row).collect::<Vec<_>>()}});
        let made = self.cluster.api.ok("createBatchPayment", body).await;
        let uuid = made["batchPayment"]["uuid"].as_str().unwrap().to_owned();
        (uuid, to)
    }

    /// Waits until both recipients have this. (That it is final takes minutes of a chain's life.)
    async fn until_paid(&self, to: &[String; 2], amount: u64) {
        eventually("both are paid", async || {
            let [one, other] = [&to[0], &to[1]].map(|to| self.anvil.balance(to));
            let both = (one.await, other.await) == (amount.into(), amount.into());
            both.then_some(())
        })
        .await;
    }

    async fn has_paid(&self, to: &[String; 2], amount: u64) {
        for to in to {
            assert_eq!(self.anvil.balance(to).await, u128::from(amount), "{to}");
        }
    }
}

/// The signing request that `covault batch show` names.
fn request_of(world: &World, batch: &str) -> String {
    let shown = world.batch(&["show", batch]);
    let request = shown.lines().find_map(|line| line.strip_prefix("request "));
    let request = request.unwrap_or_else(|| panic!("{shown}"));
    request.split(' ').next().unwrap().to_owned()
}

/// Batch payments by the operator's command, of which the callback decides: a yes, a no, and one that an operator rejects.
pub async fn pay(world: &World) {
    world.anvil.fund(&world.evm, ETHER.into()).await;
    let key = world.key.as_str();
    let approve = |uuid: &str, total: &str| {
        world.batch(&["approve", uuid, "--total", total, "--client-signer", key])
    };
    world.program.decide(Decision::Status("200 OK"));
    let (paid, first) = world.make_batch(5).await;
    let config = world.cluster.folder.path().join("serve.toml");
    let mut wrong = covault();
    wrong.args(["batch", "approve", &paid, "--total", "11", "--config"]);
    let (done, out, err) = outcome_of(wrong.arg(&config));
    let says = "the batch pays 10 in all, not 11";
    assert!(!done && err.contains(says), "{out}\n{err}");
    assert!(
        world
            .batch(&["show", &paid])
            .contains("state   waits for approval")
    );
    approve(&paid, "10");
    world.until_paid(&first, 5).await;
    assert_eq!(world.program.count(&request_of(world, &paid)), 1);

    world.program.decide(Decision::Status("403 No"));
    let (refused, to) = world.make_batch(6).await;
    approve(&refused, "12");
    let request = request_of(world, &refused);
    eventually("the request has failed", async || {
        let shown = world.cluster.api.details(&request).await;
        (shown["status"] == "STATUS_FAILED").then_some(())
    })
    .await;
    assert_eq!(world.program.count(&request), 1);
    world.has_paid(&to, 0).await;
    // The batch says so itself, and that is the end of it.
    let shown = eventually("the batch has failed", async || {
        let shown = world.batch(&["show", &refused]);
        shown.contains("state   failed\n").then_some(shown)
    })
    .await;
    assert!(
        shown.contains("refused to sign: the callback denied it"),
        "{shown}"
    );
    let mut again = covault();
    again.args(["batch", "resume", &refused, "--config"]);
    let (done, out, err) = outcome_of(again.arg(&config));
    // Other signers were asked for it, too, and who has their shares could still send it.
    let says = "may have paid the batch, or may still do it";
    assert!(!done && err.contains(says), "{out}\n{err}");

    // One that the wallet cannot pay is resumed when it can.
    world.program.decide(Decision::Status("200 OK"));
    let amount = ETHER / 10 * 6;
    let (poor, to) = world.make_batch(amount).await;
    approve(&poor, &(2 * amount).to_string());
    eventually("it can be resumed", async || {
        let shown = world.batch(&["show", &poor]);
        shown
            .contains("state   failed, can be resumed\n")
            .then_some(())
    })
    .await;
    world.has_paid(&to, 0).await;
    world.anvil.fund(&world.evm, 3 * u128::from(ETHER)).await;
    let shown = world.batch(&["resume", &poor]);
    assert!(shown.contains("state   on its way\n"), "{shown}");
    world.until_paid(&to, amount).await;

    let (rejected, to) = world.make_batch(7).await;
    let shown = world.batch(&["reject", &rejected, "--reason", "wrong month"]);
    assert!(shown.contains("state   failed\n"), "{shown}");
    assert!(shown.contains("wrong month"), "{shown}");
    let mut late = covault();
    late.args(["batch", "approve", &rejected, "--total", "14", "--config"]);
    let (done, out, err) = outcome_of(late.arg(&config));
    assert!(!done, "{out}\n{err}");
    world.has_paid(&to, 0).await;
    // Each was paid once.
    world.has_paid(&first, 5).await;
}
