//! The version of the program, and which versions work together.

/// The version of this program.
pub fn this_version() -> &'static str {
    #[cfg(debug_assertions)]
    if let Some(other) = PASSED_FOR.get() {
        return other;
    }
    env!("CARGO_PKG_VERSION")
}

#[cfg(debug_assertions)]
static PASSED_FOR: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Has the program pass for another version, for a test of several: releases, which are optimized, cannot. The first call
/// counts.
#[cfg(debug_assertions)]
pub fn pass_for(version: String) {
    let _ = PASSED_FOR.set(version);
}

/// Of the programs that work together, the minor versions are neighbours (docs/upgrading.md).
const MOST_APART: u64 = 1;

/// Whether a process of one version works with a process of another one. What is no version works with none.
pub fn works_with(own: &str, other: &str) -> bool {
    let (Some(own), Some(other)) = (release(own), release(other)) else {
        return false;
    };
    own.0 == other.0 && own.1.abs_diff(other.1) <= MOST_APART
}

/// Major and minor of `1.2.3` or `1.2.3-pre`.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split('.');
    let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
    let patch = patch.split(['-', '+']).next()?;
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let _: u64 = number(patch)?;
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn versions__should_work_with_their_neighbours() {
        for (one, other) in [
            ("0.1.0", "0.1.0"),
            ("0.1.0", "0.2.7"),
            ("0.3.0-rc.1", "0.2.9"),
            ("1.4.0", "1.5.0+build.7"),
        ] {
            assert!(
                works_with(one, other) && works_with(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("0.1.0", "0.3.0"),
            ("0.9.0", "1.0.0"),
            ("1.0.0", "2.0.0"),
            ("0.1.0", ""),
            ("0.1.0", "0.1"),
            ("0.1.0", "0.+1.0"),
            ("0.1.0", "latest"),
            ("", ""),
        ] {
            assert!(
                !works_with(one, other) && !works_with(other, one),
                "{one} {other}"
            );
        }
    }
}
