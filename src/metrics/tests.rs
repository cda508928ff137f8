#![allow(non_snake_case)]

use covault_actors::{
    chain_rpc::ChainKey,
    gateway::{
        BackupRow, DroppedCounts, OpenTransactions, RequestCounts, ServiceCounts, VaultCounts,
    },
};
use covault_core::order::NodeId;

use super::*;

#[test]
fn stuck__should_show_each_outcome() {
    let mut text = PrometheusText::default();
    text.stuck(&BacklogCounts {
        waiting: 3,
        forgotten: DroppedCounts {
            taken: 4,
            refused: 5,
            expired: 6,
        },
        transactions: [(
            ChainKey::evm(1),
            OpenTransactions {
                pending: 7,
                mined: 8,
                overdue: 2,
            },
        )]
        .into(),
    });
    for line in [
        "# TYPE covault_forgotten_transactions_total counter",
        "covault_requests_waiting 3",
        r#"covault_forgotten_transactions_total{outcome="taken"} 4"#,
        r#"covault_forgotten_transactions_total{outcome="refused"} 5"#,
        r#"covault_forgotten_transactions_total{outcome="expired"} 6"#,
        r#"covault_open_transactions{chain="EVM chain 1",state="pending"} 7"#,
        r#"covault_open_transactions{chain="EVM chain 1",state="mined"} 8"#,
        r#"covault_open_transactions{chain="EVM chain 1",state="overdue"} 2"#,
    ] {
        assert!(text.0.lines().any(|other| other == line), "{}", text.0);
    }
}

#[test]
fn chain_nodes__should_be_named_by_chain_and_number() {
    let node = EndpointHealth {
        chain: "EVM chain 1".into(),
        node: 2,
        failures: 3,
        answers: 4,
        errors: 5,
        dissents: 6,
        left_out: 7,
    };
    let mut text = PrometheusText::default();
    text.chain_nodes(&[node]);
    for line in [
        "# TYPE covault_chain_node_errors_total counter",
        r#"covault_chain_node_up{chain="EVM chain 1",node="2"} 0"#,
        r#"covault_chain_node_failures{chain="EVM chain 1",node="2"} 3"#,
        r#"covault_chain_node_answers_total{chain="EVM chain 1",node="2"} 4"#,
        r#"covault_chain_node_errors_total{chain="EVM chain 1",node="2"} 5"#,
        r#"covault_chain_node_dissents_total{chain="EVM chain 1",node="2"} 6"#,
        r#"covault_chain_node_left_out_total{chain="EVM chain 1",node="2"} 7"#,
    ] {
        assert!(
            text.0.lines().any(|other| other == line),
            "{line}: {}",
            text.0
        );
    }
}

#[test]
fn nodes__should_be_written_as_prometheus_reads_them() {
    let seen = NodeView {
        name: "vi\"enna\\".into(),
        named: true,
        live: true,
        last_seen_ms: Some(12_345),
        keys: 2,
        skew_ms: -1_500,
        halted: vec![covault_actors::port::NodeHalt::Clock],
        ..NodeView::unseen(NodeId([1; 32]))
    };
    // Its own word for itself.
    let unseen = NodeView {
        name: "another name every minute".into(),
        ..NodeView::unseen(NodeId([2; 32]))
    };
    let mut text = PrometheusText::default();
    text.nodes(&[seen, unseen]);
    let samples: Vec<&str> = text
        .0
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    assert_eq!(samples.len(), 2 + 6, "{}", text.0);
    let labels = r#"name="vi\"enna\\"} "#;
    for (name, value) in [
        ("covault_node_up", "1"),
        ("covault_node_last_seen_seconds", "12"),
        ("covault_node_clock_skew_seconds", "-1.5"),
        ("covault_node_halted", "1"),
        ("covault_node_duplicate", "0"),
        ("covault_node_keys", "2"),
        ("covault_node_bans", "0"),
    ] {
        let found = samples.iter().any(|line| {
            line.starts_with(&format!("{name}{{node=\"AAAA"))
                && line.ends_with(&format!("{labels}{value}"))
        });
        assert!(found, "{name}: {}", text.0);
    }
    assert!(
        samples
            .iter()
            .any(|line| line.starts_with("covault_node_up")
                && line.ends_with("name=\"02020202\"} 0"))
    );
    assert!(
        text.0.contains("# TYPE covault_node_up gauge\n"),
        "{}",
        text.0
    );
}

#[test]
fn figures__should_show_requests_by_kind_and_status() {
    let mut text = PrometheusText::default();
    text.build();
    text.live((3, 4_096));
    text.mailboxes([("vault", 2), ("request", 0)]);
    let counts = RequestCounts {
        created: 5,
        succeeded: 3,
        failed: 1,
    };
    text.requests(&[("evmMessage", counts)].into());
    let vaults = VaultCounts {
        ready: 7,
        short: 2,
        no_keys: 1,
        ..VaultCounts::default()
    };
    let counts = ServiceCounts {
        vaults,
        ..ServiceCounts::default()
    };
    let backup = BackupRow {
        at_ms: 10_000,
        bytes: 5,
    };
    text.overview(&(None, None), 0);
    assert!(!text.0.contains("covault_vaults"), "{}", text.0);
    let old = (
        Some(ServiceCounts {
            at_ms: 9_999,
            ..ServiceCounts::default()
        }),
        Some(BackupRow {
            at_ms: 95_999_999,
            bytes: 5,
        }),
    );
    let mut of_old = PrometheusText::default();
    of_old.overview(&old, 910_000);
    let samples = of_old.0.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(
        samples.collect::<Vec<_>>(),
        ["covault_vaults_counted_timestamp_seconds 9"]
    );
    text.overview(&(Some(counts), Some(backup)), 95_999);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.redb");
    text.store_file(&file);
    assert!(!text.0.contains("covault_store_bytes"), "{}", text.0);
    std::fs::write(&file, [0; 77]).unwrap();
    text.store_file(&file);
    for line in [
        "# TYPE covault_requests_total counter",
        r#"covault_requests_total{kind="evmMessage",status="created"} 5"#,
        r#"covault_requests_total{kind="evmMessage",status="succeeded"} 3"#,
        r#"covault_requests_total{kind="evmMessage",status="failed"} 1"#,
        "covault_vaults_counted_timestamp_seconds 0",
        r#"covault_vaults{state="ready"} 7"#,
        r#"covault_vaults{state="short"} 2"#,
        r#"covault_vaults{state="no_keys"} 1"#,
        "covault_backup_age_seconds 85",
        "covault_live_requests 3",
        "covault_live_bytes 4096",
        "# TYPE covault_mailbox_depth gauge",
        r#"covault_mailbox_depth{actor="vault"} 2"#,
        r#"covault_mailbox_depth{actor="request"} 0"#,
        "covault_store_bytes 77",
    ] {
        assert!(
            text.0.lines().any(|other| other == line),
            "{line}: {}",
            text.0
        );
    }
    let build = format!(
        "covault_build_info{{version=\"{}\"",
        env!("CARGO_PKG_VERSION")
    );
    assert!(text.0.contains(&build), "{}", text.0);
}
