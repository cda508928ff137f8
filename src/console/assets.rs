//! Style and script: one file each, in the program.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("static/console.css");
const SCRIPT: &str = include_str!("static/console.js");

/// Of style and script: pages name them with it, so that a browser never has an old one.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let hash = Sha256::digest([STYLE, SCRIPT].concat());
    hex::encode(hash.get(..8).unwrap_or_default())
});

/// The kind and the text of what a path names.
pub fn fixed(path: &[&str]) -> Option<(&'static str, &'static str)> {
    match path {
        ["static", "console.css"] => Some(("text/css; charset=utf-8", STYLE)),
        ["static", "console.js"] => Some(("text/javascript; charset=utf-8", SCRIPT)),
        _ => None,
    }
}
