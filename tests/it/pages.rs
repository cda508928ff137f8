//! The pages for those who change the program: what they name is there, and code that they show is the code.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every file below a folder, relative to the project.
fn files_below(project: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if ["target", ".git", "node_modules", "venv"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            files_below(project, &path, found);
        } else {
            let place = path.strip_prefix(project).unwrap();
            found.push(place.to_str().unwrap().to_owned());
        }
    }
}

/// Whether a file is the one of this name, or in the folder of this name. Pages leave out the folders that a reader
/// knows; `<network>` and `*` stand for anything.
fn is_named(file: &str, name: &str) -> bool {
    let matches = |part: &str, named: &str| match named.split_once('*') {
        Some((start, end)) => part.starts_with(start) && part.ends_with(end),
        None => part == named || named.starts_with('<'),
    };
    let parts: Vec<&str> = file.split('/').collect();
    let named: Vec<&str> = name.trim_end_matches('/').split('/').collect();
    parts.windows(named.len()).any(|window| {
        let mut pairs = window.iter().zip(&named);
        pairs.all(|(part, named)| matches(part, named))
    })
}

/// What a text has in backquotes, outside blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside
        .flat_map(|text| text.split('`').skip(1).step_by(2))
        .collect()
}

fn is_file_name(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./<>*-".contains(&byte);
    let is_source = [".rs", ".md", ".proto", ".toml", ".json", ".sql"]
        .iter()
        .any(|end| word.ends_with(end));
    word.bytes().all(plain) && !word.starts_with('/') && (word.contains('/') || is_source)
}

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(project().join(name)).unwrap()
}

#[test]
fn pages__should_name_files_that_exist() {
    let (project, mut files) = (project(), Vec::new());
    files_below(&project, &project, &mut files);
    let is_page = |name: &&String| {
        name.starts_with("docs/adding-")
            || *name == "docs/architecture.md"
            || ["core", "actors", "mpc", "src"]
                .iter()
                .any(|folder| **name == format!("{folder}/README.md"))
    };
    let pages: Vec<&String> = files.iter().filter(is_page).collect();
    assert!(pages.len() >= 11, "{pages:?}");
    let mut missing = Vec::new();
    for name in pages {
        let text = page(name);
        let words = quoted(&text).into_iter().filter(|word| is_file_name(word));
        for word in words {
            if !files.iter().any(|file| is_named(file, word)) {
                missing.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn readme_of_a_crate__should_name_each_of_its_modules() {
    let mut missing = Vec::new();
    for (readme, sources) in [
        ("core/README.md", "core/src"),
        ("actors/README.md", "actors/src"),
        ("mpc/README.md", "mpc/src"),
        ("src/README.md", "src"),
    ] {
        let text = page(readme);
        let named: Vec<&str> = quoted(&text)
            .into_iter()
            .flat_map(|word| word.split('/'))
            .map(|part| part.trim_end_matches(".rs"))
            .collect();
        for entry in fs::read_dir(project().join(sources)).unwrap() {
            let path = entry.unwrap().path();
            let is_source = path.is_dir() || path.extension().is_some_and(|end| end == "rs");
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_root_or_test = name == "lib" || name.ends_with("_tests");
            if is_source && !is_root_or_test && !named.contains(&name) {
                missing.push(format!("{readme}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn map__should_name_what_is_in_the_files() {
    let (project, mut files) = (project(), Vec::new());
    files_below(&project, &project, &mut files);
    let map = page("docs/architecture.md");
    let mut checked = 0;
    // The second column of the table says where: files, and what of them.
    for row in map.lines().filter(|line| line.starts_with("| ")) {
        let Some(place) = row.split('|').nth(2) else {
            continue;
        };
        let (names, parts): (Vec<_>, Vec<_>) = quoted(place)
            .into_iter()
            .partition(|word| is_file_name(word));
        let sources = names.iter().flat_map(|name| {
            let named = files.iter().filter(|file| is_named(file, name));
            named.map(|file| page(file)).collect::<Vec<_>>()
        });
        let source: String = sources.collect();
        for part in parts.iter().filter(|_| !names.is_empty()) {
            let last = part.rsplit("::").next().unwrap();
            assert!(source.contains(last), "{row}\n{part} is not in {names:?}");
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked}");
}

#[test]
fn example_of_an_operation__should_be_the_one_in_the_program() {
    let text = page("docs/adding-an-operation.md");
    let mut blocks = text.split("```").skip(1).step_by(2);
    let mut block = |language: &str| {
        let block = blocks.next().and_then(|block| block.strip_prefix(language));
        block.unwrap().trim_start_matches('\n').to_owned()
    };
    let (schema, file) = (block("proto"), block("rust"));
    let proto = page("core/proto/platform.proto");
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    // The service has other methods, too.
    let (service, messages) = schema.split_once("\n}\n").unwrap();
    let (_, method) = service.split_once("{\n").unwrap();
    for part in std::iter::once(method).chain(messages.split("\n\n")) {
        let part = lines(part.trim_matches('\n'));
        let found = lines(&proto)
            .windows(part.len())
            .any(|window| window == part);
        assert!(found, "not in the schema: {part:#?}");
    }
    assert_eq!(file, page("actors/src/operations/update_wallet.rs"));
}

#[test]
fn recipes__should_be_there_that_pages_name() {
    let project = project();
    let justfile = fs::read_to_string(project.join("justfile")).unwrap();
    let recipes: Vec<_> = justfile
        .lines()
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .filter_map(|line| line.split([' ', ':']).next())
        .collect();
    let mut files = Vec::new();
    files_below(&project, &project, &mut files);
    let mut missing = Vec::new();
    for file in files.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(project.join(file)).unwrap();
        for words in quoted(&text) {
            let Some(named) = words.strip_prefix("just ") else {
                continue;
            };
            let name = named.split(' ').next().unwrap();
            if !recipes.contains(&name) {
                missing.push(format!("{file}: just {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn files__should_have_no_marks_of_a_merge() {
    let project = project();
    let mut files = Vec::new();
    files_below(&project, &project, &mut files);
    let has_marks = |file: &&String| {
        let text = fs::read(project.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines()
            .any(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "))
    };
    let marked: Vec<_> = files.iter().filter(has_marks).collect();
    assert!(marked.is_empty(), "{marked:?}");
}
