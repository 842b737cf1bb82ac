//! The conformance suite on a real server: the same answers as in memory.

mod common;

tollgate_conformance::conformance_suite! {
    fixture: common::OnRedis::start(),
    block_on: common::block_on,
    steps: common::steps(),
}
