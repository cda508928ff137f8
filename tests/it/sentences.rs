//! No code reads a sentence to decide something: what is decided by has a variant, a flag or a code.

use std::{collections::BTreeSet, fs, path::Path};

/// Ways to look into a text, before its name.
const LOOKS: [&str; 9] = [
    "contains(",
    "starts_with(",
    "ends_with(",
    "strip_prefix(",
    "strip_suffix(",
    "split_once(",
    "find(",
    "== ",
    "!= ",
];
/// Ways to look into it, after its name.
const LOOKS_AFTER: [&str; 3] = [" ==", " !=", " =>"];
/// Names of what holds a sentence, when it is looked into.
const SENTENCES: [&str; 6] = [
    "reason",
    "problem",
    "message()",
    "sentence",
    "detail",
    "why",
];

/// The code of every file below a folder, each as one line without comments and tests.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["suite", "testing", "conformance"].contains(&name) || name.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("\nmod tests {").next().unwrap();
            let lines = code.lines().map(str::trim);
            let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
            // A chain of calls that is broken into lines is one call.
            let code = lines.join(" ").replace(" .", ".").replace("( ", "(");
            found.push((path.to_str().unwrap().to_owned(), code));
        }
    }
}

/// The constants of a file, and whether each is a sentence: a text of three words or more.
fn constants(code: &str) -> impl Iterator<Item = (&str, bool)> {
    code.split("const ").skip(1).filter_map(|constant| {
        let (name, rest) = constant.split_once(": ")?;
        let text = rest.strip_prefix("&str = \"").unwrap_or_default();
        let words = text
            .split('"')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        Some((name, words.count() >= 3))
    })
}

/// Whether the code has these words, and no longer ones.
fn has(code: &str, words: &str) -> bool {
    let goes_on =
        |after: &str| after.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    let mut found = code.match_indices(words);
    found.any(|(at, _)| !goes_on(&code[at + words.len()..]))
}

#[test]
fn code__should_read_no_sentence() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut read, mut count) = (Vec::new(), 0);
    for folder in ["core/src", "actors/src", "mpc/src", "src"] {
        let mut files = Vec::new();
        sources(&project.join(folder), &mut files);
        // What chain nodes say is theirs, and all there is to go by.
        files.retain(|(file, _)| !file.contains("/chain_rpc/") || !file.ends_with("/refusals.rs"));
        let sentences = files.iter().flat_map(|(_, code)| constants(code));
        let sentences: BTreeSet<&str> = sentences
            .filter_map(|(name, is)| is.then_some(name))
            .collect();
        count += sentences.len();
        for (file, code) in &files {
            let others: BTreeSet<&str> = constants(code)
                .filter_map(|(name, is)| (!is).then_some(name))
                .collect();
            let mut looks: Vec<String> = sentences
                .difference(&others)
                .flat_map(|name| {
                    let before = LOOKS.iter().map(move |look| format!("{look}{name}"));
                    before.chain(LOOKS_AFTER.iter().map(move |look| format!("{name}{look}")))
                })
                .collect();
            if !file.contains("/chain_rpc/") {
                let into = |name| LOOKS[..7].iter().map(move |look| format!("{name}.{look}"));
                looks.extend(SENTENCES.iter().flat_map(into));
            }
            let found = looks
                .into_iter()
                .filter(|look| has(code, look) || look.ends_with('(') && code.contains(look));
            read.extend(found.map(|look| format!("{file}: {look}")));
        }
    }
    assert!(count >= 15, "{count} sentences were found");
    assert!(read.is_empty(), "{read:#?}");
}
