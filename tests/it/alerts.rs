//! The alerts for Prometheus: what they are about exists, each says what to do, and each fires when it should.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of a text that begin as our metrics do.
fn metrics_of(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.split(|c: char| !is_part(c))
        .filter(|word| word.starts_with("covault_"))
        .map(str::to_owned)
        .collect()
}

fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |line| line.trim().trim_start_matches("- ").strip_prefix(key))
        .map(str::trim)
}

#[test]
fn alerts__should_use_metrics_that_are_documented_and_say_what_to_do() {
    let (rules, documented) = (
        read("deploy/prometheus/alerts.yaml"),
        read("docs/metrics.md"),
    );
    let documented = metrics_of(&documented);
    for metric in metrics_of(&rules) {
        let metric = metric.strip_suffix("_bucket").unwrap_or(&metric);
        assert!(
            documented.contains(metric),
            "{metric} is not in docs/metrics.md"
        );
    }
    let runbook = read("docs/runbook.md");
    let headings: BTreeSet<_> = values(&runbook, "## ").collect();
    let alerts: BTreeSet<_> = values(&rules, "alert:").collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    assert_eq!(headings, alerts, "headings of docs/runbook.md, and alerts");
    let links: Vec<_> = values(&rules, "runbook_url:").collect();
    for alert in &alerts {
        let link = format!("docs/runbook.md#{}", alert.to_ascii_lowercase());
        assert!(links.contains(&link.as_str()), "{link}");
    }
    let cases = read("deploy/prometheus/alerts.test.yaml");
    for alert in alerts {
        let of_alert = values(&cases, "alertname:").filter(|name| *name == alert);
        assert_eq!(
            of_alert.count(),
            2,
            "{alert}: one case that fires, one that does not"
        );
    }
}

#[test]
fn alerts__should_fire_when_they_should_and_not_otherwise() {
    for arguments in [
        ["check", "config", "prometheus.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ] {
        let ran = Command::new("promtool")
            .args(arguments)
            .current_dir(root().join("deploy/prometheus"))
            .output()
            .expect("promtool: bash tests/run installs it");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
    }
}
