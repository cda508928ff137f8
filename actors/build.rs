//! Compiles the messages of Sui's nodes with protox, a protobuf compiler in Rust: no protoc is
//! needed.

use std::error::Error;

const FOLDER: &str = "src/chain_rpc/sui";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}/sui.proto");
    let messages = protox::compile(["sui.proto"], [FOLDER])?;
    prost_build::Config::new()
        .skip_protoc_run()
        .compile_fds(messages)?;
    Ok(())
}
