#![allow(non_snake_case)]

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::*;

fn vault(number: u8) -> AuditChain {
    AuditChain::Vault(VaultId::from_bytes([number; 16]))
}

fn entry(text: &str) -> AuditEntry {
    AuditEntry {
        at_ms: 1_700_000_000_000,
        by: "token:7c9e6679-7425-40de-944b-e07fc1f90ae7".into(),
        call: "call-1".into(),
        subject: "request:00000000-0000-0000-0000-000000000001".into(),
        events: vec![
            AuditEvent {
                event: text.into(),
                facts: vec![
                    ("state".into(), "Signed".into()),
                    ("detail".into(), "0x\"é".into()),
                ],
            },
            AuditEvent {
                event: "Then".into(),
                facts: Vec::new(),
            },
        ],
    }
}

/// A chain of so many entries.
fn chain(of: AuditChain, length: u64) -> Vec<LinkedEntry> {
    let mut links: Vec<LinkedEntry> = Vec::new();
    for number in 1..=length {
        let mut entry = entry(&format!("Event{number}"));
        if number == 1 {
            entry.events[0].event = BEGAN.into();
        }
        if let (AuditChain::Service, 2) = (of, number) {
            entry.events[1].event = VAULT_CHAIN.into();
            entry.subject = vault(1).to_string();
        }
        let head = links.last().map(LinkedEntry::head);
        links.push(LinkedEntry::after(head.as_ref(), of, entry.encode().unwrap()).unwrap());
    }
    links
}

fn check(of: AuditChain, links: &[LinkedEntry], expected: Vec<ChainHead>) -> ChainReport {
    let mut checker = ChainChecker::new(of, expected);
    for linked in links {
        checker.take(linked);
    }
    checker.end(links.last().map(LinkedEntry::head))
}

fn found(of: AuditChain, links: &[LinkedEntry], head: Option<ChainHead>) -> Vec<(u64, BreakKind)> {
    let mut checker = ChainChecker::new(of, vec![]);
    for linked in links {
        checker.take(linked);
    }
    let breaks = checker.end(head).breaks;
    breaks.into_iter().map(|it| (it.number, it.what)).collect()
}

/// An export of a service and a vault with so many entries each.
fn export(length: u64) -> String {
    let mut writer = ExportWriter::start(Vec::new(), 5).unwrap();
    for of in [AuditChain::Service, vault(1)] {
        let links = chain(of, length);
        for linked in &links {
            writer.entry(EntryLine::new(of, linked)).unwrap();
        }
    }
    for of in [AuditChain::Service, vault(1)] {
        let head = chain(of, length).last().unwrap().head();
        writer.head(HeadLine::new(of, &head)).unwrap();
    }
    String::from_utf8(writer.end().unwrap()).unwrap()
}

fn read(bytes: &[u8], expected: KnownHeads) -> ExportFindings {
    let mut reader = ExportReader::new(expected);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        reader.line(line);
    }
    reader.finish()
}

/// Whatever is wrong, in one text.
fn told(findings: &ExportFindings) -> String {
    let breaks = findings.chains.iter().flat_map(|chain| &chain.breaks);
    let mut told: Vec<String> = breaks.map(ToString::to_string).collect();
    told.extend(findings.problems.clone());
    told.join("\n")
}

#[test]
fn hash__should_be_what_is_documented() {
    let body = entry("Event").encode().unwrap();
    let linked = LinkedEntry::after(None, vault(7), body.clone()).unwrap();
    let mut bytes = b"covault audit entry 1\0".to_vec();
    bytes.push(17);
    bytes.push(1);
    bytes.extend([7; 16]);
    bytes.extend(1_u64.to_be_bytes());
    bytes.extend([0; 32]);
    bytes.extend(&body);
    assert_eq!(linked.hash, <[u8; 32]>::from(Sha256::digest(&bytes)));
    assert_eq!((linked.number, linked.previous), (1, NO_HASH));
    let next = LinkedEntry::after(Some(&linked.head()), vault(7), body).unwrap();
    assert_eq!((next.number, next.previous), (2, linked.hash));
    assert_ne!(next.hash, linked.hash);
}

