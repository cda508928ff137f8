//! The page about adding a network names every file of the program that a network stands in.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The network that the page takes as its example.
const NETWORK: &str = "stellar";

/// Files below a folder that name the network, relative to the project.
fn naming(project: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_test = name.starts_with("test") || name.ends_with("_tests.rs");
        // Its own files, other people's, and what is built.
        if is_test || name.starts_with(NETWORK) || ["swagger-ui", "target", "fuzz"].contains(&name)
        {
            continue;
        }
        if path.is_dir() {
            naming(project, &path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let text = text.split("#[cfg(test)]").next().unwrap();
        if text.to_lowercase().contains(NETWORK) {
            let place = path.strip_prefix(project).unwrap();
            found.insert(place.to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn the_page_about_adding_a_network__should_name_every_place() {
    let project = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    for folder in [
        "core/src",
        "core/proto",
        "actors/src",
        "mpc/src",
        "src",
        "deploy",
    ] {
        naming(&project, &project.join(folder), &mut found);
    }
    for manifest in [
        "Cargo.toml",
        "core/Cargo.toml",
        "actors/Cargo.toml",
        "mpc/Cargo.toml",
    ] {
        let text = fs::read_to_string(project.join(manifest)).unwrap();
        if text.contains(NETWORK) {
            found.insert(manifest.to_owned());
        }
    }
    let page = fs::read_to_string(project.join("docs/adding-a-network.md")).unwrap();
    // Tables name files with their folders, in backquotes.
    let (tables, _) = page.split_once("\n## ").unwrap();
    let named: BTreeSet<String> = tables
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|place| project.join(place).is_file() && !place.contains(NETWORK))
        .filter(|place| !place.starts_with("tests/"))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, found);
}
