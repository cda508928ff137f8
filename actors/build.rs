//! Compiles the messages of Sui's nodes with protox, a protobuf compiler in Rust (no protoc is needed), and lists the
//! operations, so that one is a file and nothing else.

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

const SUI: &str = "src/chain_rpc/sui";
const OPERATIONS: &str = "src/operations";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script in variables where the crate is and where to write"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={SUI}/sui.proto");
    let messages = protox::compile(["sui.proto"], [SUI])?;
    prost_build::Config::new()
        .skip_protoc_run()
        .compile_fds(messages)?;

    println!("cargo:rerun-if-changed={OPERATIONS}");
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(OPERATIONS);
    let out = PathBuf::from(env::var("OUT_DIR")?).join("operations.rs");
    fs::write(out, operations(&folder)?)?;
    Ok(())
}

/// The code that src/operations/mod.rs includes: a module for each operation of the folder, and all of their types.
fn operations(folder: &Path) -> Result<String, Box<dyn Error>> {
    let mut operations = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let (Some(name), true) = (name, path.extension().is_some_and(|end| end == "rs")) else {
            continue;
        };
        if name == "mod" {
            continue;
        }
        let code = fs::read_to_string(&path)?;
        let operation = code
            .lines()
            .find_map(|line| line.strip_prefix("impl Operation for ")?.strip_suffix(" {"))
            .ok_or_else(|| format!("{}: has no `impl Operation for`", path.display()))?;
        operations.insert(name.to_owned(), (operation.to_owned(), path));
    }
    let mut code = String::new();
    let mut types = String::new();
    for (module, (operation, path)) in operations {
        writeln!(code, "#[path = {path:?}]\nmod {module};")?;
        writeln!(types, "    {module}::{operation},")?;
    }
    writeln!(code, "operations! {{\n{types}}}")?;
    Ok(code)
}