#[test]
fn entries_and_links__should_load_for_ever() {
    let linked = LinkedEntry::after(None, vault(7), entry("Event").encode().unwrap()).unwrap();
    for (name, bytes) in [
        ("audit-entry-v1", linked.body.clone()),
        ("audit-hash-v1", linked.hash.to_vec()),
    ] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/wire")
            .join(format!("{name}.hex"));
        let bytes = hex::encode(bytes);
        let sample = fs::read_to_string(&path)
            .unwrap_or_else(|_| panic!("{} is missing; it would hold\n{bytes}", path.display()));
        assert_eq!(sample.trim(), bytes, "{name}");
    }
    assert_eq!(AuditEntry::decode(&linked.body), Some(entry("Event")));
    for wrong in [&[][..], &[1, 2], &[0], &[&linked.body[..], &[0]].concat()] {
        assert_eq!(AuditEntry::decode(wrong), None);
    }
}

#[test]
fn chain__should_have_one_text_and_one_key() {
    for of in [AuditChain::Service, vault(9)] {
        assert_eq!(of.to_string().parse::<AuditChain>().unwrap(), of);
        let key = [of.key(), vec![1, 2]].concat();
        assert_eq!(AuditChain::split(&key), Some((of, [1_u8, 2].as_slice())));
    }
    let upper = vault(0xab).to_string().to_uppercase();
    for wrong in ["", "Service", "vault:", "vault:x", upper.as_str()] {
        assert!(wrong.parse::<AuditChain>().is_err(), "{wrong}");
    }
    assert_eq!(AuditChain::split(&[]), None);
    assert_eq!(AuditChain::split(&[1, 2]), None);
    assert_eq!(AuditChain::split(&[2; 20]), None);
}

#[test]
fn checker__should_take_a_whole_chain() {
    let links = chain(vault(1), 9);
    let heads = links.iter().map(LinkedEntry::head).collect();
    let report = check(vault(1), &links, heads);
    assert_eq!(report.breaks, []);
    assert_eq!(report.entries, 9);
    assert_eq!(report.head, Some(links[8].head()));
    assert_eq!(check(vault(1), &[], vec![]).breaks, []);
}

#[test]
fn checker__should_name_what_is_broken() {
    let of = vault(1);
    let links = chain(of, 6);
    let head = Some(links[5].head());
    let with = |change: &dyn Fn(&mut Vec<LinkedEntry>)| {
        let mut links = links.clone();
        change(&mut links);
        found(of, &links, head)
    };
    let end = |last| BreakKind::NotHead { last };
    assert_eq!(with(&|all| all[2].body[20] ^= 1), [(3, BreakKind::Changed)]);
    assert_eq!(with(&|all| all[2].hash[0] ^= 1), [(3, BreakKind::Changed)]);
    assert_eq!(
        with(&|all| all[2].previous[0] ^= 1),
        [(3, BreakKind::Changed), (3, BreakKind::Unlinked)]
    );
    assert_eq!(
        with(&|all| drop(all.remove(2))),
        [(3, BreakKind::Missing { to: 3 })]
    );
    assert_eq!(
        with(&|all| drop(all.drain(1..4))),
        [(2, BreakKind::Missing { to: 4 })]
    );
    assert_eq!(with(&|all| all.truncate(4)), [(6, end(4))]);
    assert_eq!(
        with(&|all| all.swap(2, 3)),
        [(3, BreakKind::Swapped { after: 4 })]
    );
    assert_eq!(
        with(&|all| all.insert(3, all[2].clone())),
        [(3, BreakKind::Forked)]
    );
    // Replaced with everything that its author can know.
    let forged = |all: &mut Vec<LinkedEntry>| {
        let before = all[1].head();
        all[2] = LinkedEntry::after(Some(&before), of, entry("Forged").encode().unwrap()).unwrap();
    };
    assert_eq!(with(&forged), [(4, BreakKind::Unlinked)]);
    // One that was moved here from another chain.
    let other = chain(vault(2), 6);
    assert_eq!(
        with(&|all| all[2] = other[2].clone()),
        [
            (3, BreakKind::Changed),
            (3, BreakKind::Unlinked),
            (4, BreakKind::Unlinked)
        ]
    );
    assert_eq!(found(of, &links, None), [(6, BreakKind::NoHead)]);
    let wrong = Some(ChainHead {
        number: 6,
        hash: [1; 32],
    });
    assert_eq!(found(of, &links, wrong), [(6, BreakKind::OtherHead)]);
    assert_eq!(found(of, &links[..5], head), [(6, end(5))]);
    assert_eq!(found(of, &[], head), [(6, end(0))]);
}

