//! Generates Rust code from the protocol files of both gRPC services: messages, servers and clients.
//! A library reads the files, so the build needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;

/// The files that define a service. The files that they import are found beside them.
const SERVICES: [&str; 2] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "tollgate/v1/tollgate.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    // Reflection shows comments, and its clients ask for imported files.
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(SERVICES)?;
    std::fs::write(
        out.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    tonic_prost_build::configure()
        .build_transport(false)
        // A service looks attributes up by name only a few times, so a hash table would not be faster.
        .btree_map(".")
        .include_file("services.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
