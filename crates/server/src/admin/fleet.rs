//! `GET /v1/fleet`: the instances that share the store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use utoipa::openapi::path::OperationBuilder;

use super::Admin;
use crate::describe::{Describe, looking};
use crate::fleet::FleetBody;
use crate::respond;

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    respond::report(&admin.control.fleet().list(&admin.control).await)
}

pub(super) fn describe() -> OperationBuilder {
    looking("fleet")
        .summary(Some(
            "The instances that share the store and the namespace.",
        ))
        .ok::<FleetBody>("This instance first. With state in memory there is only this one.")
}