#[test]
fn checker__should_find_against_a_kept_head_what_the_chain_alone_does_not_show() {
    let of = vault(1);
    let links = chain(of, 6);
    let kept = vec![links[3].head()];
    let what = |links: &[LinkedEntry]| {
        let breaks = check(of, links, kept.clone()).breaks;
        breaks
            .into_iter()
            .map(|it| (it.number, it.what))
            .collect::<Vec<_>>()
    };
    assert_eq!(what(&links), []);
    assert_eq!(what(&links[..4]), []);
    assert_eq!(what(&links[..3]), [(4, BreakKind::CutOff { last: 3 })]);
    let mut anew: Vec<LinkedEntry> = Vec::new();
    for number in 1..=6 {
        let body = entry(&format!("Anew{number}")).encode().unwrap();
        let head = anew.last().map(LinkedEntry::head);
        anew.push(LinkedEntry::after(head.as_ref(), of, body).unwrap());
    }
    assert_eq!(what(&anew), [(4, BreakKind::Rewritten)]);
    let gone = read(
        export(3).as_bytes(),
        KnownHeads::from([(vault(2), vec![links[0].head()])]),
    );
    assert!(
        told(&gone).starts_with(&format!("{}: entry 1 existed", vault(2))),
        "{}",
        told(&gone)
    );
}

#[test]
fn reader__should_take_an_export_and_say_what_is_in_it() {
    let findings = read(export(4).as_bytes(), KnownHeads::new());
    assert!(findings.whole(), "{}", told(&findings));
    let seen: Vec<_> = findings
        .chains
        .iter()
        .map(|report| (report.chain, report.entries))
        .collect();
    assert_eq!(seen, [(AuditChain::Service, 4), (vault(1), 4)]);
}

#[test]
fn reader__should_name_chain_and_entry() {
    let text = export(4);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let says = |lines: &[&str], expected: &str| {
        let findings = read(lines.concat().as_bytes(), KnownHeads::new());
        assert!(!findings.whole());
        let told = told(&findings);
        assert!(told.contains(expected), "{expected}: {told}");
    };
    // start, 4 of the service, 4 of the vault, 2 heads, end
    assert_eq!(lines.len(), 12);
    let vault = vault(1);
    let mut removed = lines.clone();
    removed.remove(6);
    says(&removed, &format!("{vault}: entry 2 is missing"));
    let mut swapped = lines.clone();
    swapped.swap(6, 7);
    says(
        &swapped,
        &format!("{vault}: entry 2 is out of order: it comes after 3"),
    );
    let changed = lines[6].replace("Event2", "Event9");
    let mut with = lines.clone();
    with[6] = &changed;
    says(&with, &format!("{vault}: entry 2 was modified"));
    // One event of several.
    let changed = lines[6].replace(",{\"event\":\"Then\",\"facts\":{}}", "");
    assert_ne!(changed, lines[6]);
    with[6] = &changed;
    says(&with, &format!("{vault}: entry 2 was modified"));
    let mut twice = lines.clone();
    twice.insert(6, lines[6]);
    says(&twice, &format!("{vault}: entry 2 appears twice"));
    let without: Vec<&str> = lines
        .iter()
        .filter(|line| !line.contains(&vault.to_string()) || line.contains("\"service\""))
        .copied()
        .collect();
    says(
        &without,
        &format!("{vault}: entry 1 and all others are missing: entry 2 of the service's chain"),
    );
    let no_service: Vec<&str> = lines
        .iter()
        .filter(|line| !line.contains("\"chain\":\"service\""))
        .copied()
        .collect();
    says(&no_service, "service: entry 1 is missing");
    says(&lines[..11], "the file has no end: it was truncated");
    says(&lines[1..], "is not the start of an audit log");
    says(&[&lines[..], &lines[4..5]].concat(), "comes after the end");
    says(&[&lines[..11], &lines[10..]].concat(), "has a second head");
    says(&[], "the file has no end");
    let newer = lines[0].replace("\"format\":1", "\"format\":2");
    says(&[&[newer.as_str()], &lines[1..]].concat(), "newer version");
    let mut changed = lines.clone();
    let forged = lines[0].replace("\"atMs\":5", "\"atMs\":6");
    changed[0] = &forged;
    says(
        &changed,
        "sha256 does not match the lines before it: the file was modified",
    );
}

#[test]
fn a_body_of_another_version__should_be_exported_and_checked() {
    let of = vault(1);
    let linked = LinkedEntry::after(None, of, vec![9, 9]).unwrap();
    let line = EntryLine::new(of, &linked);
    assert_eq!(
        (line.entry.as_ref(), line.body.as_deref()),
        (None, Some("0909"))
    );
    assert_eq!(line.linked().unwrap(), (of, linked.clone()));
    let report = check(of, &[linked], vec![]);
    assert_eq!((report.unreadable, report.breaks), (1, vec![]));
}

