//! A client of Tollgate's own gRPC service, made from the protocol file that the server is made from.

#![allow(dead_code)] // Each test file uses its share.
#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use std::collections::BTreeMap;

use tonic::transport::Channel;

pub(crate) use self::pb::tollgate_client::TollgateClient;

/// The messages and the client, made by `build.rs`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "written by a program"
)]
pub(crate) mod pb {
    include!(concat!(env!("OUT_DIR"), "/client/tollgate.v1.rs"));
}

pub(crate) type Client = TollgateClient<Channel>;

pub(crate) fn attributes<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    owned.into()
}

/// A check of one unit.
pub(crate) fn check<const N: usize>(pairs: [(&str, &str); N]) -> pb::CheckRequest {
    pb::CheckRequest {
        attributes: attributes(pairs),
        ..pb::CheckRequest::default()
    }
}
