//! A client of Tollgate's own gRPC service, generated with the server.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::collections::BTreeMap;

use tonic::transport::Channel;

pub(crate) use pb::tollgate_client::TollgateClient;
pub(crate) use tollgate_server::grpc::proto::tollgate::v1 as pb;

pub(crate) type Client = TollgateClient<Channel>;

pub(crate) fn attributes<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    owned.into()
}

/// Makes a check of one unit.
pub(crate) fn check<const N: usize>(pairs: [(&str, &str); N]) -> pb::CheckRequest {
    pb::CheckRequest {
        attributes: attributes(pairs),
        ..pb::CheckRequest::default()
    }
}