proptest! {
    #[test]
    fn any_byte_that_is_changed__should_be_found(place: prop::sample::Index, to: u8) {
        let mut bytes = export(3).into_bytes();
        let place = place.index(bytes.len());
        prop_assume!(bytes[place] != to);
        // The line feed of the last line ends nothing.
        prop_assume!(place + 1 < bytes.len());
        bytes[place] = to;
        prop_assert!(!read(&bytes, KnownHeads::new()).whole());
    }

    #[test]
    fn any_byte_that_is_taken_out__should_be_found(place: prop::sample::Index) {
        let mut bytes = export(3).into_bytes();
        let place = place.index(bytes.len() - 1);
        bytes.remove(place);
        prop_assert!(!read(&bytes, KnownHeads::new()).whole());
    }

    /// In the store there is no sum over everything: the chain alone has to show it.
    #[test]
    fn any_change_of_a_link__should_be_named_at_its_number(
        at in 0_usize..6,
        place: prop::sample::Index,
        bit in 0_u8..8,
    ) {
        let of = vault(1);
        let mut links = chain(of, 6);
        let head = Some(links[5].head());
        let linked = &mut links[at];
        let mut bytes = [&linked.previous[..], &linked.hash, &linked.body].concat();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        linked.previous.copy_from_slice(&bytes[..32]);
        linked.hash.copy_from_slice(&bytes[32..64]);
        linked.body = bytes[64..].to_vec();
        let found = found(of, &links, head);
        prop_assert!(!found.is_empty());
        prop_assert!(found.iter().all(|(number, _)| *number == at as u64 + 1), "{found:?}");
    }

    #[test]
    fn any_removal_or_swap__should_be_found(first in 0_usize..8, second in 0_usize..8, swap: bool) {
        let of = vault(1);
        let mut links = chain(of, 8);
        let head = Some(links[7].head());
        if swap {
            prop_assume!(first != second);
            links.swap(first, second);
        } else {
            links.remove(first);
        }
        prop_assert!(!found(of, &links, head).is_empty());
    }

    /// What was done to the line of an entry is named, by its chain and number or its line, and nothing
    /// else is blamed.
    #[test]
    fn any_removal_or_swap_of_lines_of_an_export__should_be_named(
        of_vault: bool,
        first in 1_usize..=6,
        second in 1_usize..=6,
        swap: bool,
    ) {
        let text = export(6);
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        // start, 6 of the service, 6 of the vault, 2 heads, end
        let (of, before) = if of_vault { (vault(1), 6) } else { (AuditChain::Service, 0) };
        let (low, high) = if swap {
            prop_assume!(first != second);
            lines.swap(before + first, before + second);
            (first.min(second), first.max(second) + 1)
        } else {
            lines.remove(before + first);
            (first, first + 1)
        };
        let findings = read(lines.concat().as_bytes(), KnownHeads::new());
        prop_assert!(!findings.whole());
        let breaks: Vec<&ChainBreak> = findings.chains.iter().flat_map(|chain| &chain.breaks).collect();
        prop_assert!(!breaks.is_empty());
        // Where the head is the last that is left, the number before the gap is named.
        let low = low.saturating_sub(1);
        for one in breaks {
            let number = usize::try_from(one.number).unwrap();
            prop_assert!(one.chain == of && (low..=high).contains(&number), "{one}");
        }
    }

    #[test]
    fn any_byte_of_an_entry_that_is_changed__should_be_named(
        of_vault: bool,
        number in 1_usize..=4,
        place: prop::sample::Index,
        to: u8,
    ) {
        let text = export(4);
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let (of, line) = if of_vault { (vault(1), 4 + number) } else { (AuditChain::Service, number) };
        let start: usize = lines[..line].iter().map(|line| line.len()).sum();
        let end = start + lines[line].len();
        let place = start + place.index(lines[line].len() - 1);
        let mut bytes = text.into_bytes();
        prop_assume!(bytes[place] != to);
        let says = |bytes: &[u8]| match serde_json::from_slice(bytes) {
            Ok(ExportLine::Entry(entry)) => entry.linked().ok(),
            _ => None,
        };
        let before = says(&bytes[start..end]);
        bytes[place] = to;
        let told = told(&read(&bytes, KnownHeads::new()));
        // The same in other letters: 0a for 0A.
        let same = says(&bytes[start..end]) == before;
        let names = told.contains(&format!("{of}: entry {number} "))
            || told.contains(&format!("{of}: entries {number} to"))
            || told.contains(&format!("line {}: ", line + 1))
            || same && told.contains("sha256 does not match the lines before it: the file was modified");
        prop_assert!(names, "{of} {number} {line}: {told}");
    }
}
