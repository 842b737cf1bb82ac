//! Makes code of the protocol file of Tollgate's own gRPC service: the server, and for tests a client.
//! Needs no `protoc`: the file is read by a library.

use std::error::Error;
use std::path::PathBuf;

const FILE: &str = "proto/tollgate/v1/tollgate.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FILE}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // With comments, for reflection.
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler
        .include_source_info(true)
        .open_file("tollgate/v1/tollgate.proto")?;
    std::fs::write(
        out.join("tollgate.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    let client = out.join("client");
    std::fs::create_dir_all(&client)?;
    for (directory, is_client) in [(out, false), (client, true)] {
        tonic_prost_build::configure()
            .build_server(!is_client)
            .build_client(is_client)
            .build_transport(false)
            // Attributes are looked up by name, and a hash would be made for nothing.
            .btree_map(".")
            .out_dir(directory)
            .compile_fds(compiler.file_descriptor_set())?;
    }
    Ok(())
}
