//! Style and script, in the program.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

/// A file that pages name.
pub struct StaticAsset {
    /// Its media type.
    pub kind: &'static str,
    /// The file.
    pub text: &'static str,
    /// Of this file alone: under it a browser may keep it.
    pub version: String,
    /// What browsers compare it with (Subresource Integrity).
    pub integrity: String,
}

impl StaticAsset {
    fn new(kind: &'static str, text: &'static str) -> Self {
        let hash = Sha256::digest(text);
        Self {
            kind,
            text,
            version: BASE64_URL_SAFE_NO_PAD.encode(hash),
            integrity: format!("sha256-{}", BASE64_STANDARD.encode(hash)),
        }
    }
}

/// How pages look.
pub static STYLE: LazyLock<StaticAsset> = LazyLock::new(|| {
    let text = include_str!("static/console.css");
    StaticAsset::new("text/css; charset=utf-8", text)
});
/// What they do.
pub static SCRIPT: LazyLock<StaticAsset> = LazyLock::new(|| {
    let text = include_str!("static/console.js");
    StaticAsset::new("text/javascript; charset=utf-8", text)
});

/// What a path names.
pub fn fixed(path: &[&str]) -> Option<&'static StaticAsset> {
    match path {
        ["static", "console.css"] => Some(&STYLE),
        ["static", "console.js"] => Some(&SCRIPT),
        _ => None,
    }
}
