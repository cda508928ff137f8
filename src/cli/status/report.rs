//! What `covault status` and `covault top` tell, in sections.

use covault_core::schema::admin::{
    ChainNodes, FailedRequest, GetStatusResponse, Node, OpenRequestCounts, VaultCounts,
};

use super::{
    MOST_NAMES, cannot_sign, is_clock_off, is_clock_too_far, is_counted_long_ago, is_halted,
    last_backup, unwatched,
};
use crate::cli::{ago, node::list::skew, one_line};

/// Room for a label.
pub const LABEL_WIDTH: usize = 10;
/// What details stand behind.
pub const INDENT: &str = "          ";

/// A part of the service.
pub struct Section {
    /// Its name.
    pub label: &'static str,
    /// How it is, in a line.
    pub head: String,
    /// What there is to know beside that, a line each.
    pub details: Vec<String>,
}

impl Section {
    fn new(label: &'static str, head: impl Into<String>) -> Self {
        Self {
            label,
            head: head.into(),
            details: Vec::new(),
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = String> {
        let head = format!("{:<LABEL_WIDTH$}{}", self.label, self.head);
        let details = self.details.iter();
        std::iter::once(head).chain(details.map(|detail| format!("{INDENT}{detail}")))
    }

    /// A line for each name, as far as they are few.
    fn add(&mut self, what: &str, names: &[String]) {
        let all = u64::try_from(names.len()).unwrap_or(u64::MAX);
        self.add_some(what, names, all);
    }

    /// The same, of more than are named.
    fn add_some(&mut self, what: &str, names: &[String], all: u64) {
        let shown = names.iter().take(MOST_NAMES);
        let named = u64::try_from(shown.len()).unwrap_or(u64::MAX);
        let lines = shown.map(|name| format!("{what}: {}", one_line(name)));
        self.details.extend(lines);
        let more = all.saturating_sub(named);
        if more > 0 {
            self.details.push(format!("{what}: {more} more"));
        }
    }
}

/// All of it, in the order of its weight. `nodes` tells which of the nodes do not sign.
pub fn sections(
    status: &GetStatusResponse,
    nodes: impl FnOnce(&GetStatusResponse) -> Vec<String>,
) -> Vec<Section> {
    let is_readable = status.store_problem.is_none();
    let mut sections = vec![service(status)];
    if is_readable {
        sections.push(nodes_section(status, nodes));
        sections.push(vaults(status));
        sections.push(Section::new("requests", requests(status.requests.as_ref())));
    }
    sections.extend(chains(&status.chains));
    let said = |problem: &Option<String>| match problem {
        None => "ok".to_owned(),
        Some(problem) => one_line(problem),
    };
    sections.push(Section::new("store", said(&status.store_problem)));
    sections.push(Section::new("bus", said(&status.bus_problem)));
    if status.log_level != status.configured_log_level {
        let [level, configured] =
            [&status.log_level, &status.configured_log_level].map(|level| one_line(level));
        let head = format!("{level}, until this process ends; its configuration says {configured}");
        sections.push(Section::new("log", head));
    }
    if is_readable {
        sections.push(Section::new("backup", last_backup(status)));
        sections.push(failures(status));
    }
    sections
}

fn service(status: &GetStatusResponse) -> Section {
    let service = match &status.not_ready {
        None => "ready".to_owned(),
        Some(reason) => format!("not ready: {}", one_line(reason)),
    };
    let version = one_line(&status.version);
    let processes = counted(status.orchestrators, "orchestrator");
    let head = format!("{service} (Covault {version}, {processes})");
    Section::new("service", head)
}

fn counted(count: impl Into<u64>, what: &str) -> String {
    match count.into() {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

fn names(status: &GetStatusResponse, is: impl Fn(&Node) -> bool) -> Vec<String> {
    let those = status.nodes.iter().filter(|node| is(node));
    those.map(|node| node.name.clone()).collect()
}

fn nodes_section(
    status: &GetStatusResponse,
    nodes: impl FnOnce(&GetStatusResponse) -> Vec<String>,
) -> Section {
    let live = status.nodes.iter().filter(|node| node.live).count();
    let mut head = format!("{live} of {} live", status.nodes.len());
    if let Some(reason) = unwatched(status) {
        head.push_str(&format!(", as far as is known: {reason}"));
    }
    let mut section = Section::new("nodes", head);
    section.details = nodes(status);
    section.add("signer.orchestrators", &status.nodes_that_refuse);
    let strangers = status.vaults.as_ref().map(|vaults| &vaults.strangers);
    section.add("peers", strangers.unwrap_or(&Vec::new()));
    let with_bans = names(status, |node| !node.bans.is_empty());
    section.add("has banned a peer that cheated", &with_bans);
    let waiting = status.want_to_join.len();
    if waiting > 0 {
        let what = "want to join (covault node list)";
        section.add(what, &[waiting.to_string()]);
    }
    section
}

/// The names of nodes that do not sign.
pub fn silent_nodes(status: &GetStatusResponse) -> Vec<String> {
    let mut section = Section::new("nodes", "");
    let is_away = |node: &Node| !node.live && !is_clock_too_far(node);
    section.add("away", &names(status, is_away));
    let off = status.nodes.iter().filter(|node| is_clock_off(node));
    let off: Vec<_> = off
        .map(|node| format!("{} ({} from here)", node.name, skew(node.clock_skew_ms)))
        .collect();
    section.add("clock to be set", &off);
    section.add("does not sign", &names(status, is_halted));
    section.details
}

fn vaults(status: &GetStatusResponse) -> Section {
    let Some(vaults) = &status.vaults else {
        return Section::new("vaults", "not counted yet");
    };
    let all = vaults.ready.saturating_add(cannot_sign(vaults));
    let mut head = format!("{} of {all} can sign", vaults.ready);
    if is_counted_long_ago(status, vaults) {
        let passed_ms = status.now_ms.saturating_sub(vaults.counted_ms);
        head.push_str(&format!(", as they were {}", ago(passed_ms)));
    }
    let mut section = Section::new("vaults", head);
    let VaultCounts {
        client_signers_away,
        without_spare,
        no_spare,
        ..
    } = vaults;
    section.add("client signer that cannot sign", client_signers_away);
    section.add_some("cannot", &vaults.cannot_sign, cannot_sign(vaults));
    section.add_some("no signer to spare", without_spare, *no_spare);
    section
}

fn requests(requests: Option<&OpenRequestCounts>) -> String {
    let Some(requests) = requests else {
        return "not counted yet".to_owned();
    };
    let parts = [
        (requests.awaiting, "wait for people"),
        (requests.unsigned, "are being signed"),
        (requests.followed, "are sent and not final"),
        (requests.stuck, "make no progress (covault request stuck)"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    match parts.is_empty() {
        true => "none is open".to_owned(),
        false => parts.join(", "),
    }
}

fn chains(chains: &[ChainNodes]) -> Option<Section> {
    let nodes: u64 = chains.iter().map(|chain| u64::from(chain.nodes)).sum();
    let answering: u64 = chains.iter().map(|chain| u64::from(chain.answering)).sum();
    let missing = chains.iter().filter(|chain| chain.answering < chain.nodes);
    let missing: Vec<_> = missing
        .map(|chain| {
            format!(
                "{}: {} of {} answer",
                chain.chain, chain.answering, chain.nodes
            )
        })
        .collect();
    let head = format!("{answering} of {} answer", counted(nodes, "node"));
    let mut section = Section::new("chains", head);
    section.add("silent", &missing);
    (nodes > 0).then_some(section)
}

fn failures(status: &GetStatusResponse) -> Section {
    if status.failures.is_empty() {
        return Section::new("failures", "none");
    }
    let mut section = Section::new("failures", "the last ones:");
    for failed in &status.failures {
        let FailedRequest {
            at_ms,
            uuid,
            vault,
            kind,
            class,
            during,
            reason,
        } = failed;
        let since = ago(status.now_ms.saturating_sub(*at_ms));
        let what = format!("{since}, vault {vault}, {kind}, {class} ({during})");
        let why = format!("  {uuid}: {reason}");
        section.details.extend([one_line(&what), one_line(&why)]);
    }
    section
}
