//! Downloads every server of the version matrix, and prints its name and its program.

#![allow(clippy::print_stdout, reason = "a command reports on the terminal")]

use tollgate_rig::versions::{Version, fetch};

fn main() {
    for version in Version::ALL {
        println!("{version}\t{}", fetch(version).display());
    }
}
