//! Compiles the schema with protox, a protobuf compiler in Rust: no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

/// TRON's messages stand beside the code that reads them.
const TRON: &str = "src/networks/tron";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script where to write in OUT_DIR"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_file("platform.proto")?;
    compiler.open_file("admin.proto")?;
    // The bytes keep the custom field options, which a decoded FileDescriptorSet drops.
    fs::write(
        out.join("schema.fds"),
        compiler.encode_file_descriptor_set(),
    )?;
    let set =
        prost_types::FileDescriptorSet::decode(compiler.encode_file_descriptor_set().as_slice())?;
    prost_build::Config::new()
        .out_dir(&out)
        .skip_protoc_run()
        .enable_type_names()
        .btree_map(["."])
        // They hold secrets: schema/mod.rs has their own Debug.
        .skip_debug([
            "covault.admin.v1.CreateTokenResponse",
            "covault.admin.v1.ConfigureSweepRequest",
            "covault.admin.v1.ConfigureSweepResponse",
            "covault.admin.v1.SweepNetwork",
            "covault.admin.v1.UserLink",
        ])
        .compile_fds(set)?;
    println!("cargo:rerun-if-changed={TRON}/tron.proto");
    prost_build::Config::new()
        .skip_protoc_run()
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .compile_fds(protox::compile(["tron.proto"], [TRON])?)?;
    Ok(())
}
